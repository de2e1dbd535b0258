"""Text files as streams of bytes: unpacked, without comments, whatever the length of the file."""

from __future__ import annotations

import contextlib
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from adlm.errors import UserError

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
UNREADABLE = (pa.ArrowException, OSError, EOFError, zipfile.BadZipFile, lzma.LZMAError, zlib.error)


def first_line(path: Path, comment: str | None) -> str:
    """Return the first line that is neither empty nor a comment."""
    try:
        with opened(path, comment) as stream:
            text = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(_Raw(stream))
            start = text.readline(1 << 20)
            while start and not start.strip():
                start = text.readline(1 << 20)
    except UNREADABLE as error:
        raise UserError(f"{path}: {explain(error)}") from None
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{path} is UTF-16 text; save it with UTF-8 encoding")
    if not start.strip():
        raise UserError(f"{path}: the file is empty; give at least one record")
    start = start.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").split(b"\r")[0]  # lines may end in CR
    try:
        return start.decode("utf-8").rstrip("\n").replace("\0", "")
    except UnicodeDecodeError:
        raise UserError(f"{path}, first line: the text is not UTF-8; save it with UTF-8 encoding") from None


@contextlib.contextmanager
def opened(path: Path, comment: str | None = None) -> Iterator[Any]:
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
        yield io.BufferedReader(_Uncommented(stream, comment.encode())) if comment else stream


class _Raw(io.RawIOBase):
    """An Arrow stream as a raw Python stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Uncommented(io.RawIOBase):
    """A stream without the lines that start with a comment mark."""

    def __init__(self, stream: Any, mark: bytes) -> None:
        self._lines: IO[bytes] = io.BufferedReader(_Raw(stream))
        self._mark, self._rest = mark, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            line = self._lines.readline()
            if not line:
                return 0
            self._rest = b"" if line.startswith(self._mark) else line
        data, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


def explain(error: BaseException) -> str:
    """Say in a sentence why a file cannot be read."""
    text = short(error)
    if "Empty CSV" in text:
        return "the file is empty; give at least one record"
    return f"the file cannot be read ({text})"


def short(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
