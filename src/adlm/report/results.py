"""Results in a report: accuracy, noise and relevance, attacks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from adlm.errors import UserError
from adlm.model.closed_form import has_columns, relevance_picture
from adlm.model.estimates import Moments
from adlm.model.fit import SmallClass, sentences
from adlm.privacy.accounting import TradeOff
from adlm.privacy.certificate import Certificate
from adlm.privacy.release import Release
from adlm.report import html as drawing
from adlm.report.html import Markup, Section, figure, join, paragraph, table, tag
from adlm.report.subject import Subject, Trained

# ---- Heat maps of relevance: of single records (the paper's Fig. 1), and of the private average (Fig. 3).

# Green where a feature matters less, red where it matters more, as in the paper.
COLOURS = LinearSegmentedColormap.from_list("relevance", ["#2e7d32", "#fdd835", "#b71c1c"])


def as_picture(values: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Relevances of one record as rows and columns: channels are averaged, a vector is one row."""
    array = np.asarray(values, dtype=np.float64).reshape(shape)
    if array.ndim == 1:
        return array[None]
    if array.ndim == 2:
        return array
    if array.ndim == 3:
        return np.asarray(array.mean(axis=0))
    raise UserError(f"a heat map needs records of one to three axes (got shape {shape}).")


def heat_map(values: npt.ArrayLike, shape: tuple[int, ...], title: str) -> Figure:
    """One heat map: the private average relevance of each feature (Fig. 3)."""
    return _draw([as_picture(values, shape)], [title])


def record_heat_maps(relevances: npt.ArrayLike, shape: tuple[int, ...], titles: Sequence[str]) -> Figure:
    """Heat maps of single records (n, *shape) side by side (Fig. 1).

    Relevances of single records are private data: such a picture of private records is for the curator alone.
    """
    rows = np.asarray(relevances, dtype=np.float64)
    if len(rows) == 0 or len(rows) != len(titles):
        raise UserError(f"there must be a title for each of the records (got {len(titles)} for {len(rows)}).")
    return _draw([as_picture(row, shape) for row in rows], list(titles))


def _draw(pictures: Sequence[npt.NDArray[np.float64]], titles: Sequence[str]) -> Figure:
    figure = Figure(figsize=(2.6 * len(pictures) + 0.8, 3.0), layout="constrained")
    axes: Any = figure.subplots(1, len(pictures), squeeze=False)[0]
    for axis, picture, title in zip(axes, pictures, titles, strict=True):
        image = axis.imshow(picture, cmap=COLOURS, aspect="auto" if len(picture) == 1 else "equal")
        axis.set(title=title, xticks=[], yticks=[])
        figure.colorbar(image, ax=axis, shrink=0.8)
    return figure


# ---- Measured accuracy of models: figures and confusion.

MOST_CLASSES = 40
NUMERIC = ("rmse", "mae", "r2")


def accuracy(models: Sequence[Trained], classes: Sequence[str]) -> Section | None:
    """Show how each model was trained and its accuracy."""
    if not models:
        return None
    if not classes:
        return _numeric(models)
    rows = [
        (m.name, m.training.get("network", "?"), m.training.get("epochs", "?"), *_measures(m)) for m in models
    ]
    parts = [
        table(("model", "network", "epochs", "accuracy", "balanced", "AUC", "log loss", "measured on"), rows),
        paragraph(
            "All models carry the same certificate: epochs cost nothing. Figures measured on private "
            "records are "
            "not themselves private, and a model must not be chosen by them."
        ),
    ]
    for model in models:
        parts += _warnings(model)
        parts += _weights(model)
        parts += _recalls(model, classes)
        parts += _confusion(model, classes)
    return Section("accuracy", "Accuracy and confusion", join(parts))


def _numeric(models: Sequence[Trained]) -> Section:
    """Show the errors of models of a numeric target: as measured, and by the release's charged check."""
    rows = []
    for model in models:
        figures = model.evaluation or {}
        numbers = [f"{figures[k]:.4g}" if isinstance(figures.get(k), int | float) else "" for k in NUMERIC]
        of = f"{figures.get('of', '')} ({figures.get('n', '?')} records)" if figures else "not measured"
        rows.append((model.name, model.training.get("network", "?"), *numbers, of))
    parts = [
        table(("model", "kind", "RMSE", "MAE", "R2", "measured on"), rows),
        paragraph(
            "Figures measured on private records are not themselves private, and a model must not be "
            "chosen by them."
        ),
    ]
    for model in models:
        training = model.training
        if "estimated_r2" in training:
            parts.append(
                paragraph(
                    f"By the release's own check, which is charged: R2 of {model.name} about "
                    f"{training['estimated_r2']:.3f} ± {2 * training['estimated_r2_sd']:.3f} on the private "
                    f"records, squared errors clipped at {training['errors_clipped_at']:.3g} times the "
                    "target's variance."
                )
            )
        if training.get("warning"):
            parts.append(tag("p", f"{training['warning']}.", class_="bad"))
    return Section("accuracy", "Accuracy", join(parts))


def _measures(model: Trained) -> tuple[str, ...]:
    figures = model.evaluation
    if figures is None:
        return ("not measured", "", "", "", "")
    keys = ("accuracy", "balanced_accuracy", "auc", "log_loss")
    numbers = [f"{figures[key]:.4f}" if isinstance(figures.get(key), int | float) else "" for key in keys]
    split = f", {figures['split']}" if figures.get("split") else ""
    n = f" ({figures['n']} records)" if figures.get("n") else ""
    return (*numbers, f"{figures.get('of', '')}{split}{n}")


def _warnings(model: Trained) -> list[Markup]:
    """Warn of a model dominated by noise, and of classes smaller than the noise on their counts."""
    words = model.training.get("warning")
    warning = [tag("p", f"{model.name}: {words}.", class_="bad")] if isinstance(words, str) and words else []
    found = model.training.get("small_classes", [])
    small = [SmallClass(str(s["class"]), float(s["count"]), float(s["sd"])) for s in found]
    return [*warning, *(tag("p", f"{words}.", class_="bad") for words in sentences(small))]


def _weights(model: Trained) -> list[Markup]:
    """Show the class weights that a model was trained with."""
    weights = model.training.get("class_weights")
    if not isinstance(weights, dict) or len(weights) > MOST_CLASSES:
        return []
    how = "from released counts" if model.training.get("class_weight") == "balanced" else "as declared"
    rows = [(name, f"{float(weight):.4g}") for name, weight in weights.items()]
    words = f"{model.name} weighs mistakes by class, {how}, which costs nothing:"
    return [paragraph(words), table(("class", "weight"), rows)]


def _recalls(model: Trained, classes: Sequence[str]) -> list[Markup]:
    """Show the recall of each class: accuracy alone hides small ones."""
    recalls = (model.evaluation or {}).get("recalls")
    if not isinstance(recalls, list) or len(recalls) != len(classes) or len(classes) > MOST_CLASSES:
        return []
    rows = [
        (name, "no records" if recall is None else f"{float(recall):.1%}")
        for name, recall in zip(classes, recalls, strict=True)
    ]
    return [paragraph(f"Recall by class: {model.name}"), table(("class", "recall"), rows)]


def _confusion(model: Trained, classes: Sequence[str]) -> list[Markup]:
    raw = (model.evaluation or {}).get("confusion")
    if raw is None or len(classes) > MOST_CLASSES:
        return []
    matrix = np.asarray(raw, dtype=np.float64)
    if matrix.shape != (len(classes), len(classes)):
        return []
    right = np.diag(matrix) / np.maximum(matrix.sum(1), 1)
    worst = int(right.argmin())
    picture = drawing.heatmap(
        matrix, label=f"Confusion of {model.name}", rows=classes, columns=classes, counts=True
    )
    words = f"Confusion of {model.name}: rows are true classes, columns predictions. Hardest class: "
    return [figure(picture, f"{words}{classes[worst]}, {right[worst]:.1%} right.")]


# ---- The noise of a release: relevance maps, allocation over features, signal against noise.


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


# ---- Results of attacks: lower bounds next to proved bounds, and ROC curves.

MOST_ROWS = 12  # a longer table is collapsed
MOST_BARS = 12
MOST_CURVES = 4
STYLES = {"VIOLATED": "bad", "NOT CAUGHT": "bad", "above claim": "warn"}

Finding = Mapping[str, Any]


def audit(found: Mapping[str, Any] | None) -> Section | None:
    """Show lower bounds by attack next to proved upper bounds."""
    findings = [f for f in (found or {}).get("findings", []) if isinstance(f, Mapping)]
    if not findings:
        return None
    words = paragraph(
        "An attack gives a lower bound on epsilon with stated confidence. It must never lie above what is "
        "proved; controls are broken on purpose and must be caught."
    )
    parts = [words, _summary(findings), _rows(findings), *_bounds(findings), *_curves(findings)]
    return Section("audit", "Audit", join(parts))


def _summary(findings: Sequence[Finding]) -> Markup:
    """Count the verdicts, of the product and of the controls."""
    parts: list[object] = []
    for control, name in ((False, "attacks on the product"), (True, "controls")):
        verdicts = Counter(str(f.get("verdict", "")) for f in findings if bool(f.get("control")) is control)
        for verdict, count in verdicts.most_common():
            label = tag(
                "span", "caught" if control and verdict == "violated" else verdict, class_=_style(verdict)
            )
            parts += [f"{count} {name}: ", label, ". "]
    return paragraph(*parts)


def _rows(findings: Sequence[Finding]) -> Markup:
    rows = [
        (
            f.get("mechanism", "?"),
            f.get("neighbours", ""),
            f.get("attack", ""),
            _epsilon(f.get("epsilon_proved")),
            _epsilon(f.get("epsilon_lower"), "unbounded"),
            f.get("runs", ""),
            tag("span", f.get("verdict", ""), class_=_style(str(f.get("verdict", "")))),
        )
        for f in findings
    ]
    heading = ("mechanism", "relation", "attack", "proved", "lower bound found", "runs", "verdict")
    shown = table(heading, rows)
    if len(rows) <= MOST_ROWS:
        return shown
    return tag("details", tag("summary", f"All {len(rows)} findings"), shown)


def _style(verdict: str) -> str:
    return STYLES.get(verdict, "good")


def _tightness(finding: Finding) -> float:
    """Return the share of the proved epsilon that the attack reached; below zero where there is none."""
    proved, lower = finding.get("epsilon_proved"), finding.get("epsilon_lower")
    if not (_number(proved) and _number(lower)):
        return -1.0
    return float(lower or 0) / max(float(proved or 0), 1e-12)


def _bounds(findings: Sequence[Finding]) -> list[Markup]:
    """Show one pair of bars a mechanism: the proved epsilon and its tightest empirical lower bound."""
    tried = [f for f in findings if f.get("attack") == "distinguishing" and not f.get("control")] or list(
        findings
    )
    best: dict[str, Finding] = {}
    for f in sorted(tried, key=_tightness):
        best[str(f.get("mechanism", "?"))] = f
    tightest = [f for f in reversed(best.values()) if _tightness(f) >= 0][:MOST_BARS]
    if not tightest:
        return []
    names = [str(f.get("mechanism", "?")) if part == 0 else "" for f in tightest for part in range(2)]
    values = [float(f[key]) for f in tightest for key in ("epsilon_lower", "epsilon_proved")]
    styles = ["b", "a"] * len(tightest)
    picture = drawing.bars(names, values, label="Lower bounds by attack and proved epsilons", styles=styles)
    named = drawing.legend(("b", "proved by attack, from below"), ("a", "proved by theorem, from above"))
    return [figure(join([picture, named]), "The truth lies between each pair.")]


def _curves(findings: Sequence[Finding]) -> list[Markup]:
    parts: list[Markup] = []
    for f in sorted(findings, key=_tightness, reverse=True):
        points = sorted((float(p[0]), float(p[1])) for p in f.get("curve", []) if len(p) == 2)
        if not points or len(parts) == MOST_CURVES:
            continue
        x, y = drawing.horizontal(0, 1, "false alarms"), drawing.vertical(0, 1, "true alarms")
        marks = [drawing.curve(x, y, [0, 1], [0, 1], "quiet")]
        if _number(f.get("epsilon_proved")):
            rates = [i / 200 for i in range(201)]
            bound = TradeOff(epsilon=float(f["epsilon_proved"]), delta=float(f.get("delta", 0)))
            most = [bound.detection(r) for r in rates]
            marks.insert(0, drawing.area(x, y, rates, rates, most, "a"))
        marks.append(drawing.curve(x, y, [p[0] for p in points], [p[1] for p in points], "b"))
        label = f"Attack on {f.get('mechanism', '?')} ({f.get('attack', '')})"
        caption = f"{label}: but for sampling error, it must stay inside what the proof allows, shaded."
        parts.append(figure(drawing.plot(x, y, *marks, label=label), caption))
    return parts


def _epsilon(value: object, otherwise: str = "none proved") -> str:
    return f"{float(value):.4g}" if isinstance(value, int | float) else otherwise


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
