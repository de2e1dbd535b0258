"""Files of images and of vectors, as records with a label and an optional person."""

from __future__ import annotations

import io
import itertools
import json
import os
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from pyarrow import parquet

from adlm.data.csv import check_header
from adlm.data.files import PARQUET, short
from adlm.data.tables import chosen, person_digests, raw_batches, record_digests
from adlm.domain.columns import Column
from adlm.domain.domain import encode_labels
from adlm.domain.table import TableDomain
from adlm.domain.values import CellError
from adlm.errors import UserError
from adlm.runtime import progress

# ---- One image file to one record: decoded, rotated, and resized to the declared size and colour.
#
# The transform is a function of the file's bytes and of the declaration alone, step by step:
#
# 1. The file is decoded as JPEG, PNG, WebP, TIFF or BMP; of several frames, the first. Colour profiles are
# not
#    applied.
# 2. EXIF rotation is applied. 3. 16-bit values are cut to their high byte. Transparent pixels are blended
# with white. Colour becomes grey
#    by the luma of ITU-R 601-2 (L = 0.299 R + 0.587 G + 0.114 B), grey into colour by repeating it.
# 4. An image of another size is resized with an antialiased filter (Pillow's Lanczos, whose support grows
# with
#    the reduction). `crop`: so that it covers the size, of which the centre is kept; `pad`: so that it fits
#    into the size, centred on black; `stretch`: each side by itself.
#
# An 8-bit image of the declared size and colour is unchanged, bit for bit.

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp")
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP")
LEAST_SIDE = 2  # pixels
MOST_PIXELS = 1 << 27
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
_UNDECLARED = ("I", "F")  # 32-bit integers and floats: their range is unknown


class ImageError(UserError):
    """An unreadable image; the caller adds the file's name to the sentence."""


def pixels_of(data: bytes | Path, shape: tuple[int, ...], fit: str | None = None) -> NDArray[np.uint8]:
    """Return the record of an image file: `shape` bytes.

    Parameters
    ----------
    data : the bytes of an image file, or its path.
    shape : (H, W) for grey, (1, H, W) for grey, (3, H, W) for colour.
    fit : `crop` (or None), `pad` or `stretch`.

    Formal guarantees
    -----------------
    The result depends on `data` and on the declared shape and fit alone.
    """
    colour = len(shape) == 3 and shape[0] == 3
    try:
        source = data if isinstance(data, Path) else io.BytesIO(data)
        with Image.open(source, formats=FORMATS) as opened:
            _check_size(opened)
            opened.load()
            image = _in_colour(ImageOps.exif_transpose(opened), colour, opened.format)
    except ImageError:
        raise
    except Image.DecompressionBombError:
        raise ImageError(f"the image has more than {MOST_PIXELS} pixels; make it smaller") from None
    except UnidentifiedImageError:
        raise ImageError("it is no image of a known format (JPEG, PNG, WebP, TIFF, BMP)") from None
    except FileNotFoundError:
        raise ImageError("there is no such file") from None
    except Exception as error:  # Pillow has many kinds of errors for broken files
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ImageError(f"the image is broken ({reason[:100]})") from None
    return _as_array(image, shape, fit)


def pixels_of_array(array: NDArray[Any], shape: tuple[int, ...], fit: str | None) -> NDArray[np.uint8]:
    """Return the record of one image of an array: (H, W), channels first or channels last.

    Unsigned 8-bit or 16-bit integers are images; other types are refused, as their range is unknown.
    """
    if array.dtype == np.uint16:
        array = (array >> 8).astype(np.uint8)
    if array.dtype != np.uint8:
        raise ImageError(f"an image holds unsigned 8-bit or 16-bit integers (got {array.dtype})")
    if array.shape == shape:
        return np.ascontiguousarray(array)
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise ImageError(f"an image has the shape (H, W), (H, W, 3) or (3, H, W) (got {array.shape})")
    colour = len(shape) == 3 and shape[0] == 3
    image = Image.fromarray(np.ascontiguousarray(array))
    _check_size(image)
    return _as_array(_in_colour(image, colour), shape, fit)


def _as_array(image: Image.Image, shape: tuple[int, ...], fit: str | None) -> NDArray[np.uint8]:
    array = np.asarray(_fitted(image, (shape[-1], shape[-2]), fit or "crop"), dtype=np.uint8)
    return np.ascontiguousarray(array.transpose(2, 0, 1) if array.ndim == 3 else array).reshape(shape)


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if min(width, height) < LEAST_SIDE:
        raise ImageError(f"the image is {width} x {height} pixels; at least {LEAST_SIDE} a side are needed")
    if width * height > MOST_PIXELS:
        raise ImageError(f"the image has more than {MOST_PIXELS} pixels; make it smaller")


def _in_colour(image: Image.Image, colour: bool, kind: str | None = None) -> Image.Image:
    """An 8-bit image, grey or red, green and blue."""
    if image.mode in _DEEP:
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    elif image.mode == "I" and kind == "PNG":  # 16-bit grey in older versions of Pillow
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    elif image.mode in _UNDECLARED:
        raise ImageError(
            "the image holds 32-bit numbers, whose range nothing declares; save it with 8 or 16 bits"
        )
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        ground = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        image = Image.alpha_composite(ground, clear).convert("RGB")
    mode = "RGB" if colour else "L"
    return image if image.mode == mode else image.convert(mode)


def _fitted(image: Image.Image, size: tuple[int, int], fit: str) -> Image.Image:
    """Resize an image to (width, height)."""
    if image.size == size:
        return image
    if fit == "stretch":
        return image.resize(size, Image.Resampling.LANCZOS)
    across, down = size[0] / image.size[0], size[1] / image.size[1]
    if fit == "crop":
        ratio = max(across, down)
        part = (size[0] / ratio, size[1] / ratio)
        left, top = (image.size[0] - part[0]) / 2, (image.size[1] - part[1]) / 2
        box = (
            max(left, 0.0),
            max(top, 0.0),
            min(left + part[0], image.size[0]),
            min(top + part[1], image.size[1]),
        )
        return image.resize(size, Image.Resampling.LANCZOS, box=box)
    ratio = min(across, down)
    inner = (max(1, round(image.size[0] * ratio)), max(1, round(image.size[1] * ratio)))
    canvas = Image.new(image.mode, size)
    canvas.paste(
        image.resize(inner, Image.Resampling.LANCZOS),
        ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2),
    )
    return canvas


# ---- One raw image or vector of a file: its value, its class and its person.


@dataclass(frozen=True, eq=False)
class Item:
    """One raw record of a file.

    Attributes
    ----------
    name : for messages.
    value : path of an image, its bytes, or an array.
    label : class code, or None if labels were not requested.
    person : its owner, if persons are declared and requested.
    """

    name: str
    value: Any
    label: int | None = None
    person: Any = None


@dataclass(frozen=True)
class Columns:
    """The requested columns of a file."""

    input: str
    label: Column | None
    person: Column | None

    @classmethod
    def of(cls, declared: TableDomain, *, labels: bool, persons: bool) -> Columns:
        """Take the input's column, and those of the label and the person if requested."""
        assert declared.input is not None, "a table has no column of images or vectors"
        person = declared.person if persons else None
        return cls(declared.input.name, declared.label if labels else None, person)

    @property
    def names(self) -> list[str]:
        """Names of the columns, the input's first."""
        return [self.input, *(column.name for column in (self.label, self.person) if column is not None)]


def item_at(
    where: str, value: Any, columns: Columns, cells: dict[str, list[Any]], at: int, names: Any = None
) -> Item:
    """Assemble a record from the cells of its row.

    Parameters
    ----------
    where : file and row, for messages.
    value : the image or the vector.
    columns : the requested columns.
    cells, at : values of the other columns, by name, and the row's place in them.
    names : classes that the file itself names, in the order of its numbers.
    """
    code = None
    if columns.label is not None:
        code = class_code(cells[columns.label.name][at], columns.label, where, names)
    return Item(where, value, code, cells[columns.person.name][at] if columns.person else None)


def class_code(value: Any, label: Column, where: str, names: Sequence[str] | None = None) -> int:
    """Code of a label: a class, an alias, or an integer that indexes `names` or the classes.

    Parameters
    ----------
    value : the cell.
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


# ---- Images and vectors in Parquet and Arrow files, and in folders that `datasets` saved.

ARROW = (".arrow", ".feather")
ROWS = 256


def saved_dataset(folder: Path) -> list[Path]:
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


def items_of_tables(paths: Sequence[Path], columns: Columns) -> Iterator[Item]:
    total = 0
    for path in paths:
        for item in rows_of(path, columns):
            total += 1
            yield item
    if not total:
        raise UserError(f"{paths[0] if paths else 'the folder'} holds no records; give at least one")


def rows_of(path: Path, columns: Columns, groups: range | None = None, row: int = 0) -> Iterator[Item]:
    """Yield the rows of a Parquet or Arrow file.

    Parameters
    ----------
    path, columns : the file, and the requested columns.
    groups : row groups of a Parquet file; by default all.
    row : number of the last row before them.
    """
    try:
        for schema, batch in _arrow_batches(path, columns.names, groups):
            names = _label_names(schema, columns.label)
            values = _input_values(path, batch.column(columns.input), columns.input, row)
            cells = {name: batch.column(name).to_pylist() for name in columns.names[1:]}
            for at, value in enumerate(values):
                row += 1
                yield item_at(f"{path}, row {row}", value, columns, cells, at, names)
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
    """Names of integer labels in the schema of a file of `datasets`."""
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
        if isinstance(value, dict):  # as `datasets` stores an image
            value = value["bytes"]
        if value is None:
            where = f"{path}, row {first + at + 1}"
            raise UserError(f"{where}: the column {name!r} is empty; each record needs its bytes or numbers")
        yield value


# ---- Files of images and of vectors, as records with a label and an optional person, in a public order.
#
# | what is given | what a record is |
# | --- | --- |
# | a folder with a subfolder for each class | an image file; order of the file names, whatever the class |
# | a folder with one CSV file, or that file | a row: a file name, a label, an optional person |
# | Parquet or Arrow files, a folder that `datasets` saved | a row: bytes or numbers, a label, a person |
# | .npz, or a folder of .npy files | an entry of the arrays, which have the columns' names |
# | a single image, a folder of images | an image without a label, for predictions |
#
# Every row and every image file is one record or an error; hidden files are skipped.

CSV = (".csv", ".tsv")
_LITTER = ("thumbs.db", "desktop.ini")


def items_of(path: Path, declared: TableDomain, *, labels: bool, persons: bool) -> Iterator[Item]:
    """Yield the records of a file or a folder, in their public order.

    Parameters
    ----------
    path : a file or a folder, see the table above.
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
        return items_of_tables([path], columns)
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


# Folders


def _of_folder(folder: Path, declared: TableDomain, columns: Columns) -> Iterator[Item]:
    inside = [entry for entry in sorted(folder.iterdir()) if not _litter(entry.name)]
    if (folder / "dataset_dict.json").is_file():
        splits = ", ".join(entry.name for entry in inside if entry.is_dir())
        raise UserError(f"{folder} holds several splits of a data set; give one of them ({splits})")
    if (folder / "state.json").is_file():
        return items_of_tables(saved_dataset(folder), columns)
    files = [entry for entry in inside if entry.is_file()]
    tables = [entry for entry in files if entry.suffix.lower() in (*PARQUET, *ARROW)]
    if tables:
        return items_of_tables(tables, columns)
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
    """Whether a name is that of a hidden file or of desktop metadata."""
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
        raise UserError(f"{lost} is a broken link; repair or remove it")
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
            f"{folder}: the image {loose.name} is not in a subfolder; move it to that of its class"
        )
    images: list[tuple[str, str, Path, int]] = []
    for entry in subfolders:
        code = class_code(entry.name, label, f"{folder}: the subfolder {entry.name!r}")
        images += [(file.name, str(file.relative_to(folder)), file, code) for file in _images_in(entry)]
    if not images:
        raise UserError(f"{folder} holds no images; put them into one subfolder for each class")
    # Sorted by name, not by class, so that the position does not reveal the class.
    return (Item(str(file), file, code) for _, _, file, code in sorted(images, key=lambda one: one[:2]))


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
                f"{file} is not an image by its name ({', '.join(SUFFIXES)}); convert or remove it"
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
            yield item_at(where + f" ({name})", file, columns, cells, at)
    if not row:
        raise UserError(f"{path} holds no records; give at least one")


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
        yield item_at(f"{path}, entry {at + 1}", value, columns, cells, at)


# ---- Records of files of images or vectors as arrays: batch by batch, or all at once.

BATCH = 256  # records decoded together; no record depends on it
MOST_BYTES = 1 << 29  # kept in memory
SECONDS = 5.0  # between two lines of progress


@dataclass(frozen=True, eq=False)
class InputBatch:
    """A batch of records.

    Attributes
    ----------
    x : (n, *shape) bytes of images, or (n, size) float32 vectors.
    y : (n,) class codes; empty if labels were not requested.
    names : of the records, for messages.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    names: tuple[str, ...]


def input_batches(
    path: Path | str, declared: TableDomain, *, labels: bool = True, bounded: bool = True, rows: int = BATCH
) -> Iterator[InputBatch]:
    """Read the records of a file or a folder, a few at a time.

    Parameters
    ----------
    path : see `adlm.data.images`.
    declared : the domain of the records.
    labels : whether to read labels, which every record must then have.
    bounded : if persons are declared, keep only the declared number of records of each person: those with
        the smallest digests, as tables do (`adlm.data.tables`). The files are then read twice.
    rows : most records of a batch; no record depends on it.

    Formal guarantees
    -----------------
    A record's numbers and its label depend on that record (an image file, a row, an entry) and on the
    declaration. Which of a person's records are kept depends on that person's records alone, not on the
    order or the files.
    """
    persons = bounded and declared.person is not None
    keep = _kept(path, declared, labels=labels, rows=rows) if persons else None
    start = 0
    for part in _parts(path, declared, labels=labels, persons=persons, rows=rows):
        selected = part if keep is None else list(itertools.compress(part, keep[start : start + len(part)]))
        start += len(part)
        if selected:
            yield _batch(selected, declared)


def _kept(path: Path | str, declared: TableDomain, *, labels: bool, rows: int) -> NDArray[np.bool_]:
    """Mask of the records to keep of each person, in the public order: (n,)."""
    assert declared.person is not None
    persons, records = [], []
    for part in _parts(path, declared, labels=labels, persons=True, rows=rows):
        try:
            persons.append(person_digests(declared.person, [item.person for item in part]))
        except CellError as error:
            raise UserError(f"{part[error.row].name}: {error.reason}") from None
        batch = _batch(part, declared)
        records.append(record_digests(persons[-1], [batch.x, batch.y] if labels else [batch.x]))
    if not persons:
        return np.zeros(0, dtype=np.bool_)
    return chosen(np.concatenate(persons), np.concatenate(records), declared.person.records)


def _parts(
    path: Path | str, declared: TableDomain, *, labels: bool, persons: bool, rows: int
) -> Iterator[list[Item]]:
    items = items_of(Path(path), declared, labels=labels, persons=persons)
    while part := list(itertools.islice(items, rows)):
        yield part


def _batch(part: list[Item], declared: TableDomain) -> InputBatch:
    """Decode some records, each by itself."""
    with warnings.catch_warnings(), ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")  # a library's warnings about metadata, which do not affect the record
        x = np.stack(list(pool.map(lambda item: decoded(item, declared), part)))
    codes = [item.label for item in part if item.label is not None]
    return InputBatch(x, np.array(codes, dtype=np.int64), tuple(item.name for item in part))


def decoded(item: Item, declared: TableDomain) -> NDArray[Any]:
    """Return the numbers of one record."""
    settings = declared.input
    assert settings is not None
    if settings.kind == "image":
        try:
            if isinstance(item.value, np.ndarray):
                return pixels_of_array(item.value, settings.shape, settings.fit)
            if not isinstance(item.value, bytes | Path):
                raise ImageError("it holds numbers, not the bytes of an image file")
            return pixels_of(item.value, settings.shape, settings.fit)
        except ImageError as error:
            raise UserError(f"{item.name}: {error}") from None
    try:
        vector = np.asarray(item.value, dtype=np.float64)
    except (ValueError, TypeError):
        raise UserError(f"{item.name}: a vector is a list of numbers") from None
    if isinstance(item.value, bytes) or vector.shape != (settings.size,):
        raise UserError(f"{item.name}: a vector must have {settings.size} numbers (got shape {vector.shape})")
    single = vector.astype(np.float32)
    if not np.isfinite(single).all():
        raise UserError(f"{item.name}: a vector must hold finite numbers of single precision")
    return single


def read_inputs(
    path: Path | str, declared: TableDomain, *, bounded: bool = True
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Read all labelled records: (n, *shape) and (n,) class codes.

    Large data sets are stored in an unnamed temporary file, which only its owner can read and which is
    removed with the process.
    """
    kept = _Store()
    codes = []
    last = time.monotonic()
    for batch in input_batches(path, declared, bounded=bounded):
        kept.append(batch.x)
        codes.append(batch.y)
        if time.monotonic() - last > SECONDS:
            last = time.monotonic()
            progress.say(f"reading: {sum(map(len, codes))} records")
    if not codes:
        raise UserError(f"{path} holds no records; give at least one")
    return kept.array(), np.concatenate(codes)


class _Store:
    """Append-only rows of one shape, in memory if few, else in an unnamed temporary file."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._blocks: list[NDArray[Any]] = []
        self._most, self._bytes, self._rows = most_bytes, 0, 0
        self._file: IO[bytes] | None = None

    def append(self, block: NDArray[Any]) -> None:
        self._bytes += block.nbytes
        self._rows += len(block)
        self._shape, self._type = block.shape[1:], block.dtype
        if self._file is None and self._bytes > self._most:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the array
            for early in self._blocks:
                self._write(early)
            self._blocks = []
        if self._file is None:
            self._blocks.append(block)
        else:
            self._write(block)

    def _write(self, block: NDArray[Any]) -> None:
        assert self._file is not None
        try:
            self._file.write(np.ascontiguousarray(block).tobytes())
        except OSError as error:
            raise UserError(
                f"the records cannot be kept in {tempfile.gettempdir()} ({error.strerror or error}); free "
                "room there, or set TMPDIR to another folder"
            ) from None

    def array(self) -> NDArray[Any]:
        if self._file is None:
            return np.concatenate(self._blocks)
        self._file.flush()
        shape = (self._rows, *self._shape)
        with self._file:  # the map outlives it
            return np.asarray(np.memmap(self._file, dtype=self._type, mode="r", shape=shape))


# ---- Files of images or vectors in pieces, each for one worker to read and decode.
#
# The driver lists image files without reading them; of Parquet files it reads the number of rows. Where
# persons are declared, the driver reads all, because the choice of a person's records needs digests of
# decoded ones. A piece is read in its file's order, and each record depends on itself and on the
# declaration alone, so it does not matter which worker reads which piece.

FILES = 2048  # image files of a piece
GROUP_ROWS = 1 << 14  # rows of a piece of a Parquet file, unless a row group has more


@dataclass(frozen=True, eq=False)
class InputPiece:
    """Records for one worker: image files with their labels, or row groups of a Parquet file.

    Attributes
    ----------
    items : image files, unless the piece is of a Parquet file.
    path, groups, first : that file, its row groups, and the number of rows before them.
    rows : number of records.
    """

    rows: int
    items: tuple[Item, ...] = ()
    path: Path | None = None
    groups: range = range(0)
    first: int = 0


@dataclass(frozen=True, eq=False)
class InputPieces:
    """All records of a file or a folder, unread."""

    pieces: tuple[InputPiece, ...]
    declared: TableDomain

    def __len__(self) -> int:
        return sum(piece.rows for piece in self.pieces)


def input_pieces(path: Path | str, declared: TableDomain) -> InputPieces | None:
    """Split image files or Parquet files into pieces; None for arrays, Arrow files and records of persons."""
    place = Path(path)
    if declared.person is not None:
        return None
    files = _parquet_files(place)
    if files:
        listed = list(_row_groups(files, Columns.of(declared, labels=True, persons=False)))
    elif declared.is_image and _names_images(place):
        listed = list(_cut(items_of(place, declared, labels=True, persons=False)))
    else:
        return None
    pieces = InputPieces(tuple(listed), declared)
    if not len(pieces):
        raise UserError(f"{path} holds no records; give at least one")
    return pieces


def batches_of(piece: InputPiece, declared: TableDomain, rows: int) -> Iterator[InputBatch]:
    """Read and decode a piece, at most so many records at a time."""
    if piece.path is None:
        items = iter(piece.items)
    else:
        columns = Columns.of(declared, labels=True, persons=False)
        items = rows_of(piece.path, columns, piece.groups, piece.first)
    while part := list(islice(items, rows)):
        x = np.stack([decoded(item, declared) for item in part])
        codes = np.array([item.label for item in part], dtype=np.int64)
        yield InputBatch(x, codes, tuple(item.name for item in part))


def _parquet_files(place: Path) -> list[Path]:
    """Return the Parquet files of a path, if it has no other data."""
    if place.is_file():
        return [place] if place.suffix.lower() in PARQUET else []
    if not place.is_dir() or (place / "state.json").is_file() or (place / "dataset_dict.json").is_file():
        return []
    inside = [
        entry for entry in sorted(place.iterdir()) if entry.is_file() and not entry.name.startswith(".")
    ]
    tables = [entry for entry in inside if entry.suffix.lower() in PARQUET]
    return tables if not any(entry.suffix.lower() in (".arrow", ".feather") for entry in inside) else []


def _names_images(place: Path) -> bool:
    """Whether a path is a folder of image files, or a list of their names."""
    if place.is_dir():
        unsplit = (".npy", ".arrow", ".feather")
        special = any((place / name).is_file() for name in ("state.json", "dataset_dict.json"))
        return not special and not any(entry.suffix.lower() in unsplit for entry in place.iterdir())
    return place.name.lower().endswith((".csv", ".tsv", ".csv.gz"))


def _row_groups(files: Sequence[Path], columns: Columns) -> Iterator[InputPiece]:
    for path in files:
        try:
            with parquet.ParquetFile(path) as file:
                check_header(path, file.schema_arrow.names, columns.names)
                sizes = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} is not a whole Parquet or Arrow file ({short(error)})") from None
        start, first, rows = 0, 0, 0
        for at, size in enumerate(sizes):
            if rows and rows + size > GROUP_ROWS:
                yield InputPiece(rows, path=path, groups=range(start, at), first=first)
                start, first, rows = at, first + rows, 0
            rows += size
        yield InputPiece(rows, path=path, groups=range(start, len(sizes)), first=first)


def _cut(items: Iterator[Item]) -> Iterator[InputPiece]:
    while part := tuple(islice(items, FILES)):
        yield InputPiece(len(part), items=part)
