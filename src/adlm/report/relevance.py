"""Heat maps of relevance: of single records (the paper's Fig. 1), and of the private average (Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from adlm.errors import UserError

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
