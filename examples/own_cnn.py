"""The paper's Algorithm 1 on a network of your own: AdLM beside ILM, what is claimed and what is proved.

    pip install adlm
    python examples/own_cnn.py

It uses scikit-learn's digits, which need no download. `counted` is Delta_h0 as in the paper's Lemma 3: the
noise leaves nothing to learn from. `per-patch` counts it as the authors' published code does: the network
learns, but the proved epsilon is more than a hundred times the claimed one.
"""

from __future__ import annotations

import torch
from torch import nn

import adlm.paper
from adlm import TrainingConfig
from adlm.data import datasets


def cnn() -> nn.Module:
    """Make a small convolutional network for 8 by 8 digits, with its last hidden layer in [0, 1]."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 25),
        nn.Sigmoid(),
        nn.Linear(25, 10),
    )


def main(epsilon: float = 2, steps: int = 2000) -> list[tuple[str, str, float, float, float]]:
    """Train by AdLM and by ILM with both values of Delta_h0, and print a table."""
    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    plan = TrainingConfig(steps=steps, batch_size=100, learning_rate=3e-3, schedule="cosine")
    rows = []
    print("method  Delta_h0   claimed    proved  accuracy, %")
    for delta_h0 in ("counted", "per-patch"):
        for method, allocation in (("AdLM", "linear"), ("ILM", "identical")):
            model, _ = adlm.paper.train(
                cnn(),
                train.x,
                train.y,
                train.domain,
                epsilon,
                allocation=allocation,
                delta_h0=delta_h0,
                provenance="public",
                plan=plan,
            )
            totals = model.certificate.totals
            accuracy = float((model.predict(test.x) == test.y).mean())
            rows.append(
                (method, delta_h0, float(totals.epsilon_claimed), float(totals.epsilon_proved), accuracy)
            )
            print("{:7} {:9} {:8.3g} {:9.4g} {:11.1f}".format(*rows[-1][:4], 100 * accuracy))
    return rows


if __name__ == "__main__":
    main()
