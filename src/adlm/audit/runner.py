"""The whole audit: which attacks are run on which mechanisms, in which order, how often, and its picture."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr, ndtri

from adlm.audit.artefacts import audit_release
from adlm.audit.attacks import (
    distinguish_all,
    exact_laplace,
    perturbed_losses,
    released_class_sums,
    support,
    whole_releases,
)
from adlm.audit.black_box import audit_mechanism, find_mechanism
from adlm.audit.controls import CONTROLS, half_the_loss_noise, half_the_noise, halved
from adlm.audit.membership import EPOCHS, canary_design, model_scores, one_run, plant, release_scores, summary
from adlm.audit.replay import report, worst_neighbours
from adlm.audit.separability import product_separability
from adlm.audit.statistics import COMMAND_ALPHA, MOST_TESTS, Finding
from adlm.audit.subjects import DELTA, Subject, subjects
from adlm.audit.written_files import product_files
from adlm.domain import NEIGHBOURS
from adlm.errors import UserError
from adlm.privacy.accounting import gaussian_mu
from adlm.privacy.noise import Source
from adlm.runtime import progress
from adlm.runtime.artefact import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Depth:
    """Effort of an audit.

    Attributes
    ----------
    runs : of each mechanism on each of two neighbouring data sets.
    evaluations : neighbours that the search tries for each mechanism.
    whole_releases : runs on each data set where every run is a whole release.
    support : outputs that the support attack looks at.
    canaries : coordinates of the release that canaries are planted in; ten classes each.
    shadows : models that membership inference trains; 0 leaves it out.
    """

    runs: int = 100_000
    evaluations: int = 25
    whole_releases: int = 100
    support: int = 1_000_000
    canaries: int = 300
    shadows: int = 0


LONG = Depth(runs=200_000, evaluations=40, whole_releases=300, canaries=600, shadows=40)
CONTROL_RUNS = 50_000  # of each control; enough to see half of the noise in the smallest share of a budget
WHOLE = "one class sum, Laplace"  # the mechanism whose every run is also made as a whole release
BUDGETS = (Fraction(1, 2), Fraction(2))  # of the one-dimensional releases that are run most often
Step = Callable[[], list[Finding]]

# The picture
LEAST = 1e-4  # smallest rate shown
PANELS = ("one class sum, Laplace", "class sums, Gaussian", "record release, Algorithm 1")
ALLOWED, ATTACK, CLAIM = "#c9dcef", "#1f4e79", "#b3261e"


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


def audit_subject(subject: Subject, depth: Depth, source: Source) -> list[Finding]:
    """Search for a mechanism's worst neighbours, then distinguish them by its outputs."""
    worst = worst_neighbours(subject, source, evaluations=depth.evaluations)
    findings = [report(subject, worst, depth.evaluations)]
    findings += distinguish_all(subject, worst, depth.runs, source)
    if subject.name == WHOLE:
        findings.append(whole_releases(subject, worst[None], max(2, depth.whole_releases), source))
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
        steps.extend(_controls(min(depth.runs, CONTROL_RUNS), source))
    findings: list[Finding] = []
    with progress.bar(len(steps), "audit") as advance:
        for step in steps:
            findings.extend(step())
            advance(1)
    if sum(f.confidence < 1 for f in findings if not f.control) > MOST_TESTS:
        raise AssertionError("more tests than the stated false-alarm rate allows for")
    membership = summary(depth.shadows, source) if depth.shadows and release is None else None
    return Audit(tuple(findings), membership, time.monotonic() - start)


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
    return Audit(tuple(findings), None, time.monotonic() - start)


def _product(depth: Depth, source: Source, rng: np.random.Generator) -> list[Step]:
    """List the attacks on the product's own mechanisms."""
    steps: list[Step] = [partial(audit_subject, subject, depth, source) for subject in subjects()]
    for epsilon in BUDGETS:
        steps.extend(
            partial(_single, released_class_sums, epsilon, delta, relation, depth.runs, source)
            for delta in (Fraction(0), DELTA)
            for relation in NEIGHBOURS
        )
    steps.append(partial(perturbed_losses, depth.runs, source))
    steps.append(product_separability)
    steps.append(partial(product_files, 2, source))
    steps.append(lambda: [support(exact_laplace(4.0, source), "exact Laplace noise", depth.support)])
    steps.extend(partial(_canaries, relation, depth, rng, source) for relation in NEIGHBOURS)
    return steps


def _controls(runs: int, source: Source) -> list[Step]:
    """List the attacks on the negative controls."""
    steps: list[Step] = [partial(_single, control, runs, source) for control in CONTROLS]
    steps.append(partial(half_the_loss_noise, runs, source))
    return steps + [partial(half_the_noise, subject, runs, source) for subject in halved()]


def _single(attack: Callable[..., Finding], *arguments: Any) -> list[Finding]:
    return [attack(*arguments)]


def _canaries(neighbours: str, depth: Depth, rng: np.random.Generator, source: Source) -> list[Finding]:
    planted = plant(canary_design(depth.canaries), neighbours, 10, rng, source)
    findings = [one_run(planted, release_scores(planted, neighbours), "canaries in a whole release")]
    for epochs in EPOCHS:
        name = f"canaries, model after {epochs} epoch{'s' * (epochs > 1)}"
        findings.append(one_run(planted, model_scores(planted, epochs), name))
    return findings


def allowed(epsilon: float, delta: float, fpr: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    """Return the largest true positive rate that is allowed at each false positive rate.

    For delta = 0 by epsilon; else by the trade-off curve of the Gaussian mechanism of that epsilon and delta,
    which a certificate of Gaussian noise implies.
    """
    if delta:
        mu = float(gaussian_mu(Fraction(epsilon).limit_denominator(10**6), Fraction(str(delta))))
        return ndtr(ndtri(fpr) + mu)
    direct = math.exp(epsilon) * fpr
    mirrored = 1 - math.exp(-epsilon) * (1 - fpr)
    return np.clip(np.minimum(direct, mirrored), 0, 1)


def draw(audit: Audit, path: Path) -> None:
    """Write the picture as PNG or SVG, by the ending of the path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    chosen = _chosen(audit.findings)
    columns = len(chosen) + (audit.membership is not None)
    figure, axes = plt.subplots(1, max(columns, 1), figsize=(4.2 * max(columns, 1), 4.2), squeeze=False)
    for panel, finding in zip(axes[0], chosen, strict=False):
        _roc(panel, finding)
    if audit.membership is not None:
        _membership(axes[0][-1], audit.membership)
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lstrip(".") or "png", dpi=150)
    plt.close(figure)
    write_file(path, buffer.getvalue(), what="picture")


def _chosen(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings to draw: the named ones, else the first with a curve; then one control."""
    curves = [f for f in findings if f.curve and not f.control]
    named = [next((f for f in curves if f.mechanism == name), None) for name in PANELS]
    chosen = [f for f in named if f is not None] or curves[:3]
    control = next((f for f in findings if f.control and f.curve), None)
    return chosen + ([control] if control is not None else [])


def _roc(panel: Axes, finding: Finding) -> None:
    rates = np.geomspace(LEAST, 1, 300)
    bound = float(finding.claimed if finding.control else finding.proved)
    if math.isfinite(bound):
        label = "claimed" if finding.control else "proved"
        upper = allowed(bound, finding.delta, rates)
        panel.fill_between(rates, LEAST, upper, color=ALLOWED, label=f"{label}: epsilon {bound:.3g}", lw=0)
    if not finding.control and float(finding.claimed) < bound:
        claimed = allowed(float(finding.claimed), finding.delta, rates)
        panel.plot(rates, claimed, color=CLAIM, lw=1, ls="--", label=f"claimed: {float(finding.claimed):.3g}")
    fpr, tpr = ([getattr(point, name) for point in finding.curve] for name in ("fpr", "tpr"))
    shown = f"attack: epsilon at least {finding.lower:.3g}"
    panel.plot(fpr, tpr, color=CLAIM if finding.control else ATTACK, lw=1.8, label=shown)
    panel.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1.3))
    panel.set_xlabel("false positive rate")
    panel.set_ylabel("true positive rate")
    panel.set_title(f"{finding.mechanism}\n{finding.neighbours}: {finding.verdict}", fontsize=9)
    panel.legend(loc="lower right", fontsize=7, frameon=False)


def _membership(panel: Axes, figures: dict[str, Any]) -> None:
    epochs = figures["epochs"]
    for key, label, colour in (
        ("no_privacy", "trained on records", CLAIM),
        ("adlm", "trained on a release", ATTACK),
    ):
        value = [entry["advantage"] for entry in figures[key]]
        margin = [entry["margin"] for entry in figures[key]]
        panel.errorbar(epochs, value, yerr=margin, color=colour, marker="o", capsize=3, label=label)
    most, label = figures["advantage_allowed"], f"most that epsilon {figures['epsilon']:g} allows"
    panel.axhline(most, color=ATTACK, lw=0.8, ls=":", label=label)
    panel.set_ylim(-0.1, max(0.7, most + 0.1))
    panel.set(xscale="log", xlabel="epochs", ylabel="advantage of membership inference")
    spent = ", ".join(f"{e:.3g}" for e in figures["epsilon_dp_sgd"])
    panel.set_title(
        f"epsilon after {epochs[0]} and {epochs[-1]} epochs:\nadlm {figures['epsilon']:g} and "
        f"{figures['epsilon']:g}, DP-SGD {spent.replace(', ', ' and ')}",
        fontsize=9,
    )
    panel.legend(fontsize=7, frameon=False)
