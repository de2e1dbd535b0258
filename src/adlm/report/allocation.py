"""The noise of a release: relevance maps, allocation over features, signal against noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from adlm.analyst.tables import has_columns, relevance_picture
from adlm.estimation.moments import Moments
from adlm.privacy.certificate import Certificate
from adlm.privacy.release import Release
from adlm.report import drawing
from adlm.report.html import Markup, figure, join
from adlm.report.page import Section
from adlm.report.relevance import as_picture
from adlm.report.subject import Subject

MOST_CLASSES = 40


MAPS = {
    "relevance": (
        "Private average relevance of each feature (the paper's Fig. 3)",
        "Fuller colour: the feature matters more to the output. The values carry their own noise.",
    ),
    "budget_ratios": (
        "Budget ratio of each feature (beta, Eq. 16)",
        "Fuller colour: the feature has a larger share of the budget, and so less noise.",
    ),
}


def relevance_maps(subject: Subject) -> Section | None:
    """Show the private relevance of each feature, and the budget ratios that follow from it."""
    if subject.release is None:
        return None
    if has_columns(subject.release):
        caption = (
            "Relevance of each column: what share of the model's answers it moves, by the release alone."
        )
        drawn = figure(Markup(relevance_picture(subject.release)), caption)
        return Section("relevance", "Relevance of columns", drawn)
    maps = {name: subject.release.tensors[name].numpy() for name in MAPS if name in subject.release.tensors}
    shape = subject.certificate.domain.shape
    parts = [_map(name, values, shape) for name, values in maps.items() if len(shape) <= 3]
    return Section("relevance", "Relevance maps", join(parts)) if parts else None


def _map(name: str, values: Any, shape: tuple[int, ...]) -> Markup:
    label, caption = MAPS[name]
    return figure(drawing.heatmap(as_picture(values, shape), label=label), f"{label}. {caption}")


def allocation(subject: Subject) -> Section | None:
    """Show the amount of noise, and where it is, against the signal."""
    if subject.release is None:
        return None
    if subject.certificate.kind == "regression":
        return _regression_noise(subject.release)
    if subject.certificate.kind == "moments":
        return _moment_noise(subject.release.moments(), subject.certificate)
    ratios = subject.release.tensors.get("budget_ratios")
    return None if ratios is None else _record_noise(np.sort(ratios.numpy())[::-1], subject.certificate)


def _regression_noise(release: Release) -> Section:
    """Show the released distribution of a numeric target, with the scale of its noise."""
    settings, domain = release.certificate.settings, release.certificate.domain
    assert domain.target is not None
    counts = release.tensors["target"].double().numpy() / float(settings["target_unit"])
    low, high = domain.target
    names = [f"{low + (high - low) * i / (len(counts) - 1):.4g}" for i in range(len(counts))]
    sd = float(settings["sd_target"]) / float(settings["target_unit"])
    picture = drawing.bars(
        names,
        np.maximum(counts, 0.0).tolist(),
        spread=[2 * sd] * len(counts),
        label="Noisy counts of the target",
    )
    caption = (
        f"Released counts of the target's piecewise-linear bins, with two standard deviations of their noise "
        f"({sd:.3g} each). They give the mean and the spread that the target is scaled by."
    )
    return Section("allocation", "Where the noise is", figure(picture, caption))


def _moment_noise(moments: Moments, certificate: Certificate) -> Section:
    sums, sd = moments.sums.numpy(), moments.sd_sums.numpy()
    places = list(range(1, len(sd) + 1))
    spread = sums.var(axis=0, ddof=1) if len(sums) > 1 else np.zeros_like(sd)
    signal = np.sqrt(np.maximum(spread - sd**2, 0.0))
    top = float(max(signal.max(), sd.max()) * 1.05)
    x, y = (
        drawing.horizontal(1, max(2, len(sd)), "coordinate"),
        drawing.vertical(0, top, "size in a class sum"),
    )
    marks = drawing.curve(x, y, places, signal.tolist(), "a"), drawing.curve(x, y, places, sd.tolist(), "b")
    clear = int((signal > sd).sum())
    first = figure(
        join(
            [
                drawing.plot(x, y, *marks, label="Signal and noise of each released coordinate"),
                drawing.legend(("a", "what differs between classes"), ("b", "sd of the noise")),
            ]
        ),
        f"Class sums of {len(sd)} coordinates: how far classes differ (with the noise's own share taken off) "
        f"against the noise. In {clear} of them the classes stand out; a classifier shrinks the others.",
    )
    kind = "identical" if np.ptp(sd) <= 1e-9 * sd.max() else "adaptive"
    y2 = drawing.vertical(0, float(sd.max() * 1.15), "noise")
    second = figure(
        drawing.plot(x, y2, drawing.curve(x, y2, places, sd.tolist(), "b"), label="Allocation of noise"),
        f"Allocation of noise over the coordinates: {kind}. "
        + ("Every coordinate has the same noise." if kind == "identical" else "More where it harms less."),
    )
    parts = [first, second]
    if len(certificate.domain.classes) <= MOST_CLASSES:
        parts.append(_counts(moments, certificate))
    return Section("allocation", "Where the noise is", join(parts))


def _counts(moments: Moments, certificate: Certificate) -> Markup:
    spread = [2 * moments.sd_counts] * len(certificate.domain.classes)
    picture = drawing.bars(
        certificate.domain.classes, moments.counts.tolist(), spread=spread, label="Noisy class counts"
    )
    return figure(
        picture,
        f"Released class counts with two standard deviations of their noise "
        f"({moments.sd_counts:.3g} each). The true counts are not known here.",
    )


def _record_noise(ratios: Any, certificate: Certificate) -> Section:
    s = certificate.settings
    x = drawing.horizontal(1, max(2, len(ratios)), "feature, by its share of the budget")
    y = drawing.vertical(0, float(ratios.max()) * 1.1, "budget ratio")
    places = list(range(1, len(ratios) + 1))
    marks = (
        drawing.curve(x, y, places, [1.0] * len(ratios), "quiet"),
        drawing.curve(x, y, places, ratios.tolist(), "a"),
    )
    withheld = int((ratios == 0).sum())
    caption = (
        f"Allocation over {len(ratios)} features: {s.get('allocation')}; {withheld} are withheld. On the "
        f"dashed line all would be alike (ILM). Noise on a feature has scale Delta_h0 / (|L| beta eps2), "
        f"with Delta_h0 = {s.get('delta_h0')} ({s.get('delta_h0_rule')}), |L| = {s.get('batch_size')}, "
        f"eps2 = {s.get('epsilon2')}."
    )
    picture = drawing.plot(x, y, *marks, label="Budget ratios of the features, largest first")
    return Section("allocation", "Where the noise is", figure(picture, caption))
