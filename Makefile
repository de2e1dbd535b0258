# Two commands do all their own set-up: `make demo` and `make test`. Slower work: bench, reproduce, audit, docs.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.run-$(shell cat requirements.lock requirements-torch.lock pyproject.toml Makefile | sha256sum | cut -c1-12)
DEV := .venv/.dev-$(shell cat requirements*.lock pyproject.toml Makefile | sha256sum | cut -c1-12)
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check

.PHONY: help demo test pytest lint bench reproduce audit docs clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

$(RUN):
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -r requirements-torch.lock & $(PIP) --no-deps -r requirements.lock && wait $$!
	$(PIP) --no-deps --no-build-isolation --editable .
	rm -f .venv/.run-* && touch $@

$(DEV): $(RUN)
	$(PIP) --no-deps -r requirements-dev.lock
	rm -f .venv/.dev-* && touch $@

demo: $(RUN) ## Release, certificate, training, accuracy and a report on data that needs no download
	rm -rf out/demo
	$(BIN)/adlm demo --out out/demo

lint: $(DEV) ## ruff, mypy and the wall
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

pytest: $(DEV) ## The tests alone
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --dist worksteal -q

test: ## Everything CI runs: lint and tests, side by side
	@$(MAKE) --no-print-directory -j2 lint pytest

bench: $(DEV) ## Ratios of speed and memory, side by side in one run
	$(BIN)/adlm bench --out out/bench

reproduce: $(DEV) ## The quick presets of every experiment, resumed where they stopped
	$(BIN)/adlm experiment all --preset quick --resume
	$(BIN)/adlm experiment tables --resume

audit: $(DEV) ## The audit, with the controls that must be caught, and a long search over readers
	$(BIN)/python -m tests.audit.long_reading & readers=$$!; $(BIN)/adlm audit --controls && wait $$readers

docs: $(DEV) ## The documentation, strictly
	$(BIN)/mkdocs build --strict

clean: ## Remove what was built, not the environment
	rm -rf out site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
