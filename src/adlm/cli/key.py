"""`adlm key`: keys to sign releases, models and ONNX files with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet

app = typer.Typer(
    help="Keys to sign with, and to trust. Example: adlm key new curator.key", no_args_is_help=True
)


@app.command("new", epilog="Example: adlm key new curator.key")
def new(
    path: Annotated[Path, typer.Argument(help="The private key to write; PATH.pub is its public key.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make an Ed25519 key: a private file that only its owner can read, and a public one to share.

    Existing files are never overwritten. With --json: {"private", "public", "fingerprint"}.
    """
    from adlm.privacy.signature import new_key

    fingerprint = new_key(path)
    public = path.with_name(f"{path.name}.pub")
    Output(as_json, quiet).result(
        {"private": str(path), "public": str(public), "fingerprint": fingerprint},
        f"{path}: keep it to yourself; hand out {public}, fingerprint {fingerprint}",
    )


@app.command("show", epilog="Example: adlm key show curator.key.pub")
def show(
    path: Annotated[Path, typer.Argument(help="A public key.")], as_json: AsJson = False, quiet: Quiet = False
) -> None:
    """Print a public key's fingerprint, to compare over another channel. With --json: {"fingerprint"}."""
    from adlm.privacy.signature import fingerprint, load_public

    digest = fingerprint(load_public(path))
    Output(as_json, quiet).result({"fingerprint": digest}, digest)
