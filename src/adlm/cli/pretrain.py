"""`adlm pretrain`: a relevance network that has seen nobody's data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet


def pretrain(
    data: Annotated[str, typer.Option(help="The data set whose domain the network is for.")] = "mnist",
    network: Annotated[str, typer.Option(help="A network by name.")] = "mlp",
    epochs: Annotated[int, typer.Option(help="Passes over the synthetic records.")] = 12,
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")] = Path("relevance.safetensors"),
    seed: Annotated[int, typer.Option(help="Of the random process and of training.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a relevance network on classes drawn from a random process: public, so nothing is charged.

    It learns to tell synthetic classes apart and reads no record; `adlm release --kind records` takes it by
    --relevance-network. With --json: {"out", "accuracy", "network", "epochs"}, the accuracy being that on
    synthetic classes.
    """
    import torch
    from safetensors.torch import save

    from adlm.analyst import networks
    from adlm.artefact import write_file
    from adlm.public import datasets
    from adlm.public.pretrain import CLASSES, synthetic
    from adlm.public.pretrain import pretrain as train

    output = Output(as_json, quiet)
    shape = datasets.domain(data).shape
    torch.manual_seed(seed)
    built = networks.build(network, shape, CLASSES)
    accuracy = train(built, *synthetic(shape, seed=seed), epochs=epochs, seed=seed)
    write_file(out, save(built.state_dict(), {"network": network, "data": data}), what="relevance network")
    output.result(
        {"out": str(out), "accuracy": accuracy, "network": network, "epochs": epochs},
        f"{out}: {network} tells {accuracy:.1%} of records of {CLASSES} synthetic classes; nothing charged",
    )
