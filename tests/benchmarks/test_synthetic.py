"""The comparison of synthetic tables: codes of records, distances, the page of results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.runner import Line, mean_and_sd, read_lines
from benchmarks.synthetic import _encoded, _records, coded, distances, page

from adlm.domain.table import TableDomain

TABLE = TableDomain.from_toml(
    '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 99\ninteger = true\nmissing = "category"\n'
    '[columns.pay]\nkind = "numeric"\nlower = 0\nupper = 10\n'
    '[columns.town]\nkind = "categorical"\nvalues = ["n", "s", "w"]\n'
    '[columns.y]\nkind = "label"\nclasses = ["a", "b"]\n'
)


def codes(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, size, n) for size in (33, 32, 3, 2)], 1)


def test_records_of_codes_have_these_codes_again() -> None:
    given = codes(500, 0)
    x, y = _encoded(TABLE, _records(TABLE, given, 32, np.random.default_rng(1)))
    found, sizes = coded(TABLE, x, y, 32)
    assert sizes.tolist() == [33, 32, 3, 2]
    assert (found[:, 2:] == given[:, 2:]).all()
    assert (found[:, 1] == given[:, 1]).mean() > 0.99  # six digits may cross an edge
    assert (np.abs(found[:, 0] - given[:, 0]) <= 1).all()  # ages are rounded to integers
    assert ((found[:, 0] == 32) == (given[:, 0] == 32)).all()  # missing


def test_distances_are_those_of_shares() -> None:
    one = _encoded(TABLE, _records(TABLE, codes(4000, 0), 32, np.random.default_rng(0)))
    assert distances(TABLE, one, one) == {"tv 1": 0, "tv 2": 0, "tv 3": 0}
    x, y = one
    other = distances(TABLE, one, (x, np.zeros_like(y)))
    assert other["tv 1"] == pytest.approx((y == 1).mean() / 4, abs=1e-6)  # one column of four has moved
    assert other["tv 1"] < other["tv 2"] < other["tv 3"]


def test_the_page_has_a_table_for_each_data_set_and_means_of_common_ones() -> None:
    def row(data: str, method: str, accuracy: float) -> Line:
        measures = {"boosting accuracy": mean_and_sd([accuracy, accuracy + 0.02]), "seconds": [2.0, 1.0]}
        case = {"data": data, "method": method, "noise": "delta 1e-5", "epsilon": "1", "runs": 2}
        return case | {"measures": measures}

    text = page([row("adult", "adlm synth", 0.85), row("adult", "MST", 0.8), row("ring", "adlm synth", 0.5)])
    assert "| adlm synth | delta 1e-5 | boosting accuracy | 86.00 (1.41) |" in text
    assert "| 1 | adlm synth | delta 1e-5 | 1 | 86.00 |" in text  # ring has no row of MST


def test_the_committed_page_is_what_its_rows_give() -> None:
    path = Path(__file__).parents[2] / "results" / "synthetic.jsonl"
    assert path.with_suffix(".md").read_text(encoding="utf-8") == page(read_lines(path))
