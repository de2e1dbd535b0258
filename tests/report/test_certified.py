"""A report says who signed, how the noise of a table lies, and how a release like it is made."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.declared import AGE_COLUMN, ILL, TOWN
from torch import nn

from adlm import Release, TrainingConfig, UserError, fit, privatise
from adlm.privacy.signature import OF_RELEASE, fingerprint
from adlm.public import datasets
from adlm.report import write_report

TRAIN = datasets.load("digits", "train")
DOMAIN = AGE_COLUMN + TOWN + ILL


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    ages, towns = rng.integers(0, 100, 400), rng.choice(list("abc"), 400)
    lines = [f"{a},{t},{'yes' if a > 50 else 'no'}" for a, t in zip(ages, towns, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["age,town,ill", *lines]) + "\n")
    (tmp_path / "t.toml").write_text(DOMAIN)
    return tmp_path / "t.csv", tmp_path / "t.toml"


@pytest.mark.parametrize(("relevance", "words"), [("private", "adaptive"), ("prior", "identical")])
@pytest.mark.parametrize("delta", ["0", "1e-6"])
def test_a_tables_noise_is_called_what_it_was_charged_as(
    relevance: str, words: str, delta: str, table: tuple[Path, Path], tmp_path: Path
) -> None:
    options = {"relevance": relevance} if relevance == "private" else {"allocation": "identical"}
    privatise(table[0], domain=table[1], epsilon=4, delta=delta, **options).save(tmp_path / "r")  # type: ignore[arg-type]
    page = write_report(tmp_path / "r", tmp_path / "r.html").read_text()
    assert ("noise by relevance" in page) == (relevance == "private")
    assert f"Allocation of noise over the coordinates: {words}." in page


def test_a_table_is_made_again_from_its_file_and_its_domain(table: tuple[Path, Path], tmp_path: Path) -> None:
    privatise(table[0], domain=table[1], epsilon=4, fourier=3).save(tmp_path / "r")
    page = write_report(tmp_path / "r", tmp_path / "r.html").read_text()
    assert "adlm release TABLE.csv --domain DOMAIN.toml --epsilon 4" in page
    assert "--fourier 3" in page
    assert "--data" not in page
    privatise(table[0], domain=table[1], epsilon=4, neighbours="add-remove", size=400).save(tmp_path / "a")
    assert "--public-size GUESS" in write_report(tmp_path / "a", tmp_path / "a.html").read_text()


def test_a_report_names_who_signed_the_release(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    release = privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=1, k=8)
    release.save(tmp_path / "unsigned")
    assert "nobody" in write_report(tmp_path / "unsigned", tmp_path / "u.html").read_text()
    release.signed(key).save(tmp_path / "signed")
    fit(release.signed(key)).save(tmp_path / "model")
    for name in ("signed", "model"):
        page = write_report(tmp_path / name, tmp_path / f"{name}.html").read_text()
        assert fingerprint(key.public_key()) in page
        assert release.certificate.digest in page
    altered = (tmp_path / "model" / OF_RELEASE).read_text().replace('"kind": "release"', '"kind": "model"')
    (tmp_path / "model" / OF_RELEASE).write_text(altered)
    with pytest.raises(UserError, match="does not hold"):
        write_report(tmp_path / "model", tmp_path / "x.html")


def test_a_report_shows_stamps_of_a_model_and_of_weak_budgets(tmp_path: Path) -> None:
    release = privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=200, k=8)
    release.save(tmp_path / "weak")
    page = write_report(tmp_path / "weak", tmp_path / "weak.html").read_text()
    assert "NOT PRIVATE: epsilon above 100" in page
    assert "Nobody would call this private" in page
    head = nn.Linear(release.features().width, 10)
    fit(release, head, TrainingConfig(epochs=1, batch_size=100), draws=200).save(tmp_path / "m")
    page = write_report(tmp_path / "m", tmp_path / "m.html").read_text()
    assert "was not declared" in page


def test_both_rounds_at_a_table_are_weighted_by_how_sure_they_are(
    table: tuple[Path, Path], tmp_path: Path
) -> None:
    """The slow twin: two independent estimates of each cell, weighted by their precision."""
    from adlm.report.allocation import _both_rounds

    release: Release = privatise(table[0], domain=table[1], epsilon=4, relevance="private")
    found, first = _both_rounds(release), release.moments()
    charge = next(c for c in release.certificate.charges if "again" in c.what)
    for cell, step in enumerate(release.tensors["step_again"].tolist()):
        one, two = float(first.sd_sums[cell]), math.sqrt(2) * float(charge.scale) * step
        assert float(found.sd_sums[cell]) == pytest.approx(1 / math.sqrt(one**-2 + two**-2))
        again = float(release.tensors["class_sums_again"][0, cell]) * step
        mean = (float(first.sums[0, cell]) / one**2 + again / two**2) / (one**-2 + two**-2)
        assert float(found.sums[0, cell]) == pytest.approx(mean)
    assert replace(found, sums=first.sums, sd_sums=first.sd_sums).counts.equal(first.counts)
