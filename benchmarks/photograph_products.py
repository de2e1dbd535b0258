"""Products of leading coordinates on CIFAR-10, with noise in floating point: how their number was chosen.

Gradient rounds as the rule plans them for 50,000 records under add-remove and delta 1e-5, on the first
training images, validated on the last 5,000; the test split is never read. The noise is plain Gaussian noise
of the relative size for 50,000 records. This is for choosing settings, never for a release.

`python benchmarks/photograph_products.py --records 30000 --cases 0/0/8 77/0.5/8` (leading/share/epsilon)
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from adlm.data import datasets
from adlm.engine.records import featurise
from adlm.features.base import Identity, PairProducts
from adlm.features.photographs import NaturalImages
from adlm.mechanism.planner import SETTLED, plan_image_rounds
from adlm.privacy.accounting import gaussian_mu

SIZE, HELD_OUT, DELTA = 50_000, 5_000, Fraction(1, 100_000)
ROWS = 1000


@dataclass(frozen=True)
class Split:
    """Features and classes of training records, and of held-out ones."""

    z: Tensor
    codes: Tensor
    other: Tensor
    other_codes: Tensor


def wide(z: Tensor, leading: int, share: float) -> Tensor:
    """Append products of the leading coordinates to (n, k) features; none if `leading` is 0."""
    if not leading:
        return z
    products = PairProducts(Identity((z.shape[1],)), leading, share)
    return torch.cat([products.of(part) for part in torch.split(z, ROWS)])


def accuracy(split: Split, epsilon: float, path: float, seed: int) -> float:
    """Return the held-out accuracy of the head of noisy rounds.

    Parameters
    ----------
    split : the features.
    epsilon : of the whole release.
    path : of the rounds, over the signal.
    seed : of the noise.
    """
    signal = (
        SIZE * float(gaussian_mu(Fraction(str(epsilon)), DELTA)) * math.sqrt(1 - SETTLED.rounds_sums_share)
    )
    plan = plan_image_rounds(SIZE, signal, path)
    centre, n = split.z.mean(0), len(split.z)
    x = functional.pad(split.z - centre, (1, 0), value=plan.constant)
    targets = functional.one_hot(split.codes).float()
    lengths, noise = x.norm(dim=1), torch.Generator().manual_seed(seed)
    weights = torch.zeros(targets.shape[1], x.shape[1])
    velocity, total = torch.zeros_like(weights), torch.zeros_like(weights)
    sd = plan.clip_norm * math.sqrt(plan.rounds) / signal
    last = max(1, round(plan.average * plan.rounds))
    for step in range(plan.rounds):
        residuals = functional.linear(x, weights).softmax(1) - targets
        residuals *= (plan.clip_norm / (residuals.norm(dim=1) * lengths).clamp_min(1e-9)).clamp_max(1)[
            :, None
        ]
        gradient = residuals.T.contiguous() @ x / n + sd * torch.randn(weights.shape, generator=noise)
        velocity = plan.momentum * velocity + gradient - gradient.mean(0)
        weights = weights - plan.step * velocity
        if step >= plan.rounds - last:
            total += weights
    held_out = functional.pad(split.other - centre, (1, 0), value=plan.constant)
    return float((functional.linear(held_out, total).argmax(1) == split.other_codes).float().mean())


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description="Products of leading coordinates on CIFAR-10, with noise.")
    parser.add_argument("--records", type=int, default=30_000)
    parser.add_argument("--cases", nargs="+", default=["0/0/8", "77/0.5/8"], help="leading/share/epsilon")
    parser.add_argument("--path", type=float, default=NaturalImages.path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    records = datasets.load("cifar10", "train")
    rows = np.r_[: options.records, len(records) - HELD_OUT : len(records)]
    z = torch.tensor(featurise(records.x[rows], records.domain, NaturalImages(), cache=True))
    codes = torch.from_numpy(records.y[rows])
    for case in options.cases:
        leading, share, epsilon = case.split("/")
        both = wide(z, int(leading), float(share))
        split = Split(both[:-HELD_OUT], codes[:-HELD_OUT], both[-HELD_OUT:], codes[-HELD_OUT:])
        correct = accuracy(split, float(epsilon), options.path, options.seed)
        print(f"leading {leading}, share {share}, epsilon {epsilon}: {100 * correct:.1f}", flush=True)


if __name__ == "__main__":
    main()
