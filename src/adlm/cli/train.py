"""`adlm train`: make a model from a release alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from adlm.cli.console import AsJson, Device, Output, Quiet, Sign, given, key_of, pick_device, stamped

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
    out: Annotated[Path, typer.Option(help="Folder to make.")] = Path("model"),
    network: Annotated[
        str | None,
        typer.Option(
            help="A network by name (mlp, paper-mnist, ...). When not given: closed form for moments, the "
            "network that a record release was made for."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the examples; any number costs nothing.")] = 12,
    steps: Annotated[int | None, typer.Option(help="T batches, instead of epochs.", min=1)] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="|L|. When not given: 7200 for paper-cifar10, 1800 for every other.")
    ] = None,
    optimiser: Annotated[str, typer.Option(help="Any optimiser of torch.optim.")] = "Adam",
    learning_rate: Annotated[float, typer.Option(help="eta_t at the start.")] = 1e-3,
    schedule: Annotated[str, typer.Option(help="constant, linear or cosine.")] = "constant",
    draws: Annotated[int, typer.Option(help="Examples to draw from a moment release for a network.")] = 20000,
    seed: Annotated[
        int, typer.Option(help="Order of batches; nothing to do with privacy.", min=0, max=2**32 - 1)
    ] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from OUT's checkpoint.")] = False,
    sign: Sign = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train any network on a release, for any number of epochs, at no further privacy cost.

    A moment release gives a linear classifier in closed form, or, with --network, a network stacked on the
    public features and trained on labelled vectors drawn from the released moments. A record release trains
    a network on noisy records. With --json: {"out", "network", "epochs", "first_loss", "loss",
    "stopped", "stamps", and "small_classes" if there are any} and the certificate's totals.
    """
    from adlm.analyst.fit import fit, network_of
    from adlm.analyst.networks import batch_size as batch_size_of
    from adlm.analyst.training import Plan
    from adlm.class_sizes import sentences, small_classes
    from adlm.errors import UserError
    from adlm.release import Release

    output = Output(as_json, quiet)
    if out.exists():
        raise UserError(f"{out} exists already; choose another --out or remove it first")
    key, made = key_of(sign), Release.load(release)
    if network is None and made.certificate.kind == "records":
        network = network_of(made)
    for name in FOR_NETWORKS if network is None else ():
        if given(context, name):
            raise UserError(
                f"--{name.replace('_', '-')} is for networks, and {release} makes a model in closed form; "
                "leave it out, or choose a --network"
            )
    plan = Plan(
        epochs=epochs if steps is None else None, steps=steps, optimiser=optimiser, schedule=schedule,
        batch_size=batch_size_of(network) if batch_size is None else batch_size,
        learning_rate=learning_rate, seed=seed,
    )  # fmt: skip
    checkpoint = out.parent / f"{out.name}.checkpoint"
    model = fit(
        made, network, plan, draws=draws, device=pick_device(device), checkpoints=checkpoint, resume=resume
    )
    small = small_classes(made)
    if small:  # goes along with the model, which has no counts
        model = replace(model, training={**model.training, "small_classes": [s.to_dict() for s in small]})
        for words in sentences(small):
            typer.echo(f"adlm: warning: {words}", err=True)
    model.save(out, key=key)
    checkpoint.unlink(missing_ok=True)
    totals = made.certificate.totals
    output.result(
        {"out": str(out), "stamps": list(model.stamps)} | dict(model.training) | totals.to_dict(),
        f"{out}: {model.training['network']}, trained on the release alone{_trouble(model.training)}; "
        f"{totals.sentence()}{stamped(model.stamps)}",
    )


def _trouble(training: Mapping[str, Any]) -> str:
    """What went wrong in training, to be put into the sentence; nothing most of the time."""
    return f"; TRAINING FAILED: {training['stopped']}" if training.get("stopped") else ""
