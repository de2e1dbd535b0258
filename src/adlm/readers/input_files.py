"""Files of images and of vectors, as records with a label and perhaps a person, in a public order.

| what is given | what a record is |
| --- | --- |
| a folder with a subfolder for each class | an image file; order of the file names, whatever the class |
| a folder with one CSV file, or that file | a row: a file name, a label, perhaps a person |
| Parquet or Arrow files, a folder that `datasets` saved | a row: image bytes or numbers, a label, a person |
| .npz, or a folder of .npy files | an entry of the arrays, which are named as the columns |
| a single image, a folder of images | an image without a label, for predictions |

Every row and every image file is one record or an error; hidden files are passed over.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from adlm.errors import UserError
from adlm.public.domain.column import Column
from adlm.public.domain.inputs import InputDomain
from adlm.public.domain.labels import encode_labels
from adlm.public.domain.table import TableDomain
from adlm.readers.images import SUFFIXES
from adlm.readers.tables import PARQUET, check_header, raw_batches
from adlm.readers.text_files import short

ARROW = (".arrow", ".feather")
CSV = (".csv", ".tsv")
ROWS = 256
_LITTER = ("thumbs.db", "desktop.ini")


@dataclass(frozen=True, eq=False)
class Item:
    """One record as it lies in a file.

    Attributes
    ----------
    name : what to call it in a message.
    value : where an image is, its bytes, or an array.
    label : class code, or None where labels were not asked for.
    person : who it belongs to, where persons are declared and asked for.
    """

    name: str
    value: Any
    label: int | None = None
    person: Any = None


def items_of(path: Path, declared: InputDomain, *, labels: bool, persons: bool) -> Iterator[Item]:
    """Give the records of a file or a folder, in their public order.

    Parameters
    ----------
    path : a file or a folder, as the table above has them.
    declared : the input's column, the label and the person.
    labels, persons : whether to read labels and persons, which then every record must have.
    """
    if not path.exists():
        raise UserError(f"there is no file or folder {path}; give one that holds the records")
    columns = Columns.of(declared, labels=labels, persons=persons)
    if path.is_dir():
        return _of_folder(path, declared, columns)
    suffix = path.suffix.lower()
    if suffix in PARQUET or suffix in ARROW:
        return _of_tables([path], columns)
    if suffix == ".npz":
        return _of_arrays(path, _npz(path), columns)
    if suffix == ".npy" and not labels:
        return _of_arrays(path, {columns.input: _npy(path)}, columns)
    if declared.is_image and (suffix in CSV or path.name.lower().endswith(".csv.gz")):
        return _of_csv(path, columns)
    if declared.is_image and suffix in SUFFIXES and not labels:
        return iter([Item(str(path), path)])
    raise UserError(
        f"{path} is not a file of {'images' if declared.is_image else 'vectors'} with labels; give "
        + ("a folder, a CSV file of file names, " if declared.is_image else "")
        + "a Parquet or Arrow file, or an .npz file"
    )


@dataclass(frozen=True)
class Columns:
    """The columns that are wanted of a file."""

    input: str
    label: Column | None
    person: Column | None

    @classmethod
    def of(cls, declared: InputDomain, *, labels: bool, persons: bool) -> Columns:
        """Take the input's column, and those of the label and the person if they are asked for."""
        person = declared.person if persons else None
        return cls(declared.input.name, declared.label if labels else None, person)

    @property
    def names(self) -> list[str]:
        """Names of the columns, the input's first."""
        return [self.input, *(column.name for column in (self.label, self.person) if column is not None)]


# Folders


def _of_folder(folder: Path, declared: InputDomain, columns: Columns) -> Iterator[Item]:
    inside = [entry for entry in sorted(folder.iterdir()) if not _litter(entry.name)]
    if (folder / "dataset_dict.json").is_file():
        splits = ", ".join(entry.name for entry in inside if entry.is_dir())
        raise UserError(f"{folder} holds several splits of a data set; give one of them ({splits})")
    if (folder / "state.json").is_file():
        return _of_tables(_saved_dataset(folder), columns)
    files = [entry for entry in inside if entry.is_file()]
    tables = [entry for entry in files if entry.suffix.lower() in (*PARQUET, *ARROW)]
    if tables:
        return _of_tables(tables, columns)
    arrays = {entry.stem: entry for entry in files if entry.suffix.lower() == ".npy"}
    if arrays:
        wanted = {name: _npy(arrays[name]) for name in columns.names if name in arrays}
        return _of_arrays(folder, wanted, columns)
    if not declared.is_image:
        raise UserError(f"{folder} holds no Parquet, Arrow or .npy files of vectors")
    lists = [entry for entry in files if entry.suffix.lower() in CSV]
    if len(lists) > 1:
        raise UserError(f"{folder} holds {len(lists)} CSV files; give the one that names the images")
    if lists and columns.label is not None:
        return _of_csv(lists[0], columns)
    if columns.label is None:
        return _images_below(folder)
    return _class_folders(folder, inside, columns.label, columns.person)


def _litter(name: str) -> bool:
    """Whether a name is that of a file that a desktop leaves behind, or of a hidden one."""
    return name.startswith(".") or name.casefold() in _LITTER


def _class_folders(
    folder: Path, inside: Sequence[Path], label: Column, person: Column | None
) -> Iterator[Item]:
    """Images of subfolders, each named as a class."""
    if person is not None:
        raise UserError(
            f"{folder} has a subfolder for each class, which names no person; put a CSV file of file names, "
            f"labels and persons into it"
        )
    lost = next((entry for entry in inside if not entry.exists()), None)
    if lost is not None:
        raise UserError(f"{lost} is a link that leads nowhere; mend it, or take it away")
    subfolders = [entry for entry in inside if entry.is_dir()]
    folded: dict[str, str] = {}
    for entry in subfolders:
        other = folded.setdefault(entry.name.casefold(), entry.name)
        if other != entry.name:
            raise UserError(
                f"{folder}: the subfolders {other!r} and {entry.name!r} differ in case alone; rename one, or "
                "put them together"
            )
    loose = next((entry for entry in inside if entry.suffix.lower() in SUFFIXES), None)
    if loose is not None:
        raise UserError(
            f"{folder}: the image {loose.name} lies beside the subfolders; put it into that of its class"
        )
    found: list[tuple[str, str, Path, int]] = []
    for entry in subfolders:
        code = class_code(entry.name, label, f"{folder}: the subfolder {entry.name!r}")
        found += [(file.name, str(file.relative_to(folder)), file, code) for file in _images_in(entry)]
    if not found:
        raise UserError(f"{folder} holds no images; put them into one subfolder for each class")
    # By name before class: where a record stands then says nothing of its class.
    return (Item(str(file), file, code) for _, _, file, code in sorted(found, key=lambda one: one[:2]))


def _images_in(folder: Path) -> Iterator[Path]:
    """Image files of a folder at any depth; any other file is an error, and so is a link to a folder."""
    for file in folder.rglob("*"):
        if _litter(file.name) or any(_litter(part) for part in file.relative_to(folder).parts[:-1]):
            continue
        if file.is_dir():
            if file.is_symlink():
                raise UserError(
                    f"{file} is a link to a folder, which is not followed; put its images there instead"
                )
            continue
        if file.suffix.lower() not in SUFFIXES:
            raise UserError(
                f"{file} is not an image by its name ({', '.join(SUFFIXES)}); convert it, or take it away"
            )
        yield file


def _images_below(folder: Path) -> Iterator[Item]:
    """Images without labels, in the order of their paths."""
    files = sorted(
        (str(file.relative_to(folder)), file)
        for file in folder.rglob("*")
        if file.suffix.lower() in SUFFIXES and not _litter(file.name) and not file.is_dir()
    )
    if not files:
        raise UserError(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    return (Item(str(file), file) for _, file in files)


# CSV files of file names


def _of_csv(path: Path, columns: Columns) -> Iterator[Item]:
    label = columns.label or Column("", "label", classes=("a", "b"))
    read = (Column(columns.input, "categorical", values=("-",)), label, columns.person)
    table = TableDomain(tuple(column for column in read if column is not None), missing=())
    folder, row = path.parent.resolve(), 0
    for batch in raw_batches(path, table, columns.names, ROWS):
        cells = {name: batch[name].to_pylist() for name in columns.names}
        for at, name in enumerate(cells[columns.input]):
            row += 1
            where = f"{path}, row {row}"
            file = folder / str(name)
            if not name or not file.resolve().is_relative_to(folder):
                raise UserError(f"{where}: an image must lie below {path.parent} (got {name!r})")
            yield _item(where + f" ({name})", file, columns, cells, at)
    if not row:
        raise UserError(f"{path} holds no records; give at least one")


def _item(
    where: str, value: Any, columns: Columns, cells: dict[str, list[Any]], at: int, names: Any = None
) -> Item:
    code = None
    if columns.label is not None:
        code = class_code(cells[columns.label.name][at], columns.label, where, names)
    return Item(where, value, code, cells[columns.person.name][at] if columns.person else None)


# Parquet and Arrow


def _saved_dataset(folder: Path) -> list[Path]:
    """Arrow files of a folder that `datasets` saved, in their order."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        files = [folder / str(entry["filename"]) for entry in state["_data_files"]]
        reordered = state.get("_indices_files") or state.get("_indices_data_files")
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder / 'state.json'} is not that of a saved data set") from None
    if reordered:
        raise UserError(f"{folder} keeps its rows by an index; save it after flatten_indices()")
    return files


def _of_tables(paths: Sequence[Path], columns: Columns) -> Iterator[Item]:
    total = 0
    for path in paths:
        for item in rows_of(path, columns):
            total += 1
            yield item
    if not total:
        raise UserError(f"{paths[0] if paths else 'the folder'} holds no records; give at least one")


def rows_of(path: Path, columns: Columns, groups: range | None = None, row: int = 0) -> Iterator[Item]:
    """Give the rows of a Parquet or Arrow file; `groups` and `row`: of some row groups, after so many rows.

    Parameters
    ----------
    path, columns : the file, and what is wanted of it.
    groups : row groups of a Parquet file; all when not given.
    row : number of the last row before them.
    """
    try:
        for schema, batch in _arrow_batches(path, columns.names, groups):
            names = _label_names(schema, columns.label)
            values = _input_values(path, batch.column(columns.input), columns.input, row)
            cells = {name: batch.column(name).to_pylist() for name in columns.names[1:]}
            for at, value in enumerate(values):
                row += 1
                yield _item(f"{path}, row {row}", value, columns, cells, at, names)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a whole Parquet or Arrow file ({short(error)})") from None


def _arrow_batches(
    path: Path, wanted: list[str], groups: range | None = None
) -> Iterator[tuple[pa.Schema, Any]]:
    if path.suffix.lower() in PARQUET:
        with parquet.ParquetFile(path) as file:
            check_header(path, file.schema_arrow.names, wanted)
            every = range(file.metadata.num_row_groups) if groups is None else groups
            for batch in file.iter_batches(batch_size=ROWS, row_groups=list(every), columns=wanted):
                yield file.schema_arrow, batch
        return
    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_stream(source)
            batches = iter(reader)
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(source)
            batches = (reader.get_batch(at) for at in range(reader.num_record_batches))
        check_header(path, reader.schema.names, wanted)
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS):
                yield reader.schema, batch.slice(start, ROWS)


def _label_names(schema: pa.Schema, label: Column | None) -> list[str] | None:
    """Names of whole-number labels that the schema of a file of `datasets` declares."""
    if label is None:
        return None
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label.name]
    except (KeyError, ValueError, TypeError):
        return None
    names = feature.get("names") if isinstance(feature, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else None


def _fields(kind: Any) -> list[str]:
    return [kind.field(at).name for at in range(kind.num_fields)]


def _input_values(path: Path, column: Any, name: str, first: int) -> Iterator[Any]:
    """Bytes of images, or vectors as float64 arrays, cell by cell."""
    kind = column.type
    inner = kind.field("bytes").type if pa.types.is_struct(kind) and "bytes" in _fields(kind) else kind
    is_bytes = pa.types.is_binary(inner) or pa.types.is_large_binary(inner)
    is_list = any(
        test(kind) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )
    if not is_bytes and not is_list:
        raise UserError(f"{path}: the column {name!r} holds {kind}; image bytes or lists of numbers are read")
    for at, cell in enumerate(column):
        value = None
        if cell.is_valid:
            value = cell.values.to_numpy(zero_copy_only=False) if is_list else cell.as_py()
        if isinstance(value, dict):  # as `datasets` keeps an image
            value = value["bytes"]
        if value is None:
            where = f"{path}, row {first + at + 1}"
            raise UserError(f"{where}: the column {name!r} is empty; each record needs its bytes or numbers")
        yield value


# Arrays


def _npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not a whole .npz file of plain arrays ({short(error)})") from None


def _npy(path: Path) -> NDArray[Any]:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is not a whole .npy file of a plain array ({short(error)})") from None


def _of_arrays(path: Path, arrays: dict[str, NDArray[Any]], columns: Columns) -> Iterator[Item]:
    for name in columns.names:
        if name not in arrays:
            raise UserError(f"{path} has no array {name!r}; it has {', '.join(arrays) or 'none'}")
    lengths = {name: len(arrays[name]) if arrays[name].ndim else -1 for name in columns.names}
    if len(set(lengths.values())) != 1 or min(lengths.values()) < 1:
        raise UserError(f"{path}: the arrays must have as many entries, at least one (got {lengths})")
    cells = {name: arrays[name].tolist() for name in columns.names[1:]}
    for at, value in enumerate(arrays[columns.input]):
        yield _item(f"{path}, entry {at + 1}", value, columns, cells, at)


# Labels


def class_code(value: Any, label: Column, where: str, names: Sequence[str] | None = None) -> int:
    """Code of a label: a class, an alias, or a whole number, which `names` or the classes' order explain.

    Parameters
    ----------
    value : what stands in the file.
    label : the declared label.
    where : file and row, for the sentence.
    names : classes that the file itself names, in the order of its numbers.
    """
    if names is not None and isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < len(names):
            raise UserError(f"{where}: unknown label {value}; the file names {len(names)} classes")
        value = names[value]
    if isinstance(value, str):
        value = dict(label.aliases).get(value, value)
    if value is None:
        raise UserError(f"{where}: the label is missing; remove such records first")
    try:
        return int(encode_labels([value], label.classes)[0])
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
