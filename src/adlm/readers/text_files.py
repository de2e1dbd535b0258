"""Text files as streams of bytes, decompressed, of any length."""

from __future__ import annotations

import contextlib
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from adlm.errors import UserError
from adlm.readers.files import DataFile, data_file

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
UNREADABLE = (pa.ArrowException, OSError, EOFError, zipfile.BadZipFile, lzma.LZMAError, zlib.error)


@contextlib.contextmanager
def opened(source: DataFile | Path) -> Iterator[tuple[Any, Callable[[], int]]]:
    """Open a file for reading bytes, decompressed by its suffix.

    Yields the stream, and a function that returns the number of bytes of the file read so far.
    """
    file = data_file(source)
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(file.open())
        stream: Any = raw
        if file.suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(raw))
            members = [m for m in archive.namelist() if m.lower().endswith((".csv", ".tsv", ".txt"))]
            if len(members) != 1:
                raise UserError(f"{file} holds {len(members)} text files; unpack it and name the one to read")
            stream = stack.enter_context(archive.open(members[0]))
        elif file.suffix == ".xz":
            stream = stack.enter_context(lzma.open(raw))
        elif file.suffix in COMPRESSED:
            stream = stack.enter_context(pa.CompressedInputStream(raw, COMPRESSED[file.suffix]))
        yield stream, lambda: int(raw.tell())


def explain(error: BaseException) -> str:
    """Return a sentence on why a file cannot be read."""
    text = short(error)
    if "Empty CSV" in text:
        return "the file is empty; give at least one record"
    return f"the file cannot be read ({text})"


def short(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
