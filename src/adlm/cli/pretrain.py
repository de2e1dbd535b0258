"""`adlm pretrain`: a relevance network trained on synthetic data alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adlm.cli.console import AsJson, Output, Quiet, Sign, key_of


def pretrain(
    data: Annotated[str, typer.Option(help="The data set whose domain the network is for.")] = "mnist",
    network: Annotated[str, typer.Option(help="A network by name.")] = "mlp",
    epochs: Annotated[int, typer.Option(help="Passes over the synthetic records.")] = 12,
    out: Annotated[Path, typer.Option(help="Output folder; must not exist.")] = Path("relevance-network"),
    seed: Annotated[
        int, typer.Option(help="Random seed of the synthetic data and of training.", min=0, max=2**32 - 1)
    ] = 0,
    sign: Sign = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a relevance network on classes drawn from a random process: public, so nothing is charged.

    It learns to classify synthetic classes and reads no record; `adlm release-records` takes it by
    --relevance-network. With --json: {"out", "network", "epochs", "provenance"}.
    """
    from adlm.data import datasets
    from adlm.paper.relevance import make_public

    output, key = Output(as_json, quiet), key_of(sign)
    trained = make_public(datasets.domain(data).shape, name=network, epochs=epochs, seed=seed)
    trained.save(out, key=key)
    output.result(
        {"out": str(out), "network": network, "epochs": epochs, "provenance": trained.provenance},
        f"{out}: {network}, which saw {trained.classes} synthetic classes and no record; nothing charged",
    )
