"""What commands share: one way to print figures, and to read a model, an encoder or a key."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adlm.errors import UserError
from adlm.runtime import progress

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from adlm.features import Features
    from adlm.model.model import Model
    from adlm.privacy.certificate import Certificate


@dataclass(frozen=True)
class Output:
    """The output of a command: text or JSON."""

    as_json: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        progress.enable(not self.quiet and not self.as_json)

    def say(self, line: str) -> None:
        """Print a line of text, unless quiet or JSON."""
        if not self.as_json and not self.quiet:
            typer.echo(line)

    def result(self, figures: dict[str, Any], line: str | None = None) -> None:
        """Print the figures as JSON, or the line that states them (even when quiet)."""
        if self.as_json:
            typer.echo(json.dumps(_plain(figures), allow_nan=False))
        elif line is not None:
            typer.echo(line)

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
        """Print a table, unless quiet or JSON."""
        if self.as_json or self.quiet:
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, title=title, title_justify="left")
        for index, heading in enumerate(headings):
            table.add_column(heading, justify="left" if index == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        # In a file or a pipe a table is as wide as necessary; a terminal has its own width.
        Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 200).print(table)


def _plain(value: Any) -> Any:
    """Convert a value to JSON: infinities and NaN become null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def pick_device(device: str) -> str:
    """Resolve `auto` to the best device with double precision."""
    from adlm.runtime.machine import choose_device

    return str(choose_device(device, ("cuda",)))


def encoder_of_release(
    backbone: str | None, certificate: Certificate, device: str = "cpu"
) -> Features | None:
    """Load the encoder that a release was made with, as its certificate declares it."""
    if backbone is None:
        return None
    from adlm.features import load_backbone

    entry = certificate.features
    return load_backbone(
        backbone,
        certificate.domain.shape,
        provenance=str(entry.get("provenance", "")),
        trained_on=str(entry.get("trained_on", "")),
        device=device,
    )


def load_model(folder: Path, backbone: str | None, device: str = "cpu") -> Model:
    """Read a model, with the encoder that its release was made with if one is given."""
    from adlm.model.model import Model
    from adlm.privacy.folders import read_model

    if backbone is None:
        return Model.load(folder)
    return Model.load(folder, features=encoder_of_release(backbone, read_model(folder).certificate, device))


def counted(count: int, what: str) -> str:
    """A number with its noun, such as "1 record" or "3 records"."""
    return f"{count} {what}{'s' * (count != 1)}"


def stamped(stamps: Sequence[str]) -> str:
    """The stamps, for the end of a sentence; empty if there are none."""
    return "".join(f"; stamped: {stamp}" for stamp in stamps)


def key_of(path: Path | None) -> Ed25519PrivateKey | None:
    """Read the signing key, before any budget is spent."""
    from adlm.privacy.signature import load_key

    return None if path is None else load_key(path)


def require_new(out: Path) -> None:
    """Refuse an output that exists."""
    if out.exists():
        raise UserError(f"{out} exists already; choose another --out or remove it first")


def caution(words: str) -> None:
    """Print a warning on standard error."""
    typer.echo(f"adlm: warning: {words}", err=True)
