"""What a data set must be, byte for byte, and its arrays on disk.

Checksums are of the arrays and not of the files that carry them: the same images come in differently
packed files from different places, and what an experiment rests on is the images.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from adlm.errors import UserError

PARTS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Check:
    """Shape and SHA-256 (over the bytes in C order) of an array of unsigned bytes."""

    shape: tuple[int, ...]
    sha256: str


def verify(array: NDArray[np.uint8], check: Check, where: object) -> NDArray[np.uint8]:
    """The array, if it is the one that was published; otherwise a sentence naming where it came from."""
    if array.dtype != np.uint8 or array.shape != check.shape:
        raise UserError(
            f"{where} holds {array.dtype} values of shape {array.shape} where uint8 of shape {check.shape} "
            "is expected; fetch it again"
        )
    if hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() != check.sha256:
        raise UserError(f"{where} does not match its published checksum; delete it and fetch it again")
    return array


def read_npy(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array in a .npy file; its header is checked before anything is allocated."""
    broken = UserError(f"{path} is not an array file of {shape} unsigned bytes; delete it and fetch it again")
    with path.open("rb") as file:
        try:
            readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
            found, fortran, dtype = readers[npy.read_magic(file)](file)
        except (ValueError, KeyError, EOFError):
            raise broken from None
        if found != shape or fortran or dtype != np.uint8:
            raise broken
        body = bytearray(file.read(math.prod(shape) + 1))
    if len(body) != math.prod(shape):
        raise UserError(f"{path} is truncated or overlong; delete it and fetch it again")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)
