"""The paper's Figs. 1 and 3 on MNIST: relevance of single digits, and the private average.

    python -m benchmarks.experiments.relevance_pictures --out docs/figures

Single digits are of the public test split. The average is over the training split, with the noise of eps1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adlm.data import datasets
from adlm.paper.relevance import STEPS, make_public, private_relevance, relevance, relevance_sum
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source

EPSILON = Fraction(1, 2)
DIGITS = 5


def draw(out: Path, network: str, threads: int) -> None:
    """Write `relevance-records.png` and `relevance-average.png`."""
    torch.set_num_threads(threads)
    train, test = datasets.load("mnist", "train"), datasets.load("mnist", "test")
    explained = make_public(train.domain.shape, name=network)
    digits = torch.from_numpy(test.domain.scale(test.x[:DIGITS]))
    relevances = relevance(explained.network, digits).features
    average = private_relevance(
        explained,
        train.x,
        train.domain,
        epsilon=EPSILON,
        ledger=Ledger(),
        source=Source.system(),
    )
    # Without noise, so for a public benchmark only: how much of the picture is signal.
    clean = relevance_sum(explained.network, train.x, train.domain) / STEPS / len(train)
    scale = 2 * train.domain.size / len(train) / float(EPSILON)
    print(f"over features: sd {clean.std():.4f} of the averages, {2**0.5 * scale:.4f} of the noise")
    out.mkdir(parents=True, exist_ok=True)
    titles = [f"a {train.domain.classes[code]}" for code in test.y[:DIGITS]]
    heat_maps([row.reshape(28, 28) for row in relevances.numpy()], titles, out / "relevance-records.png")
    title = f"average of {len(train):,}, eps1 = {float(EPSILON):g}"
    heat_maps([np.reshape(average.values, (28, 28))], [title], out / "relevance-average.png")


def heat_maps(pictures: Sequence[Any], titles: Sequence[str], path: Path) -> None:
    """Draw pictures side by side: green where a feature matters less, red where more, as in the paper."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    colours = LinearSegmentedColormap.from_list("relevance", ["#2e7d32", "#fdd835", "#b71c1c"])
    figure = Figure(figsize=(2.6 * len(pictures) + 0.8, 3.0), layout="constrained")
    axes: Any = figure.subplots(1, len(pictures), squeeze=False)[0]
    for axis, picture, title in zip(axes, pictures, titles, strict=True):
        axis.set(title=title, xticks=[], yticks=[])
        figure.colorbar(axis.imshow(picture, cmap=colours), ax=axis, shrink=0.8)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    parser.add_argument("--network", default="mlp")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    draw(options.out, options.network, options.threads)


if __name__ == "__main__":
    main()
