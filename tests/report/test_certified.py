"""A report says who signed, how the noise of a table lies, and how a release like it is made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.declared import AGE_COLUMN, ILL, TOWN
from torch import nn

from adlm import TrainingConfig, UserError, fit, privatise
from adlm.data import datasets
from adlm.privacy.signature import OF_RELEASE, fingerprint
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


@pytest.mark.parametrize(("allocation", "words"), [("linear", "adaptive"), (None, "identical")])
def test_noise_is_called_what_it_is(allocation: str | None, words: str, tmp_path: Path) -> None:
    release = privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=4, k=8, allocation=allocation)
    release.save(tmp_path / "r")
    page = write_report(tmp_path / "r", tmp_path / "r.html").read_text()
    assert f"Noise over the features: {words}." in page


@pytest.mark.parametrize("delta", ["0", "1e-6"])
def test_a_tables_noise_is_identical_and_its_charges_are_named(
    delta: str, table: tuple[Path, Path], tmp_path: Path
) -> None:
    release = privatise(table[0], domain=table[1], epsilon=4, delta=delta)
    release.save(tmp_path / "r")
    page = write_report(tmp_path / "r", tmp_path / "r.html").read_text()
    assert "Noise over the features: identical." in page
    assert all(charge.what in page for charge in release.certificate.charges)


def test_a_table_is_made_again_from_its_file_and_its_domain(table: tuple[Path, Path], tmp_path: Path) -> None:
    privatise(table[0], domain=table[1], epsilon=4, fourier=3).save(tmp_path / "r")
    page = write_report(tmp_path / "r", tmp_path / "r.html").read_text()
    assert "adlm release TABLE.csv --domain DOMAIN.toml --epsilon 4" in page
    assert "--fourier 3" in page
    assert "--data" not in page
    privatise(table[0], domain=table[1], epsilon=4, neighbours="add-remove", size=400).save(tmp_path / "a")
    assert "--size GUESS" in write_report(tmp_path / "a", tmp_path / "a.html").read_text()


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
    assert "This release is not private" in page
    head = nn.Linear(release.features().width, 10)
    fit(release, head, TrainingConfig(epochs=1, batch_size=100), draws=200).save(tmp_path / "m")
    page = write_report(tmp_path / "m", tmp_path / "m.html").read_text()
    assert "was not declared" in page
