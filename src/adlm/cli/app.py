"""The commands of `adlm`, in the order of use. An option's help is in its annotation."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

import adlm
from adlm.version import __version__

# name, module, example; the function is the name with underscores
COMMANDS = [
    ("demo", "adlm.cli.audit", "adlm demo --out demo"),
    ("data list", "adlm.cli.data", "adlm data list"),
    ("data get", "adlm.cli.data", "adlm data get mnist"),
    ("domain init", "adlm.cli.data", "adlm domain init patients.csv --label ill --person id"),
    ("domain check", "adlm.cli.data", "adlm domain check patients.toml patients.csv"),
    ("plan", "adlm.cli.data", "adlm plan --data mnist"),
    ("ui", "adlm.cli.report", "adlm ui"),
    ("release", "adlm.cli.release", "adlm release --data digits --epsilon 2 --out R"),
    ("release-records", "adlm.cli.release", "adlm release-records --data digits --epsilon 2 --out R"),
    ("ledger show", "adlm.cli.report", "adlm ledger show L.jsonl --delta 1e-5"),
    ("key new", "adlm.cli.report", "adlm key new curator.key"),
    ("key show", "adlm.cli.report", "adlm key show curator.key.pub"),
    ("verify", "adlm.cli.report", "adlm verify R"),
    ("synth", "adlm.cli.train", "adlm synth R --rows 50000 --out people.csv"),
    ("train", "adlm.cli.train", "adlm train R --out M"),
    ("evaluate", "adlm.cli.train", "adlm evaluate M --data digits"),
    ("predict", "adlm.cli.train", "adlm predict M new.csv --out p.csv"),
    ("export", "adlm.cli.train", "adlm export M --out model.onnx"),
    ("report", "adlm.cli.report", "adlm report M --out report.html"),
    ("card", "adlm.cli.report", "adlm card M --out README.md"),
    ("audit", "adlm.cli.audit", "adlm audit"),
    ("pretrain", "adlm.cli.release", "adlm pretrain"),
    ("doctor", "adlm.cli.audit", "adlm doctor"),
    ("cache clear", "adlm.cli.data", "adlm cache clear"),
]
GROUPS = {
    "data": "List and fetch public data sets.",
    "domain": "Declare what is public of the records.",
    "ledger": "What was spent on a data set, and what is left.",
    "key": "Keys to sign with, and to trust.",
    "cache": "Cached features of records, which are private data.",
}
CHECKOUT = Path(adlm.__file__).resolve().parents[2]
IN_CHECKOUT = (CHECKOUT / "benchmarks" / "commands.py").is_file()  # a wheel has no benchmarks
BENCHMARKS = {
    "experiment": "Run an experiment by name, side by side with DP-SGD. Example: adlm experiment list",
    "bench": "Measure speed and memory, each against others in the same run. Example: adlm bench --quick",
}
SHARED = {
    "as_json": "Print one JSON object on standard output, nothing else.",
    "quiet": "Print nothing but the result and errors.",
    "sign": "Sign it with this private key (adlm key new).",
    "trust": "A public key that must have signed it; may be repeated.",
    "backbone": "The encoder that the release was made with, if one was.",
    "device": "auto, cpu or cuda.",
    "size": "Number of records: a public one, or a guess where it is private.",
    "neighbours": "replace-one or add-remove.",
    "data": "A data set by name (see adlm data list).",
    "domain": "The TOML file that declares the records.",
    "epsilon": "The privacy budget of this release.",
    "ledger": "The data set's ledger; made if missing.",
    "budget": "Epsilon (or EPSILON,DELTA), the total budget of the ledger.",
    "out": "Output folder; must not exist.",
}
NAMES = {"as_json": ("--json",), "quiet": ("--quiet", "-q"), "licence": ("--license",)}
TYPES = {
    "str": "TEXT",
    "int": "N",
    "int range": "N",
    "float": "X",
    "path": "PATH",
    "list[Path]": "PATH",
    "list[str]": "TEXT",
}


class _InOrder(TyperGroup):
    """List commands and groups of commands in the order of COMMANDS."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names in the order of use."""
        names = dict.fromkeys(name.split()[0] for name, *_ in COMMANDS)
        return [*names, *(BENCHMARKS if IN_CHECKOUT else ())]


def paragraphs(function: Callable[..., Any]) -> str:
    """A command's docstring as whole paragraphs, for a terminal."""
    text = inspect.cleandoc(function.__doc__ or "")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n") if part.strip())


def _with_help(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make options of a command's parameters; those before `*` are arguments.

    A text in an annotation is the help of its option. `SHARED` has that of options of several commands.
    """
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *notes = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        words = next((one for one in notes if isinstance(one, str)), SHARED.get(name))
        found = next((one for one in notes if not isinstance(one, str)), None)
        if kind is typer.Context or words is None:
            continue
        flags = (f"--{name.replace('_', '-')}",) if parameter.default is False else ()
        is_option = parameter.kind is parameter.KEYWORD_ONLY or name in NAMES
        option: Any = copy.copy(found) or (
            typer.Option(*NAMES.get(name, flags)) if is_option else typer.Argument()
        )
        option.help = words
        function.__annotations__[name] = Annotated[kind, option]
    return function


def _plain_types(kind: Any) -> None:
    """Show types in help as PATH or N, where typer writes <path> or <int>, and none for a flag."""
    shown = kind.display_type_rich

    def plain(self: Any, ctx: typer.Context) -> str | None:
        text = (shown(self, ctx) or "").strip("<>")
        return None if text == "bool" else TYPES.get(text, text) or None

    kind.display_type_rich = plain


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adlm {__version__}")
        raise typer.Exit


_plain_types(TyperOption)
_plain_types(TyperArgument)
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


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _add(to: typer.Typer, name: str, function: Callable[..., Any], example: str) -> None:
    text = paragraphs(function).partition("With --json")[0]  # the command reference has those keys
    first = text.splitlines()[0]
    end = f"Example: {example}"
    to.command(name, short_help=f"{first} {end}", epilog=end, help=text)(_with_help(function))


def benchmarks() -> typer.Typer:
    """Import the commands of the checkout, which takes seconds."""
    if str(CHECKOUT) not in sys.path:  # before site-packages: Opacus installs a package `benchmarks` too
        sys.path.insert(0, str(CHECKOUT))
    found: typer.Typer = importlib.import_module("benchmarks.commands").app
    for group in (found, *(each.typer_instance for each in found.registered_groups)):
        for command in group.registered_commands if group is not None else ():
            if command.help is None and command.callback is not None:  # not yet
                command.help = paragraphs(_with_help(command.callback)).partition("With --json")[0]
    return found


def _benchmark(context: typer.Context) -> Any:
    """Hand the words after the name on."""
    return benchmarks()([str(context.info_name), *context.args], prog_name="adlm", standalone_mode=False)


groups: dict[str, typer.Typer] = {}
for name, module, example in COMMANDS:
    function = getattr(importlib.import_module(module), re.sub(r"\W", "_", name))
    first, _, second = name.partition(" ")
    if second and first not in groups:
        groups[first] = typer.Typer(help=GROUPS[first], no_args_is_help=True)
        short = f"{GROUPS[first]} Example: {example}"
        app.add_typer(groups[first], name=first, short_help=short, epilog=f"Example: {example}")
    _add(groups[first] if second else app, second or first, function, example)
if IN_CHECKOUT:
    for name, summary in BENCHMARKS.items():
        handed_on = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(name, help=summary, add_help_option=False, context_settings=handed_on)(_benchmark)
