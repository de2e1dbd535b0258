"""Releases on disk, sound and altered: what a certificate says is derived again from its settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from typer.testing import CliRunner

from adlm.audit.artefacts import audit_release
from adlm.audit.statistics import VIOLATED
from adlm.audit.subjects import image_domain, paper_settings
from adlm.cli.app import app
from adlm.domain import Domain
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.features.base import Identity
from adlm.mechanism.planner import Plan
from adlm.mechanism.privatise import privatise, release_by_plan
from adlm.paper.release import PrivateRecords
from adlm.paper.release import release as release_records
from adlm.privacy.accounting import Budget
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

PURE = Plan("class sums", 3, 4, "laplace")
PLANS = {
    "pure": (PURE, Budget.of(1), 1),
    "adaptive": (replace(PURE, scales=(1.0, 2.0, 3.0, 0.5)), Budget.of(1), 1),
    "radial": (replace(PURE, noise="radial"), Budget.of(1), 1),
    "gaussian": (replace(PURE, noise="gaussian"), Budget.of(1, 1e-5), 3),
}


def release(name: str, source: Source, relation: str = "replace-one") -> Release:
    plan, budget, people = PLANS[name]
    values, codes = np.random.default_rng(0).normal(size=(30, plan.k)), np.arange(30) % 3
    domain = Domain((plan.k,), 0.0, 1.0, ("a", "b", "c"), relation)
    return release_by_plan(
        lambda: [(values, codes)],
        domain,
        plan=plan,
        budget=budget,
        ledger=Ledger(),
        source=source,
        features=Identity((plan.k,)),
        contributions=people,
    )


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_a_sound_release_passes(name: str, relation: str, tmp_path: Path) -> None:
    release(name, Source.system(), relation).save(tmp_path / "R")
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
    release("pure", Source.seeded_with(1)).save(tmp_path / "R")
    result = CliRunner().invoke(app, ["audit", "--release", str(tmp_path / "R"), "--runs", "200", "--quiet"])
    assert result.exit_code == 1
    assert "NOT SOUND" in result.stdout


def doctored(made: Release, **changes: object) -> Release:
    """Alter settings and sign again, as somebody could who makes releases with another program."""
    settings = MappingProxyType({**made.certificate.settings, **changes})
    return Release(made.tensors, replace(made.certificate, settings=settings))


def test_stated_noise_that_was_not_charged_is_violated(tmp_path: Path) -> None:
    made = release("pure", Source.system())
    doctored(made, sd_sums=made.certificate.settings["sd_sums"] / 2).save(tmp_path / "R")
    finding = audit_release(tmp_path / "R", 200, Source.seeded_with(7))[0]
    assert finding.verdict == VIOLATED
    assert "was charged" in finding.note


def test_a_sensitivity_below_that_of_the_settings_is_violated(tmp_path: Path) -> None:
    doctored(release("pure", Source.system()), contributions=2).save(tmp_path / "R")
    finding = audit_release(tmp_path / "R", 200, Source.seeded_with(7))[0]
    assert finding.verdict == VIOLATED
    assert "should be" in finding.note
