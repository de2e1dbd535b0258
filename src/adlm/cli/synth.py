"""`adlm synth`: draw a synthetic table from a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet, stamped
from adlm.errors import UserError


def synth(
    release: Annotated[Path, typer.Argument(help="A release folder, made with --kind synthetic.")],
    rows: Annotated[int, typer.Option(help="Number of records to draw.", min=1)] = 10000,
    out: Annotated[Path, typer.Option(help="The .csv or .parquet file to write.")] = Path("synthetic.csv"),
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Draw only such records: a value, or a range such as age=30..40.", metavar="COL=VALUE"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the draw; unrelated to privacy.", min=0)] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Draw synthetic records in the columns of the private table, at no further privacy cost.

    The certificate of the release is written beside the file, as OUT.certificate.json.

    With --json: {"out", "rows", "columns", "certificate", "stamps"} and the certificate's totals.
    """
    from adlm.model.synthetic import synthesise, write
    from adlm.privacy.release import Release

    if out.exists():
        raise UserError(f"{out} exists already; choose another --out or remove it first")
    conditions = dict(_condition(text) for text in where or ())
    loaded = Release.load(release)
    records = synthesise(loaded, rows, where=conditions, seed=seed)
    write(loaded, records, out)
    certificate = loaded.certificate
    Output(as_json, quiet).result(
        {
            "out": str(out),
            "rows": len(records),
            "columns": records.column_names,
            "certificate": f"{out}.certificate.json",
            "stamps": list(certificate.stamps),
        }
        | certificate.totals.to_dict(),
        f"{out}: {len(records):,} synthetic records, drawn from {release}; {certificate.totals.sentence()}"
        f"{stamped(certificate.stamps)}",
    )


def _condition(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--where is written like town=north, got {text!r}")
    return name, value
