"""Attacks on a whole release and on models trained on it: canaries in one run, and membership inference.

Canaries: each is a record chosen by the attacker, which an independent fair coin puts into the data or not
(under replace-one: itself or its opposite). The attacker sees the release, guesses the most confident coins
and abstains on the rest; too many correct guesses refute epsilon (Steinke, Nasr and Jagielski 2023).

Membership inference: does longer training leak more? Shadow models in the manner of LiRA (Carlini and others
2022): the whole pipeline, release and training, is repeated on random halves of a small pool. From some
shadows the attacker learns the distribution of the model's confidence for each record, when it was in and
when it was out. On others it guesses by the likelihood ratio. The same is done for training on the records
themselves, which shows that the attack works, and an accountant computes the epsilon of DP-SGD.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adlm.audit.statistics import ALPHA, Finding, Reals, one_run_bound
from adlm.audit.subjects import Records, release_vectors
from adlm.domain import Domain
from adlm.features.identity import Identity
from adlm.mechanism.calibration import MomentConfig
from adlm.model.estimates import fit_class_model
from adlm.model.training import Examples, TrainingConfig, train
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import progress

EPOCHS = (1, 100)
DRAWN = 4000  # sampled vectors that a model is trained on
GUESSED = 0.4  # share of the canaries that are guessed, fixed beforehand


# Canaries


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
        attack="canaries",
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


# Membership inference


@dataclass(frozen=True)
class Pool:
    """Records that shadows are drawn from: (n, d) in [0, 1] and (n,) codes."""

    x: npt.NDArray[np.float32]
    codes: npt.NDArray[np.int64]
    classes: int


def synthetic_pool(n: int = 200, d: int = 40, classes: int = 4, seed: int = 0) -> Pool:
    """Draw records around class centres, with one label in five wrong, which can only be memorised.

    Parameters
    ----------
    n, d, classes : numbers of records, coordinates and classes.
    seed : of the draw.
    """
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, classes, n)
    centres = rng.random((classes, d))
    x = np.clip(0.5 * centres[codes] + 0.5 * rng.random((n, d)), 0, 1).astype(np.float32)
    wrong = rng.random(n) < 0.2
    return Pool(x, np.where(wrong, rng.integers(0, classes, n), codes), classes)


@dataclass(frozen=True)
class Advantage:
    """The attack's advantage over guessing: true less false positive rate.

    Attributes
    ----------
    epochs : of training.
    value : mean over shadows.
    margin : half width of its 95% confidence interval, over the shadows attacked.
    """

    epochs: int
    value: float
    margin: float


def confidences(head: nn.Module, z: Tensor, codes: Tensor) -> Reals:
    """Return log(p / (1 - p)) of each record's own class: LiRA's score, close to normal."""
    with torch.no_grad():
        logits = head(z).double()
    own = logits.gather(1, codes[:, None])[:, 0]
    others = logits.scatter(1, codes[:, None], -math.inf).logsumexp(1)
    return np.asarray((own - others).numpy())


def likelihood_ratio_advantage(scores: Reals, members: npt.NDArray[np.bool_], epochs: int) -> Advantage:
    """Return the attack's advantage from (shadows, n) scores and membership.

    The distributions of a record's score come from the first half of the shadows; the second half is
    attacked, so that its shadows are independent of each other given those distributions.
    """
    half = len(scores) // 2
    known, inside, outside = scores[:half], members[:half], ~members[:half]
    mean_in = (known * inside).sum(0) / np.maximum(inside.sum(0), 1)
    mean_out = (known * outside).sum(0) / np.maximum(outside.sum(0), 1)
    usable = (inside.sum(0) > 0) & (outside.sum(0) > 0)
    spread = ((known - np.where(inside, mean_in, mean_out)) ** 2).mean(0) + 1e-12
    ratio = ((scores[half:] - mean_out) ** 2 - (scores[half:] - mean_in) ** 2) / (2 * spread)
    guess = ratio > 0
    truth = members[half:]
    per_shadow = [
        guess[s][truth[s] & usable].mean() - guess[s][~truth[s] & usable].mean() for s in range(len(truth))
    ]
    value = float(np.mean(per_shadow))
    margin = 1.96 * float(np.std(per_shadow, ddof=1)) / math.sqrt(len(per_shadow))
    return Advantage(epochs, value, margin)


def _private_examples(
    pool: Pool, rows: npt.NDArray[np.intp], epsilon: Fraction, drawn: int, source: Source
) -> Examples:
    """Make a release of some records and draw training examples from it."""
    d = pool.x.shape[1]
    domain = Domain((d,), 0.0, 1.0, tuple(map(str, range(pool.classes))))
    data = Records(Identity((d,))(torch.from_numpy(pool.x[rows])).numpy(), pool.codes[rows])
    release = release_vectors(data, domain, MomentConfig(epsilon, Fraction(0), d, 1.0), Ledger(), source)
    return Examples(*fit_class_model(release.moments(), None).sample(drawn))


def shadows(
    pool: Pool, count: int, source: Source, *, epsilon: Fraction | None, drawn: int = 1000, seed: int = 0
) -> tuple[dict[int, Reals], npt.NDArray[np.bool_]]:
    """Train `count` models on random halves; None for epsilon trains on the records themselves.

    Parameters
    ----------
    drawn : examples that are drawn from each release.

    Returns
    -------
    (count, n) scores by number of epochs, and (count, n) membership.
    """
    rng = np.random.default_rng(seed)
    n = len(pool.x)
    z = Identity((pool.x.shape[1],))(torch.from_numpy(pool.x))
    codes = torch.from_numpy(pool.codes)
    scores: dict[int, list[Reals]] = {epochs: [] for epochs in EPOCHS}
    members = np.zeros((count, n), dtype=np.bool_)
    with progress.bar(count, "shadow models") as advance:
        for shadow in range(count):
            rows = np.sort(rng.permutation(n)[: n // 2])
            members[shadow, rows] = True
            examples = (
                Examples(z[rows], codes[rows])
                if epsilon is None
                else _private_examples(pool, rows, epsilon, drawn, source)
            )
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(shadow)
                head = nn.Sequential(nn.Linear(z.shape[1], 64), nn.ReLU(), nn.Linear(64, pool.classes))

            def keep(epoch: int, network: nn.Module) -> None:
                if epoch in scores:
                    scores[epoch].append(confidences(network, z, codes))

            plan = TrainingConfig(epochs=max(EPOCHS), batch_size=100, learning_rate=1e-2, seed=shadow)
            train(head, examples, plan, device="cpu", after_epoch=keep)
            advance(1)
    return {epochs: np.stack(rows) for epochs, rows in scores.items()}, members


def attack(
    pool: Pool, count: int, source: Source, *, epsilon: Fraction | None, drawn: int = 1000, seed: int = 0
) -> tuple[Advantage, ...]:
    """Return the advantage after 1 and after 100 epochs, of the same shadow models.

    Parameters
    ----------
    pool : records to be members or not.
    count : shadow models.
    source : of the noise.
    epsilon : of each release; None for training without privacy.
    drawn : vectors drawn from each release.
    seed : of the shadows.
    """
    scores, members = shadows(pool, count, source, epsilon=epsilon, drawn=drawn, seed=seed)
    return tuple(likelihood_ratio_advantage(scores[epochs], members, epochs) for epochs in EPOCHS)


def grows(advantages: Sequence[Advantage]) -> bool:
    """Whether the last advantage exceeds the first by more than chance, at four standard errors."""
    first, last = advantages[0], advantages[-1]
    return last.value - first.value > 4 / 1.96 * math.hypot(first.margin, last.margin)


def dp_sgd_epsilon(epochs: int, *, first: float = 1.0) -> float:
    """Return the epsilon of DP-SGD after some epochs, with the noise that spends `first` in one epoch.

    Poisson sampling, add-remove neighbours, Google's privacy loss distributions.
    """
    from dp_accounting import (
        DpEvent,
        GaussianDpEvent,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
        calibrate_dp_mechanism,
    )
    from dp_accounting.pld import PLDAccountant

    delta, rate = 1e-5, 0.01  # rate: share of the records in a batch

    def training(sigma: float, length: int) -> DpEvent:
        step = PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))
        return SelfComposedDpEvent(step, round(length / rate))

    def accountant() -> PLDAccountant:
        return PLDAccountant(value_discretization_interval=1e-3)

    sigma = calibrate_dp_mechanism(accountant, lambda sigma: training(sigma, 1), first, delta, tol=1e-3)
    return float(accountant().compose(training(sigma, epochs)).get_epsilon(delta))


def summary(count: int, source: Source, *, epsilon: Fraction = Fraction(1), seed: int = 0) -> dict[str, Any]:
    """Return the figures of the picture: advantages with and without privacy, and epsilons.

    Parameters
    ----------
    count : shadow models.
    source : of the noise.
    epsilon : of each release.
    seed : of the shadows.
    """
    pool = synthetic_pool(seed=seed)
    private = attack(pool, count, source, epsilon=epsilon, seed=seed)
    plain = attack(pool, count, source, epsilon=None, seed=seed)
    bound = (math.exp(epsilon) - 1) / (math.exp(epsilon) + 1)
    return {
        "shadows": count,
        "epsilon": float(epsilon),
        "advantage_allowed": bound,
        "epochs": list(EPOCHS),
        "adlm": [{"advantage": a.value, "margin": a.margin} for a in private],
        "adlm_grows": grows(private),
        "no_privacy": [{"advantage": a.value, "margin": a.margin} for a in plain],
        "epsilon_adlm": [float(epsilon)] * len(EPOCHS),
        "epsilon_dp_sgd": [dp_sgd_epsilon(epochs, first=float(epsilon)) for epochs in EPOCHS],
    }
