"""`adlm ui`: explore the privacy-accuracy trade-off on a local page."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet


def ui(
    artefacts: Annotated[
        list[Path] | None,
        typer.Argument(help="Releases, models, or folders that hold them; by default those in this folder."),
    ] = None,
    domain: Annotated[
        Path | None, typer.Option(help="A domain file to plan for; needs --public-size.")
    ] = None,
    public_size: Annotated[
        int | None,
        typer.Option("--size", "--public-size", help="Number of records, public or guessed.", min=1),
    ] = None,
    ledger: Annotated[
        list[Path] | None, typer.Option(help="A ledger to show; may be repeated. It is only read.")
    ] = None,
    static: Annotated[
        Path | None, typer.Option(help="Write the page to this file and exit.", metavar="PAGE.html")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the loopback address; 0 takes any.", min=0)] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show forecasts for a budget, and existing releases, on a local page.

    Pick a data set or a domain, drag epsilon and delta, and see the forecast, DP-SGD beside it, what an
    attacker could come to believe, the plan in words, and the command to copy. The page reads public numbers
    and certificates; nothing in it can spend budget. It listens on the loopback address under a random path
    and makes no network requests. With --json: {"address"} or, with --static, {"out", "bytes"}.
    """
    from adlm.ui.artefacts import around
    from adlm.ui.page import gather, write_static

    output = Output(as_json, quiet)
    folders = artefacts if artefacts is not None else around(Path())
    shown = gather(folders, ledger or [], domain, public_size)
    if static is not None:
        write_static(shown, static)
        size = static.stat().st_size
        output.result({"out": str(static), "bytes": size}, f"{static}: {size:,} bytes, works by itself")
        return
    from adlm.ui.server import Server

    with Server(shown, port) as server:
        output.result({"address": server.address}, f"open {server.address} and stop it with Ctrl-C")
        if browser:
            _open(server.address)
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C stops it
            server.serve_forever()


def _open(address: str) -> None:
    """Open the page through a private file: other users can read the arguments of a browser."""
    import tempfile
    import threading
    import webbrowser

    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="adlm-", delete=False) as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
    path = Path(file.name)  # readable by its owner alone
    timer = threading.Timer(30, lambda: path.unlink(missing_ok=True))
    timer.daemon = True
    timer.start()
    if not webbrowser.open(path.as_uri()):
        path.unlink(missing_ok=True)
