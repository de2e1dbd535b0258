"""Options that `adlm release` and `adlm release-records` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[
    str | None,
    typer.Argument(
        help="A file or a folder of records; of a table also a glob ('visits/*.parquet'), here or at an "
        "address (s3://, gs://). Needs --domain."
    ),
]
Data = Annotated[str | None, typer.Option(help="A data set by name (see adlm data list).")]
DomainFile = Annotated[Path | None, typer.Option("--domain", help="The TOML file that declares the records.")]
Epsilon = Annotated[str, typer.Option(help="The privacy budget of this release.")]
Out = Annotated[Path, typer.Option(help="Output folder; must not exist.")]
Neighbours = Annotated[str | None, typer.Option(help="replace-one or add-remove.")]
LedgerFile = Annotated[Path | None, typer.Option("--ledger", help="The data set's ledger; made if missing.")]
Total = Annotated[
    str | None, typer.Option("--budget", help="Epsilon (or EPSILON,DELTA), the total budget of the ledger.")
]
Limit = Annotated[
    int | None,
    typer.Option(
        help="Read only LIMIT records (public): the first ones; under add-remove about so many, "
        "chosen by a hash of each.",
        min=1,
    ),
]
Seed = Annotated[int | None, typer.Option(help="Repeatable noise. The release is stamped NOT PRIVATE.")]
