"""One run, many canaries: audit a whole release, or the model trained on it, from a single run.

Each canary is a record chosen by the attacker, which an independent fair coin puts into the data or not
(under replace-one: itself or its opposite). The attacker sees the release, guesses the most confident coins
and abstains on the rest; too many correct guesses refute epsilon (Steinke, Nasr and Jagielski 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch

from adlm.analyst.examples import Examples
from adlm.analyst.training import TrainingConfig, train
from adlm.audit.finding import ALPHA, Finding
from adlm.audit.statistics import one_run_bound
from adlm.audit.subject import Records, release_vectors
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.noise import Source
from adlm.estimation.class_model import fit_class_model
from adlm.privacy.release import Release
from adlm.public.domain import Domain

Reals = npt.NDArray[np.float64]
DRAWN = 4000  # sampled vectors that a model is trained on
GUESSED = 0.4  # share of the canaries that are guessed, fixed beforehand


@dataclass(frozen=True)
class Planted:
    """A release with canaries in it, and the coin of each.

    Attributes
    ----------
    release : of the canaries that are in.
    coins : (classes, k) whether canary (c, j), which is coordinate j alone in class c, is in.
    """

    release: Release
    coins: npt.NDArray[np.bool_]

    @property
    def canaries(self) -> int:
        """Number of canaries, in or out."""
        return self.coins.size


def plant(
    design: MomentConfig, neighbours: str, classes: int, rng: np.random.Generator, source: Source
) -> Planted:
    """Make a release whose records are canaries: coordinate j alone, in class c, for all j and c.

    Such a canary puts the whole norm bound of a record into one released number, the best case for the
    attacker.

    Parameters
    ----------
    design : the public settings; k coordinates.
    neighbours : the relation.
    classes : number of classes; there are classes * k canaries.
    rng : decides which canaries are in.
    source : of the noise.
    """
    domain = Domain((design.k,), 0.0, 1.0, tuple(f"class {c}" for c in range(classes)), neighbours)
    coins = rng.random((classes, design.k)) < 0.5
    values = np.tile(np.eye(design.k), (classes, 1)) * design.clip_norm
    codes = np.repeat(np.arange(classes), design.k)
    if neighbours == "add-remove":
        values, codes = values[coins.ravel()], codes[coins.ravel()]
    else:
        values = np.where(coins.ravel()[:, None], values, -values)
    return Planted(release_vectors(Records(values, codes), domain, design, Ledger(), source), coins)


def release_scores(planted: Planted, neighbours: str) -> Reals:
    """Return (classes, k) scores: the released number of each canary, less the midpoint of out and in."""
    moments = planted.release.moments()
    clip_norm = float(planted.release.certificate.settings["level"])
    middle = clip_norm / 2 if neighbours == "add-remove" else 0.0
    return np.asarray(moments.sums.numpy() - middle)


def model_scores(planted: Planted, epochs: int) -> Reals:
    """Return (classes, k) scores from a model alone: its logit for each canary's class.

    The model is a linear head trained by the product's loop on vectors drawn from the release.
    """
    release = planted.release
    class_model = fit_class_model(release.moments(), None)
    x, y = class_model.sample(DRAWN, torch.Generator().manual_seed(0))
    classes, k = planted.coins.shape
    head = torch.nn.Linear(k, classes)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    plan = TrainingConfig(epochs=epochs, batch_size=500, optimiser="SGD", learning_rate=0.5)
    train(head, Examples(x, y), plan, device="cpu")
    weight = head.weight.detach().double().numpy()
    return np.asarray(weight - weight.mean(0))  # evidence of a coordinate for one class against the others


def guess(scores: Reals, coins: npt.NDArray[np.bool_], share: float) -> tuple[int, int]:
    """Guess the canaries with the most extreme scores, half of them in and half out: (correct, guesses)."""
    order = np.argsort(scores.ravel())
    each = max(1, int(share * scores.size / 2))
    truth = coins.ravel()
    right = int((~truth[order[:each]]).sum() + truth[order[-each:]].sum())
    return right, 2 * each


def one_run(planted: Planted, scores: Reals, name: str) -> Finding:
    """Turn (classes, k) scores, larger for a canary that is in, into guesses and a finding."""
    totals = planted.release.certificate.totals
    right, guesses = guess(scores, planted.coins, GUESSED)
    delta = float(totals.delta)
    return Finding(
        rung="one run",
        mechanism=name,
        neighbours=totals.neighbours,
        claimed=totals.epsilon_claimed,
        proved=totals.epsilon_proved,
        lower=one_run_bound(right, guesses, planted.canaries, alpha=ALPHA, delta=delta),
        confidence=1 - ALPHA,
        runs=planted.canaries,
        delta=delta,
        note=f"{right} of {guesses} guesses right, {planted.canaries} canaries",
    )


def canary_design(k: int) -> MomentConfig:
    """Return the release that canaries are planted in: class sums and counts, pure epsilon."""
    return MomentConfig(Fraction(1), Fraction(0), k, 1.0, constant=0.05)
