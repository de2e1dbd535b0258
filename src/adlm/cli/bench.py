"""`adlm bench`: ratios of speed and memory, side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.checkout import find_benchmarks
from adlm.cli.console import AsJson, Output, Quiet


def bench(
    only: Annotated[
        str | None,
        typer.Option(
            help="Only these: noise, features, photographs, training, networks, pipeline, growth, tables, "
            "reading, engines, rounds, wide, image, versions."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less work, with a larger spread.")] = False,
    repeats: Annotated[int, typer.Option(help="Number of interleaved repeats.", min=1)] = 3,
    kymatio_python: Annotated[
        str | None, typer.Option(help="The Python of an environment that has kymatio 0.3.0.", metavar="PATH")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Another checkout, to be compared with (photographs, versions).", metavar="PATH"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json, a table and a picture.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure noise, features, training, the whole pipeline and growth, each against others in the same run.

    Only ratios are given, as the median of interleaved repeats with their spread, because times depend on
    the machine. With --json: {"command", "cores", "repeats", "ratios": [{"name", "value",
    "low", "high", "sense", "asked", "met", "note", "detail"}]}.
    """
    find_benchmarks("adlm bench")
    from benchmarks.bench.comparisons import Scale
    from benchmarks.bench.run import HEADINGS, run, table_rows

    output = Output(as_json, quiet)
    words = ["adlm bench", *(["--quick"] if quick else []), f"--repeats {repeats}"]
    words += [f"--only {only}"] if only else []
    words += ["--kymatio-python PATH"] if kymatio_python else []
    words += [f"--against {against.name}"] if against else []
    names = [part.strip() for part in (only or "").split(",") if part.strip()]
    scale = Scale(quick, repeats, kymatio_python or sys.executable, against=against)
    result = run(names, scale, out, " ".join(words))
    output.result(result)
    output.table(HEADINGS, [table_rows(entry) for entry in result["ratios"]])
    for entry in result["ratios"]:
        if entry["note"]:
            output.say(f"{entry['name']}: {entry['note']}")
