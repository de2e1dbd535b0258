"""Features of tables: indicators, scaling by released counts, grids, batches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import build
from adlm.features.tables import KNOTS, ScaledTable, TableIndicators, cosine, frequencies, indicators


def made_table(**extra: Any) -> TableDomain:
    return TableDomain(
        (
            Column("age", "numeric", 0, 100),
            Column("pay", "numeric", 0, 10, missing="category"),
            Column("mood", "ordinal", values=("low", "mid", "high")),
            Column("born", "numeric", 1900, 2000, cuts=(1950, 1980)),
            Column("town", "categorical", values=tuple("abcd")),
            Column("ill", "boolean"),
            Column("y", "label", classes=("no", "yes", "maybe")),
        ),
        **extra,
    )


def encoded(table: TableDomain, n: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    parts = []
    for column in table.features:
        part = np.zeros((n, column.width), dtype=np.float32)
        if column.kind == "categorical":
            part[np.arange(n), rng.integers(0, column.width, n)] = 1
        else:
            part[:, 0] = rng.random(n) if column.kind == "numeric" else rng.integers(0, 2, n)
            if column.missing is not None:
                part[:, 1] = rng.random(n) < 0.3
                part[part[:, 1] == 1, 0] = 0
        parts.append(part)
    return torch.from_numpy(np.hstack(parts))


def test_indicators_of_each_block_are_non_negative_and_sum_to_one() -> None:
    table = made_table(crosses=(("age", "town"),))
    counted = TableIndicators(table)
    found = counted(encoded(table, 500))
    assert (found >= 0).all()
    for block in counted.blocks:
        assert torch.allclose(found[:, block.span].sum(1), torch.ones(500, dtype=torch.float64))
    assert counted.blocks[-1].name == "age x town"


def test_piecewise_linear_bins_give_back_the_value() -> None:
    column = Column("a", "numeric", 0, 1)
    from adlm.features.tables import knots

    x = torch.rand(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    back = indicators(column, x) @ torch.tensor(knots(column), dtype=torch.float64)
    assert torch.allclose(back, x[:, 0], atol=2e-6)


@pytest.mark.parametrize("fourier", [0, 40])
def test_rows_have_unit_norm_lie_on_the_grid_and_the_map_is_built_again(fourier: int) -> None:
    table = made_table()
    x = encoded(table, 400)
    shares = frequencies(TableIndicators(table)(x).sum(0).numpy(), TableIndicators(table).blocks)
    features = ScaledTable(table, shares, fourier=fourier)
    z = features(x)
    assert z.shape == (400, features.width) == (400, ScaledTable.width_of(table, fourier))
    assert features.width == len(features.variances())
    norms = z.double().norm(dim=1)
    assert (norms <= 1).all()
    assert (norms > 0.99).all()
    assert torch.equal(z * 2**14, (z * 2**14).round())
    again = build(features.spec())
    assert again.fingerprint() == features.fingerprint()
    assert torch.equal(again(x), z)
    assert {features.column_of(i) for i in range(features.width)} - {None} == {c.name for c in table.features}


@pytest.mark.parametrize("crosses", [(), (("age", "ill"),)])
def test_features_are_those_of_their_definition(crosses: tuple[tuple[str, str], ...]) -> None:
    table = made_table(crosses=crosses)
    x, counted = encoded(table, 300), TableIndicators(table)
    whole = counted(x)
    features = ScaledTable(table, frequencies(whole.sum(0).numpy(), counted.blocks), fourier=20)
    kept, values = features._kept, features.values(x)
    entries = (whole[:, kept] - torch.from_numpy(features.frequencies[kept])) * torch.from_numpy(
        features._scale
    )
    angles = (values[:, features._in_waves] * 2**12) @ features._directions / 2.0**32 + features._phases
    parts = [values * features._value_scale, entries, cosine(angles) * features._fourier_scale]
    rows = torch.round(torch.cat(parts, 1) * 2**16)
    unit = rows / (rows * rows).sum(1, keepdim=True).sqrt().clamp_min(1.0)
    assert torch.equal(features(x), (torch.trunc(unit * 2**14) / 2**14).float())


def test_wide_bounds_change_little_once_counts_are_known() -> None:
    """A column declared a hundred times too wide is brought back by its released counts."""
    rng = np.random.default_rng(0)
    values = rng.random(2000).astype(np.float32)
    spread = {}
    for upper, share in ((1.0, 1.0), (40.0, 40.0)):
        table = TableDomain(
            (
                Column("a", "numeric", 0, upper),
                Column("y", "label", classes=("n", "y")),
                Column("b", "boolean"),
            )
        )
        x = torch.from_numpy(np.stack([values / share, values > 2], 1).astype(np.float32))
        counted = TableIndicators(table)
        features = ScaledTable(table, frequencies(counted(x).sum(0).numpy(), counted.blocks))
        spread[upper] = float(features(x)[:, 0].std())
    assert spread[40.0] > 0.5 * spread[1.0]


def test_noisy_counts_become_shares() -> None:
    blocks = TableIndicators(made_table()).blocks
    rng = np.random.default_rng(1)
    for counts in (rng.normal(100, 500, blocks[-1].span.stop), np.full(blocks[-1].span.stop, -5.0)):
        shares = frequencies(counts, blocks)
        assert (shares >= 0).all()
        for block in blocks:
            assert shares[block.span].sum() == pytest.approx(1)


def test_counts_under_noise_are_pulled_towards_usual_laws_and_clear_ones_stand() -> None:
    """Under noise of a fifth of n the middle of a column is found better; without noise nothing moves.

    Means over 50 draws of eight columns: no false alarm in practice.
    """
    columns = [Column(f"c{i}", "numeric", 0, 1, missing="category") for i in range(8)]
    table = TableDomain((*columns, Column("y", "label", classes=("n", "y"))))
    rng = np.random.default_rng(3)
    cells = np.stack([rng.normal(0.3, 0.05, 500).clip(0, 1), rng.random(500) < 0.1] * 8, 1)
    counted = TableIndicators(table)
    exact = counted(torch.from_numpy(cells.astype(np.float32))).sum(0).numpy()
    two_peaks = np.tile(np.array([200.0, *[0] * 10, 250.0, 50.0]), 8)
    for counts in (exact, two_peaks):
        assert frequencies(counts, counted.blocks, 1e-3) == pytest.approx(counts / 500, abs=1e-4)

    def middles(counts: np.ndarray) -> np.ndarray:
        shares = counts.reshape(-1, 8, 13)[:, :, :12]
        return np.asarray(shares @ np.array(KNOTS) / shares.sum(2).clip(1e-9))

    def error(counts: np.ndarray, noise: float, spread: float) -> float:
        noisy = counts + noise * rng.normal(size=(50, len(counts)))
        shares = np.array([frequencies(row, counted.blocks, spread) for row in noisy])
        return float(((middles(shares) - middles(counts)) ** 2).mean())

    assert error(exact, 100.0, 100.0) < 0.85 * error(exact, 100.0, 0.0)
    below = two_peaks + 20.0 * rng.normal(size=len(two_peaks))  # noise below the share of an average bin
    assert np.array_equal(frequencies(below, counted.blocks, 20.0), frequencies(below, counted.blocks))


def test_the_cosine_is_that_of_the_library() -> None:
    x = torch.randn(10_000, dtype=torch.float64) * 300
    assert float((cosine(x) - torch.cos(x)).abs().max()) < 1e-12


def test_wrong_frequencies_and_inputs_are_refused() -> None:
    table = made_table()
    with pytest.raises(UserError, match="indicators"):
        ScaledTable(table, [1.0])
    words = TableDomain(
        (Column("t", "categorical", values=("a", "b")), Column("y", "label", classes=("n", "y")))
    )
    with pytest.raises(UserError, match="Fourier"):
        ScaledTable(words, [0.5, 0.5], fourier=3)
    with pytest.raises(UserError, match="encoded records have"):
        TableIndicators(table)(torch.zeros(3, 2))


@pytest.mark.parametrize("delta", ["0", "1e-5"])
def test_accuracy_does_not_fall_as_the_budget_grows(delta: str) -> None:
    """Budgets up to 1,000, on a table of seven classes and twelve columns."""
    from adlm.mechanism.privatise import privatise
    from adlm.model.fit import fit

    rng = np.random.default_rng(0)
    columns = tuple(Column(f"x{j}", "numeric", 0, 1) for j in range(12))
    table = TableDomain((*columns, Column("y", "label", classes=tuple("abcdefg"))))
    centres = rng.random((7, 12))
    y = rng.integers(0, 7, 3000)
    x = np.clip(centres[y] + 0.15 * rng.normal(size=(3000, 12)), 0, 1).astype(np.float32)
    found = []
    for epsilon in (1, 30, 1000):
        release = privatise(
            lambda: [(x[:2400], y[:2400])], domain=table, epsilon=epsilon, delta=delta, seed=1
        )
        assert float(release.certificate.totals.epsilon_proved) <= epsilon
        found.append(float((fit(release).predict(x[2400:]) == y[2400:]).mean()))
    assert all(later > earlier - 0.02 for earlier, later in itertools.pairwise(found))
    assert found[-1] > 0.93
