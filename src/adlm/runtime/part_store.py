"""Parts of private records, stored between passes: in memory if few, else in a file.

The file is private data: only its owner can read it, and it has no name in the file system, so that it is
removed with the process, however that ends. It is mapped into memory, whose pages the system takes back when
others need them.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_dir

from adlm.errors import UserError

Part = tuple[NDArray[Any], ...]
MOST_BYTES = 1 << 28  # kept in memory
ALIGNED = 64  # bytes between which arrays begin in the file
PIECE_BYTES, PIECE_ROWS = 1 << 22, 1 << 10  # read at once: this many bytes, but at least this many rows


def private_folder() -> Path:
    """Return the folder for files made of private records; ADLM_CACHE moves it."""
    return Path(os.environ.get("ADLM_CACHE") or user_cache_dir("adlm")) / "private-features"


@dataclass(frozen=True)
class _Written:
    """Location of an array in the file."""

    at: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class PartStore:
    """Append-only parts, each a tuple of arrays of one length.

    Parameters
    ----------
    most_bytes : above this, parts are kept in a file.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._bytes, self._end = most_bytes, 0, 0
        self._parts: list[tuple[NDArray[Any] | _Written, ...]] = []
        self._file: IO[bytes] | None = None
        self._mapped: mmap.mmap | None = None
        self._lock = threading.Lock()
        self.rows = 0

    def __len__(self) -> int:
        return len(self._parts)

    def append(self, part: Part) -> None:
        """Store a part, in pieces that fit a processor's shared cache."""
        each = sum(array.nbytes for array in part) // max(1, len(part[0]))
        count = max(PIECE_ROWS, PIECE_BYTES // max(1, each))
        for start in range(0, max(1, len(part[0])), count):
            self._append(tuple(array[start : start + count] for array in part))

    def _append(self, part: Part) -> None:
        self.rows += len(part[0])
        self._bytes += sum(array.nbytes for array in part)
        if self._file is None and self._bytes > self._most:
            folder = private_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # it lives as long as the store
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            self._parts = [self._write(kept) for kept in self._parts]  # type: ignore[arg-type]
        self._parts.append(part if self._file is None else self._write(part))

    def _write(self, part: Part) -> tuple[_Written, ...]:
        assert self._file is not None
        written = []
        for array in part:
            contiguous = np.ascontiguousarray(array)
            try:
                self._end += self._file.write(bytes(-self._end % ALIGNED))
                data = memoryview(contiguous.reshape(-1).view(np.uint8).data)
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                raise UserError(
                    f"what is kept of the records cannot be written to {private_folder()} "
                    f"({error.strerror or error}); free room there, or set ADLM_CACHE to another folder"
                ) from None
            written.append(_Written(self._end, contiguous.dtype, contiguous.shape))
            self._end += contiguous.nbytes
        return tuple(written)

    def read(self, index: int) -> Part:
        """Return a part; several threads may do so at once. It stays mapped for the next pass."""
        part = tuple(self._array(a) if isinstance(a, _Written) else a for a in self._parts[index])
        self._parts[index] = part
        return part

    def _array(self, written: _Written) -> NDArray[Any]:
        """Return an array of the file, which is mapped into memory as a whole: nothing is copied.

        One mapping serves all arrays, since each one holds a file descriptor open.
        """
        assert self._file is not None
        count = int(np.prod(written.shape))
        if not count:
            return np.empty(written.shape, dtype=written.dtype)
        with self._lock:
            if self._mapped is None or len(self._mapped) < self._end:
                try:
                    self._mapped = mmap.mmap(self._file.fileno(), self._end)
                except (OSError, ValueError) as error:
                    raise UserError(
                        f"what was kept of the records cannot be read back ({error}); release again"
                    ) from None
            mapped = self._mapped
        values = np.frombuffer(mapped, dtype=written.dtype, count=count, offset=written.at)
        return values.reshape(written.shape)

    def close(self) -> None:
        """Free everything, and remove the file."""
        self._parts, self._mapped = [], None
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        self.close()
