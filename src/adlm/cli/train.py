"""From a release on: `adlm train`, `evaluate`, `predict`, `export` and `synth`. No record is charged for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlm.cli.console import (
    Output,
    caution,
    counted,
    encoder_of_release,
    key_of,
    load_model,
    pick_device,
    require_new,
    stamped,
)
from adlm.errors import UserError

if TYPE_CHECKING:
    from adlm.model.model import Model

AT_LEAST_1, SEED = typer.Option(min=1), typer.Option(min=0, max=2**32 - 1)
FOR_NETWORKS = (
    "epochs", "steps", "batch_size", "optimiser", "learning_rate", "schedule", "draws", "seed", "resume",
)  # fmt: skip


def train(
    context: typer.Context,
    release: Annotated[Path, "A release folder."],
    *,
    out: Path = Path("model"),
    network: Annotated[
        str | None, "A network by name (mlp, paper-mnist, ...); by default closed form, or the release's."
    ] = None,
    epochs: Annotated[
        int | None, "Epochs, at no privacy cost; 12 by default, or more for 2,000 steps.", AT_LEAST_1
    ] = None,
    steps: Annotated[int | None, "Batches (T), instead of epochs.", AT_LEAST_1] = None,
    batch_size: Annotated[int | None, "Batch size of training; |L| in the noise is the release's."] = None,
    optimiser: Annotated[str, "Any optimiser of torch.optim."] = "Adam",
    learning_rate: Annotated[float, "Initial learning rate (eta_t)."] = 3e-3,
    schedule: Annotated[str, "constant, linear or cosine."] = "cosine",
    draws: Annotated[int, "Number of examples to draw from the release for a network."] = 20000,
    seed: Annotated[int, "Random seed of training; unrelated to privacy.", SEED] = 0,
    resume: Annotated[bool, "Resume from OUT's checkpoint."] = False,
    backbone: str | None = None,
    class_weight: Annotated[
        str | None, "Class weights, at no privacy cost: balanced, or public NAME=W,..."
    ] = None,
    sign: Path | None = None,
    device: str = "auto",
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Train on a release, for any number of epochs, at no further privacy cost.

    By default the model is linear, in closed form. With --network it is a network on the public features,
    trained on examples that are drawn from the release. A release of noisy records trains a network on them.
    Under torchrun (torchrun --nproc-per-node 2 -m adlm train R --network mlp) several processes train
    together, with the same checkpoints; the first one writes.

    With --json: {"out", "network", "epochs", "first_loss", "loss", "stopped", "stamps", and "small_classes"
    if there are any} and the certificate's totals.
    """
    from adlm.privacy.folders import require_release

    require_new(out)
    require_release(release)
    from adlm.model import distributed
    from adlm.model.closed_form import class_weights, parse_class_weight, sentences, small_classes
    from adlm.model.fit import fit
    from adlm.model.training import ENOUGH_STEPS, Checkpoint, default_plan
    from adlm.paper.training import network_of
    from adlm.privacy.release import Release

    output = Output(as_json, quiet or distributed.rank() != 0)
    key, loaded = key_of(sign), Release.load(release)
    if network is None and loaded.kind == "records":
        network = network_of(loaded)
    for name in FOR_NETWORKS if network is None else ():
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise UserError(
                f"--{name.replace('_', '-')} is for networks, and {release} makes a model in closed form; "
                "leave it out, or choose a --network"
            )
    weights = None if class_weight is None else parse_class_weight(class_weight)
    if weights is not None:
        class_weights(loaded, weights)
    examples = len(loaded.tensors["x"]) if loaded.kind == "records" else draws
    usual = default_plan(max(examples, 1), seed)
    plan = replace(
        usual,
        epochs=None if steps is not None else usual.epochs if epochs is None else epochs,
        steps=steps,
        batch_size=usual.batch_size if batch_size is None else batch_size,
        optimiser=optimiser,
        schedule=schedule,
        learning_rate=learning_rate,
    )
    few, total = "", plan.total(examples)
    if network is not None and 4 * total < ENOUGH_STEPS:
        few = f"; {total} steps are few, {ENOUGH_STEPS:,} are usual: more cost nothing"
    checkpoint = out.parent / f"{out.name}.checkpoint"
    with distributed.joined(pick_device(device)) as chosen:
        model = fit(
            loaded,
            network,
            plan,
            class_weight=weights,
            features=encoder_of_release(backbone, loaded.certificate, chosen),
            draws=draws,
            device=chosen,
            checkpoint=Checkpoint(checkpoint, resume),
        )
        model = replace(model, training={**model.training, **distributed.state()})
    if distributed.rank() != 0:  # one process writes and prints
        return
    small = small_classes(loaded)
    if small:  # stored with the model, which has no counts
        model = replace(model, training={**model.training, "small_classes": [s.to_dict() for s in small]})
        for words in sentences(small):
            caution(words)
    model.save(out, key=key)
    checkpoint.unlink(missing_ok=True)
    totals = loaded.certificate.totals
    output.result(
        {"out": str(out), "stamps": list(model.stamps)} | dict(model.training) | totals.to_dict(),
        f"{out}: {model.training['network']}, trained on the release alone{_trouble(model.training)}{few}; "
        f"{totals.sentence()}{stamped(model.stamps)}",
    )


def _trouble(training: Mapping[str, Any]) -> str:
    """Problems of training, for the sentence; usually empty."""
    if training.get("stopped"):
        return f"; TRAINING FAILED: {training['stopped']}"
    if training.get("warning"):
        return f"; WARNING: {training['warning']}"
    if training.get("estimated_r2") is not None:
        estimate, sd = training["estimated_r2"], training["estimated_r2_sd"]
        return f"; estimated training R2 {estimate:.3f} ± {2 * sd:.3f} (its privacy cost is included)"
    if training.get("estimated_accuracy") is not None:
        estimate, sd = training["estimated_accuracy"], training["estimated_accuracy_sd"]
        return (
            f"; estimated training accuracy {100 * estimate:.1f} % ± {200 * sd:.1f} "
            "(its privacy cost is included)"
        )
    return ""


# ---- adlm evaluate

WARNING = "figures measured on private records are not private; no epsilon covers them"
SHOWN_CLASSES = 12  # a larger confusion table does not fit a terminal; --json has it


def evaluate(
    model: Annotated[Path, "A model folder."],
    file: Annotated[Path | None, "A file or a folder of records with labels."] = None,
    *,
    data: str | None = None,
    split: Annotated[str, "Which split of a named data set."] = "test",
    save: Annotated[Path | None, "Save the figures for adlm report, to M/evaluation.json."] = None,
    backbone: str | None = None,
    device: str = "auto",
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Measure a model on labelled records.

    On private records this statistic is not private: do not publish it, and do not choose models by it.

    With --json: {"accuracy", "balanced_accuracy", "recalls", "auc", "calibration_error", "log_loss",
    "confusion", "n", "classes", "small_classes", "stamps", "warning", "model_warning"} and the certificate's
    totals; accuracies and recalls are fractions, recalls are by class; `model_warning` if it is mostly noise.
    A model of a numeric target has {"rmse", "mae", "r2", "bias", "n", "target"} instead of the first line's.
    """
    from adlm.privacy.folders import require_model

    output = Output(as_json, quiet)
    if (file is None) == (data is None):
        raise UserError("give either a file or --data NAME; adlm data list shows the names")
    require_model(model)
    from adlm.export.predict import measure_file, measure_values_file
    from adlm.model.closed_form import SmallClass, sentences
    from adlm.model.metrics import measure
    from adlm.runtime.artefact import canonical, write_file

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
        caution(words)
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
        f"{sentence} on {counted(figures['n'], 'record')} (not private if the records are); "
        f"{totals.sentence()}{stamped(model.stamps)}" + (f"; WARNING: {warning}" if warning else ""),
    )


# ---- adlm predict, export, synth


def predict(
    model: Annotated[Path, "A model folder."],
    file: Annotated[Path, "A file or a folder of new records, or one image; no label is needed."],
    *,
    out: Annotated[Path, "The CSV file to write."] = Path("predictions.csv"),
    keep: Annotated[
        list[str] | None, "Copy this column of a table to the predictions; may be repeated."
    ] = None,
    backbone: str | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Predict a class for each record of a file, in its order, with the probability of each class.

    For a model of images, give an image, a folder of images at any depth, or any file of images that
    `adlm release` reads; the first column names each record. A model of a numeric target predicts a number
    within its bounds.

    With --json: {"out", "records", "stamps"} and the certificate's totals.
    """
    from adlm.privacy.folders import require_model

    require_new(out)
    require_model(model)
    from adlm.export.predict import predict_file

    loaded = load_model(model, backbone)
    records = predict_file(loaded, file, out, keep or ())
    totals = loaded.certificate.totals
    Output(as_json, quiet).result(
        {"out": str(out), "records": records, "stamps": list(loaded.stamps)} | totals.to_dict(),
        f"{out}: {counted(records, 'prediction')}; {totals.sentence()}{stamped(loaded.stamps)}",
    )


def export(
    model: Annotated[Path, "A model folder."],
    *,
    out: Annotated[Path, "The ONNX file to write."] = Path("model.onnx"),
    encoded: Annotated[bool, "Tables: take the encoded record instead of raw columns."] = False,
    backbone: str | None = None,
    sign: Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Write a model as one ONNX file, from raw records to probabilities.

    A table's file has an input for each column: doubles for numbers (NaN where missing) and dates (days from
    1970-01-01), strings for the rest.

    With --json: {"out", "bytes", "stamps"} and the totals.
    """
    from adlm.privacy.folders import require_model

    require_model(model)
    if out.is_dir():
        raise UserError(f"{out} is a folder; --out is the ONNX file to write")
    from adlm.export.onnx import export_onnx

    key, loaded = key_of(sign), load_model(model, backbone)
    export_onnx(loaded, out, encoded=encoded, key=key)
    totals = loaded.certificate.totals
    Output(as_json, quiet).result(
        {"out": str(out), "bytes": out.stat().st_size, "stamps": list(loaded.stamps)} | totals.to_dict(),
        f"{out}: {totals.sentence()}{stamped(loaded.stamps)}",
    )


def synth(
    release: Annotated[Path, "A release folder, made with --kind synthetic."],
    *,
    rows: Annotated[int, "Number of records to draw.", AT_LEAST_1] = 10000,
    out: Annotated[Path, "The .csv or .parquet file to write."] = Path("synthetic.csv"),
    where: Annotated[list[str] | None, "Draw only such records: town=north, or age=30..40."] = None,
    seed: Annotated[int, "Random seed of the draw; unrelated to privacy.", typer.Option(min=0)] = 0,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Draw synthetic records in the columns of the private table, at no further privacy cost.

    The certificate of the release is written beside the file, as OUT.certificate.json.

    With --json: {"out", "rows", "columns", "certificate", "stamps"} and the certificate's totals.
    """
    from adlm.model.synthetic import write
    from adlm.privacy.release import Release

    require_new(out)
    conditions = _conditions(where or ())
    loaded = Release.load(release)
    columns = write(loaded, rows, out, where=conditions, seed=seed)
    certificate = loaded.certificate
    Output(as_json, quiet).result(
        {
            "out": str(out),
            "rows": rows,
            "columns": columns,
            "certificate": f"{out}.certificate.json",
            "stamps": list(certificate.stamps),
        }
        | certificate.totals.to_dict(),
        f"{out}: {rows:,} synthetic records, drawn from {release}; {certificate.totals.sentence()}"
        f"{stamped(certificate.stamps)}",
    )


def _conditions(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--where is written like town=north, got {text!r}")
        if name in found:
            raise UserError(f"--where names {name!r} twice; give one value or one range for a column")
        found[name] = value
    return found
