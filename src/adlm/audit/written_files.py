"""Written files: do they depend on the records in another way than through noisy numbers?

A saved estimator, a certificate, a card, a report and every other file are outputs of the mechanism too. A
release is made, trained on and explained twice, on neighbouring data sets; the second run gets the noisy
numbers of the first (`Tap`). All that is written must then be the same, byte for byte. A refusal is no
violation: it is an error before anything is charged or released.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from adlm.audit.replay import DivergedError, Tap
from adlm.audit.statistics import Finding
from adlm.domain import Domain
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.export.onnx import export_onnx
from adlm.mechanism.privatise import privatise
from adlm.model.fit import fit
from adlm.model.model import Model
from adlm.model.synthetic import synthesise
from adlm.model.training import TrainingConfig
from adlm.paper.release import PrivateRecords, Settings
from adlm.paper.release import release as release_records
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.report import write_report
from adlm.report.card import model_card, privacy_statement, registry_entry
from adlm.report.subject import find
from adlm.sklearn.estimators import AdLMClassifier, AdLMRegressor, PrivateEstimator
from adlm.ui.page import gather, write_static

LABEL_CASES = 4  # times as many of labels, where only some types and places are dangerous
EXPLAINED = 1  # of these, neighbours of which reports, cards, ONNX files and pages are compared too
EPSILON = 3
RECORDS = Settings(
    epsilon2=Fraction(1, 4), epsilon3=Fraction(1), batch_size=4, delta_h0=Fraction(40),
    delta_h0_rule="given", hidden=8, allocation="identical",
)  # fmt: skip
REFUSALS = 20  # further neighbours that are tried where all were refused
N = 12  # records of a case
ESTIMATOR = "estimator"  # folder of a saved one
DIVERGED = "(the second run could not be continued with the noisy numbers of the first)"

Write = Callable[[Any, Source, Path], Model]  # data set, noise, folder: write it all, and return the model


@dataclass(frozen=True)
class Pair:
    """Two neighbouring data sets, what writes the files of one, and what differs, for a finding's note."""

    one: Any
    two: Any
    write: Write
    summary: str


Form = Callable[[Random, Path], Pair | None]  # None where a library itself refuses such data


def differing_files(pair: Pair, source: Source, *, explained: bool = False) -> list[str]:
    """Return the names of the files that differ between neighbours with the same noisy numbers.

    Parameters
    ----------
    pair : the neighbours.
    source : of the first run's noise.
    explained : whether to write report, card, ONNX file and the page of `adlm ui` too. They are made from the
        saved artefacts.
    """
    with tempfile.TemporaryDirectory(prefix="adlm-audit-") as place:
        folders = [Path(place) / side / "out" for side in ("one", "two")]  # reports show the last name
        tap = Tap(source, Ledger())
        _written(pair, pair.one, tap, folders[0], explained=explained)
        try:
            _written(pair, pair.two, Tap(source, Ledger(), tap.finished()), folders[1], explained=explained)
        except DivergedError:
            return [DIVERGED]
        one, two = ({p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in folders)
    return sorted(str(name) for name in one.keys() | two.keys() if one.get(name) != two.get(name))


def _written(pair: Pair, data: Any, source: Source, folder: Path, *, explained: bool) -> None:
    """Write all files that there are for a data set: artefacts, ledger, views of a notebook, and the rest."""
    folder.mkdir(parents=True)
    model = pair.write(data, source, folder)
    views = (model.certificate, model)
    (folder / "shown.txt").write_text("\n".join(f"{view}\n{view._repr_html_()}" for view in views))
    if not explained:
        return
    place = folder / ESTIMATOR if (folder / ESTIMATOR).exists() else folder
    try:
        write_report(place, folder / "report.html")
        (folder / "card.md").write_text(model_card(find(place)))
        entry = json.dumps(registry_entry(model.certificate))
        (folder / "statement.txt").write_text(f"{privacy_statement(model.certificate)}\n{entry}")
        if importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxruntime"):  # the extra `export`
            export_onnx(model, folder / "model.onnx")
        write_static(gather([place], [folder / "ledger"]), folder / "page.html")
    except UserError as error:  # the data were taken, so this is no refusal of them
        raise AssertionError(f"an artefact cannot be explained: {error}") from error


def estimator_files(
    estimator: PrivateEstimator, data: tuple[Any, Any], source: Source, folder: Path
) -> Model:
    """Fit an estimator on records and labels with a noise source, and save it.

    Parameters
    ----------
    estimator : unfitted; its ledger is set.
    data : X and y.
    source, folder : the noise, and where to write.
    """
    estimator.ledger = folder / "ledger"
    estimator._source = source
    estimator.fit(*data)
    estimator.save(folder / ESTIMATOR)
    fitted = {name: value for name, value in sorted(vars(estimator).items()) if name.endswith("_")}
    texts = [f"{name} {value!r}" for name, value in fitted.items() if name not in ("release_", "model_")]
    (folder / "attributes.txt").write_text("\n".join([*texts, estimator._privacy_html()]))
    return estimator.model_


# Forms


def classifier_files(
    domain: TableDomain | Domain, data: tuple[Any, Any], source: Source, folder: Path
) -> Model:
    """Fit a classifier of a declared domain and save it.

    Parameters
    ----------
    domain : the declaration.
    data : X and y.
    source, folder : the noise, and where to write.
    """
    return estimator_files(AdLMClassifier(EPSILON, domain=domain, size=N), data, source, folder)


def _regressor(domain: TableDomain | Domain, data: tuple[Any, Any], source: Source, folder: Path) -> Model:
    return estimator_files(AdLMRegressor(EPSILON, domain=domain, size=N), data, source, folder)


LABELS: dict[tuple[str, ...], tuple[Any, ...]] = {  # how labels of these classes may be given
    ("true", "false"): (True, False, "true", "false"),
    ("1", "0"): (0, 1, "0", "1"),
    ("true", "1", "no"): (True, 1, "no", "1"),
}


def _containers(labels: list[Any]) -> dict[str, Callable[[], Any]]:
    """Labels as every library holds them."""
    makers: dict[str, Callable[[], Any]] = {"list": lambda: labels, "NumPy": lambda: np.array(labels)}
    makers["NumPy objects"] = lambda: np.array(labels, dtype=object)
    try:
        import pandas as pd
    except ImportError:  # an optional library
        return makers
    kinds = {
        "pandas": None,
        "pandas objects": object,
        "pandas categories": "category",
        "pandas numbers": "Int64",
    }
    kinds["pandas truth"] = "boolean"
    return makers | {name: partial(pd.Series, labels, dtype=kind) for name, kind in kinds.items()}


def labels_of_any_type(
    rng: Random, folder: Path, *, write: Callable[..., Model] = classifier_files
) -> Pair | None:
    """Frames whose labels are texts, numbers or truth values, with one label of another type or missing.

    Parameters
    ----------
    rng : of the draws.
    folder : not used; nothing is read from files.
    write : fits the classifier of a domain.
    """
    del folder
    classes = rng.choice(list(LABELS))
    spellings = LABELS[classes]
    kind = rng.choice([type(spellings[0]), type(spellings[0]), str])
    usual = [cell for cell in spellings if type(cell) is kind]
    relation = rng.choice(["replace-one", "add-remove"])
    missing = classes[0] if rng.random() < 0.9 else None
    table = TableDomain(
        (Column("age", "numeric", 0, 1), Column("ill", "label", classes=classes, missing=missing)),
        neighbours=relation,
    )
    ages, labels = [rng.random() for _ in range(N)], [rng.choice(usual) for _ in range(N)]
    at = rng.choice([0, 0, 0, rng.randrange(N)])
    other_ages, others = list(ages), list(labels)
    other_ages[at], others[at] = rng.random(), rng.choice([None, None, *spellings[:3]])
    if relation == "add-remove":
        del ages[at], labels[at]
    name = rng.choice(sorted(_containers(labels)))
    try:
        data = [
            (pa.table({"age": cells}), _containers(given)[name]())
            for cells, given in ((ages, labels), (other_ages, others))
        ]
    except (TypeError, ValueError):
        return None
    return Pair(data[0], data[1], partial(write, table), f"{name}: {others[at]!r}, {relation}")


def arrays(rng: Random, folder: Path, *, shape: tuple[int, ...] = (3,), family: str = "tabular") -> Pair:
    """Arrays with labels that are names or codes, and one record at the bounds or beyond.

    Parameters
    ----------
    rng : of the draws.
    folder : not used.
    shape, family : of the records.
    """
    del folder
    classes = rng.choice([("a", "b"), ("0", "1"), ("true", "false")])
    relation = rng.choice(["replace-one", "add-remove"])
    domain = Domain(shape, 0, 1, classes, relation, family)
    draws = np.random.default_rng(rng.randrange(1 << 30))
    x, codes = draws.random((N, *shape)), draws.integers(0, 2, N)
    other, changed = x.copy(), codes.copy()
    at = rng.randrange(N)
    other[at], changed[at] = rng.choice([-5.0, 0.0, 0.5, 1.0, 1e30]), 1 - codes[at]
    if relation == "add-remove":
        x, codes = np.delete(x, at, 0), np.delete(codes, at)
    spelt = np.array(classes) if classes[0] != "0" or rng.random() < 0.5 else np.array([0, 1])
    spelt = rng.choice([spelt, spelt.astype(object)])
    return Pair(
        (x, spelt[codes]),
        (other, spelt[changed]),
        partial(classifier_files, domain),
        f"record {at}, {relation}",
    )


def targets(rng: Random, folder: Path) -> Pair:
    """Frames with a numeric target, and one target that is missing, far out or a text."""
    del folder
    relation = rng.choice(["replace-one", "add-remove"])
    target = Column("days", "target", 0, 10, missing=5)
    table = TableDomain((Column("age", "numeric", 0, 1), target), neighbours=relation)
    ages, days = [rng.random() for _ in range(N)], [rng.choice([0, 3.5, 10, 7]) for _ in range(N)]
    at = rng.randrange(N)
    others: list[Any] = list(days)
    others[at] = rng.choice([None, float("nan"), "4", -1e9, 1e300, 10, 0])
    if relation == "add-remove":
        one = (pa.table({"age": np.delete(ages, at)}), [*days[:at], *days[at + 1 :]])
    else:
        one = (pa.table({"age": ages}), days)
    two = (pa.table({"age": ages}), others)
    return Pair(one, two, partial(_regressor, table), f"{others[at]!r}, {relation}")


def drawn_tables(rng: Random, folder: Path) -> Pair:
    """Frames that records are drawn from afterwards, with one cell that is another, missing or far out."""
    del folder
    relation = rng.choice(["replace-one", "add-remove"])
    columns = (
        Column("age", "numeric", 0, 1, missing="category"),
        Column("town", "categorical", values=("a", "b")),
    )
    label = Column("ill", "label", classes=("no", "yes"), missing="no")
    table = TableDomain((*columns, label), neighbours=relation)
    cells: list[list[Any]] = [
        [rng.choice(given) for _ in range(N)] for given in ((0.1, 0.5), ("a", "b"), ("no", "yes"))
    ]
    others, at = [list(column) for column in cells], rng.randrange(N)
    changed = [rng.choice(given) for given in ((None, 1e300, 0.9), ("a", "b"), (None, "yes"))]
    for column, cell in zip(others, changed, strict=True):
        column[at] = cell
    if relation == "add-remove":
        for column in cells:
            del column[at]
    names = [column.name for column in table.columns]
    one, two = (pa.table(dict(zip(names, given, strict=True))) for given in (cells, others))
    return Pair(one, two, partial(_synthetic, table), f"{changed}, {relation}")


def _synthetic(table: TableDomain, frame: Any, source: Source, folder: Path) -> Model:
    """Make a release to draw from, save it, and draw."""
    ledger = Ledger(folder / "ledger")
    made = privatise(
        frame, domain=table, epsilon=EPSILON, size=N, kind="synthetic", ledger=ledger, source=source
    )
    made.save(folder / "release")
    pc.write_csv(synthesise(made, 20), folder / "drawn.csv")
    model = fit(made)
    model.save(folder / "model")
    return model


def noisy_records(rng: Random, folder: Path) -> Pair:
    """Records of the paper's release, one of which is at the bounds or beyond, with another label."""
    del folder
    draws = np.random.default_rng(rng.randrange(1 << 30))
    x, codes, at = draws.random((N, 4)), draws.integers(0, 2, N), rng.randrange(N)
    other, changed = x.copy(), codes.copy()
    other[at], changed[at] = rng.choice([-5.0, 0.0, 1.0, 1e30]), 1 - codes[at]
    return Pair((x, codes), (other, changed), _on_records, f"record {at}")


def _on_records(data: tuple[Any, Any], source: Source, folder: Path) -> Model:
    """Release noisy records, save them, and train the paper's network on them."""
    private = PrivateRecords(*data, Domain((4,), 0, 1, ("a", "b")))
    made = release_records(private, RECORDS, relevance=None, ledger=Ledger(folder / "ledger"), source=source)
    made.save(folder / "release")
    model = fit(made, "mlp", TrainingConfig(epochs=1, batch_size=4))
    model.save(folder / "model")
    return model


FORMS: dict[str, Form] = {
    "classifiers of labels of every type": labels_of_any_type,
    "classifiers of arrays": arrays,
    "classifiers of images": partial(arrays, shape=(8, 8), family="drawn"),
    "regressors": targets,
    "synthetic tables": drawn_tables,
    "noisy records": noisy_records,
}


def search_files(
    form: Form, cases: int, source: Source, *, seed: int = 0, explained: int = EXPLAINED
) -> Finding:
    """Compare all written files of random neighbours.

    Parameters
    ----------
    form : draws neighbours.
    cases : pairs that are drawn.
    source : of the noise.
    seed : of the draws.
    explained : pairs of which reports, cards, ONNX files and pages are compared too.
    """
    compared, refused, changed, example = 0, 0, set[str](), ""
    with tempfile.TemporaryDirectory(prefix="adlm-audit-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of noisy models, and a library's about odd columns
        for number in range(cases + REFUSALS):
            if number >= cases and compared:
                break
            pair = form(Random(f"{seed} {number}"), Path(folder))
            try:
                found = (
                    None if pair is None else differing_files(pair, source, explained=compared < explained)
                )
            except UserError:
                found = None
            if pair is None or found is None:
                refused += 1
                continue
            compared += 1
            if found and not changed:
                example = pair.summary
            changed |= set(found)
    shown = f"; {', '.join(sorted(changed)[:4])} differ ({example[:80]})" if changed else ""
    return Finding(
        attack="written files",
        mechanism="",
        neighbours="both",
        claimed=Fraction(1),
        proved=Fraction(1),
        lower=float("inf") if changed else 0.0,
        confidence=1.0,
        runs=compared + refused,
        fault=compared == 0,
        note=f"{compared} neighbours compared, {refused} refused{shown}",
    )


def product_files(cases: int, source: Source, seed: int = 0) -> list[Finding]:
    """Search every form for a record that shows in a file otherwise than through noisy numbers."""
    findings = []
    for name, form in FORMS.items():
        times = LABEL_CASES if form is labels_of_any_type else 1
        findings.append(replace(search_files(form, times * cases, source, seed=seed), mechanism=name))
    return findings
