"""Ablation of the paper's accuracy: the authors' reading with one setting changed at a time.

The base has a quarter of the maps and batches of 60 records instead of 1,800. Training averages the noise
image, of which there is one a step whatever the batch, so small batches average as much noise at a thirtieth
of the cost. The authors' published code takes 80,000 steps at a rate of 0.0003.

`AS_PUBLISHED` has the other properties of their code besides shared noise, as of April 2018, when the
corrected paper appeared. Its first version had |L| = 10,000 in the noise, changed to 1,800 two days later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SHARED: dict[str, Any] = {
    "n": None,
    "delta_h0": "per-patch",
    "sized": "authors-mnist",
    "batch": 1800,
    "reading": "shared",
    "network": "authors-mnist-quarter",
    "train_batch": 60,
    "rate": 1e-3,
}
BASE = SHARED | {"steps": 4_000}
_LONG = SHARED | {"steps": 10_000}
AS_PUBLISHED: dict[str, Any] = {"pixels": [-1, 1], "relevance": "sharp", "label_noise": "constant"}
_FIRST = 10_000  # |L| of the authors' first published version
CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("adlm-shared", BASE),
    ("adlm-shared", BASE | {"pixels": [-1, 1]}),
    ("adlm-shared", BASE | {"relevance": "sharp"}),
    ("adlm-shared", BASE | {"label_noise": "constant"}),
    ("adlm-shared", _LONG | AS_PUBLISHED),
    ("adlm-shared", _LONG | {"batch": _FIRST}),
    ("adlm-shared", _LONG | {"batch": _FIRST} | AS_PUBLISHED),
    ("adlm-shared", _LONG | {"batch": _FIRST, "network": "authors-mnist"} | AS_PUBLISHED),
    ("ilm-shared", BASE),
    ("adlm-shared", BASE | {"rate": 3e-4}),
    ("adlm-shared", BASE | {"train_batch": 300}),
    ("adlm-shared", BASE | {"schedule": "cosine"}),
    ("adlm-shared", BASE | {"optimiser": "SGD", "rate": 1e-2}),
    ("adlm-shared", BASE | {"label_noise": 0}),
    ("adlm-shared", BASE | {"input_clip": 1e6}),
    ("adlm-shared", BASE | {"statistics": "kept"}),
    ("adlm-shared", BASE | {"split": ["0.25", "0.5", "0.25"]}),
)
_LABELS = {0: "no noise on the loss", "constant": "label noise on the last hidden layer"}
_DESCRIPTIONS: dict[str, Callable[[Any], str]] = {
    "rate": lambda value: f"rate {value:g}",
    "train_batch": lambda value: f"batches of {value}",
    "network": lambda value: "full width" if value == "authors-mnist" else str(value),
    "schedule": lambda value: f"rate falls to nothing ({value})",
    "optimiser": str,
    "pixels": lambda value: f"pixels in [{value[0]:g}, {value[1]:g}]",
    "relevance": lambda value: "relevances as the authors take them",
    "label_noise": lambda value: _LABELS.get(value) or f"{value:g} of the label noise",
    "input_clip": lambda value: "noisy inputs not clipped",
    "statistics": lambda value: "tested with the averages that training kept",
    "batch": lambda value: f"noise divided by {value:,}",
    "split": lambda value: f"budget split {', '.join(value)}",
}


def label(method: str, settings: Mapping[str, Any]) -> str:
    """Describe the change of a trial from the base."""
    changed = [say(settings[key]) for key, say in _DESCRIPTIONS.items() if settings.get(key) != BASE.get(key)]
    words = (["ILM"] if method.startswith("ilm") else []) + changed
    return ", ".join(words) or "the authors' reading"
