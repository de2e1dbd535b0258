"""`adlm predict`: classes and probabilities, or numbers, for new records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet, ReleasedBackbone, load_model, stamped
from adlm.errors import UserError


def predict(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    file: Annotated[
        Path, typer.Argument(help="A file or a folder of new records, or one image; no label is needed.")
    ],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    backbone: ReleasedBackbone = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict a class for each record of a file, in its order, with the probability of each class.

    For a model of images, give an image, a folder of images at any depth, or any file of images that
    `adlm release` reads; the first column names each record. A model of a numeric target predicts a number
    within its bounds.

    With --json: {"out", "records", "stamps"} and the certificate's totals.
    """
    from adlm.export.predict import predict_file

    if out.exists():
        raise UserError(f"{out} exists already; choose another --out or remove it first")
    loaded = load_model(model, backbone)
    records = predict_file(loaded, file, out)
    totals = loaded.certificate.totals
    Output(as_json, quiet).result(
        {"out": str(out), "records": records, "stamps": list(loaded.stamps)} | totals.to_dict(),
        f"{out}: {records} predictions; {totals.sentence()}{stamped(loaded.stamps)}",
    )
