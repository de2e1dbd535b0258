"""The commands of `adlm`, in the order a person uses them."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from adlm.version import __version__

app = typer.Typer(
    name="adlm",
    help="Train neural networks on sensitive records: privatise once, train forever, every epsilon proved "
    "and audited.",
    epilog="Start with: adlm demo --out demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"adlm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# name, module, attribute, example; a name without an attribute is a group of commands
COMMANDS = (
    ("demo", "demo", "demo", "adlm demo --out demo"),
    ("data", "data", None, "adlm data get mnist"),
    ("domain", "domain", None, "adlm domain init patients.csv"),
    ("plan", "plan", "plan", "adlm plan --data mnist --epsilon 0.5"),
    ("release", "release", "release", "adlm release --data digits --epsilon 1 --out R"),
    ("verify", "verify", "verify", "adlm verify R"),
    ("train", "train", "train", "adlm train R --out M"),
    ("evaluate", "evaluate", "evaluate", "adlm evaluate M --data digits"),
    ("predict", "predict", "predict", "adlm predict M new.csv --out predictions.csv"),
    ("export", "export", "export", "adlm export M --out model.onnx"),
    ("report", "report", "report", "adlm report M --out report.html"),
    ("audit", "audit", "audit", "adlm audit"),
    ("experiment", "experiment", None, "adlm experiment list"),
    ("bench", "bench", "bench", "adlm bench --quick"),
    ("pretrain", "pretrain", "pretrain", "adlm pretrain --data mnist --out network"),
    ("cache", "cache", None, "adlm cache clear"),
)

for name, module, attribute, example in COMMANDS:
    loaded = importlib.import_module(f"adlm.cli.{module}")
    if attribute is None:
        app.add_typer(loaded.app, name=name, epilog=f"Example: {example}")
    else:
        app.command(name, epilog=f"Example: {example}", no_args_is_help=False)(getattr(loaded, attribute))
