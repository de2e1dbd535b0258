"""Negative controls: mechanisms that are wrong on purpose, which the audit must catch.

None of this is reachable from the rest of the package. Each control makes a mistake that has been made in
practice, claims the epsilon that its author would have claimed, and must be reported as violated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from adlm.audit.finding import ALPHA, Finding
from adlm.audit.paper_subjects import image_domain, of_records, paper_settings, public_relevance
from adlm.audit.replay import replay
from adlm.audit.replayed_controls import caught
from adlm.audit.statistics import two_worlds_bound
from adlm.audit.subject import Records, Subject, release_vectors
from adlm.audit.subjects import designs, of_moments
from adlm.audit.support import naive_laplace, support
from adlm.audit.two_worlds import curve, two_worlds
from adlm.audit.worst_case import Neighbours, worst_neighbours
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.noise import Source
from adlm.privacy.accounting import Charge, Epsilon
from adlm.public.domain import Domain
from adlm.public.features.identity import Identity

Reals = npt.NDArray[np.float64]
Control = Callable[[int, Source], Finding]
# Not among the half-noise controls: in one dimension ten thousand runs of radial noise are enough.
DENSE_RADIAL = ("class sums, radial", "second moments, radial", "second moments around means, radial")
STEPS = 1 << 20  # grid steps in one unit


def _finding(name: str, claimed: Epsilon, worlds: tuple[Reals, Reals], note: str) -> Finding:
    bound = two_worlds_bound(*worlds, alpha=ALPHA)
    finding = caught(name, claimed, bound.value, note)
    return replace(finding, confidence=bound.confidence, runs=len(worlds[0]), curve=curve(worlds))


def _attacked(subject: Subject, data: Records, neighbour: Records, runs: int, source: Source) -> Finding:
    """Attack a subject at given neighbours, as a control: against its claim."""
    comparison = replay(subject, data, neighbour, source)
    finding = two_worlds(subject, Neighbours(data, neighbour, comparison), runs, source)
    return replace(finding, rung="control", control=True, proved=float("inf"))


def shared_noise_image(runs: int, source: Source) -> Finding:
    """One noise image for all records of a batch, redrawn at each step: the authors' published code.

    The difference of two records of a batch carries no noise, so one step reveals every record relative to
    another one.
    """
    claimed, batch, pixels, delta_h0, size = Fraction(1, 2), 8, 16, 9800, 1800
    scale = Fraction(delta_h0 * STEPS, size) / claimed
    images = np.random.default_rng(0).integers(0, STEPS, (batch, pixels))

    def world(value: int) -> Reals:
        images[0, 0] = value
        noise = source.laplace((runs, 1, pixels), scale)  # one image a step, for the whole batch
        released = images + noise
        return np.asarray(released[:, 0, 0] - released[:, 1, 0], dtype=np.float64)

    return _finding(
        "one noise image for a batch", claimed, (world(STEPS), world(0)), "records are subtracted"
    )


def batch_sum_sensitivity(runs: int, source: Source) -> Finding:
    """Noise for the sum over a batch put on every record, with the authors' Delta_h0 of 9,800.

    The product's own record release, tested against the epsilon that the paper claims for it.
    """
    settings, domain = paper_settings(epsilon2=Fraction(1, 2)), image_domain()
    subject = of_records("record noise with the batch's sensitivity", settings, domain, focus=0)
    black, white = np.zeros((1, domain.size)), np.ones((1, domain.size))
    code = np.zeros(1, dtype=np.int64)
    finding = _attacked(subject, Records(white, code), Records(black, code), min(runs, 2000), source)
    return replace(finding, note="certificate: proved 72")


def half_sensitivity(source: Source) -> list[Finding]:
    """Half of the noise that the sensitivity requires, in each mechanism; with enough runs to detect it."""
    findings = []
    for subject in halved():
        runs = 10_000 if "radial" in subject.name else 20_000 if "Gaussian" in subject.name else 100_000
        worst = worst_neighbours(subject, source, evaluations=25)
        attacked = two_worlds(subject, worst, runs, source)
        claimed = replace(attacked, rung="control", control=True, claimed=attacked.proved)
        findings.append(replace(claimed, proved=float("inf"), note="half the noise behind its charge"))
    return findings


def halved() -> list[Subject]:
    """Every mechanism of the product with half the noise that it charges for."""
    half = Fraction(1, 2)
    subjects = [
        replace(of_moments(f"half the noise: {name}", design, "add-remove", covers, focus=focus), weaken=half)
        for name, (design, covers, focus) in designs().items()
        if name not in DENSE_RADIAL
    ]
    records = of_records("half the noise: labels", paper_settings(), image_domain(), focus=1)
    return [*subjects, replace(records, weaken=half)]


def float_laplace(runs: int, source: Source) -> Finding:
    """Laplace noise in floating point: the gaps in its support reveal the input."""
    del runs, source  # a thousand outputs of an ordinary generator are enough
    sampler = naive_laplace(4.0, np.random.default_rng())
    return replace(
        support(sampler, "floating-point Laplace", 1000, control=True), rung="control", proved=float("inf")
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

    def world(first: float) -> Reals:
        noise = source.laplace(runs, Fraction(STEPS) / claimed)  # |1/2 - y| h moves by 1 at most
        early, late = (coefficient(first, theta) + noise for theta in (0.5, 1.5))
        one, two = (coefficient(guess, 1.5) - coefficient(guess, 0.5) for guess in (0.0, 1.0))
        return np.asarray(abs(late - early - two) - abs(late - early - one), dtype=np.float64)

    return _finding(
        "loss noise drawn once, theta moves", claimed, (world(0.0), world(1.0)), "late less early"
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
    return _attacked(subject, Records(values, codes), Records(outlier, codes), runs, source)


def relevance_trained_on_data(runs: int, source: Source) -> Finding:
    """A relevance network trained on the records, declared public: one record decides its weights."""
    width, n = 4, 101
    domain = Domain((width,), 0.0, 1.0, ("a", "b"))

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        network = _trained(torch.from_numpy(data.values).float(), torch.from_numpy(data.codes))
        return public_relevance(network, data, domain, Fraction(1, 2), ledger, source).charges

    values = np.full((n, width), 0.5)
    codes = np.arange(n) % 2  # identical records of both classes: nothing to learn from
    one, two = values.copy(), values.copy()
    one[-1], two[-1] = (1, 0, 0, 0), (0, 1, 0, 0)
    subject = Subject("relevance network trained on the data", "replace-one", run, (0,), width, box=True)
    return _attacked(subject, Records(one, codes), Records(two, codes), runs, source)


def _trained(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """Fit a logistic regression from zero: the same initial weights for every data set."""
    layer = nn.Linear(x.shape[1], 2)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    network = nn.Sequential(layer)
    optimiser = torch.optim.SGD(network.parameters(), lr=1.0)
    for _ in range(50):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return network


SINGLE: tuple[Control, ...] = (
    shared_noise_image,
    batch_sum_sensitivity,
    float_laplace,
    noise_drawn_once,
    learnt_bounds,
    relevance_trained_on_data,
)
