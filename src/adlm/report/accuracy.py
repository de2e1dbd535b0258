"""Measured accuracy of models: figures and confusion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adlm.analyst.class_sizes import SmallClass, sentences
from adlm.report import drawing
from adlm.report.html import Markup, figure, join, paragraph, table, tag
from adlm.report.page import Section
from adlm.report.subject import Trained

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
    return [paragraph(f"Found of each class by {model.name}:"), table(("class", "recall"), rows)]


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
