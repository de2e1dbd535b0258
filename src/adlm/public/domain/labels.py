"""Labels as codes: class names or whole numbers in, positions in the declared classes out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.errors import UserError

_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)


def encode_labels(y: Any, classes: Sequence[str]) -> NDArray[np.int64]:
    """Codes of labels, (n,) int64 in 0..M-1.

    Parameters
    ----------
    y
        (n,) labels: strings that are class names, or whole numbers.
    classes
        The M class names. If any of them is a whole number ("7"), a number stands for the class of
        that name; otherwise it is a code. Labels thus never have two readings.
    """
    if hasattr(y, "detach"):
        y = y.detach().cpu().numpy()
    try:
        labels = _objects(y) if isinstance(y, list | tuple) else np.asarray(y)
    except ValueError:
        raise UserError("labels must be a list of one per record (got uneven rows)") from None
    if labels.ndim != 1:
        raise UserError(f"labels must be a list of one per record, shape (n,) (got shape {labels.shape})")
    if len(labels) == 0:
        raise UserError("there are no labels (got an empty array); give one for each record")
    code = _coder(classes)
    if labels.dtype == object:  # may mix texts and numbers, which cannot be sorted together
        return np.array([code(label) for label in labels], dtype=np.int64)
    distinct, inverse = np.unique(labels, return_inverse=True)
    codes = np.array([code(label) for label in distinct.tolist()], dtype=np.int64)
    return codes[inverse]


def _objects(y: Sequence[Any]) -> NDArray[Any]:
    """A list's labels as they are: NumPy would give all of them the type of the oddest one."""
    if any(isinstance(label, list | tuple | np.ndarray) for label in y):
        return np.asarray(y)
    labels = np.empty(len(y), dtype=object)
    labels[:] = [label.item() if hasattr(label, "item") else label for label in y]
    return labels


def _coder(classes: Sequence[str]) -> Callable[[Any], int]:
    position = {name: code for code, name in enumerate(classes)}
    numbers_are_names = any(_WHOLE.fullmatch(name) for name in classes)
    shown = ", ".join(classes[:10]) + (f" and {len(classes) - 10} more" if len(classes) > 10 else "")

    def code(label: Any) -> int:
        if isinstance(label, str):
            if label in position:
                return position[label]
            raise UserError(f"unknown label {label!r}; the domain's classes are {shown}")
        whole = _whole(label, shown)
        if numbers_are_names:
            if str(whole) in position:
                return position[str(whole)]
            raise UserError(f"unknown label {whole}; the domain's classes are {shown}")
        if 0 <= whole < len(classes):
            return whole
        raise UserError(
            f"unknown label {whole}; codes run from 0 to {len(classes) - 1} for the classes {shown}"
        )

    return code


def _whole(label: Any, shown: str) -> int:
    """A number that is whole, as an integer; True and False are refused, as nothing says which is which."""
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return int(label)
    if isinstance(label, float | np.floating) and float(label).is_integer():
        return int(label)
    raise UserError(f"label {label!r} is neither a class name nor a whole number; the classes are {shown}")
