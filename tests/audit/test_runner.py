"""The command: its table, its JSON and its exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from typer.testing import CliRunner

from adlm.audit import runner
from adlm.audit.runner import Audit, Depth, float_laplace
from adlm.audit.statistics import ALPHA, COMMAND_ALPHA, MOST_TESTS, Finding
from adlm.cli.app import app
from adlm.privacy.noise import Source

TINY = Depth(runs=2000, evaluations=8, minima=10, canaries=20)


def test_the_whole_audit_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Depth", lambda: TINY)
    result = CliRunner().invoke(app, ["audit", "--json", "--quiet"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["sound"]
    assert figures["violations"] == 0
    keys = {"mechanism", "neighbours", "epsilon_claimed", "epsilon_proved", "epsilon_lower", "confidence",
            "runs", "verdict"}  # fmt: skip
    assert all(keys <= set(finding) for finding in figures["findings"])
    tests = [f for f in figures["findings"] if f["confidence"] < 1]
    assert len(tests) <= MOST_TESTS
    assert {f["neighbours"] for f in tests} >= {"replace-one", "add-remove"}


def test_exit_code_and_sentence_on_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Finding("distinguishing", "broken", "replace-one", Fraction(1), Fraction(1), 1.5, 0.99998, 10)
    monkeypatch.setattr(runner, "run", lambda *a, **k: Audit((broken,), 0.0))
    result = CliRunner().invoke(app, ["audit"])
    assert result.exit_code == 1
    assert "VIOLATED" in result.stdout
    assert "0 of 1 attacks" in result.stdout


def test_a_control_that_is_not_caught_fails_the_command() -> None:
    caught = float_laplace(0, Source.seeded_with(7))
    assert Audit((caught,), 0.0).sound
    assert not Audit((replace(caught, lower=0.0),), 0.0).sound


def test_false_alarm_rate_is_what_is_stated() -> None:
    assert pytest.approx(COMMAND_ALPHA) == ALPHA * MOST_TESTS
    assert 20 * COMMAND_ALPHA <= 0.02  # of any alarm in twenty commands
