"""The commands of `adlm`, in the order of use."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption

from adlm.version import __version__


class _InOrder(TyperGroup):
    """List commands and groups of commands in the order of COMMANDS."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names in the order of use."""
        return [name for name, *_ in COMMANDS]


app = typer.Typer(
    name="adlm",
    cls=_InOrder,
    help="Train on sensitive records under differential privacy: one release with a proved epsilon, then "
    "any number of models from it.",
    epilog="Start with: adlm demo --out demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adlm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def help_of(function: Callable[..., Any] | None) -> str:
    """A command's docstring for a terminal: whole paragraphs, without the keys of `--json`.

    The command reference in the documentation has those keys.
    """
    text = re.split(r"With\s+--json", inspect.cleandoc((function and function.__doc__) or ""))[0]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip())


# name, module, attribute (none: a group of commands), what it does, example
COMMANDS = (
    ("demo", "demo", "demo", "Release, train, audit, report: end to end.", "adlm demo --out demo"),
    ("data", "data", None, "Public data sets by name.", "adlm data get mnist"),
    ("domain", "domain", None, "Declare what is public of the records.", "adlm domain init patients.csv"),
    ("plan", "plan", "plan", "Forecast settings and accuracy, for free.", "adlm plan --data mnist"),
    ("ui", "ui", "ui", "Explore the privacy-accuracy trade-off.", "adlm ui"),
    ("release", "release", "release", "Read private records, write a release.",
     "adlm release --data digits --epsilon 2 --out R"),
    ("release-records", "release_records", "release_records", "The paper's release: noisy records.",
     "adlm release-records --data digits --epsilon 2 --out R"),
    ("ledger", "ledger", None, "What was spent, and what is left.", "adlm ledger show L.jsonl"),
    ("key", "key", None, "Keys to sign with.", "adlm key new curator.key"),
    ("verify", "verify", "verify", "Check a release, a model or an ONNX file.", "adlm verify R"),
    ("synth", "synth", "synth", "Draw a synthetic table from a release.",
     "adlm synth R --rows 50000 --out people.csv"),
    ("train", "train", "train", "Train a model on a release alone.", "adlm train R --out M"),
    ("evaluate", "evaluate", "evaluate", "Measure a model.", "adlm evaluate M --data digits"),
    ("predict", "predict", "predict", "Predict classes of a file.", "adlm predict M new.csv --out p.csv"),
    ("export", "export", "export", "Write a model as ONNX.", "adlm export M --out model.onnx"),
    ("report", "report", "report", "A report on a release, in HTML.", "adlm report M --out report.html"),
    ("card", "card", "card", "A model card, as hubs show it.", "adlm card M --out README.md"),
    ("audit", "audit", "audit", "Attack every mechanism.", "adlm audit"),
    ("experiment", "experiment", None, "The paper's figures, and ours.", "adlm experiment list"),
    ("bench", "bench", "bench", "Ratios of speed and memory.", "adlm bench --quick"),
    ("pretrain", "pretrain", "pretrain", "A relevance network from public classes.", "adlm pretrain"),
    ("doctor", "doctor", "doctor", "What this machine has, and what is missing.", "adlm doctor"),
    ("cache", "cache", None, "Cached features of private records.", "adlm cache clear"),
)  # fmt: skip

TYPES = {"str": "TEXT", "int": "N", "int range": "N", "float": "X", "path": "PATH", "bool": ""}  # in help


def _plain_type(self: TyperOption, ctx: typer.Context) -> str | None:
    shown = _typer_type(self, ctx)
    return None if shown is None else TYPES.get(shown.strip("<>"), shown) or None


_typer_type = TyperOption.display_type_rich
TyperOption.display_type_rich = _plain_type  # type: ignore[assignment,method-assign]

for name, module, attribute, does, example in COMMANDS:
    loaded = importlib.import_module(f"adlm.cli.{module}")
    short, end = f"{does} Example: {example}", f"Example: {example}"
    if attribute is None:
        for command in loaded.app.registered_commands:
            command.help = help_of(command.callback)
        app.add_typer(loaded.app, name=name, short_help=short, epilog=end)
    else:
        function = getattr(loaded, attribute)
        app.command(name, short_help=short, epilog=end, help=help_of(function))(function)
