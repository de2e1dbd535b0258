"""The whole audit: which attacks are run on what, in which order, and how often."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adlm import progress
from adlm.audit.artefact import audit_release
from adlm.audit.canaries import canary_design, model_scores, one_run, plant, release_scores
from adlm.audit.controls import controls
from adlm.audit.finding import COMMAND_ALPHA, MOST_TESTS, Finding
from adlm.audit.membership import EPOCHS, summary
from adlm.audit.subjects import Subject, subjects
from adlm.audit.support import exact_laplace, support
from adlm.audit.two_worlds import two_worlds, whole_releases
from adlm.audit.worst_case import report, worst_neighbours
from adlm.curator.noise import Source
from adlm.public.domain import NEIGHBOURS


@dataclass(frozen=True)
class Depth:
    """How hard to try.

    Attributes
    ----------
    runs : of each mechanism in each of two worlds.
    evaluations : neighbours that the search tries for each mechanism.
    whole : runs of each world where every run is a whole release.
    support : outputs that the support attack looks at.
    canaries : coordinates of the release that canaries are planted in; ten classes each.
    shadows : models that membership inference trains; 0 leaves it out.
    """

    runs: int = 100_000
    evaluations: int = 40
    whole: int = 1000
    support: int = 1_000_000
    canaries: int = 300
    shadows: int = 0


LONG = Depth(runs=300_000, evaluations=300, whole=20_000, canaries=600, shadows=80)
SLOW = {"radial": 20}  # a draw of this noise costs so many times that of the others


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes
    ----------
    findings : the lines of the table.
    membership : figures of membership inference, None when it was left out.
    seconds : it took.
    """

    findings: tuple[Finding, ...]
    membership: dict[str, Any] | None
    seconds: float

    @property
    def violations(self) -> tuple[Finding, ...]:
        """Mechanisms of the product that were refuted."""
        return tuple(f for f in self.findings if not f.control and not f.as_it_should_be)

    @property
    def missed(self) -> tuple[Finding, ...]:
        """Controls that were not caught."""
        return tuple(f for f in self.findings if f.control and not f.as_it_should_be)

    @property
    def sound(self) -> bool:
        """Whether the product held, every control was caught, and training longer gave nothing away."""
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


@dataclass
class _Log:
    findings: list[Finding] = field(default_factory=list)

    def add(self, *found: Finding) -> None:
        for finding in found:
            self.findings.append(finding)
            progress.say(
                f"{finding.rung}: {finding.mechanism}, {finding.neighbours}: lower bound {finding.row()[5]} "
                f"of {finding.row()[4]}, {finding.verdict}"
            )


def audit_mechanism(subject: Subject, depth: Depth, source: Source) -> tuple[Finding, Finding]:
    """Search for a mechanism's worst neighbours, then tell the two worlds apart."""
    worst = worst_neighbours(subject, source, evaluations=depth.evaluations)
    slow = next((factor for kind, factor in SLOW.items() if kind in subject.name), 1)
    found = two_worlds(subject, worst, max(100, depth.runs // slow), source)
    return report(subject, worst, depth.evaluations), found


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
    log = _Log()
    membership = None
    if release is not None:
        log.add(*audit_release(release, depth.runs, source))
    else:
        _product(log, depth, source, np.random.default_rng(seed))
        if depth.shadows:
            progress.say("membership inference: shadow models after 1 and after 100 epochs")
            membership = summary(depth.shadows, source)
    if sum(f.confidence < 1 for f in log.findings) > MOST_TESTS:
        raise AssertionError("more tests than the stated false-alarm rate allows for")
    if with_controls:
        log.add(*controls(depth.runs, source))
    return Audit(tuple(log.findings), membership, time.monotonic() - start)


def _product(log: _Log, depth: Depth, source: Source, rng: np.random.Generator) -> None:
    for subject in subjects():
        log.add(*audit_mechanism(subject, depth, source))
        if subject.name == "one class sum, Laplace":
            worst = worst_neighbours(subject, source, evaluations=depth.evaluations)
            log.add(whole_releases(subject, worst, depth.whole, source))
    log.add(support(exact_laplace(4.0, source), "exact Laplace noise", depth.support))
    for neighbours in NEIGHBOURS:
        planted = plant(canary_design(depth.canaries), neighbours, 10, rng, source)
        log.add(one_run(planted, release_scores(planted, neighbours), "canaries in a whole release"))
        for epochs in EPOCHS:
            name = f"canaries, model after {epochs} epoch{'s' * (epochs > 1)}"
            log.add(one_run(planted, model_scores(planted, epochs), name))
