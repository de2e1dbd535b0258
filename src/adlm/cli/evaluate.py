"""`adlm evaluate`: metrics of a model on labelled records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlm.cli.console import AsJson, Device, Output, Quiet, ReleasedBackbone, load_model, pick_device, stamped
from adlm.errors import UserError

if TYPE_CHECKING:
    from adlm.model.model import Model

WARNING = "figures measured on private records are not private; no epsilon covers them"
SHOWN_CLASSES = 12  # a larger confusion table does not fit a terminal; --json has it


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    file: Annotated[Path | None, typer.Argument(help="A file or a folder of records with labels.")] = None,
    data: Annotated[str | None, typer.Option(help="A data set by name.")] = None,
    split: Annotated[str, typer.Option(help="Which split of a named data set.")] = "test",
    save: Annotated[
        Path | None, typer.Option(help="Save the figures to this JSON file, for adlm report.")
    ] = None,
    backbone: ReleasedBackbone = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure a model on labelled records.

    On private records this statistic is not private: do not publish it, and do not choose models by it. With
    --json: {"accuracy", "balanced_accuracy", "recalls", "auc", "calibration_error", "log_loss", "confusion",
    "n", "classes", "small_classes", "stamps", "warning", "model_warning"} and the certificate's totals;
    accuracies and recalls are fractions, recalls are by class; `model_warning` if it is mostly noise. A
    model of a numeric target has {"rmse", "mae", "r2", "bias", "n", "target"} instead of the first line's.
    """
    from adlm.export.predict import measure_file, measure_values_file
    from adlm.model.fit import SmallClass, sentences
    from adlm.model.metrics import measure
    from adlm.runtime.artefact import canonical, write_file

    output = Output(as_json, quiet)
    if (file is None) == (data is None):
        raise UserError("give either a file or --data NAME; adlm data list shows the names")
    loaded = load_model(model, backbone, pick_device(device))
    domain = loaded.certificate.domain
    if loaded.target is not None:
        if file is None:
            raise UserError("this model predicts a number of a table; give a file with its columns")
        measured = measure_values_file(loaded, file, device=pick_device(device))
        _numeric(loaded, measured.to_dict() | {"of": str(file), "split": None}, save, output)
        return
    if data is not None:
        import numpy as np

        from adlm.data import datasets

        records = datasets.load(data, split)
        codes = domain.encode_labels(np.asarray(records.domain.classes)[records.y])
        measures = measure(loaded.probabilities(records.x, device=pick_device(device)), codes)
    else:
        assert file is not None
        measures = measure_file(loaded, file, device=pick_device(device))
    figures = measures.to_dict()
    small = loaded.training.get("small_classes", [])
    figures |= {
        "classes": list(domain.classes),
        "small_classes": small,
        "of": data or str(file),
        "split": split if data else None,
    }
    if save is not None:
        write_file(save, canonical(figures), what="evaluation")
    shown = ("accuracy", "balanced_accuracy", "auc", "calibration_error", "log_loss")
    rows = [[key.replace("_", " "), f"{figures[key]:.4f}"] for key in shown if figures[key] is not None]
    output.table(["measure", "value"], rows)
    if len(domain.classes) <= SHOWN_CLASSES:
        counts = [
            [name, "none" if recall is None else f"{recall:.4f}", *map(str, row)]
            for name, recall, row in zip(
                domain.classes, figures["recalls"], figures["confusion"], strict=True
            )
        ]
        output.table(["true class", "recall", *(f"as {name}" for name in domain.classes)], counts)
    for words in sentences([SmallClass(one["class"], one["count"], one["sd"]) for one in small]):
        typer.echo(f"adlm: warning: {words}", err=True)
    sentence = f"accuracy {figures['accuracy']:.4f}, balanced {figures['balanced_accuracy']:.4f}"
    _finish(loaded, figures | {"model_warning": loaded.training.get("warning")}, sentence, output)


def _numeric(model: Model, figures: dict[str, Any], save: Path | None, output: Output) -> None:
    """Print the measures of a model of a numeric target."""
    from adlm.runtime.artefact import canonical, write_file

    figures["target"] = list(model.target or ())
    if save is not None:
        write_file(save, canonical(figures), what="evaluation")
    names = {"rmse": "RMSE", "mae": "MAE", "r2": "R2", "bias": "bias"}
    shown = [[name, f"{figures[key]:.5g}"] for key, name in names.items() if figures[key] is not None]
    output.table(["measure", "value"], shown)
    r2 = "" if figures["r2"] is None else f", R2 {figures['r2']:.4f}"
    _finish(model, figures, f"RMSE {figures['rmse']:.5g}, MAE {figures['mae']:.5g}{r2}", output)


def _finish(model: Model, figures: dict[str, Any], sentence: str, output: Output) -> None:
    """Print the warning, and the figures with the model's privacy cost."""
    output.say(f"{WARNING}: do not publish them, and do not choose between models by them")
    totals, warning = model.certificate.totals, model.training.get("warning")
    output.result(
        figures | totals.to_dict() | {"stamps": list(model.stamps), "warning": WARNING},
        f"{sentence} on {figures['n']} records (not private if the records are); "
        f"{totals.sentence()}{stamped(model.stamps)}" + (f"; WARNING: {warning}" if warning else ""),
    )
