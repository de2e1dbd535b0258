"""`adlm export`: a model as one ONNX file, features and head together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet, ReleasedBackbone, Sign, key_of, load_model, stamped


def export(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write.")] = Path("model.onnx"),
    encoded: Annotated[
        bool, typer.Option("--encoded", help="Tables: take the encoded record instead of raw columns.")
    ] = False,
    backbone: ReleasedBackbone = None,
    sign: Sign = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a model as one ONNX file, from raw records to probabilities.

    A table's file has an input for each column: doubles for numbers (NaN where missing) and dates (days from
    1970-01-01), strings for the rest. With --json: {"out", "bytes", "stamps"} and the totals.
    """
    from adlm.export.onnx import export_onnx

    key, loaded = key_of(sign), load_model(model, backbone)
    export_onnx(loaded, out, encoded=encoded, key=key)
    totals = loaded.certificate.totals
    Output(as_json, quiet).result(
        {"out": str(out), "bytes": out.stat().st_size, "stamps": list(loaded.stamps)} | totals.to_dict(),
        f"{out}: {totals.sentence()}{stamped(loaded.stamps)}",
    )
