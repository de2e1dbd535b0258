"""What `help` shows of the public surface: every part is described, and the examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
from typing import Any

import pytest

import adlm

PUBLIC = [name for name in adlm.__all__ if name != "__version__"]
MODULES = sorted({getattr(adlm, name).__module__ for name in PUBLIC})


def public_methods(kind: type) -> list[tuple[str, Any]]:
    """Methods and constructors of a class of ours that take an argument and are written in this package."""
    found = []
    for name, member in inspect.getmembers(kind):
        function = getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        if function.__module__.startswith("adlm") and len(inspect.signature(function).parameters) > 1:
            found.append((name, function))
    return found


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_shows_a_line_of_use(name: str) -> None:
    thing = getattr(adlm, name)
    text = inspect.getdoc(thing) or ""
    module = importlib.import_module(thing.__module__).__doc__ or ""
    assert ">>> " in text or f"{name}(" in module, f"{name} shows no line of use"


@pytest.mark.parametrize("function", [adlm.fit, adlm.privatise])
def test_a_public_function_says_what_it_takes_gives_and_refuses(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    for section in ("Parameters", "Returns", "Raises", "Examples"):
        assert f"{section}\n-----" in text, f"{function.__name__} has no section {section}"


@pytest.mark.parametrize("name", ["Budget", "Ledger", "Model", "Release", "AdLMClassifier", "AdLMRegressor"])
def test_methods_that_a_person_calls_are_described(name: str) -> None:
    kind = getattr(adlm, name)
    assert len(inspect.getdoc(kind) or "") > 200
    for method, function in public_methods(kind):
        assert len((inspect.getdoc(function) or "").split()) >= 5, f"{name}.{method} is not described"


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_the_public_surface_run(module: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(module))
    assert failed == 0
