"""`privatise` takes arrays, files, data frames and readers, and goes by the domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.declared import AGE

from adlm import Domain, Ledger, Release, UserError, privatise
from adlm.data.reading import read_batches
from adlm.domain.table import TableDomain

TOML = AGE
TABLE = TableDomain.from_toml(TOML)
DOMAIN = Domain((2,), 0, 1, ("no", "yes"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = [f"{age % 100},{'yes' if age % 100 > 50 else 'no'}" for age in range(300)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["age,ill", *lines]) + "\n")
    (tmp_path / "t.toml").write_text(TOML)
    return path


def tensors(release: Release) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in release.tensors.items()}


@pytest.mark.parametrize("delta", ["0", "1e-5"])
def test_a_file_a_frame_and_a_reader_of_the_same_records_make_the_same_release(
    file: Path, delta: str
) -> None:
    frame = pd.read_csv(file, dtype=str)
    given: Any = {"epsilon": 2, "delta": delta, "seed": 1}
    made = [
        privatise(file, domain=TABLE, **given),
        privatise(str(file), domain=file.with_suffix(".toml"), **given),
        privatise(frame, domain=TABLE, **given),
        privatise(frame[["age"]], frame["ill"], TABLE, **given),
        privatise(lambda: [(b.x, b.y) for b in read_batches(file, TABLE)], domain=TABLE, **given),
    ]
    assert [tensors(release) for release in made] == [tensors(made[0])] * 5
    assert all("weights" in release.tensors or "gradients" in release.tensors for release in made)


def test_the_relation_of_a_domain_can_be_changed(file: Path) -> None:
    made = privatise(file, domain=TABLE, epsilon=2, neighbours="add-remove", size=300)
    assert made.certificate.totals.neighbours == "add-remove"
    x, y = np.eye(2).repeat(20, 0), np.arange(40) // 20
    made = privatise(x, y, DOMAIN, epsilon=2, neighbours="add-remove", size=40)
    assert made.certificate.totals.neighbours == "add-remove"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"domain": None}, "the domain is not given"),
        ({"domain": TABLE, "y": ["no"] * 300}, "y must be None: labels are read from the files"),
        ({"domain": TABLE, "x": np.zeros((3, 1))}, "a file, a data frame or a reader of encoded batches"),
        ({"domain": TABLE, "x": pd.DataFrame({"age": [1]})}, "has no column 'ill'"),
        ({"domain": TABLE, "x": pd.DataFrame({"age": [1]}), "y": ["no", "yes"]}, "one label for each record"),
        ({"domain": TABLE, "k": 0}, "has no setting k"),
        ({"domain": DOMAIN, "x": np.zeros((3, 2))}, "labels are not given"),
        ({"domain": DOMAIN, "x": np.zeros((1, 2)), "y": ["no"], "fourier": 2}, "fourier is for tables"),
    ],
)
def test_what_does_not_go_with_the_domain_is_refused_and_nothing_is_charged(
    words: dict[str, Any], message: str, file: Path
) -> None:
    ledger = Ledger()
    given: dict[str, Any] = {"x": file, "epsilon": 1, "ledger": ledger} | words
    with pytest.raises(UserError, match=message):
        privatise(**given)
    assert ledger.charges == ()


def test_an_option_that_does_not_exist_is_an_error_as_for_any_function(file: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilom'"):
        privatise(file, domain=TABLE, epsilon=1, epsilom=2)  # type: ignore[call-arg]
