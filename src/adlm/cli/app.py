"""The commands of `adlm`, in the order of use."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

import adlm
from adlm.version import __version__

# name, module, what it does, example; a module's attribute of that name is a command or a group of them
COMMANDS = [
    ("demo", "adlm.cli.audit", "Release, train, audit, report: end to end.", "adlm demo --out demo"),
    ("data", "adlm.cli.data", "Public data sets by name.", "adlm data get mnist"),
    ("domain", "adlm.cli.data", "Declare what is public of the records.", "adlm domain init patients.csv"),
    ("plan", "adlm.cli.data", "Forecast settings and accuracy, for free.", "adlm plan --data mnist"),
    ("ui", "adlm.cli.report", "Explore the privacy-accuracy trade-off.", "adlm ui"),
    ("release", "adlm.cli.release", "Read private records, write a release.",
     "adlm release --data digits --epsilon 2 --out R"),
    ("release-records", "adlm.cli.release", "The paper's release: noisy records.",
     "adlm release-records --data digits --epsilon 2 --out R"),
    ("ledger", "adlm.cli.report", "What was spent, and what is left.", "adlm ledger show L.jsonl"),
    ("key", "adlm.cli.report", "Keys to sign with.", "adlm key new curator.key"),
    ("verify", "adlm.cli.report", "Check a release, a model or an ONNX file.", "adlm verify R"),
    ("synth", "adlm.cli.train", "Draw a synthetic table from a release.",
     "adlm synth R --rows 50000 --out people.csv"),
    ("train", "adlm.cli.train", "Train a model on a release alone.", "adlm train R --out M"),
    ("evaluate", "adlm.cli.train", "Measure a model.", "adlm evaluate M --data digits"),
    ("predict", "adlm.cli.train", "Predict classes of a file.", "adlm predict M new.csv --out p.csv"),
    ("export", "adlm.cli.train", "Write a model as ONNX.", "adlm export M --out model.onnx"),
    ("report", "adlm.cli.report", "A report on a release, in HTML.", "adlm report M --out report.html"),
    ("card", "adlm.cli.report", "A model card, as hubs show it.", "adlm card M --out README.md"),
    ("audit", "adlm.cli.audit", "Attack every mechanism.", "adlm audit"),
    ("pretrain", "adlm.cli.release", "A relevance network from public classes.", "adlm pretrain"),
    ("doctor", "adlm.cli.audit", "What this machine has, and what is missing.", "adlm doctor"),
    ("cache", "adlm.cli.data", "Cached features of private records.", "adlm cache clear"),
]  # fmt: skip

CHECKOUT = Path(adlm.__file__).resolve().parents[2]
if (CHECKOUT / "benchmarks" / "commands.py").is_file():  # in a source checkout, not in a wheel
    sys.path.insert(0, str(CHECKOUT))  # before site-packages: Opacus installs a package `benchmarks` too
    COMMANDS += [
        ("experiment", "benchmarks.commands", "The paper's figures, and ours.", "adlm experiment list"),
        ("bench", "benchmarks.commands", "Ratios of speed and memory.", "adlm bench --quick"),
    ]


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


TYPES = {"str": "TEXT", "int": "N", "int range": "N", "float": "X", "path": "PATH", "bool": "",
         "list[Path]": "PATH"}  # fmt: skip


def _with_plain_types(kind: Any) -> None:
    """Show types in help as PATH or N, where typer writes <path> or <int>."""
    shown = kind.display_type_rich

    def plain(self: Any, ctx: typer.Context) -> str | None:
        text = shown(self, ctx)
        return None if text is None else TYPES.get(text.strip("<>"), text) or None

    kind.display_type_rich = plain


_with_plain_types(TyperOption)
_with_plain_types(TyperArgument)

for name, module, does, example in COMMANDS:
    found = getattr(importlib.import_module(module), name.replace("-", "_"))
    short, end = f"{does} Example: {example}", f"Example: {example}"
    if isinstance(found, typer.Typer):
        for command in found.registered_commands:
            command.help = help_of(command.callback)
        app.add_typer(found, name=name, short_help=short, epilog=end)
    else:
        app.command(name, short_help=short, epilog=end, help=help_of(found))(found)
