"""`adlm cache`: cached features of private records."""

from __future__ import annotations

import typer

from adlm.cli.console import AsJson, Output, Quiet

app = typer.Typer(
    help="Show and remove cached features of records, which are private data. Example: adlm cache clear",
    no_args_is_help=True,
)


@app.command("clear", epilog="Example: adlm cache clear")
def clear(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Remove all cached features, and the files of killed runs of --engine ray. With --json: {"removed",
    "clusters"}.
    """
    from adlm.engine.ray import remove_left_behind
    from adlm.engine.records import clear_cache

    removed, clusters = clear_cache(), remove_left_behind()
    words = f"{removed} files of features removed"
    words += f", and the files of {clusters} Ray clusters" if clusters else ""
    Output(as_json, quiet).result({"removed": removed, "clusters": clusters}, words)


@app.command("where", epilog="Example: adlm cache where")
def where(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Print the folder of cached features of private records. With --json: {"folder", "files", "bytes"}."""
    from adlm.engine.records import cache_folder

    files = list(cache_folder().glob("*.npy"))
    size = sum(f.stat().st_size for f in files)
    Output(as_json, quiet).result(
        {"folder": str(cache_folder()), "files": len(files), "bytes": size},
        f"{cache_folder()}: {len(files)} files, {size / 1e6:.1f} MB",
    )
