"""The whole audit: which attacks are run on which mechanisms, and controls, which must be caught.

A negative control is a mechanism that is wrong on purpose. None of them is reachable from the rest of the
package. Each makes a mistake that has been made in practice, claims the epsilon that its author would have
claimed, and must be reported as violated. Half of the noise is taken from every mechanism of the product.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adlm.audit.artefacts import audit_release
from adlm.audit.attacks import (
    affordable,
    canaries,
    curve,
    distinguish,
    distinguish_all,
    exact_laplace,
    judge,
    laws_of,
    naive_laplace,
    released_class_sums,
    scores,
    support,
)
from adlm.audit.black_box import audit_mechanism, find_mechanism
from adlm.audit.replay import Neighbours, Records, Subject, replay, report, worst_neighbours
from adlm.audit.separability import product_separability
from adlm.audit.statistics import ALPHA, COMMAND_ALPHA, MOST_TESTS, Finding, Reals, threshold_bound
from adlm.audit.subjects import (
    DELTA,
    image_domain,
    of_bits,
    of_records,
    of_synthetic,
    paper_settings,
    release_vectors,
    subjects,
)
from adlm.audit.written_files import product_files
from adlm.domain import NEIGHBOURS, Domain
from adlm.errors import UserError
from adlm.features.base import Identity
from adlm.mechanism.planner import Plan
from adlm.privacy.accounting import Budget, Charge, Epsilon
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.runtime import progress

Control = Callable[[int, Source], Finding]
Step = Callable[[], list[Finding]]
STEPS = 1 << 20  # grid steps in one unit
SEARCHED = 25  # pairs of neighbours that are tried for a control
CONTROL_RUNS, CONTROL_MINIMA = 50_000, 200  # of each control on each data set; minima of perturbed losses
BUDGETS = (Fraction(1, 2), Fraction(2))  # of the one-dimensional releases that are run most often


@dataclass(frozen=True)
class Depth:
    """Effort of an audit.

    Attributes
    ----------
    runs : of each mechanism on each of two neighbouring data sets.
    evaluations : neighbours that the search tries for each mechanism.
    minima : released minima of a perturbed loss on each data set.
    canaries : coordinates of the release that canaries are planted in; ten classes each.
    """

    runs: int = 100_000
    evaluations: int = 25
    minima: int = 300
    canaries: int = 300


@dataclass(frozen=True)
class Audit:
    """The result of an audit: the lines of the table, and the duration."""

    findings: tuple[Finding, ...]
    seconds: float

    @property
    def violations(self) -> tuple[Finding, ...]:
        """Mechanisms of the product that were refuted."""
        return tuple(f for f in self.findings if not f.control and not f.passed)

    @property
    def missed(self) -> tuple[Finding, ...]:
        """Controls that were not caught."""
        return tuple(f for f in self.findings if f.control and not f.passed)

    @property
    def sound(self) -> bool:
        """Whether nothing was refuted and every control was caught."""
        return not self.violations and not self.missed

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values under stable keys."""
        return {
            "findings": [finding.to_dict() for finding in self.findings],
            "violations": len(self.violations),
            "controls_missed": len(self.missed),
            "false_alarm_rate": COMMAND_ALPHA,
            "seconds": round(self.seconds, 1),
            "sound": self.sound,
        }


def audit_subject(subject: Subject, depth: Depth, source: Source) -> list[Finding]:
    """Search for a mechanism's worst neighbours, then distinguish them by its outputs."""
    worst = worst_neighbours(subject, source, evaluations=depth.evaluations)
    found = distinguish_all(subject, worst, depth.runs, source, minima=depth.minima)
    return [report(subject, worst, depth.evaluations), *found]


def run(
    depth: Depth = Depth(),
    *,
    with_controls: bool = False,
    release: Path | None = None,
    source: Source | None = None,
    seed: int | None = None,
) -> Audit:
    """Audit the product, or one release of it.

    Parameters
    ----------
    depth : effort.
    with_controls : attack the negative controls too.
    release : a release folder to check instead of the product's mechanisms.
    source : of the noise; the operating system's by default.
    seed : of canaries' coins; fresh by default.
    """
    start = time.monotonic()
    source = source or Source.system()
    steps: list[Step] = []
    if release is not None:
        steps.append(lambda: audit_release(release, depth.runs, source))
    else:
        steps.extend(_product(depth, source, np.random.default_rng(seed)))
    if with_controls:
        few = min(depth.runs, CONTROL_RUNS)
        steps.extend(partial(_single, control, few, source) for control in CONTROLS)
        steps.extend(partial(half_the_noise, subject, few, source) for subject in subjects())
    findings: list[Finding] = []
    with progress.bar(len(steps), "audit") as advance:
        for step in steps:
            findings.extend(step())
            advance(1)
    if sum(f.confidence < 1 for f in findings if not f.control) > MOST_TESTS:
        raise AssertionError("more tests than the stated false-alarm rate allows for")
    return Audit(tuple(findings), time.monotonic() - start)


def run_black_box(names: Sequence[str], runs: int) -> Audit:
    """Audit third-party mechanisms, each given as `FILE.py:NAME` or `module:NAME`."""
    start = time.monotonic()
    if len(names) > MOST_TESTS:
        raise UserError(f"one command audits at most {MOST_TESTS} subjects, got {len(names)}")
    mechanisms = [find_mechanism(name) for name in names]  # all of them, before the first is run
    findings: list[Finding] = []
    with progress.bar(len(mechanisms), "audit") as advance:
        for mechanism in mechanisms:
            findings.append(audit_mechanism(mechanism, runs))
            advance(1)
    return Audit(tuple(findings), time.monotonic() - start)


def _product(depth: Depth, source: Source, rng: np.random.Generator) -> list[Step]:
    """List the attacks on the product's own mechanisms."""
    steps: list[Step] = [partial(audit_subject, subject, depth, source) for subject in subjects()]
    for epsilon in BUDGETS:
        steps.extend(
            partial(_single, released_class_sums, epsilon, delta, relation, depth.runs, source)
            for delta in (Fraction(0), DELTA)
            for relation in NEIGHBOURS
        )
    steps.append(product_separability)
    steps.append(partial(product_files, 2, source))
    steps.append(lambda: [support(exact_laplace(4.0, source), "exact Laplace noise", 10 * depth.runs)])
    steps.extend(partial(canaries, depth.canaries, relation, source, rng) for relation in NEIGHBOURS)
    return steps


def _single(attack: Callable[..., Finding], *arguments: Any) -> list[Finding]:
    return [attack(*arguments)]


# ---- Controls


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
    charge: int = 0,
) -> Finding:
    """Attack a subject at given neighbours, as a control: against its claim.

    Parameters
    ----------
    subject : the control.
    data, neighbour : two neighbouring data sets.
    runs : on each data set.
    source : of the noise.
    charge : index of the charge that is attacked.
    """
    pair = Neighbours(data, neighbour, replay(subject, data, neighbour, source))
    finding = distinguish(subject, pair, charge, runs, source)
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
    finding = attacked(subject, data, neighbour, min(runs, 2000), source)
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

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        domain = Domain((1,), float(data.values.min()), float(data.values.max()), ("a", "b"))
        features = Identity((1,))
        z = features(torch.from_numpy(domain.scale(data.values))).numpy()
        plan, budget = Plan("class sums", 2, 1, "laplace"), Budget(Fraction(1))
        made = release_vectors(Records(z, data.codes), domain, plan, budget, ledger, source)
        return made.certificate.charges

    subject = Subject("bounds learnt from the data", "replace-one", run, (0,), 1)
    values = np.linspace(0, 1, 50)[:, None]
    outlier = values.copy()
    outlier[-1] = 100.0
    codes = np.zeros(50, dtype=np.int64)
    return attacked(subject, Records(values, codes), Records(outlier, codes), runs, source)


def choice_without_noise(runs: int, source: Source) -> Finding:
    """Pairs of columns chosen nearly without noise: one record decides which pairs say most."""
    sound = of_synthetic("choice of pairs without noise", "replace-one")
    one, two = (of_bits([bits], [1]) for bits in ((1, 1, 0), (1, 0, 0)))
    return attacked(replace(sound, weaken=Fraction(1, 1000)), one, two, runs, source, charge=sound.charges[1])


def measured_twice(runs: int, source: Source) -> Finding:
    """Counts of pairs of columns that are released twice and charged once."""
    subject = of_synthetic("counts of pairs released twice", "replace-one")
    charge = subject.charges[2]
    comparison = worst_neighbours(subject, source, evaluations=SEARCHED)[charge].comparison
    laws = laws_of(subject, comparison, charge)
    drawn = scores([*laws, *laws], min(runs, affordable(laws)), source)
    finding = judge(subject.name, subject.neighbours, (comparison.charges[charge],), drawn, laws)
    return replace(finding, attack="control", control=True, proved=float("inf"))


CONTROLS: tuple[Control, ...] = (
    shared_noise_image,
    batch_sum_sensitivity,
    float_laplace,
    noise_drawn_once,
    learnt_bounds,
    choice_without_noise,
    measured_twice,
)


def half_the_noise(
    subject: Subject,
    runs: int,
    source: Source,
    *,
    evaluations: int = SEARCHED,
    alpha: float = ALPHA,
    minima: int = CONTROL_MINIMA,
) -> list[Finding]:
    """Attack a mechanism with half of its noise, charge by charge, at the worst neighbours of each.

    Every line must be caught by the attack, which sees outputs alone. (Replay finds half the noise exactly.)

    Parameters
    ----------
    subject : the mechanism as it is.
    runs, minima : on each data set, of sums and of perturbed losses.
    source : of the noise.
    evaluations : pairs of neighbours that the search tries.
    alpha : level of each test.
    """
    weak = replace(subject, name=f"half the noise: {subject.name}", weaken=Fraction(1, 2))
    worst = worst_neighbours(weak, source, evaluations=evaluations)
    return [
        replace(found, attack="control", control=True, claimed=found.proved, proved=float("inf"))
        for found in distinguish_all(weak, worst, runs, source, alpha=alpha, minima=minima)
    ]
