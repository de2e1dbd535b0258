"""Private files: where they are, and text files as streams of bytes."""

from __future__ import annotations

import contextlib
import fnmatch
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from adlm.errors import UserError

# ---- Location of private files: one file, a folder or a glob, on this machine or another file system.

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather")
TEXT = (".csv", ".tsv", ".txt", ".data")
PACKED = (".gz", ".bz2", ".zst", ".lz4", ".xz", ".zip")
_GLOB = re.compile(r"[*?\[]")
NONE = "give a CSV or Parquet file, a folder of them, or a glob such as 'visits/*.parquet'"


@dataclass(frozen=True)
class DataFile:
    """A file to read, on any file system that pyarrow knows.

    Attributes
    ----------
    name : for messages.
    path : on its file system.
    size : bytes.
    system : the file system; None is this machine's.
    """

    name: str
    path: str
    size: int = 0
    system: Any = None

    def __str__(self) -> str:
        return self.name

    @property
    def suffix(self) -> str:
        """The last part of its name, in lower case."""
        return PurePosixPath(self.path).suffix.lower()

    @property
    def is_parquet(self) -> bool:
        """Whether its suffix is that of Parquet."""
        return self.suffix in PARQUET

    @property
    def is_text(self) -> bool:
        """Whether it is neither a Parquet nor an Arrow file."""
        return self.suffix not in (*PARQUET, *ARROW)

    def open(self) -> Any:
        """Open it for reading bytes anywhere."""
        return (self.system or fs.LocalFileSystem()).open_input_file(self.path)


def data_file(source: DataFile | Path | str) -> DataFile:
    """Return the file of a path."""
    if isinstance(source, DataFile):
        return source
    if "://" in str(source):
        files = find_files(source)
        if len(files) != 1:
            raise UserError(f"{source} has {len(files)} files; name the one to read")
        return files[0]
    path = Path(source)
    if not path.is_file():
        raise UserError(f"there is no file {path}; give a CSV or Parquet file")
    return DataFile(str(path), str(path), path.stat().st_size)


def find_files(source: Path | str) -> tuple[DataFile, ...]:
    """Return the files of a path, a folder, a glob or an address (s3://, gs://, file://), sorted by name.

    Of a folder, the CSV and Parquet files at any depth; names that start with a point or an underscore are
    skipped, as in other tools.
    """
    text = str(source)
    try:
        system, path = _place(text) if "://" in text else (None, text)
        infos = _listed(system or fs.LocalFileSystem(), path)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"{text} cannot be listed ({reason})") from None
    if not infos:
        raise UserError(f"there is no file {text}; {NONE}")
    prefix = text[: text.index("://") + 3] if system is not None else ""
    files = [
        DataFile(f"{prefix}{info.path}" if prefix else info.path, info.path, info.size or 0, system)
        for info in infos
    ]
    return tuple(sorted(files, key=lambda file: file.path))


def _place(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path on it, without a glob."""
    match = _GLOB.search(address, address.index("://") + 3)
    if match is None:
        system, path = fs.FileSystem.from_uri(address)
        return system, str(path)
    base, _, rest = address[: match.start()].rpartition("/")
    system, path = fs.FileSystem.from_uri(base)
    return system, f"{path}/{rest}{address[match.start() :]}"


def _listed(system: Any, path: str) -> list[Any]:
    info = system.get_file_info(path)
    if info.type == fs.FileType.File:
        return [info]
    if info.type == fs.FileType.Directory:
        return [entry for entry in _below(system, info.path) if _is_data(info.path, entry.path)]
    match = _GLOB.search(path)
    if match is None:
        return []
    base = path[: match.start()].rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    pattern = path if base != "." or path.startswith("./") else f"./{path}"
    if system.get_file_info(base).type != fs.FileType.Directory:
        return []
    return [entry for entry in _below(system, base) if _matches(entry.path, pattern)]


def _below(system: Any, base: str) -> list[Any]:
    listed = system.get_file_info(fs.FileSelector(base, recursive=True))
    return [entry for entry in listed if entry.type == fs.FileType.File]


def _is_data(base: str, path: str) -> bool:
    inside = path[len(base) :].strip("/").split("/")
    if any(part.startswith((".", "_")) for part in inside):
        return False
    suffixes = [suffix.lower() for suffix in PurePosixPath(path).suffixes]
    if suffixes and suffixes[-1] in PACKED:
        return suffixes[-1] == ".zip" or (len(suffixes) > 1 and suffixes[-2] in TEXT)
    return bool(suffixes) and suffixes[-1] in (*TEXT, *PARQUET, *ARROW)


def _matches(path: str, pattern: str) -> bool:
    """Whether a path fits a glob: `*` stays within a folder, `**` goes through folders."""
    return _fits(path.split("/"), pattern.split("/"))


def _fits(parts: list[str], wanted: list[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return _fits(parts, wanted[1:]) or (bool(parts) and _fits(parts[1:], wanted))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], wanted[0]) and _fits(parts[1:], wanted[1:])


# ---- Text files as streams of bytes, decompressed, of any length.

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


@dataclass(frozen=True, eq=False)
class Raw:
    """Some rows of a file, as they are written.

    Attributes
    ----------
    cells : by column: an Arrow array, or anything that a column of a data frame can be.
    rows : their number.
    place, first : of the rows, for messages: "visits.csv, row" and the number of the first one.
    names : of the rows, for messages, if they are not numbered.
    size : approximate bytes read.
    class_names : what integer labels mean, if the file's schema says so.
    """

    cells: Mapping[str, Any]
    rows: int
    place: str = "row"
    first: int = 1
    names: Sequence[str] = ()
    size: int = 0
    class_names: Sequence[str] | None = None

    def where(self, row: int) -> str:
        """How a message names a row, counted from 0."""
        return self.names[row] if self.names else f"{self.place} {self.first + row}"


def check_header(path: object, names: Sequence[str], wanted: Sequence[str], *, shown: bool = True) -> None:
    """Refuse a file with a missing or duplicate column; a first line that may be a record is not `shown`."""
    for name in wanted:
        if name not in names:
            have = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            hint = f"its columns are {have}" if shown else "if that line is a record, set header = false"
            where = "" if shown else " in its first line"
            raise UserError(f"{path} has no column {name!r}{where}; {hint}")
        if list(names).count(name) > 1:
            raise UserError(f"{path} has the column {name!r} twice; remove or rename one")


def explain(error: BaseException) -> str:
    """Return a sentence on why a file cannot be read."""
    text = short(error)
    if "Empty CSV" in text:
        return "the file is empty; give at least one record"
    return f"the file cannot be read ({text})"


def short(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
