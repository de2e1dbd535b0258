"""Written files show the records through noisy numbers alone; variants that show more are caught."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.audit import reading_cases
from tests.audit.reading_cases import Written

from adlm.audit.statistics import HOLDS, VIOLATED
from adlm.audit.written_files import (
    DIVERGED,
    EPSILON,
    FORMS,
    Form,
    N,
    Pair,
    classifier_files,
    differing_files,
    estimator_files,
    labels_of_any_type,
    search_files,
)
from adlm.domain.columns import Column
from adlm.domain.encoding import column_values
from adlm.domain.table import TableDomain
from adlm.mechanism.privatise import privatise
from adlm.model.fit import fit
from adlm.model.model import Model
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.sklearn.estimators import AdLMClassifier

SOURCE = Source.seeded_with(3)
pytestmark = pytest.mark.filterwarnings("ignore")


def release_files(written: Written, source: Source, folder: Path) -> Model:
    """Release a file as `adlm release` does, and train on it.

    Parameters
    ----------
    written : the file and its declaration.
    source, folder : the noise, and where to write.
    """
    ledger = Ledger(folder / "ledger")
    release = privatise(
        written.file, domain=written.table, epsilon=EPSILON, size=N, ledger=ledger, source=source
    )
    release.save(folder / "release")
    model = fit(release)
    model.save(folder / "model")
    return model


def _read(form: reading_cases.Form, rng: Random, folder: Path) -> Pair | None:
    """Neighbouring files and frames of the search over reading."""
    case = form(rng, folder)
    if case is None:
        return None
    # a person who is replaced may have no record: the number of records is private
    relation = "replace-one" if case.relation == "replace-one" else "add-remove"
    table = replace(case.one.table, neighbours=relation)
    one, two = (replace(written, table=table) for written in (case.one, case.two))
    if one.file is not None:
        return Pair(one, two, release_files, case.summary)
    here, there = ((written.frame, written.frame[table.label.name]) for written in (one, two))
    return Pair(here, there, partial(classifier_files, table), case.summary)


ALL_FORMS: dict[str, Form] = FORMS | {
    f"releases of {name}": partial(_read, form) for name, form in reading_cases.FORMS.items()
}


@pytest.mark.parametrize("name", ALL_FORMS)
def test_no_file_differs_between_neighbours_with_the_same_noisy_numbers(name: str) -> None:
    found = search_files(ALL_FORMS[name], 3, SOURCE, seed=1)
    assert found.verdict == HOLDS, found.note


class FirstLabelDecides(AdLMClassifier):
    """Control: classes in the order and type of the labels that were given, as they once were."""

    def _public(self, X: Any, y: Any) -> Any:
        known, x, codes = super()._public(X, y)
        assert isinstance(known, TableDomain)
        cells, names, kind = column_values(y), known.label.classes, np.asarray(y).dtype
        if {type(cell) for cell in cells.distinct if cell is not None} == {bool} and len(names) == 2:
            first = bool(cells.distinct[cells.rows[0]])
            self.classes_ = np.arange(2) == (codes[0] if first else 1 - codes[0])
        elif kind.kind in "iuf":
            self.classes_ = np.arange(len(names)).astype(kind)
        return known, x, codes


def broken_classifier(domain: TableDomain, data: tuple[Any, Any], source: Source, folder: Path) -> Model:
    return estimator_files(FirstLabelDecides(3, domain=domain, size=12), data, source, folder)


def test_classes_that_follow_the_labels_of_records_are_caught() -> None:
    found = search_files(partial(labels_of_any_type, write=broken_classifier), 20, SOURCE, explained=0)
    assert found.verdict == VIOLATED
    assert "estimator.json" in found.note


def unclosed_quote(folder: Path, **settings: Any) -> Pair:
    """Files of 30 records, the second of which has an unclosed quote in one of them."""
    table = TableDomain(
        (
            Column("age", "numeric", 0, 100, missing="category"),
            Column("ill", "label", classes=("no", "yes"), missing="no"),
        ),
        **settings,
    )
    lines = ["age,ill", *(f"{i},{'yes' if i > 15 else 'no'}" for i in range(30))]
    files = []
    for name, line in (("one.csv", lines[2]), ("two.csv", '1,"no')):
        (folder / name).write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
        files.append(Written(table, folder / name))
    return Pair(files[0], files[1], release_files, "an unclosed quote")


def test_a_quote_that_swallows_the_records_after_it_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: the pair of settings that `TableDomain` refuses."""
    assert differing_files(unclosed_quote(tmp_path, bad_rows="missing"), SOURCE) == []
    monkeypatch.setattr(TableDomain, "_check_dialect", lambda self: None)
    broken = unclosed_quote(tmp_path, bad_rows="missing", newlines_in_values=True)
    found = differing_files(broken, SOURCE)
    assert "release/certificate.json" in found
    assert search_files(lambda rng, folder: broken, 1, SOURCE, explained=0).verdict == VIOLATED


def test_a_run_that_cannot_go_on_with_the_same_numbers_is_caught(tmp_path: Path) -> None:
    def write(columns: int, source: Source, folder: Path) -> Model:
        table = TableDomain(
            (
                *(Column(f"x{j}", "numeric", 0, 1) for j in range(columns)),
                Column("y", "label", classes=("no", "yes")),
            )
        )
        (tmp_path / "t.csv").write_text(
            ",".join([*(f"x{j}" for j in range(columns)), "y"]) + f"\n{'1,' * columns}no" * 9 + "\n"
        )
        return release_files(Written(table, tmp_path / "t.csv"), source, folder)

    assert differing_files(Pair(1, 2, write, ""), SOURCE) == [DIVERGED]


def test_a_form_that_is_always_refused_proves_nothing() -> None:
    def nothing(rng: Random, folder: Path) -> None:
        return None

    assert search_files(nothing, 3, SOURCE).verdict == VIOLATED
