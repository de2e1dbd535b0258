"""The paper's Figs. 1 and 3 on MNIST: relevance of single digits, and the private average.

    python -m benchmarks.experiments.relevance_pictures --out docs/figures

Single digits are of the public test split. The average is over the training split, with the noise of eps1.
"""

from __future__ import annotations

import argparse
from fractions import Fraction
from pathlib import Path

import torch

from adlm.data import datasets
from adlm.paper.lrp import relevance
from adlm.paper.relevance import STEPS, make_public, private_relevance, relevance_sum
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.report.results import heat_map, record_heat_maps

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
    record_heat_maps(relevances.numpy(), train.domain.shape, titles).savefig(
        out / "relevance-records.png", dpi=120
    )
    title = f"average of {len(train):,}, eps1 = {float(EPSILON):g}"
    heat_map(average.values, train.domain.shape, title).savefig(out / "relevance-average.png", dpi=120)


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
