"""The IDX format of MNIST and Fashion-MNIST: a big-endian header, then unsigned bytes.

A file starts with two zero bytes, a type (8: unsigned byte), the number of dimensions, and each
dimension as a 32-bit integer. It may be gzip'ed.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adlm.errors import UserError

FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
_UNSIGNED_BYTE = 8


def read_folder(folder: Path, part: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """One array of a folder of IDX files, plain or gzip'ed.

    Raises `FileNotFoundError` if the folder has no file for it, `UserError` if the file is not sound.
    """
    plain, packed = folder / FILES[part], folder / f"{FILES[part]}.gz"
    return read(plain if plain.exists() else packed, shape)


def read(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array in an IDX file, which must have the given shape and fill the file to its last byte."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read(file, path, shape)
    except FileNotFoundError:
        raise
    except EOFError:
        raise UserError(f"{path} is truncated; fetch it again") from None
    except (OSError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}); fetch it again") from None


def _read(file: io.BufferedIOBase, path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    size = math.prod(shape)
    header = file.read(4 + 4 * len(shape))
    if len(header) < 4 + 4 * len(shape):
        raise UserError(f"{path} is truncated (its header ends after {len(header)} bytes); fetch it again")
    zero, kind, dimensions = struct.unpack(">HBB", header[:4])
    if zero != 0 or kind != _UNSIGNED_BYTE or dimensions != len(shape):
        raise UserError(f"{path} is not an IDX file of {len(shape)}-dimensional bytes; fetch it again")
    found = struct.unpack(f">{len(shape)}I", header[4:])
    if found != shape:
        raise UserError(f"{path} holds an array of shape {found} where {shape} is expected; fetch it again")
    # One byte more than the header promises is asked for, so that a longer file is noticed without
    # unpacking all of whatever it holds.
    body = file.read(size + 1)
    if len(body) < size:
        raise UserError(f"{path} is truncated (has {len(body)} of {size} values); fetch it again")
    if len(body) > size:
        raise UserError(f"{path} goes on after its {size} values; fetch it again")
    return np.frombuffer(bytearray(body), dtype=np.uint8).reshape(shape)
