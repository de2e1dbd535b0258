"""Properties of the authors' published code besides shared noise, each as a separate setting.

Facts of github.com/haiphanNJIT/PrivateDeepLearning that the paper does not state; the trials of
`paper-ablation` switch them on one at a time. None is part of Algorithm 1, and nothing is proved with them:
pixels in [-1, 1] have twice the range that Lemma 3 counts, and the relevance network is trained on the
records.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from adlm.model.training import Examples, TrainingConfig, train
from adlm.paper.networks import CROSS_ENTROPY, build
from adlm.paper.relevance import PRIVATE, STEPS, PrivateRelevance, relevance_charge
from adlm.paper.relevance import relevance as propagate
from adlm.privacy.accounting import parse_epsilon
from adlm.privacy.noise import Source
from benchmarks.experiments import benchmark_data

EXPLAINED = 2_000  # records whose relevances are averaged
POWER = 4  # to which the scaled average is raised
STABILISER = 1.0  # mu of their LRP


class Shift(nn.Module):
    """Adds one constant vector to its input, in training and at test time."""

    by: Tensor

    def __init__(self, by: Tensor) -> None:
        super().__init__()
        self.register_buffer("by", by)

    def forward(self, h: Tensor) -> Tensor:
        """Shift (n, width)."""
        return h + self.by


def shift_last_layer(network: nn.Sequential, noise: Tensor) -> nn.Sequential:
    """The network with a constant vector of noise on its last hidden layer.

    That is how the authors' code protected labels when the paper's corrected version appeared (April 2018):
    one vector of |h| numbers, drawn once. The output layer's bias undoes it.
    """
    *body, output = network
    return nn.Sequential(*body, Shift(noise), output)


@lru_cache(maxsize=4)
def sharp_relevance(data: str, n: int | None, epsilon1: str, seed: int) -> PrivateRelevance:
    """Relevances as in the authors' code: few features have most of the budget, and many none.

    The average over 2,000 records of a network that was trained on them is scaled to [0, 1] over the features
    (not each record by itself) and raised to the fourth power. It gets Laplace noise of scale 2d/(|D| eps1),
    which is larger than most of the averages.
    """
    declared = benchmark_data.domain(data, "replace-one")
    x = benchmark_data.scaled(data, "train")[:n]
    with torch.random.fork_rng():
        network = _trained(data, n)
    average = propagate(network, x[:EXPLAINED], mu=STABILISER).features.mean(0).flatten().double().numpy()
    share = ((average - average.min()) / (average.max() - average.min())) ** POWER
    charge = relevance_charge(declared, len(x), parse_epsilon(epsilon1), unproved=PRIVATE)
    noise = Source.seeded_with(seed).laplace(declared.size, charge.scale) / (len(x) * STEPS)
    return PrivateRelevance(np.asarray(share + noise), (charge,), {"epsilon1": epsilon1})


def _trained(data: str, n: int | None) -> nn.Module:
    """The narrow network trained on the records without noise, for two passes."""
    declared, labels = benchmark_data.declared(data), benchmark_data.split(data, "train").y[:n]
    torch.manual_seed(0)
    network = build("authors-mnist-quarter", declared.shape, len(declared.classes))
    target = CROSS_ENTROPY.coefficients(torch.from_numpy(labels), len(declared.classes))
    examples = Examples(benchmark_data.scaled(data, "train")[:n], target)
    train(network, examples, TrainingConfig(epochs=2, batch_size=300, learning_rate=1e-3), device="cpu")
    return network.eval()
