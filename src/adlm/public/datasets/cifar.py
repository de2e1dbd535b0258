"""The two layouts of CIFAR-10 that need no pickle: binary batches and PNG sheets.

Binary batches hold 10,000 rows of one label byte and 3,072 pixel bytes (red, green and blue planes).
PNG sheets hold one image a row, 1,024 colour pixels wide, with the labels of a split in one JSON file.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from adlm.errors import UserError

_BATCHES = {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}
_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so in the sheets' package
_PIXELS = 3 * 32 * 32


def read_folder(folder: Path, part: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """One array of a folder of binary batches or PNG sheets.

    Raises `FileNotFoundError` if the folder has neither, `UserError` if a file is not sound.
    """
    inner = folder / "cifar-10-batches-bin"
    folder = inner if inner.is_dir() else folder
    kind, split = part.split("_")
    batches = _BATCHES[split]
    per_batch = shape[0] // len(batches)
    if (folder / f"{batches[0]}.png").exists():
        if kind == "y":
            return _json_labels(folder / _LABELS[split], shape[0])
        return np.concatenate([_sheet(folder / f"{batch}.png", per_batch) for batch in batches])
    rows = np.concatenate([_binary(folder / f"{batch}.bin", per_batch) for batch in batches])
    return np.ascontiguousarray(rows[:, 0]) if kind == "y" else rows[:, 1:].reshape(-1, 3, 32, 32)


def _binary(path: Path, count: int) -> NDArray[np.uint8]:
    """Rows of a binary batch, (count, 1 + 3072)."""
    size = path.stat().st_size
    if size != count * (1 + _PIXELS):
        raise UserError(f"{path} has {size} bytes where {count * (1 + _PIXELS)} are expected; fetch it again")
    return np.fromfile(path, dtype=np.uint8).reshape(count, 1 + _PIXELS)


def _sheet(path: Path, count: int) -> NDArray[np.uint8]:
    """Images of a PNG sheet, (count, 3, 32, 32)."""
    try:
        with Image.open(path, formats=["PNG"]) as image:
            if image.mode != "RGB" or image.size != (32 * 32, count):
                raise UserError(f"{path} is not a sheet of {count} colour images of 32x32; fetch it again")
            pixels = np.asarray(image)
    except FileNotFoundError:
        raise
    except (OSError, SyntaxError) as error:  # a broken PNG raises either
        raise UserError(f"{path} cannot be read ({error}); fetch it again") from None
    return np.ascontiguousarray(pixels.transpose(0, 2, 1)).reshape(count, 3, 32, 32)


def _json_labels(path: Path, count: int) -> NDArray[np.uint8]:
    try:
        labels = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        labels = None
    sound = isinstance(labels, list) and len(labels) == count and all(label in range(10) for label in labels)
    if not sound:
        raise UserError(f"{path} is not a list of {count} labels from 0 to 9; fetch it again")
    return np.array(labels, dtype=np.uint8)
