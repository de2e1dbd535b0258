"""The head of every network here: a bounded dense layer and the output layer (line 15, Eq. 23)."""

from __future__ import annotations

from torch import nn

from adlm.analyst.normalisation import MinMax


def bounded_head(width: int, hidden: int, classes: int) -> nn.Sequential:
    """A dense layer normalised to [0, 1], and the output layer h W^T; Eq. 23 has no bias there."""
    output = nn.Linear(hidden, classes, bias=False)
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), MinMax(hidden), output)
