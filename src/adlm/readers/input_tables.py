"""Images and vectors in Parquet and Arrow files, and in folders that `datasets` saved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from adlm.errors import UserError
from adlm.public.domain.column import Column
from adlm.readers.input_items import Columns, Item, item_at
from adlm.readers.table_csv import check_header
from adlm.readers.tables import PARQUET
from adlm.readers.text_files import short

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
