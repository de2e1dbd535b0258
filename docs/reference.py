"""MkDocs hook: write the command reference from the commands themselves, into the build and nowhere else."""

from __future__ import annotations

from typing import Any

import typer
from mkdocs.structure.files import File, Files

PAGE = "commands.md"
INTRO = """# Commands

Written from the code when this page was built. Every command takes `--help`. Commands that report figures
take `--json` (one object on standard output, nothing else there) and `--quiet`. A mistake ends in one
sentence on standard error and exit code 2.
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the page to those that were found."""
    files.append(File.generated(config, PAGE, content=render()))
    return files


def render() -> str:
    """Return the page: every command in the order a person uses them."""
    from adlm.cli.app import COMMANDS, app, benchmarks

    product: Any = typer.main.get_command(app)
    checkout: Any = typer.main.get_command(benchmarks())
    found = {name.split()[0]: product.commands[name.split()[0]] for name, *_ in COMMANDS}
    found |= checkout.commands
    parts = [line for name, command in found.items() for line in _commands(command, f"adlm {name}", 2)]
    return "\n".join([INTRO, *parts])


def _commands(command: Any, path: str, level: int) -> list[str]:
    if hasattr(command, "commands"):
        inner = [
            line for name, c in command.commands.items() for line in _commands(c, f"{path} {name}", level + 1)
        ]
        return [f"{'#' * level} {path}\n", f"{_plain(command.help)}\n", *inner]
    from adlm.cli.app import paragraphs

    lines = [f"{'#' * level} {path}\n", paragraphs(command.callback).replace("[", r"\[") + "\n"]
    if command.epilog:
        lines.append(f"```sh\n{_plain(command.epilog).removeprefix('Example: ')}\n```\n")
    shown = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    if shown:
        lines += ["| option | what | default |", "| --- | --- | --- |"]
        lines += [f"| {_name(p)} | {_cell(getattr(p, 'help', '') or '')} | {_default(p)} |" for p in shown]
        lines.append("")
    return lines


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name).upper()}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    return "" if parameter.default in (None, False, "", ()) else f"`{_cell(str(parameter.default))}`"


def _plain(text: str | None) -> str:
    return " ".join((text or "").split()).replace("[", r"\[")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("[", r"\[")
