"""Weights files of public maps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from adlm.runtime.artefact import write_file


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights to a path atomically."""
    write_file(path, save({name: value.contiguous() for name, value in weights.items()}), what="weights")
