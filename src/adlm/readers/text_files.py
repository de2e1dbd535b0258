"""Text files as streams of bytes: unpacked, whatever the length of the file."""

from __future__ import annotations

import contextlib
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from adlm.errors import UserError

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
UNREADABLE = (pa.ArrowException, OSError, EOFError, zipfile.BadZipFile, lzma.LZMAError, zlib.error)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a file for reading bytes, unpacking it if its name says that it is compressed."""
    with contextlib.ExitStack() as stack:
        stream: Any
        suffix = path.suffix.lower()
        if suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(path))
            members = [m for m in archive.namelist() if m.lower().endswith((".csv", ".tsv", ".txt"))]
            if len(members) != 1:
                raise UserError(f"{path} holds {len(members)} text files; unpack it and name the one to read")
            stream = stack.enter_context(archive.open(members[0]))
        elif suffix == ".xz":
            stream = stack.enter_context(lzma.open(path))
        elif suffix in COMPRESSED:
            stream = stack.enter_context(pa.input_stream(str(path), compression=COMPRESSED[suffix]))
        else:
            stream = stack.enter_context(path.open("rb"))
        yield stream


def explain(error: BaseException) -> str:
    """Say in a sentence why a file cannot be read."""
    text = short(error)
    if "Empty CSV" in text:
        return "the file is empty; give at least one record"
    return f"the file cannot be read ({text})"


def short(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
