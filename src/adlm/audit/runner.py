"""The whole audit: which attacks are run on which mechanisms, in which order, and how often."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adlm.audit.artefact import audit_release
from adlm.audit.canaries import canary_design, model_scores, one_run, plant, release_scores
from adlm.audit.controls import SINGLE, Control, half_sensitivity
from adlm.audit.finding import COMMAND_ALPHA, MOST_TESTS, Finding
from adlm.audit.input_controls import INPUTS
from adlm.audit.membership import EPOCHS, summary
from adlm.audit.others import audit_other, find_mechanism
from adlm.audit.reading import product_reading
from adlm.audit.reading_controls import READING
from adlm.audit.reading_inputs import images_brightened_together, product_input_reading
from adlm.audit.rounds_controls import ROUNDS
from adlm.audit.separability import product_separability
from adlm.audit.side_by_side import side_by_side
from adlm.audit.subject import Subject
from adlm.audit.subjects import DELTA, subjects
from adlm.audit.support import exact_laplace, support
from adlm.audit.target_controls import TARGETS
from adlm.audit.two_worlds import two_worlds, whole_releases
from adlm.audit.worst_case import report, worst_neighbours
from adlm.curator.noise import Source
from adlm.errors import UserError
from adlm.public.domain import NEIGHBOURS
from adlm.runtime import progress


@dataclass(frozen=True)
class Depth:
    """Effort of an audit.

    Attributes
    ----------
    runs : of each mechanism in each of two worlds.
    evaluations : neighbours that the search tries for each mechanism.
    whole_releases : runs of each world where every run is a whole release.
    support : outputs that the support attack looks at.
    canaries : coordinates of the release that canaries are planted in; ten classes each.
    shadows : models that membership inference trains; 0 leaves it out.
    reading : neighbouring files and frames of each form that are read.
    """

    runs: int = 100_000
    evaluations: int = 40
    whole_releases: int = 2000
    support: int = 1_000_000
    canaries: int = 300
    shadows: int = 0
    reading: int = 250


LONG = Depth(runs=300_000, evaluations=200, whole_releases=20_000, canaries=600, shadows=80, reading=2500)
Step = Callable[[], list[Finding]]
# Mechanisms whose every run is also made as a whole release, and how many times longer that takes.
WHOLE = {"one class sum, Laplace": 1, "private relevance, Laplace": 40}
BUDGETS = (Fraction(1, 2), Fraction(2))  # of the one-dimensional releases that are run most often
SLOW = {"radial": 20}  # a draw of this noise costs so many times that of the others


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes
    ----------
    findings : the lines of the table.
    membership : figures of membership inference, None when it was left out.
    seconds : duration.
    """

    findings: tuple[Finding, ...]
    membership: dict[str, Any] | None
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
        """Whether nothing was refuted, every control was caught, and longer training leaked nothing."""
        grew = self.membership is not None and self.membership["adlm_grows"]
        return not self.violations and not self.missed and not grew

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values under stable keys."""
        return {
            "findings": [finding.to_dict() for finding in self.findings],
            "violations": len(self.violations),
            "controls_missed": len(self.missed),
            "false_alarm_rate": COMMAND_ALPHA,
            "membership": self.membership,
            "seconds": round(self.seconds, 1),
            "sound": self.sound,
        }


def audit_mechanism(subject: Subject, depth: Depth, source: Source) -> list[Finding]:
    """Search for a mechanism's worst neighbours, then distinguish the two worlds."""
    worst = worst_neighbours(subject, source, evaluations=depth.evaluations)
    slow = max(SLOW.get(call.mechanism, 1) for call, _ in worst.comparison.pairs)
    findings = [report(subject, worst, depth.evaluations)]
    findings.append(two_worlds(subject, worst, max(100, depth.runs // slow), source))
    if subject.name in WHOLE:
        findings.append(
            whole_releases(subject, worst, max(2, depth.whole_releases // WHOLE[subject.name]), source)
        )
    return findings


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
    with_controls : attack the negative controls too.
    release : a release folder to check instead of the product's mechanisms.
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
        others: tuple[Control, ...] = (*READING, images_brightened_together, *ROUNDS, *TARGETS)
        controls = (*SINGLE, *INPUTS, *others)
        steps.extend(partial(_single, control, depth.runs, source) for control in controls)
        steps.append(lambda: half_sensitivity(source))
    findings: list[Finding] = []
    with progress.bar(len(steps), "audit") as advance:
        for step in steps:
            findings.extend(step())
            advance(1)
    if sum(f.confidence < 1 for f in findings if not f.control) > MOST_TESTS:
        raise AssertionError("more tests than the stated false-alarm rate allows for")
    membership = summary(depth.shadows, source) if depth.shadows and release is None else None
    return Audit(tuple(findings), membership, time.monotonic() - start)


def run_others(names: Sequence[str], runs: int) -> Audit:
    """Audit third-party mechanisms, by name or as `FILE.py:NAME`."""
    start = time.monotonic()
    if len(names) > MOST_TESTS:
        raise UserError(f"one command audits at most {MOST_TESTS} subjects, got {len(names)}")
    mechanisms = [find_mechanism(name) for name in names]  # all of them, before the first is run
    findings: list[Finding] = []
    with progress.bar(len(mechanisms), "audit") as advance:
        for mechanism in mechanisms:
            findings.append(audit_other(mechanism, runs))
            advance(1)
    return Audit(tuple(findings), None, time.monotonic() - start)


def _product(depth: Depth, source: Source, rng: np.random.Generator) -> list[Step]:
    """List the attacks on the product's own mechanisms."""
    steps: list[Step] = [partial(audit_mechanism, subject, depth, source) for subject in subjects()]
    for epsilon in BUDGETS:
        steps.extend(
            partial(_single, side_by_side, epsilon, delta, relation, depth.runs, source)
            for delta in (Fraction(0), DELTA)
            for relation in NEIGHBOURS
        )
    steps.append(product_separability)
    steps.append(partial(product_reading, depth.reading))
    steps.append(partial(product_input_reading, max(1, depth.reading // 5)))
    steps.append(lambda: [support(exact_laplace(4.0, source), "exact Laplace noise", depth.support)])
    steps.extend(partial(_canaries, relation, depth, rng, source) for relation in NEIGHBOURS)
    return steps


def _single(attack: Callable[..., Finding], *arguments: Any) -> list[Finding]:
    return [attack(*arguments)]


def _canaries(neighbours: str, depth: Depth, rng: np.random.Generator, source: Source) -> list[Finding]:
    planted = plant(canary_design(depth.canaries), neighbours, 10, rng, source)
    findings = [one_run(planted, release_scores(planted, neighbours), "canaries in a whole release")]
    for epochs in EPOCHS:
        name = f"canaries, model after {epochs} epoch{'s' * (epochs > 1)}"
        findings.append(one_run(planted, model_scores(planted, epochs), name))
    return findings
