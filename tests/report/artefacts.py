"""Small artefacts for reports: releases of each kind, a model, an evaluation, an audit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from adlm.domain import Domain
from adlm.features.base import Identity
from adlm.mechanism.planner import Plan
from adlm.mechanism.privatise import release_by_plan
from adlm.model.model import Model
from adlm.paper.release import PrivateRecords, Settings
from adlm.paper.release import release as release_records
from adlm.paper.relevance import RelevanceSource, private_relevance
from adlm.privacy.accounting import Budget
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime.artefact import canonical

SHAPE = (6, 6)
CLASSES = ("cat", "dog", "<script>x()</script>")
DOMAIN = Domain(shape=SHAPE, lower=0, upper=1, classes=CLASSES)


def records() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, len(CLASSES), 120)
    return np.clip(rng.normal(0.3, 0.1, (120, *SHAPE)) + 0.1 * y[:, None, None], 0, 1), y


def moments(
    *,
    seeded: bool = False,
    delta: Fraction = Fraction(0),
    stamps: tuple[str, ...] = (),
    neighbours: str = "replace-one",
) -> Release:
    x, y = records()
    features = Identity(SHAPE)
    z = features(torch.from_numpy(DOMAIN.scale(x))).numpy()
    return release_by_plan(
        lambda: [(z, y)],
        replace(DOMAIN, neighbours=neighbours),
        features=features,
        plan=Plan("class sums", len(DOMAIN.classes), 36, "gaussian" if delta else "laplace"),
        budget=Budget(Fraction(2), delta),
        ledger=Ledger(),
        source=Source.seeded_with(5) if seeded else Source.system(),
        stamps=stamps,
    )


def noisy_records() -> Release:
    """A record release whose relevance network was trained on private records: nothing is proved."""
    x, y = records()
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 3))
    source, ledger = Source.system(), Ledger()
    relevance = private_relevance(
        RelevanceSource(network, "private"), x, DOMAIN, epsilon=Fraction(1), ledger=ledger, source=source
    )
    settings = Settings(Fraction(1), Fraction(1), 10, Fraction(72), "given", 4)
    names = np.asarray(CLASSES)[y]
    return release_records(
        PrivateRecords(x, names, DOMAIN), settings, relevance=relevance, ledger=ledger, source=source
    )


def model(release: Release, epochs: int = 1) -> Model:
    head = nn.Linear(36, len(CLASSES))
    return Model(
        release.certificate,
        head,
        {"kind": "linear"},
        Identity(SHAPE),
        {"network": "linear", "epochs": epochs},
    )


EVALUATION = {
    "accuracy": 0.875,
    "balanced_accuracy": 0.86,
    "auc": 0.95,
    "log_loss": 0.4,
    "confusion": [[10, 1, 0], [2, 9, 0], [0, 1, 8]],
    "n": 31,
    "of": "held-out records",
    "split": "test",
}
AUDIT = {
    "findings": [
        {
            "attack": "distinguishing", "mechanism": "class sums", "neighbours": "replace-one",
            "epsilon_claimed": 2.0,
            "epsilon_proved": 2.0, "delta": 0.0, "epsilon_lower": 1.9, "confidence": 0.999, "runs": 100_000,
            "verdict": "holds", "control": False, "note": "", "curve": [[0, 0], [0.1, 0.6], [1, 1]],
        },
        {
            "attack": "control", "mechanism": "float Laplace", "neighbours": "replace-one",
            "epsilon_claimed": 1.0,
            "epsilon_proved": 1.0, "delta": 0.0, "epsilon_lower": None, "confidence": 1.0, "runs": 1000,
            "verdict": "violated", "control": True, "note": "", "curve": [],
        },
    ]
}  # fmt: skip


def demo(folder: Path) -> Path:
    """A folder as `adlm demo` leaves it: a release, two models with one certificate, figures beside them."""
    release = moments(seeded=True)
    release.save(folder / "release")
    for epochs in (1, 100):
        model(release, epochs).save(folder / f"model-{epochs}")
        (folder / f"model-{epochs}" / "evaluation.json").write_bytes(canonical(EVALUATION))
    (folder / "audit.json").write_bytes(canonical(AUDIT))
    return folder
