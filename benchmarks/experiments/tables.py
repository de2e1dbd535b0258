"""Tables: Adult and Diabetes-130, ours against models without privacy, DP-SGD and diffprivlib.

Settings: the domain files come from published documentation. The rule's thresholds, the smoothing, whether
random Fourier features are worth their noise and the settings of the others were fixed on validation splits
of the *training* records (three quarters to train, one quarter to validate). Test records are used only here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from adlm.mechanism.privatise import Fourier
from adlm.model.metrics import Measures
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from benchmarks.experiments import table_methods as methods
from benchmarks.experiments.rows import (
    NOISES,
    Case,
    Result,
    cases_of,
    chosen,
    mean_and_sd,
    read_rows,
    rows_table,
    run_rows,
)
from benchmarks.experiments.table_methods import (
    BOOSTING,
    DPSGD,
    DPSGD_REPLACED,
    DPSGD_TUNED,
    EBM,
    LOGISTIC,
    OURS,
    OURS_ADDED,
    OURS_FOURIER,
    PENALTIES,
)
from benchmarks.experiments.table_split import DECLARED_HERE, Split, load

COMMAND = "adlm experiment tables"
EPSILONS = ("0.1", "0.5", "1", "3")
RELEASES = 10
FILE = "tables.jsonl"
MEASURES = {"accuracy": (100.0, 2), "auc": (1.0, 4)}  # factor and digits that they are shown with
LEFT_OUT = "{0} is left out: it needs an environment of its own ({1}), named by --{0}-python"


@dataclass(frozen=True, kw_only=True)
class Row(Result):
    """One method on one data set at one budget: means over runs, and standard deviations."""

    accuracy: float
    accuracy_sd: float
    auc: float
    auc_sd: float


def run(
    out: Path,
    *,
    data: Path | None = None,
    names: tuple[str, ...] = ("adult", "diabetes130"),
    epsilons: tuple[str, ...] = EPSILONS,
    releases: int = RELEASES,
    compare: bool = True,
    pythons: Mapping[str, str] | None = None,
    resume: bool = False,
) -> list[Row]:
    """Measure every method, or ours alone; write `tables.jsonl` and `tables.md` to a folder.

    Parameters
    ----------
    out : the folder of results.
    data : the folder that holds the data sets; the one that ADLM_DATA names when not given.
    names : which data sets.
    epsilons : budgets.
    releases : fresh releases for each figure.
    compare : with other methods.
    pythons : for `diffprivlib` and `interpret`, a Python that has it; without one that library is left out.
    resume : keep the rows of `tables.jsonl` for the same cases, and measure the others.
    """
    others = dict(pythons or {})
    cases = partial(_cases, epsilons=epsilons, releases=releases, compare=compare, pythons=others)
    work = cases_of(names, load, data, cases, _row)
    rows = run_rows(out / FILE, work, Row, _sentence, resume=resume)
    for library, make in methods.MAKE.items():
        if compare and library not in others:
            progress.say(LEFT_OUT.format(library, make))
    write_file(out / "tables.md", markdown(rows).encode(), what="table of results")
    return rows


Work = Callable[[], list[Measures]]


def _cases(
    split: Split, epsilons: tuple[str, ...], releases: int, compare: bool, pythons: Mapping[str, str]
) -> Iterator[tuple[Case, Work]]:
    """The cases of a data set, in the order of the table, and the functions that measure them."""
    few = min(releases, 3)  # runs of DP-SGD, which takes longest
    if compare:
        for method in (LOGISTIC, BOOSTING):
            yield (
                Case(split.name, method, "none", None, 1),
                partial(methods.without_privacy, split, method),
            )
    yield from _ours(split, epsilons, releases, (OURS,))
    if compare:
        # DP-SGD's relation, for a fair comparison; small tables are ahead of it under replace-one already
        for e in epsilons if split.name in DECLARED_HERE else ():
            case = Case(split.name, OURS_ADDED, "delta 1e-5", e, few)
            yield case, partial(methods.ours, split, e, "1e-5", few, neighbours="add-remove")
        for e in epsilons:
            case = Case(split.name, DPSGD, "delta 1e-5", e, few)
            yield case, partial(methods.dpsgd_logistic, split, e, few)
        for e in epsilons:
            case = Case(split.name, DPSGD_TUNED, "delta 1e-5", e, few)
            yield case, partial(methods.dpsgd_tuned, split, e, few)
        for e in epsilons:
            case = Case(split.name, DPSGD_REPLACED, "delta 1e-5", e, few)
            yield case, partial(methods.dpsgd_logistic, split, e, few, "replace-one")
    two = len(split.table.label.classes) == 2  # both libraries support only two classes
    if compare and two and "interpret" in pythons:
        for e in epsilons:
            case = Case(split.name, EBM, "delta 1e-5", e, few)
            yield case, partial(methods.dp_ebm, split, e, few, pythons["interpret"])
    if compare and two and "diffprivlib" in pythons:
        for c in PENALTIES:
            for e in epsilons:
                case = Case(split.name, methods.diffprivlib_name(c), "pure", e, releases)
                yield (
                    case,
                    partial(methods.diffprivlib_logistic, split, e, c, releases, pythons["diffprivlib"]),
                )
    if compare and split.name == "adult":
        yield from _ours(split.validation(), epsilons, releases, (OURS, OURS_FOURIER))


def _ours(
    split: Split, epsilons: tuple[str, ...], releases: int, which: tuple[str, ...]
) -> Iterator[tuple[Case, Work]]:
    for method in which:
        fourier: Fourier = "auto" if method == OURS_FOURIER else 0
        for noise, delta in NOISES:
            for e in epsilons:
                case = Case(split.name, method, noise, e, releases)
                yield case, partial(methods.ours, split, e, delta, releases, fourier)


def _row(case: Case, measured: Work) -> Row:
    measures = measured()
    accuracy = mean_and_sd([m.accuracy for m in measures])
    auc = mean_and_sd([m.auc or 0.5 for m in measures])
    return Row(
        **asdict(case) | {"runs": len(measures)},
        accuracy=accuracy[0],
        accuracy_sd=accuracy[1],
        auc=auc[0],
        auc_sd=auc[1],
    )


def _sentence(row: Row) -> str:
    return (
        f"{row.data}, {row.method}, {row.noise} {row.epsilon}: accuracy {row.accuracy:.4f}, AUC {row.auc:.4f}"
    )


def markdown(rows: list[Row]) -> str:
    """The comparison as one Markdown table for each data set."""
    theirs = [
        library
        for library, method in (("diffprivlib", "diffprivlib"), ("interpret", EBM))
        if any(row.method.startswith(method) for row in rows)
    ]
    names = dict.fromkeys(row.data.removesuffix(", validation") for row in rows)
    small = [name for name in names if name not in DECLARED_HERE]
    command = COMMAND + (f" --names {','.join(small)}" if small else "")
    budgets = tuple(dict.fromkeys(row.epsilon for row in rows if row.epsilon is not None))
    runs = max((row.runs for row in rows), default=RELEASES)
    command += f" --epsilons {','.join(budgets)}" if small and budgets != EPSILONS else ""
    command += f" --releases {runs}" if small and runs != RELEASES else ""
    command += "".join(f" --{library}-python PATH" for library in theirs)
    parts = [
        f"# Tables\n\nMade by `{command}`. Accuracy in per cent and AUC: mean (standard deviation) of "
        f"{max((row.runs for row in rows), default=0)} fresh releases, of 3 under add-remove, DP-SGD's "
        "relation, under which a replaced record counts about twice; its rows under replace-one have noise "
        "for twice the clip norm. DP-SGD `tuned for the table` has the best of 24 settings on a held-out "
        "quarter of the training records, a choice that is not charged; the other has one setting for all "
        "tables. diffprivlib states no relation; the paper "
        "that its logistic regression cites (Chaudhuri et al., 2011) replaces one record. interpret "
        "states none either; its noise is scaled to one record, with 3 runs for a figure. All of them but "
        "gradient boosting and DP-EBM read public features of the same columns. `validation` trains on three "
        "quarters of the training records and is measured on the last quarter: it decides whether random "
        "Fourier features are on by default.\n"
    ]
    for name in dict.fromkeys(row.data for row in rows):
        own = [row for row in rows if row.data == name]
        parts.append(f"\n## {name}\n\n{rows_table(own, {m: m for m in MEASURES}, _shown)}")
    return "".join(parts)


def read(path: Path) -> list[Row]:
    """Read rows that a run wrote."""
    return read_rows(path, Row)


def quoted(path: Path, words: list[str]) -> str:
    """The table of one data set and one measure, such as `adult accuracy`, for a page to quote."""
    rows = chosen(path, read(path), words, MEASURES)
    return rows_table(rows, {words[1]: words[1]}, _shown).rstrip()


def _shown(row: Row, kind: str) -> str:
    factor, digits = MEASURES[kind]
    value, spread = factor * getattr(row, kind), factor * getattr(row, f"{kind}_sd")
    return f"{value:.{digits}f}" + (f" ({spread:.{digits}f})" if row.runs > 1 else "")


if __name__ == "__main__":
    progress.enable()
    run(Path("results"))
