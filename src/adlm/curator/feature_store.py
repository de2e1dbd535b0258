"""Features of private records on their integer grid, kept from one pass to the next.

They stay in memory while they are few and go to a file when they are many, so that memory stays flat in the
number of records. The file is private data: only its owner can read it, and it has no name in the file
system, so that it is gone with the process, however that ends.
"""

from __future__ import annotations

import tempfile
from typing import IO

import numpy as np
import numpy.typing as npt

from adlm.curator.featurise import cache_folder
from adlm.errors import UserError

MOST_BYTES = 1 << 28  # kept in memory


class FeatureStore:
    """Append-only (n, k) 16-bit features and (n,) class codes.

    Parameters
    ----------
    width : number k of features of a record.
    most_bytes : above this, features are kept in a file.
    """

    def __init__(self, width: int, most_bytes: int = MOST_BYTES) -> None:
        self.width, self._most = width, most_bytes
        self._blocks: list[npt.NDArray[np.int16]] = []
        self._codes: list[npt.NDArray[np.int64]] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def append(self, z: npt.NDArray[np.int16], codes: npt.NDArray[np.int64]) -> None:
        """Keep a batch of records."""
        self._codes.append(np.asarray(codes, dtype=np.int64))
        self._bytes += z.nbytes
        if self._file is None and self._bytes > self._most:
            folder = cache_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # it lives as long as the store
            kept, self._blocks = self._blocks, []
            for block in kept:
                self._write(block)
        if self._file is None:
            self._blocks.append(z)
        else:
            self._write(z)

    def _write(self, z: npt.NDArray[np.int16]) -> None:
        assert self._file is not None
        try:
            self._file.write(np.ascontiguousarray(z).tobytes())
        except OSError as error:
            raise UserError(
                f"features of the records cannot be kept in {cache_folder()} ({error.strerror or error}); "
                "free room there, or set ADLM_CACHE to another folder"
            ) from None

    def close(self) -> None:
        """Let go of everything; what is in a file is gone."""
        self._blocks, self._codes = [], []
        if self._file is not None:
            self._file.close()
            self._file = None

    def arrays(self) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
        """Return all features and all codes."""
        codes = np.concatenate(self._codes) if self._codes else np.zeros(0, dtype=np.int64)
        if self._file is None:
            blocks = self._blocks or [np.zeros((0, self.width), dtype=np.int16)]
            self._blocks = [np.concatenate(blocks)] if len(blocks) > 1 else blocks
            return self._blocks[0], codes
        self._file.flush()
        z = np.memmap(self._file, dtype=np.int16, mode="r", shape=(len(codes), self.width))
        return np.asarray(z), codes
