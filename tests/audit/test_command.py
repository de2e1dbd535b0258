"""The command: its table, its JSON, its exit code, its picture; and releases on disk, sound and doctored."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from adlm.audit import runner
from adlm.audit.artefact import audit_release
from adlm.audit.controls import float_laplace
from adlm.audit.finding import ALPHA, COMMAND_ALPHA, MOST_TESTS, VIOLATED, Finding
from adlm.audit.paper_subjects import image_domain, paper_settings
from adlm.audit.runner import Audit, Depth
from adlm.cli.audit import audit
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.mechanisms.moments import release as release_moments
from adlm.curator.mechanisms.record_release import release as release_records
from adlm.curator.mechanisms.records import PrivateRecords
from adlm.curator.mechanisms.second_moments import CrossMoments, Second
from adlm.curator.noise import Source
from adlm.privacy.release import Release
from adlm.public.domain import Domain
from adlm.public.domain.column import Column
from adlm.public.domain.table import TableDomain
from adlm.public.features.identity import Identity
from adlm.workflows.privatise import privatise

TINY = Depth(runs=200, evaluations=10, whole_releases=20, support=2000, canaries=20, reading=10)
app = typer.Typer()
app.command()(audit)


def release(design: MomentConfig, source: Source, relation: str = "replace-one") -> Release:
    rng = np.random.default_rng(0)
    return release_moments(
        lambda: [(rng.normal(size=(30, design.k)), np.arange(30) % 3)],
        domain=Domain((design.k,), 0.0, 1.0, ("a", "b", "c"), relation),
        features=Identity((design.k,)),
        config=design,
        ledger=Ledger(),
        source=source,
    )


PURE = MomentConfig(Fraction(1), Fraction(0), 4, 1.0)
STAGED = Second(3, "means", 0.5, around="means", cross=CrossMoments(0.5, 0.5, Fraction(1, 2)))
DESIGNS = {
    "pure": PURE,
    "adaptive": replace(PURE, scales=(1.0, 2.0, 3.0, 0.5)),
    "radial": replace(PURE, pure="radial"),
    "pure with second moments": replace(PURE, second=Second(3)),
    "joint": replace(PURE, delta=Fraction(1, 10**5), second=Second(4)),
    "two parts": replace(PURE, delta=Fraction(1, 10**5), second=Second(4, clip_norm=0.5)),
    "radial, in stages": replace(PURE, pure="radial", second=STAGED),
    "gaussian, in stages": replace(PURE, delta=Fraction(1, 10**5), second=STAGED),
    "gaussian": replace(PURE, delta=Fraction(1, 10**5), contributions=3),
}


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_a_sound_release_passes(design: MomentConfig, relation: str, tmp_path: Path) -> None:
    release(design, Source.system(), relation).save(tmp_path / "R")
    findings = audit_release(tmp_path / "R", 2000, Source.seeded_with(7))
    assert [f.verdict for f in findings] == ["holds"] * len(findings)
    assert len(findings) >= 2


@pytest.mark.parametrize("delta", [0, "1e-5"])
def test_a_release_by_private_relevance_passes_and_a_cheaper_first_one_does_not(
    delta: object, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((3000, 5)), rng.integers(0, 2, 3000).astype(str)
    domain = Domain((5,), 0.0, 1.0, ("0", "1"))
    made = privatise(x, y, domain=domain, epsilon=4, delta=delta, relevance="private", allocation="optimal")
    made.save(tmp_path / "R")
    findings = audit_release(tmp_path / "R", 1000, Source.seeded_with(7))
    assert [f.verdict for f in findings] == ["holds"] * len(findings)
    assert findings[1].mechanism.endswith("for private relevances")
    first, *others = made.certificate.charges
    cheap = replace(first, sensitivity=first.sensitivity / 2)
    Release(made.tensors, replace(made.certificate, charges=(cheap, *others))).save(tmp_path / "S")
    assert audit_release(tmp_path / "S", 200, Source.seeded_with(7))[0].verdict == VIOLATED


def test_a_sound_record_release_passes_and_a_doctored_one_does_not(tmp_path: Path) -> None:
    """What the paper claims is far below what is proved: that is no violation, and is said."""
    rng = np.random.default_rng(0)
    made = release_records(
        PrivateRecords(rng.random((5, 28, 28)), np.arange(5), image_domain()),
        paper_settings(),
        relevance=None,
        ledger=Ledger(),
        source=Source.system(),
    )
    made.save(tmp_path / "R")
    findings = audit_release(tmp_path / "R", 5000, Source.seeded_with(7))
    assert [f.verdict for f in findings] == ["holds", "above claim", "above claim"]
    doctored(made, batch_size=3600).save(tmp_path / "S")
    assert audit_release(tmp_path / "S", 200, Source.seeded_with(7))[0].verdict == VIOLATED


def test_a_sound_table_release_passes_and_a_doctored_one_does_not(tmp_path: Path) -> None:
    table = TableDomain(
        (Column("age", "numeric", 0, 1), Column("ill", "boolean"), Column("y", "label", classes=("a", "b")))
    )
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 2)).round().astype(np.float32), rng.integers(0, 2, 40)
    made = privatise(lambda: [(x, y)], domain=table, epsilon=1, source=Source.system())
    made.save(tmp_path / "R")
    findings = audit_release(tmp_path / "R", 2000, Source.seeded_with(7))
    assert [f.verdict for f in findings] == ["holds"] * len(findings)
    doctored(made, contributions=5).save(tmp_path / "S")
    assert audit_release(tmp_path / "S", 200, Source.seeded_with(7))[0].verdict == VIOLATED


def test_a_seeded_release_is_violated(tmp_path: Path) -> None:
    release(PURE, Source.seeded_with(1)).save(tmp_path / "R")
    result = CliRunner().invoke(app, ["--release", str(tmp_path / "R"), "--runs", "200", "--quiet"])
    assert result.exit_code == 1
    assert "NOT SOUND" in result.stdout


def doctored(made: Release, **changes: object) -> Release:
    """Alter settings and sign again, as somebody could who makes releases with another program."""
    settings = MappingProxyType({**made.certificate.settings, **changes})
    return Release(made.tensors, replace(made.certificate, settings=settings))


def test_stated_noise_that_was_not_charged_is_violated(tmp_path: Path) -> None:
    made = release(PURE, Source.system())
    doctored(made, sd_sums=made.certificate.settings["sd_sums"] / 2).save(tmp_path / "R")
    finding = audit_release(tmp_path / "R", 200, Source.seeded_with(7))[0]
    assert finding.verdict == VIOLATED
    assert "was charged" in finding.note


def test_a_sensitivity_below_that_of_the_settings_is_violated(tmp_path: Path) -> None:
    doctored(release(PURE, Source.system()), contributions=2).save(tmp_path / "R")
    finding = audit_release(tmp_path / "R", 200, Source.seeded_with(7))[0]
    assert finding.verdict == VIOLATED
    assert "should be" in finding.note


def test_joint_noise_that_is_too_small_is_violated(tmp_path: Path) -> None:
    made = release(DESIGNS["joint"], Source.system())
    doctored(made, sd_second_diagonal=made.certificate.settings["sd_second_diagonal"] / 2).save(
        tmp_path / "R"
    )
    finding = audit_release(tmp_path / "R", 200, Source.seeded_with(7))[0]
    assert finding.verdict == VIOLATED
    assert "mu^2" in finding.note


def test_the_whole_audit_is_sound_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Depth", lambda: TINY)
    result = CliRunner().invoke(app, ["--json", "--quiet", "--picture", str(tmp_path / "roc.png")])
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
    assert (tmp_path / "roc.png").read_bytes()[:4] == b"\x89PNG"


def test_exit_code_and_sentence_on_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Finding("two worlds", "broken", "replace-one", Fraction(1), Fraction(1), 1.5, 0.99998, 10)
    monkeypatch.setattr(runner, "run", lambda *a, **k: Audit((broken,), None, 0.0))
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 1
    assert "VIOLATED" in result.stdout
    assert "0 of 1 attacks" in result.stdout


def test_a_control_that_is_not_caught_fails_the_command() -> None:
    caught = float_laplace(0, Source.seeded_with(7))
    assert Audit((caught,), None, 0.0).sound
    assert not Audit((replace(caught, lower=0.0),), None, 0.0).sound


def test_false_alarm_rate_is_what_is_stated() -> None:
    assert pytest.approx(COMMAND_ALPHA) == ALPHA * MOST_TESTS
    assert 20 * COMMAND_ALPHA <= 0.02  # of any alarm in twenty commands
