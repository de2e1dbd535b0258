"""How well models do: figures and confusion, as somebody measured them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adlm.analyst.class_sizes import SmallClass, sentences
from adlm.report import drawing
from adlm.report.html import Markup, figure, join, paragraph, table, tag
from adlm.report.page import Section
from adlm.report.subject import Trained

MOST_CLASSES = 40


def accuracy(models: Sequence[Trained], classes: Sequence[str]) -> Section | None:
    """Show what each model was trained for and how well it does."""
    if not models:
        return None
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
        parts += _recalls(model, classes)
        parts += _confusion(model, classes)
    return Section("accuracy", "Accuracy and confusion", join(parts))


def _measures(model: Trained) -> tuple[str, ...]:
    found = model.evaluation
    if found is None:
        return ("not measured", "", "", "", "")
    keys = ("accuracy", "balanced_accuracy", "auc", "log_loss")
    numbers = [f"{found[key]:.4f}" if isinstance(found.get(key), int | float) else "" for key in keys]
    split = f", {found['split']}" if found.get("split") else ""
    n = f" ({found['n']} records)" if found.get("n") else ""
    return (*numbers, f"{found.get('of', '')}{split}{n}")


def _warnings(model: Trained) -> list[Markup]:
    """Warn of a model that noise drowned, and of classes that are smaller than the noise on their counts."""
    said = model.training.get("warning")
    drowned = [tag("p", f"{model.name}: {said}.", class_="bad")] if isinstance(said, str) and said else []
    found = model.training.get("small_classes", [])
    small = [SmallClass(str(s["class"]), float(s["count"]), float(s["sd"])) for s in found]
    return [*drowned, *(tag("p", f"{words}.", class_="bad") for words in sentences(small))]


def _recalls(model: Trained, classes: Sequence[str]) -> list[Markup]:
    """Show for each class how many of its records are found: accuracy alone hides small ones."""
    found = (model.evaluation or {}).get("recalls")
    if not isinstance(found, list) or len(found) != len(classes) or len(classes) > MOST_CLASSES:
        return []
    rows = [
        (name, "no records" if recall is None else f"{float(recall):.1%}")
        for name, recall in zip(classes, found, strict=True)
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
    picture = drawing.heat(
        matrix, label=f"Confusion of {model.name}", rows=classes, columns=classes, counts=True
    )
    words = f"Confusion of {model.name}: rows are true classes, columns predictions. Hardest class: "
    return [figure(picture, f"{words}{classes[worst]}, {right[worst]:.1%} right.")]
