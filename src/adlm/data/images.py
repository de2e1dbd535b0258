"""Images and vectors: one image file to one record, and the files, folders and arrays that hold them."""

from __future__ import annotations

import io
import json
import os
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from adlm.data.arrow import GROUP_ROWS, ArrowPiece, pieces_of_arrow
from adlm.data.csv import CsvPiece
from adlm.data.files import ARROW, PARQUET, Raw, data_file, short
from adlm.domain.columns import Column
from adlm.domain.domain import encode_labels
from adlm.domain.encoding import CellError
from adlm.domain.table import TableDomain
from adlm.errors import UserError

# ---- One image file to one record: decoded, rotated, and resized to the declared size and colour.
#
# The transform is a function of the file's bytes and of the declaration alone, step by step:
#
# 1. The file is decoded as JPEG, PNG, WebP, TIFF or BMP; of several frames, the first. Colour profiles are
#    not applied.
# 2. EXIF rotation is applied.
# 3. 16-bit values are cut to their high byte. Transparent pixels are blended with white. Colour becomes grey
#    by the luma of ITU-R 601-2 (L = 0.299 R + 0.587 G + 0.114 B), grey becomes colour by repeating it.
# 4. An image of another size is resized with an antialiased filter (Pillow's Lanczos, whose support grows
#    with the reduction). `crop`: so that it covers the size, of which the centre is kept; `pad`: so that it
#    fits into the size, centred on black; `stretch`: each side by itself.
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


# ---- A column of images or vectors, and its labels: each cell by itself.


def decoded(column: Column, cells: Any) -> NDArray[Any]:
    """Decode a column of images, (n, *shape) bytes, or of vectors, (n, size) float32.

    Parameters
    ----------
    column : the declared images or vectors.
    cells : paths, bytes or arrays; or an Arrow array of bytes or of lists of numbers.
    """

    def record(given: tuple[int, Any]) -> NDArray[Any]:
        at, cell = given
        try:
            return _pixels(cell, column) if column.kind == "image" else _vector(cell, column)
        except ImageError as error:
            raise CellError(column.name, at, str(error)) from None

    values = enumerate(cells_of(column, cells))
    with warnings.catch_warnings(), ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")  # a library's warnings about metadata, which do not affect the record
        return np.stack(list(pool.map(record, values)))


def cells_of(column: Column, cells: Any) -> Iterator[Any]:
    """Cells of a column of images or vectors; those of an Arrow array as bytes or float64 arrays."""
    if not isinstance(cells, pa.Array | pa.ChunkedArray):
        yield from cells
        return
    kind = cells.type
    names = [kind.field(at).name for at in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    inner = kind.field("bytes").type if "bytes" in names else kind
    is_list = any(test(kind) for test in LISTS)
    if not (is_list or pa.types.is_binary(inner) or pa.types.is_large_binary(inner)):
        reason = f"the column {column.name!r} holds {kind}; image bytes or lists of numbers are read"
        raise CellError(column.name, 0, reason)
    for at, cell in enumerate(cells):
        value = None
        if cell.is_valid:
            value = cell.values.to_numpy(zero_copy_only=False) if is_list else cell.as_py()
        if isinstance(value, dict):  # as `datasets` stores an image
            value = value["bytes"]
        if value is None:
            reason = f"the column {column.name!r} is empty; each record needs its bytes or numbers"
            raise CellError(column.name, at, reason)
        yield value


LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def _pixels(cell: Any, column: Column) -> NDArray[np.uint8]:
    if isinstance(cell, np.ndarray):
        return pixels_of_array(cell, column.shape, column.fit)
    if not isinstance(cell, bytes | Path):
        raise ImageError("it holds numbers, not the bytes of an image file")
    return pixels_of(cell, column.shape, column.fit)


def _vector(cell: Any, column: Column) -> NDArray[np.float32]:
    try:
        vector = np.asarray(cell, dtype=np.float64)
    except (ValueError, TypeError):
        raise ImageError("a vector is a list of numbers") from None
    if isinstance(cell, bytes) or vector.shape != (column.size,):
        raise ImageError(f"a vector must have {column.size} numbers (got shape {vector.shape})")
    with np.errstate(over="ignore"):
        single = vector.astype(np.float32)
    if not np.isfinite(single).all():
        raise ImageError("a vector must hold finite numbers of single precision")
    return single


def label_codes(label: Column, cells: Any, names: Sequence[str] | None = None) -> NDArray[np.int64]:
    """Codes of the labels of images or vectors, (n,): a class, an alias, or an integer.

    Parameters
    ----------
    label : the declared label.
    cells : the labels as they are written.
    names : classes that the file itself names, in the order of its integers; otherwise an integer is the
        class of that name, or a code if no class is named by an integer.
    """
    aliases, codes = dict(label.aliases), []
    for at, cell in enumerate(cells.to_pylist() if isinstance(cells, pa.Array | pa.ChunkedArray) else cells):
        value = cell
        if names is not None and isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value < len(names):
                reason = f"unknown label {value}; the file names {len(names)} classes"
                raise CellError(label.name, at, reason)
            value = names[value]
        if value is None:
            raise CellError(label.name, at, "the label is missing; remove such records first")
        try:
            given = aliases.get(value, value) if isinstance(value, str) else value
            codes.append(int(encode_labels([given], label.classes)[0]))
        except UserError as error:
            raise CellError(label.name, at, str(error)) from None
    return np.array(codes, dtype=np.int64)


# ---- Files of images and of vectors in pieces, in a public order.
#
# | what is given | what a record is |
# | --- | --- |
# | a folder with a subfolder for each class | an image file; order of the file names, whatever the class |
# | a folder with one CSV file, or that file | a row: a file name, a label, an optional person |
# | Parquet or Arrow files, a folder that `datasets` saved | a row: bytes or numbers, a label, a person |
# | .npz, or a folder of .npy files | an entry of the arrays, which have the columns' names |
# | a single image, a folder of images | an image without a label, for predictions |
#
# Every row and every image file is one record or an error; hidden files are skipped. Image files are listed
# without being read.

FILES = 2048  # image files of a piece
CSV = (".csv", ".tsv")
_LITTER = ("thumbs.db", "desktop.ini")


@dataclass(frozen=True, eq=False)
class InputPiece:
    """Image files, or entries of arrays, with what is written beside them.

    Attributes
    ----------
    cells : by column: paths or arrays of the records, labels, persons.
    place, first : of numbered records, for messages, and the number of the first one.
    names : of the records, if they are not numbered.
    size : approximate bytes.
    """

    cells: dict[str, Any]
    place: str = ""
    first: int = 1
    names: tuple[str, ...] = ()
    size: int = 0

    def raw(self, declared: TableDomain, wanted: Sequence[str], rows: int) -> Iterator[Raw]:
        """Yield its records, at most `rows` at a time."""
        del declared
        count = len(self.cells[wanted[0]])
        for start in range(0, count, rows):
            part = {name: self.cells[name][start : start + rows] for name in wanted}
            here = min(rows, count - start)
            names, size = self.names[start : start + rows], self.size * here // count
            yield Raw(part, here, self.place, self.first + start, names, size)


Piece = ArrowPiece | CsvPiece | InputPiece


def input_pieces(path: Path, declared: TableDomain, wanted: Sequence[str]) -> Sequence[Piece]:
    """Split a file or a folder of images or vectors into pieces; see the table above.

    Parameters
    ----------
    path : what holds the records.
    declared : the domain of the records.
    wanted : columns to read: the images or vectors, and the label and the person where they are needed.
    """
    if not path.exists():
        raise UserError(f"there is no file or folder {path}; give one that holds the records")
    if path.is_dir():
        return _of_folder(path, declared, wanted)
    suffix, labels = path.suffix.lower(), declared.label.name in wanted
    if suffix in (*PARQUET, *ARROW):
        return _of_tables([path], wanted)
    if suffix == ".npz":
        return _of_arrays(path, _npz(path), wanted)
    if suffix == ".npy" and not labels:
        return _of_arrays(path, {wanted[0]: _npy(path)}, wanted)
    if declared.is_image and (suffix in CSV or path.name.lower().endswith(".csv.gz")):
        return _of_csv(path, declared, wanted)
    if declared.is_image and suffix in SUFFIXES and not labels:
        return _of_files([path], wanted)
    raise UserError(
        f"{path} is not a file of {'images' if declared.is_image else 'vectors'} with labels; give "
        + ("a folder, a CSV file of file names, " if declared.is_image else "")
        + "a Parquet or Arrow file, or an .npz file"
    )


def _of_folder(folder: Path, declared: TableDomain, wanted: Sequence[str]) -> Sequence[Piece]:
    inside = [entry for entry in sorted(folder.iterdir()) if not _litter(entry.name)]
    if (folder / "dataset_dict.json").is_file():
        splits = ", ".join(entry.name for entry in inside if entry.is_dir())
        raise UserError(f"{folder} holds several splits of a data set; give one of them ({splits})")
    if (folder / "state.json").is_file():
        return _of_tables(_saved_dataset(folder), wanted)
    files = [entry for entry in inside if entry.is_file()]
    tables = [entry for entry in files if entry.suffix.lower() in (*PARQUET, *ARROW)]
    if tables:
        return _of_tables(tables, wanted)
    arrays = {entry.stem: entry for entry in files if entry.suffix.lower() == ".npy"}
    if arrays:
        return _of_arrays(folder, {name: _npy(arrays[name]) for name in wanted if name in arrays}, wanted)
    if not declared.is_image:
        raise UserError(f"{folder} holds no Parquet, Arrow or .npy files of vectors")
    lists, labels = [entry for entry in files if entry.suffix.lower() in CSV], declared.label.name in wanted
    if len(lists) > 1:
        raise UserError(f"{folder} holds {len(lists)} CSV files; give the one that names the images")
    if lists and labels:
        return _of_csv(lists[0], declared, wanted)
    if labels:
        return _class_folders(folder, inside, declared, wanted)
    below = [f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES and not _litter(f.name)]
    images = sorted(
        (file for file in below if not file.is_dir()), key=lambda file: str(file.relative_to(folder))
    )
    if not images:
        raise UserError(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    return _of_files(images, wanted)


def _litter(name: str) -> bool:
    """Whether a name is that of a hidden file or of desktop metadata."""
    return name.startswith(".") or name.casefold() in _LITTER


def _of_files(
    files: Sequence[Path], wanted: Sequence[str], *beside: Sequence[Any], names: Sequence[str] = ()
) -> list[InputPiece]:
    """Pieces of image files, with the other wanted columns beside them."""
    pieces = []
    for at in range(0, len(files), FILES):
        columns = (files, *beside)
        cells = {name: list(column[at : at + FILES]) for name, column in zip(wanted, columns, strict=True)}
        size = sum(file.stat().st_size for file in files[at : at + FILES] if file.is_file())
        shown = names or [str(file) for file in files]
        pieces.append(InputPiece(cells, names=tuple(shown[at : at + FILES]), size=size))
    return pieces


def _class_folders(
    folder: Path, inside: Sequence[Path], declared: TableDomain, wanted: Sequence[str]
) -> list[InputPiece]:
    """Images of subfolders, each named as a class."""
    if len(wanted) > 2:
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
    images: list[tuple[str, str, Path, str]] = []
    for entry in subfolders:
        try:
            label_codes(declared.label, [entry.name])
        except CellError as error:
            raise UserError(f"{folder}: the subfolder {entry.name!r}: {error.reason}") from None
        images += [(file.name, str(file.relative_to(folder)), file, entry.name) for file in _images_in(entry)]
    if not images:
        raise UserError(f"{folder} holds no images; put them into one subfolder for each class")
    images.sort(key=lambda one: one[:2])  # by name, not by class, so that the place does not reveal the class
    return _of_files([one[2] for one in images], wanted, [one[3] for one in images])


def _images_in(folder: Path) -> Iterator[Path]:
    """Image files of a folder at any depth; any other file is an error, and so is a link to a folder."""
    for file in folder.rglob("*"):
        if any(_litter(part) for part in file.relative_to(folder).parts):
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


def _of_csv(path: Path, declared: TableDomain, wanted: Sequence[str]) -> list[InputPiece]:
    """Images named by the rows of a CSV file, below its folder."""
    folder = path.parent.resolve()
    files: list[Path] = []
    names: list[str] = []
    beside: list[list[Any]] = [[] for _ in wanted[1:]]
    for raw in CsvPiece(data_file(path)).raw(declared, wanted, 1 << 16):
        for at, name in enumerate(raw.cells[wanted[0]].to_pylist()):
            file = folder / str(name)
            if not name or not file.resolve().is_relative_to(folder):
                raise UserError(f"{raw.where(at)}: an image must lie below {path.parent} (got {name!r})")
            files.append(file)
            names.append(f"{raw.where(at)} ({name})")
        for column, cells in zip(wanted[1:], beside, strict=True):
            cells += raw.cells[column].to_pylist()
    return _of_files(files, wanted, *beside, names=names)


def _of_tables(paths: Sequence[Path], wanted: Sequence[str]) -> list[Piece]:
    return [piece for path in paths for piece in pieces_of_arrow(data_file(path), wanted, GROUP_ROWS)]


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


def _of_arrays(path: Path, arrays: dict[str, NDArray[Any]], wanted: Sequence[str]) -> list[InputPiece]:
    for name in wanted:
        if name not in arrays:
            raise UserError(f"{path} has no array {name!r}; it has {', '.join(arrays) or 'none'}")
    lengths = {name: len(arrays[name]) if arrays[name].ndim else -1 for name in wanted}
    if len(set(lengths.values())) != 1 or min(lengths.values()) < 1:
        raise UserError(f"{path}: the arrays must have as many entries, at least one (got {lengths})")
    columns = {name: arrays[name].tolist() for name in wanted[1:]} | {wanted[0]: arrays[wanted[0]]}
    pieces = []
    for at in range(0, lengths[wanted[0]], GROUP_ROWS):
        cells = {name: column[at : at + GROUP_ROWS] for name, column in columns.items()}
        size = int(cells[wanted[0]].nbytes)
        pieces.append(InputPiece(cells, f"{path}, entry", at + 1, size=size))
    return pieces
