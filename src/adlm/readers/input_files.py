"""Files of images and of vectors, as records with a label and an optional person, in a public order.

| what is given | what a record is |
| --- | --- |
| a folder with a subfolder for each class | an image file; order of the file names, whatever the class |
| a folder with one CSV file, or that file | a row: a file name, a label, an optional person |
| Parquet or Arrow files, a folder that `datasets` saved | a row: image bytes or numbers, a label, a person |
| .npz, or a folder of .npy files | an entry of the arrays, which have the columns' names |
| a single image, a folder of images | an image without a label, for predictions |

Every row and every image file is one record or an error; hidden files are skipped.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.errors import UserError
from adlm.public.domain.column import Column
from adlm.public.domain.inputs import InputDomain
from adlm.public.domain.table import TableDomain
from adlm.readers.images import SUFFIXES
from adlm.readers.input_items import Columns, Item, class_code, item_at
from adlm.readers.input_tables import ARROW, ROWS, items_of_tables, saved_dataset
from adlm.readers.tables import PARQUET, raw_batches
from adlm.readers.text_files import short

CSV = (".csv", ".tsv")
_LITTER = ("thumbs.db", "desktop.ini")


def items_of(path: Path, declared: InputDomain, *, labels: bool, persons: bool) -> Iterator[Item]:
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


def _of_folder(folder: Path, declared: InputDomain, columns: Columns) -> Iterator[Item]:
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
