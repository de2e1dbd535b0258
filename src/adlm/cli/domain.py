"""`adlm domain`: draft a table's domain file, and check a file against it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet

app = typer.Typer(
    help="Declare what is public of a table. Example: adlm domain init patients.csv", no_args_is_help=True
)


@app.command("init", epilog="Example: adlm domain init patients.csv --label ill --person id")
def init(
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; FILE's name with .toml.")] = None,
    label: Annotated[
        str | None, typer.Option(help="The label's column; the last one when not given.")
    ] = None,
    person: Annotated[str | None, typer.Option(help="The column that names the person.")] = None,
    peek: Annotated[
        bool, typer.Option("--peek", help="Fill in from the data; certificates will say so.")
    ] = False,
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Whether the first line names the columns; one that looks like a record is refused.",
        ),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="What stands between cells; found from the header row, or a comma.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Draft a domain file from the header and the types alone, leaving bounds and values to fill in.

    The columns are named by the first line of the file; if that is a record, it would be written down, so
    give --no-header, which numbers them.

    With --peek they are taken from the data, which is not private: every certificate made with the domain is
    stamped `bounds learnt from data`. With --json: {"out", "columns", "bounds_learnt_from_data"}.
    """
    from adlm.errors import UserError
    from adlm.readers.table_draft import draft, header_of
    from adlm.readers.table_draft import peek as peek_at
    from adlm.runtime.artefact import write_file

    place = out or Path(file.name.split(".")[0] + ".toml")
    if place.exists():
        raise UserError(f"{place} exists already; choose another --out or remove it first")
    if delimiter is not None and len(delimiter) != 1:
        raise UserError(f"--delimiter is one character (got {delimiter!r})")
    if peek:
        seen = peek_at(file, label=label, person=person, header=header, delimiter=delimiter)
        text = seen.to_toml()
    else:
        text = draft(file, label=label, person=person, header=header, delimiter=delimiter)
    write_file(place, text.encode(), what="domain file")
    columns = list(header_of(file, header=header, delimiter=delimiter))
    named = ", numbered" if header is False else ", named as the file names them"
    what = "its bounds were learnt from data" if peek else "fill in what is public"
    Output(as_json, quiet).result(
        {"out": str(place), "columns": columns, "bounds_learnt_from_data": peek},
        f"{place}: {len(columns)} columns{named}; {what}",
    )


@app.command("check", epilog="Example: adlm domain check patients.toml patients.csv")
def check(
    domain: Annotated[Path, typer.Argument(help="The domain file.")],
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say how a file fits its domain. The output is not protected: it is for the data owner alone.

    With --json: {"records", "columns": {NAME: {"missing", "outside", "refused"}}, "persons", "most_records",
    "dropped", "unnamed", "fits"}. `refused` counts texts that the domain does not allow, `unnamed` records
    that name no person.
    """
    from adlm.public.domain.table import TableDomain
    from adlm.readers.table_draft import check as survey

    output = Output(as_json, quiet)
    table = TableDomain.load(domain)
    found = survey(file, table)
    fits = found.records > 0 and not found.unnamed
    rows = []
    for column in table.columns:
        if column.name not in found.columns:
            continue
        seen = found.columns[column.name]
        bad = bool(seen.refused) or (seen.missing > 0 and column.missing is None)
        fits = fits and not bad
        shown = ", ".join(f"{text} ({count})" for text, count in list(seen.refused.items())[:5])
        more = f" and {len(seen.refused) - 5} more" if len(seen.refused) > 5 else ""
        rows.append([column.name, column.kind, str(seen.missing), str(seen.outside), shown + more])
    output.table(["column", "kind", "missing", "outside", "not allowed"], rows)
    figures = {
        "records": found.records,
        "columns": {
            name: {"missing": s.missing, "outside": s.outside, "refused": s.refused}
            for name, s in found.columns.items()
        },
        "persons": found.persons,
        "most_records": found.most_records,
        "dropped": found.dropped,
        "unnamed": found.unnamed,
        "fits": fits,
    }
    people = ""
    if found.persons is not None:
        people = (
            f"; {found.persons} persons, at most {found.most_records} records each, {found.dropped} dropped"
        )
    if fits:
        verdict = "fits the domain"
    elif not found.records:
        verdict = "does not fit: a file needs at least one record"
    elif found.unnamed:
        verdict = f"does not fit: records that name no person would be refused ({found.unnamed} of them)"
    else:
        verdict = "does not fit: missing or unknown values would be refused"
    output.result(
        figures,
        f"{file}: {found.records} records{people}; it {verdict} (this output is not protected: it is for the "
        "data owner alone)",
    )
