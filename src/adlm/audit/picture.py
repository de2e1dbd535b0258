"""The picture of an audit: ROC curves of the attacks, on log axes, with the region that the proof allows."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr, ndtri

from adlm.audit.finding import Finding
from adlm.audit.runner import Audit
from adlm.privacy.accounting import gaussian_mu
from adlm.runtime.artefact import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST = 1e-4  # smallest rate shown
PANELS = ("one class sum, Laplace", "class sums and second moments, Gaussian", "record features, Algorithm 1")
ALLOWED, ATTACK, CLAIM = "#c9dcef", "#1f4e79", "#b3261e"


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
