"""Imbalance: recall by class where models are measured, a warning where a class is below its noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.declared import AGE_COLUMN, column
from tests.report import artefacts
from typer.testing import CliRunner

from adlm import Domain, privatise
from adlm.cli.app import app
from adlm.domain.table import TableDomain
from adlm.model.fit import sentences, small_classes
from adlm.report import write_report
from adlm.runtime import progress

TOML = AGE_COLUMN + column("ill", "label", classes=("no", "yes", "rare"))
runner = CliRunner()


def table(path: Path, rare: int) -> Path:
    rows = [f"{i % 100},{'yes' if i % 100 > 50 else 'no'}" for i in range(3000)] + ["50,rare"] * rare
    path.write_text("\n".join(["age,ill", *rows]) + "\n")
    path.with_suffix(".toml").write_text(TOML)
    return path


def test_a_class_without_records_is_smaller_than_its_noise_and_large_ones_are_not(tmp_path: Path) -> None:
    """The seed is fixed, so nothing here is left to chance."""
    made = privatise(table(tmp_path / "t.csv", 0), domain=TableDomain.from_toml(TOML), epsilon=4, seed=1)
    (found,) = small_classes(made)
    assert found.name == "rare"
    assert found.count <= 2 * found.sd
    assert "class 'rare' may be smaller than its noise" in found.sentence()
    large = privatise(table(tmp_path / "t.csv", 1000), domain=TableDomain.from_toml(TOML), epsilon=4, seed=1)
    assert small_classes(large) == ()


def test_counts_of_a_moment_release_are_read_in_their_own_units() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((2000, 4)), np.r_[np.zeros(1000, int), np.ones(1000, int)]
    domain = Domain((4,), 0, 1, ("a", "b", "c"))
    made = privatise(x, y, domain=domain, epsilon=4, k=4, seed=1)
    assert [s.name for s in small_classes(made)] == ["c"]
    moments = made.moments()
    (found,) = small_classes(made)
    assert found.sd == pytest.approx(moments.sd_counts)
    assert found.count == pytest.approx(float(moments.counts[2]))
    assert small_classes(artefacts.noisy_records()) == ()  # it holds no counts


def test_counts_that_are_merely_noisy_say_nothing_against_their_classes() -> None:
    """Ten even classes whose counts have little of the budget; seeded. With almost none, all are named."""
    rng = np.random.default_rng(0)
    x, y = rng.random((1500, 4)), np.arange(1500) % 10
    domain = Domain((4,), 0, 1, tuple("abcdefghij"))
    noisy = privatise(x, y, domain=domain, epsilon=2, k=4, seed=3)
    counts, sd = noisy.moments().counts, noisy.moments().sd_counts
    assert float(counts.min()) <= 2 * sd < 300
    assert small_classes(noisy) == ()
    hopeless = privatise(x, y, domain=domain, epsilon="1/50", k=4, seed=3)
    assert len(small_classes(hopeless)) == 10
    told = sentences(small_classes(hopeless))
    assert len(told) == 6
    assert told[-1] == "and so may be 5 more classes"


def test_the_commands_warn_and_tell_recall_by_class(tmp_path: Path) -> None:
    progress.enable(False)
    file = table(tmp_path / "t.csv", 2)

    def run(*words: str) -> tuple[str, str]:
        done = runner.invoke(app, [str(w) for w in words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout, done.stderr

    out = [str(tmp_path / name) for name in ("R", "M", "e.json", "l", "r.html")]
    run("release", str(file), "--domain", str(file.with_suffix(".toml")), "--epsilon", "4", "--seed", "1",
        "--ledger", out[3], "--out", out[0], "--quiet")  # fmt: skip
    said, warned = run("train", out[0], "--out", out[1], "--json")
    assert [s["class"] for s in json.loads(said)["small_classes"]] == ["rare"]
    assert "adlm: warning: class 'rare' may be smaller than its noise" in warned
    said, warned = run("evaluate", out[1], str(file), "--save", out[2], "--json")
    found = json.loads(said)
    assert "class 'rare' may be smaller than its noise" in warned
    assert len(found["recalls"]) == 3
    assert found["balanced_accuracy"] == pytest.approx(np.mean(found["recalls"]))
    assert found["small_classes"][0]["class"] == "rare"
    shown, _ = run("evaluate", out[1], str(file))
    assert "recall" in shown
    assert f"balanced {found['balanced_accuracy']:.4f}" in shown
    write_report(Path(out[1]), Path(out[4]), evaluation=found)
    page = Path(out[4]).read_text()
    assert "may be smaller than its noise" in page
    assert "Recall by class" in page
    assert f"{found['recalls'][0]:.1%}" in page
