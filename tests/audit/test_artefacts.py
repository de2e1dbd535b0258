"""Releases on disk, sound and altered: what a certificate says is derived again from its settings."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from adlm.audit.artefacts import audit_release
from adlm.audit.statistics import VIOLATED
from adlm.audit.subjects import image_domain, paper_settings
from adlm.cli.audit import audit
from adlm.domain import Domain
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.features.identity import Identity
from adlm.mechanism.calibration import MomentConfig
from adlm.mechanism.class_sums import release as release_moments
from adlm.mechanism.privatise import privatise
from adlm.mechanism.second_moments import CrossMoments, Second
from adlm.paper.release import PrivateRecords
from adlm.paper.release import release as release_records
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

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


def test_a_perturbed_loss_passes_and_one_whose_ridge_costs_less_does_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((3000, 5)), rng.integers(0, 2, 3000).astype(str)
    made = privatise(x, y, domain=Domain((5,), 0.0, 1.0, ("0", "1")), epsilon=4)
    made.save(tmp_path / "R")
    findings = audit_release(tmp_path / "R", 1000, Source.seeded_with(7))
    assert [f.verdict for f in findings] == ["holds"] * len(findings), [f.note for f in findings]
    for at, charge in enumerate(made.certificate.charges):
        cheap = replace(charge, sensitivity=charge.sensitivity / 2)
        charges = (*made.certificate.charges[:at], cheap, *made.certificate.charges[at + 1 :])
        Release(made.tensors, replace(made.certificate, charges=charges)).save(tmp_path / f"S{at}")
        assert audit_release(tmp_path / f"S{at}", 200, Source.seeded_with(7))[0].verdict == VIOLATED


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
