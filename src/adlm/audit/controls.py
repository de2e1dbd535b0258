"""Negative controls: mechanisms that are wrong on purpose, which the audit must catch.

None of this is reachable from the rest of the package. Each control makes a mistake that has been made in
practice, claims the epsilon that its author would have claimed, and must be reported as violated. Half of the
noise is taken from every mechanism of the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from adlm.audit.attacks import curve, distinguish, distinguish_all, naive_laplace, perturbed_losses, support
from adlm.audit.replay import Neighbours, replay, worst_neighbours
from adlm.audit.statistics import ALPHA, Finding, Reals, threshold_bound
from adlm.audit.subjects import (
    Records,
    Subject,
    image_domain,
    of_records,
    paper_settings,
    release_vectors,
    subjects,
)
from adlm.domain import Domain
from adlm.features.identity import Identity
from adlm.mechanism.calibration import MomentConfig
from adlm.privacy.accounting import Charge, Epsilon
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source

Control = Callable[[int, Source], Finding]
STEPS = 1 << 20  # grid steps in one unit


def caught(
    name: str, claimed: Epsilon, runs: tuple[Reals, Reals], note: str, *, alpha: float = ALPHA
) -> Finding:
    """Return the finding against a control whose claim is an epsilon alone.

    Parameters
    ----------
    name, note : the control, and why it is wrong.
    claimed : the epsilon that is claimed for it.
    runs : scores of runs on either data set.
    alpha : level of the test.
    """
    bound = threshold_bound(*runs, alpha=alpha)
    return Finding(
        attack="control",
        mechanism=name,
        neighbours="replace-one",
        claimed=claimed,
        proved=float("inf"),
        lower=bound.value,
        confidence=bound.confidence,
        runs=len(runs[0]),
        control=True,
        note=note,
        curve=curve(runs),
    )


def attacked(
    subject: Subject,
    data: Records,
    neighbour: Records,
    runs: int,
    source: Source,
    *,
    focus: int | None = None,
) -> Finding:
    """Attack a subject at given neighbours, as a control: against its claim.

    Parameters
    ----------
    subject : the control.
    data, neighbour : two neighbouring data sets.
    runs : on each data set.
    source : of the noise.
    focus : index of the charge that is attacked; None for all.
    """
    pair = Neighbours(data, neighbour, replay(subject, data, neighbour, source))
    finding = distinguish(subject, pair, runs, source, focus=focus)
    return replace(finding, attack="control", mechanism=subject.name, control=True, proved=float("inf"))


def shared_noise_image(runs: int, source: Source) -> Finding:
    """One noise image for all records of a batch, redrawn at each step: the authors' published code.

    The difference of two records of a batch carries no noise, so one step reveals every record relative to
    another one.
    """
    claimed, batch, pixels, delta_h0, size = Fraction(1, 2), 8, 16, 9800, 1800
    scale = Fraction(delta_h0 * STEPS, size) / claimed
    images = np.random.default_rng(0).integers(0, STEPS, (batch, pixels))

    def differences(value: int) -> Reals:
        images[0, 0] = value
        noise = source.laplace((runs, 1, pixels), scale)  # one image a step, for the whole batch
        released = images + noise
        return np.asarray(released[:, 0, 0] - released[:, 1, 0], dtype=np.float64)

    return caught(
        "one noise image for a batch",
        claimed,
        (differences(STEPS), differences(0)),
        "records are subtracted",
    )


def batch_sum_sensitivity(runs: int, source: Source) -> Finding:
    """Noise for the sum over a batch put on every record, with the authors' Delta_h0 of 9,800.

    The product's own record release, tested against the epsilon that the paper claims for it.
    """
    settings, domain = paper_settings(epsilon2=Fraction(1, 2)), image_domain()
    subject = of_records("record noise with the batch's sensitivity", settings, domain)
    black, white = np.zeros((1, domain.size)), np.ones((1, domain.size))
    code = np.zeros(1, dtype=np.int64)
    data, neighbour = Records(white, code), Records(black, code)
    finding = attacked(subject, data, neighbour, min(runs, 2000), source, focus=0)
    return replace(finding, note="certificate: proved 72")


def float_laplace(runs: int, source: Source) -> Finding:
    """Laplace noise in floating point: the gaps in its support reveal the input."""
    del runs, source  # a thousand outputs of an ordinary generator are enough
    sampler = naive_laplace(4.0, np.random.default_rng())
    return replace(
        support(sampler, "floating-point Laplace", 1000, control=True), attack="control", proved=float("inf")
    )


def noise_drawn_once(runs: int, source: Source) -> Finding:
    """Noise on loss coefficients drawn once, while the coefficients change with theta.

    phi(theta) = sum_i (1/2 - y_i) h_theta(x_i) is released at two steps with the same noise: the difference
    of the two has none.
    """
    claimed = Fraction(1, 2)
    rng = np.random.default_rng(1)
    x, y = rng.random(20), rng.integers(0, 2, 20)

    def coefficient(first: float, theta: float) -> int:
        values = x.copy()
        values[0] = first
        hidden = 1 / (1 + np.exp(-theta * values))
        return int(np.sum((0.5 - y) * hidden) * STEPS)

    def differences(first: float) -> Reals:
        noise = source.laplace(runs, Fraction(STEPS) / claimed)  # |1/2 - y| h moves by 1 at most
        early, late = (coefficient(first, theta) + noise for theta in (0.5, 1.5))
        one, two = (coefficient(guess, 1.5) - coefficient(guess, 0.5) for guess in (0.0, 1.0))
        return np.asarray(abs(late - early - two) - abs(late - early - one), dtype=np.float64)

    return caught(
        "loss noise drawn once, theta moves",
        claimed,
        (differences(0.0), differences(1.0)),
        "late less early",
    )


def learnt_bounds(runs: int, source: Source) -> Finding:
    """Bounds of the domain taken from the records: one outlier rescales all others."""
    design = MomentConfig(Fraction(1), Fraction(0), 1, 1.0)

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        domain = Domain((1,), float(data.values.min()), float(data.values.max()), ("a", "b"))
        features = Identity((1,))
        z = features(torch.from_numpy(domain.scale(data.values))).numpy()
        return release_vectors(Records(z, data.codes), domain, design, ledger, source).certificate.charges

    subject = Subject("bounds learnt from the data", "replace-one", run, (0,), 1)
    values = np.linspace(0, 1, 50)[:, None]
    outlier = values.copy()
    outlier[-1] = 100.0
    codes = np.zeros(50, dtype=np.int64)
    return attacked(subject, Records(values, codes), Records(outlier, codes), runs, source)


CONTROLS: tuple[Control, ...] = (
    shared_noise_image,
    batch_sum_sensitivity,
    float_laplace,
    noise_drawn_once,
    learnt_bounds,
)


def halved() -> tuple[Subject, ...]:
    """Every mechanism of the product with half the noise that it charges for."""
    half = Fraction(1, 2)
    return tuple(replace(s, name=f"half the noise: {s.name}", weaken=half) for s in subjects())


def half_the_noise(subject: Subject, runs: int, source: Source, *, evaluations: int = 25) -> list[Finding]:
    """Attack a mechanism with half of its noise: each charge at its worst neighbours, and all together.

    Every line must be caught by the attack, which sees outputs alone. (Replay finds half the noise exactly.)

    Parameters
    ----------
    subject : one of `halved`.
    runs : on each data set.
    source : of the noise.
    evaluations : pairs of neighbours that the search tries.
    """
    worst = worst_neighbours(subject, source, evaluations=evaluations)
    return [
        replace(found, attack="control", control=True, claimed=found.proved, proved=float("inf"))
        for found in distinguish_all(subject, worst, runs, source)
    ]


def half_the_loss_noise(runs: int, source: Source) -> list[Finding]:
    """Attack the perturbed loss with half of its noise.

    Parameters
    ----------
    runs : on each data set.
    source : of the noise.
    """
    return [
        replace(
            found,
            attack="control",
            mechanism=f"half the noise: {found.mechanism}",
            control=True,
            claimed=found.proved,
            proved=float("inf"),
        )
        for found in perturbed_losses(runs, source, weaken=0.5)
    ]
