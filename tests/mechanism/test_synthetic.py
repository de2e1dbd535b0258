"""Synthetic tables: counts, the choice of pairs, drawing, and controls that must be caught."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare, norm, spearmanr
from typer.testing import CliRunner

from adlm import privatise
from adlm.audit.statistics import threshold_bound
from adlm.domain import NEIGHBOURS
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.mechanism.stages import Terms, calibrate
from adlm.mechanism.synthetic import CHOICE_MU, ColumnCounts, Counts, PairCounts, stages
from adlm.model import synthetic as drawing
from adlm.model.synthetic import UNIT, Margin, Measured, Resolution, synthesise, write
from adlm.privacy.accounting import Budget, compose
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

DOMAIN = """
neighbours = "add-remove"
[columns.age]
kind = "numeric"
lower = 0
upper = 99
integer = true
missing = "category"
[columns.pay]
kind = "numeric"
lower = 0
upper = 1000
scale = "log"
[columns.town]
kind = "categorical"
values = ["north", "south"]
other = "elsewhere"
missing = "category"
[columns.born]
kind = "date"
lower = 1990-01-01
upper = 1999-12-31
[columns.note]
kind = "ignored"
[columns.ill]
kind = "label"
classes = ["no", "yes"]
"""


def people(n: int = 4000, seed: int = 0) -> str:
    """Return a CSV file in which pay and the label follow age."""
    rng = np.random.default_rng(seed)
    lines = ["age,pay,town,born,note,ill"]
    for age in rng.integers(0, 100, n):
        pay = min(1000.0, float(age * 8 + rng.random() * 50))
        town = rng.choice(["north", "south", "west", ""], p=[0.5, 0.3, 0.1, 0.1])
        ill = "yes" if age + rng.normal(0, 5) > 60 else "no"
        shown = "" if rng.random() < 0.1 else age
        lines.append(f"{shown},{pay:.2f},{town},199{rng.integers(0, 10)}-05-17,x,{ill}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def table() -> TableDomain:
    return TableDomain.from_toml(DOMAIN)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("people") / "people.csv"
    path.write_text(people())
    return path


@pytest.fixture(scope="module")
def made(file: Path, table: TableDomain) -> Release:
    return privatise(file, domain=table, epsilon=3, delta="1e-5", size=4000, seed=1, kind="synthetic")


def test_drawn_records_have_the_declared_columns_and_values(made: Release, table: TableDomain) -> None:
    frame = made.synthesise(3000)
    assert list(frame.columns) == ["age", "pay", "town", "born", "ill"]
    ages = frame["age"].dropna()
    assert (ages == ages.round()).all()
    assert ages.between(0, 99).all()
    assert 0.05 < frame["age"].isna().mean() < 0.15
    assert set(frame["town"].dropna()) <= {"north", "south", "elsewhere"}
    assert 0.45 < (frame["town"] == "north").mean() < 0.55
    assert {day.year for day in frame["born"]} <= set(range(1990, 2000))
    assert set(frame["ill"]) == {"no", "yes"}


def test_drawn_columns_are_as_dependent_as_those_of_the_records(made: Release) -> None:
    frame = made.synthesise(5000).dropna()
    assert spearmanr(frame["age"], frame["pay"]).statistic > 0.7  # 1 in the records, 0 if independent
    assert frame.loc[frame["ill"] == "yes", "age"].mean() > frame.loc[frame["ill"] == "no", "age"].mean() + 20


def test_draws_depend_on_the_release_and_the_seed_alone(made: Release, tmp_path: Path) -> None:
    made.save(tmp_path / "R")
    again = Release.load(tmp_path / "R")
    assert synthesise(again, 200, seed=3).equals(synthesise(made, 200, seed=3))
    assert not synthesise(made, 200, seed=4).equals(synthesise(made, 200, seed=3))


def test_conditions_hold_for_every_drawn_record(made: Release) -> None:
    frame = made.synthesise(100, where={"town": "north", "age": "30..40", "ill": "no"})
    assert len(frame) == 100
    assert set(frame["town"]) == {"north"}
    assert frame["age"].between(30, 40).all()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("town", "nowhere", "--where town=nowhere: town is one of north, south, elsewhere"),
        ("town", "", "--where town=: town is one of"),
        ("ill", "perhaps", "ill is one of no, yes"),
        (
            "age",
            "40..30",
            "--where age=40..30: give a value or a range within the declared bounds, such as age=0..99",
        ),
        ("age", "100..120", "within the declared bounds"),
        ("age", "old", "within the declared bounds"),
        ("age", "nan..3", "within the declared bounds"),
        ("pay", "30", "--where pay=30: give a range within"),
        ("born", "1.5.1995", "a day, or a range of days .* such as born=1990-01-01..1999-12-31"),
        ("note", "x", "--where names 'note'; the columns are age, pay, town, born, ill"),
    ],
)
def test_a_condition_that_nothing_can_meet_is_refused(
    made: Release, name: str, value: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        made.synthesise(10, where={name: value})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_is_written_a_part_at_a_time(
    made: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(drawing, "BATCH", 64)
    out = tmp_path / f"drawn{suffix}"
    write(made, 200, out, seed=3)
    frame = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
    assert len(frame) == 200
    assert frame["age"].equals(made.synthesise(200, seed=3)["age"])
    with pytest.raises(UserError, match="must end in"):
        write(made, 200, tmp_path / "drawn.txt")
    with pytest.raises(UserError, match="drawn records meet the condition"):
        write(
            made,
            200,
            tmp_path / f"none{suffix}",
            where={"town": "elsewhere", "age": "0..1", "pay": "999..1000"},
        )
    assert not list(tmp_path.glob("*none*"))


def test_a_written_file_is_one_of_the_declared_domain(
    made: Release, table: TableDomain, tmp_path: Path
) -> None:
    out = tmp_path / "drawn.csv"
    write(made, 500, out)
    domain = replace(table, columns=tuple(c for c in table.columns if c.kind != "ignored"))
    again = privatise(out, domain=domain, epsilon=1, size=500, seed=0)
    assert again.certificate.totals.epsilon_proved <= 1
    assert (tmp_path / "drawn.csv.certificate.json").exists()


@pytest.mark.parametrize(("delta", "relation"), list(itertools.product(("0", "1e-5"), NEIGHBOURS)))
def test_the_certificate_is_within_the_budget(
    file: Path, table: TableDomain, delta: str, relation: str
) -> None:
    ledger = Ledger()
    release = privatise(
        file,
        domain=table,
        epsilon=1,
        delta=delta,
        size=4000,
        seed=0,
        kind="synthetic",
        neighbours=relation,
        ledger=ledger,
    )
    assert 0.95 < release.certificate.totals.epsilon_proved <= 1
    assert ledger.charges == release.certificate.charges
    assert len(release.synthesise(10)) == 10


def record(table: TableDomain, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return one encoded record, with any numbers at all."""
    width = table.domain.shape[0]
    return rng.normal(0.5, 1, (1, width)).astype(np.float32), rng.integers(0, 2, 1)


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_a_person_moves_the_counts_by_no_more_than_is_charged(table: TableDomain, relation: str) -> None:
    rng, resolution = np.random.default_rng(1), Resolution(16, 2)
    bins = tuple(np.arange(grid.size) // 2 for grid in resolution.grids(table))
    columns = len(bins)
    pairs = columns * (columns - 1) // 2
    for count, tables in (
        (ColumnCounts(table, resolution), columns),
        (PairCounts(table, resolution, bins), pairs),
    ):
        for _ in range(50):
            moved = count(record(table, rng))[0]
            if relation == "replace-one":
                moved = moved - count(record(table, rng))[0]
            steps = moved.astype(float)
            assert np.abs(steps).sum() <= Counts(tables).sensitivity("laplace", relation, 1)
            assert np.sqrt((steps**2).sum()) <= Counts(tables).sensitivity("gaussian", relation, 1)


def test_the_choice_is_the_exponential_mechanism() -> None:
    # false alarm: 1 in 10,000
    source, scores, scale = Source.seeded_with(2), np.array([0, 3, -40, 5, 5]), Fraction(7, 2)
    drawn = np.bincount([source.choose(scores, scale) for _ in range(5000)], minlength=5)
    weights = np.exp((scores - 5) / 3.5)
    expected = weights / weights.sum() * drawn.sum()
    kept = expected > 5
    found, wanted = (
        np.append(drawn[kept], drawn[~kept].sum()),
        np.append(expected[kept], expected[~kept].sum()),
    )
    assert chisquare(found[wanted > 0], wanted[wanted > 0]).pvalue > 1e-4


def test_the_gaussian_cost_of_a_choice_bounds_that_of_every_pair_of_coins() -> None:
    for length in (0.01, 0.5, 2.0, 8.0):
        x = np.linspace(-20, 20, 4001)
        mu = norm.ppf(1 / (1 + np.exp(-x - length / 2))) - norm.ppf(1 / (1 + np.exp(-x + length / 2)))
        assert np.nanmax(mu[np.isfinite(mu)]) <= float(CHOICE_MU) * length / 2


@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 10**5)])
def test_charges_add_up_to_what_is_spent(table: TableDomain, delta: Fraction) -> None:
    terms = Terms(Budget(Fraction(1), delta), table.neighbours)
    found = calibrate(stages(table, 4000, gaussian=delta > 0), terms)
    assert 0.45 < compose(found.charges).epsilon_proved <= 1
    assert [charge.proof.split()[-2:] for charge in found.charges] == [["Lemma", n] for n in "121"]


def test_bins_are_the_weighted_least_squares_estimate_of_cells_and_margins() -> None:
    rng = np.random.default_rng(3)
    bins, classes, sd = np.array([0, 0, 1, 2, 2, 2]), 2, 3.0
    cells = rng.normal(500, 20, (6, classes))
    by_class, summed = rng.normal(1000, 20, (3, classes)), rng.normal(2000, 20, (3, 1))
    margins = (Margin(0, by_class, 80.0), Margin(0, summed, 50.0), Margin(1, by_class, 1.0))
    found = Measured((cells,), sd, (bins,), margins)
    rows, values, weights = (
        [],
        [],
        [],
    )  # the slow twin: every measurement of a (bin, class), and its precision
    for b in range(3):
        for k in range(classes):
            one = np.eye(3 * classes)[b * classes + k]
            rows += [one, one]
            values += [cells[bins == b, k].sum(), by_class[b, k]]
            weights += [1 / (sd**2 * (bins == b).sum()), 1 / 80]
        rows.append(np.eye(3 * classes)[b * classes : (b + 1) * classes].sum(0))
        values.append(summed[b, 0])
        weights.append(1 / 50)
    root = np.sqrt(weights)
    wanted = np.linalg.lstsq(np.array(rows) * root[:, None], np.array(values) * root, rcond=None)[0]
    assert found.pooled(0) == pytest.approx(wanted.reshape(3, classes))
    for k in range(classes):
        assert found.binned[0][:, k].sum() == pytest.approx(found.class_counts[k])


def choices(scores: list[int], scale: Fraction, runs: int) -> NDArray[Any]:
    """Return how often the first of two candidates is chosen, run by run."""
    source = Source.seeded_with(5)
    return np.array([float(source.choose(np.array(scores), scale) == 0) for _ in range(runs)])


def test_an_attack_on_the_choice_stays_below_its_epsilon_and_one_without_noise_is_caught() -> None:
    # each score moves by 1: the log-likelihood ratio is 1 / scale for either output, and charged 2 / scale
    one = Fraction(1)
    honest = threshold_bound(choices([1, 0], one, 1000), choices([0, 1], one, 1000), alpha=1e-6).value
    assert 0.4 < honest <= 1
    silent = Fraction(1, 64)  # as good as the largest score
    caught = threshold_bound(choices([1, 0], silent, 500), choices([0, 1], silent, 500), alpha=1e-6)
    assert caught.value > 2


def test_a_table_counted_twice_and_charged_once_is_caught() -> None:
    source, scale, runs = Source.seeded_with(6), UNIT, 20000  # epsilon 1 for a count that is released once

    def counted(count: int, times: int) -> NDArray[Any]:
        noisy = count * UNIT + source.laplace((runs, times), scale)
        return np.asarray(noisy.sum(1), dtype=np.float64)

    assert threshold_bound(counted(1, 1), counted(0, 1), alpha=1e-6).value <= 1
    assert threshold_bound(counted(1, 4), counted(0, 4), alpha=1e-6).value > 1


def test_a_table_with_too_many_cells_is_refused_before_anything_is_charged(file: Path) -> None:
    columns = "".join(f'[columns.c{i}]\nkind = "numeric"\nlower = 0\nupper = 1\n' for i in range(400))
    domain = TableDomain.from_toml(columns + '[columns.y]\nkind = "label"\nclasses = ["a", "b", "c", "d"]\n')
    ledger = Ledger()
    with pytest.raises(UserError, match="cells in tables of pairs"):
        privatise(file, domain=domain, epsilon=1, kind="synthetic", ledger=ledger)
    assert not ledger.charges


def test_a_release_of_another_kind_draws_no_records(file: Path, table: TableDomain) -> None:
    release = privatise(file, domain=table, epsilon=1, size=4000, seed=0)
    with pytest.raises(UserError, match="--kind synthetic"):
        release.synthesise(10)


def test_a_numeric_target_is_drawn_within_its_bounds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.random(2000)
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{v:.4f},{10 * v:.4f}\n" for v in x))
    domain = TableDomain.from_toml(
        '[columns.x]\nkind = "numeric"\nlower = 0\nupper = 1\n'
        '[columns.y]\nkind = "target"\nlower = 0\nupper = 10\n'
    )
    frame = privatise(path, domain=domain, epsilon=3, seed=0, kind="synthetic").synthesise(2000)
    assert frame["y"].between(0, 10).all()
    assert np.corrcoef(frame["x"], frame["y"])[0, 1] > 0.9


def test_every_command_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adlm.cli.app import app

    guide = (Path(__file__).parents[2] / "docs" / "guide-synthetic.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text(people(3000))
    Path("people.toml").write_text(DOMAIN.replace('neighbours = "add-remove"\n', ""))
    found: dict[str, Any] = {}
    for command in re.findall(r"```sh\n(.*?)```", guide, re.S)[0].splitlines():
        words = shlex.split(command)[1:]
        result = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
        assert result.exit_code == 0, (command, result.output)
        found[words[0]] = json.loads(result.stdout)
    assert 0.95 < found["release"]["epsilon_proved"] <= 1
    assert found["evaluate"]["accuracy"] > 0.8  # the head labelled these records
    assert len(pd.read_csv("people-synthetic.csv")) == 5000
    north = pd.read_parquet("north.parquet")
    assert len(north) == 500
    assert set(north["town"]) == {"north"}
    assert north["age"].between(30, 40).all()
    report = Path("report.html").read_text(encoding="utf-8")
    assert "Records drawn from this release are synthetic" in report
    assert "total variation, drawn to real" in report
