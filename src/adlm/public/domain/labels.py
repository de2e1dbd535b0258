"""Encoding of labels: class names or integers to positions in the declared classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.errors import UserError

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)


def encode_labels(y: Any, classes: Sequence[str]) -> NDArray[np.int64]:
    """Codes of labels, (n,) int64 in 0..M-1.

    Parameters
    ----------
    y
        (n,) labels: strings that are class names, or integers.
    classes
        The M class names. If any of them is an integer ("7"), a number is the class of that name;
        otherwise it is a code. So no label is ambiguous.
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
    """A list's labels unchanged: NumPy would convert all of them to one type."""
    if any(isinstance(label, list | tuple | np.ndarray) for label in y):
        return np.asarray(y)
    labels = np.empty(len(y), dtype=object)
    labels[:] = [label.item() if hasattr(label, "item") else label for label in y]
    return labels


def _coder(classes: Sequence[str]) -> Callable[[Any], int]:
    position = {name: code for code, name in enumerate(classes)}
    numbers_are_names = any(_INTEGER.fullmatch(name) for name in classes)
    shown = ", ".join(classes[:10]) + (f" and {len(classes) - 10} more" if len(classes) > 10 else "")

    def code(label: Any) -> int:
        if isinstance(label, str):
            if label in position:
                return position[label]
            raise UserError(f"unknown label {label!r}; the domain's classes are {shown}")
        integer = _integer(label, shown)
        if numbers_are_names:
            if str(integer) in position:
                return position[str(integer)]
            raise UserError(f"unknown label {integer}; the domain's classes are {shown}")
        if 0 <= integer < len(classes):
            return integer
        raise UserError(
            f"unknown label {integer}; codes run from 0 to {len(classes) - 1} for the classes {shown}"
        )

    return code


def _integer(label: Any, shown: str) -> int:
    """Convert an integral number to an int; True and False are refused, as their meaning is ambiguous."""
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return int(label)
    if isinstance(label, float | np.floating) and float(label).is_integer():
        return int(label)
    raise UserError(f"label {label!r} is neither a class name nor an integer; the classes are {shown}")
