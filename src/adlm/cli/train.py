"""`adlm train`: make a model from a release alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from adlm.cli.console import (
    AsJson,
    Device,
    Output,
    Quiet,
    ReleasedBackbone,
    Sign,
    encoder_of_release,
    given,
    key_of,
    pick_device,
    stamped,
)
from adlm.errors import UserError

FOR_NETWORKS = (
    "epochs",
    "steps",
    "batch_size",
    "optimiser",
    "learning_rate",
    "schedule",
    "draws",
    "seed",
    "resume",
)


def train(
    context: typer.Context,
    release: Annotated[Path, typer.Argument(help="A release folder.")],
    out: Annotated[Path, typer.Option(help="Output folder; must not exist.")] = Path("model"),
    network: Annotated[
        str | None,
        typer.Option(
            help="A network by name (mlp, paper-mnist, ...). By default closed form for moments, the "
            "network that a record release was made for."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs; any number costs no privacy. By default 12, or more for 2,000 steps.", min=1
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Batches (T), instead of epochs.", min=1)] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Batch of training; |L| in the noise is the release's. By default 300 or less."),
    ] = None,
    optimiser: Annotated[str, typer.Option(help="Any optimiser of torch.optim.")] = "Adam",
    learning_rate: Annotated[float, typer.Option(help="Initial learning rate (eta_t).")] = 3e-3,
    schedule: Annotated[str, typer.Option(help="constant, linear or cosine.")] = "cosine",
    draws: Annotated[int, typer.Option(help="Examples to draw from a moment release for a network.")] = 20000,
    seed: Annotated[
        int, typer.Option(help="Random seed of training; unrelated to privacy.", min=0, max=2**32 - 1)
    ] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from OUT's checkpoint.")] = False,
    backbone: ReleasedBackbone = None,
    class_weight: Annotated[
        str | None,
        typer.Option(
            help="Class weights, at no privacy cost: balanced (from released counts), or public ones.",
            metavar="balanced|NAME=W,...",
        ),
    ] = None,
    sign: Sign = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train on a release, for any number of epochs, at no further privacy cost.

    A moment release gives a linear classifier in closed form, or, with --network, a network stacked on the
    public features and trained on labelled vectors drawn from the released moments. A record release trains
    a network on noisy records. With --json: {"out", "network", "epochs", "first_loss", "loss",
    "stopped", "stamps", and "small_classes" if there are any} and the certificate's totals.
    Under torchrun (torchrun --nproc-per-node 2 -m adlm train R --network mlp) several processes train
    together, with the same checkpoints; the first one writes.
    """
    from adlm.privacy.folders import require_release

    if out.exists():
        raise UserError(f"{out} exists already; choose another --out or remove it first")
    require_release(release)
    from adlm.model import distributed
    from adlm.model.fit import (
        class_weights,
        fit,
        parse_class_weight,
        sentences,
        small_classes,
        with_class_weights,
    )
    from adlm.model.training import ENOUGH_STEPS, Checkpoint, default_plan
    from adlm.paper.training import network_of
    from adlm.privacy.release import Release

    output = Output(as_json, quiet or distributed.rank() != 0)
    key, loaded = key_of(sign), Release.load(release)
    if network is None and loaded.kind == "records":
        network = network_of(loaded)
    for name in FOR_NETWORKS if network is None else ():
        if given(context, name):
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
        class_weight=None if network is None else weights,
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
            features=encoder_of_release(backbone, loaded.certificate, chosen),
            draws=draws,
            device=chosen,
            checkpoint=Checkpoint(checkpoint, resume),
        )
        model = replace(model, training={**model.training, **distributed.state()})
    if distributed.rank() != 0:  # one process writes and prints
        return
    model = with_class_weights(model, loaded, weights if network is None else None)
    small = small_classes(loaded)
    if small:  # stored with the model, which has no counts
        model = replace(model, training={**model.training, "small_classes": [s.to_dict() for s in small]})
        for words in sentences(small):
            typer.echo(f"adlm: warning: {words}", err=True)
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
