"""Where the arrays of a data set are: the folder ADLM_DATA, the cache, or somewhere to fetch them from."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import platformdirs
from numpy.typing import NDArray

from adlm.errors import UserError
from adlm.public.datasets.arrays import PARTS, read_npy, verify
from adlm.public.datasets.catalogue import DataSet
from adlm.public.datasets.routes import RouteError
from adlm.runtime import progress
from adlm.runtime.artefact import new_folder

Say = Callable[[str], None]


def data_folder(data: DataSet) -> Path | None:
    """The set's folder below ADLM_DATA, if that is set and has one."""
    root = os.environ.get("ADLM_DATA")
    if not root:
        return None
    if not Path(root).is_dir():
        raise UserError(f"ADLM_DATA is set to {root}, which is not a folder; correct it or unset it")
    folder = Path(root) / data.name
    return folder if folder.is_dir() else None


def cache_folder(data: DataSet) -> Path:
    """The set's folder in the user's cache, which ADLM_CACHE can move; it need not exist."""
    root = os.environ.get("ADLM_CACHE") or platformdirs.user_cache_dir("adlm")
    return Path(root) / "datasets" / data.name


def place(data: DataSet) -> str | None:
    """Where the set would be read from, or None if it would have to be fetched. Nothing is verified."""
    if data.make is not None:
        return "built in"
    folder = data_folder(data) or cache_folder(data)
    return str(folder) if folder.is_dir() else None


def find(data: DataSet, parts: Sequence[str], say: Say = progress.say) -> list[NDArray[np.uint8]]:
    """The verified arrays, from the first place that has the set; fetched into the cache if none has."""
    if data.make is not None:
        return [verify(data.make(part), data.checks[part], f"the installed {data.title}") for part in parts]
    if (folder := data_folder(data)) is not None:
        return read_parts(data, folder, parts)
    if (folder := cache_folder(data)).is_dir():
        return read_parts(data, folder, parts)
    fetch(data, say)
    return read_parts(data, folder, parts)


def obtain(data: DataSet, say: Say = progress.say) -> str:
    """Make sure that the whole set is on this machine and sound; where it is.

    A cache that was damaged is fetched again. A folder below ADLM_DATA belongs to the user and is
    never changed.
    """
    where = place(data)
    if where == str(cache := cache_folder(data)):
        try:
            read_parts(data, cache, PARTS)
        except UserError as error:
            say(f"{error}: fetching it again")
            fetch(data, say, replace=True)
        return where
    find(data, PARTS, say)
    return where or str(cache)


def read_parts(data: DataSet, folder: Path, parts: Sequence[str]) -> list[NDArray[np.uint8]]:
    """Arrays of a folder, each checked against its published checksum."""
    assert data.read is not None, "only sets that are read from folders have one"
    arrays = []
    for part in parts:
        check = data.checks[part]
        try:
            if (saved := folder / f"{part}.npy").exists():
                array = read_npy(saved, check.shape)
            else:
                array = data.read(folder, part, check.shape)
        except FileNotFoundError as error:
            raise UserError(
                f"{folder} has no {Path(error.filename).name}; put it there, or remove the folder to have "
                f"{data.name} looked for elsewhere"
            ) from None
        except OSError as error:
            raise UserError(f"{folder} cannot be read ({error.strerror}); check its permissions") from None
        arrays.append(verify(array, check, f"{part} of {data.name} in {folder}"))
    return arrays


def fetch(data: DataSet, say: Say = progress.say, *, replace: bool = False) -> None:
    """Fetch a set by the first route that leads to it, and keep it in the cache.

    Files are gathered in a temporary folder, and the arrays appear in the cache by one rename after
    all of them have been verified: whatever goes wrong, nothing half done is left behind. With
    `replace`, they take the place of what the cache holds.
    """
    closed = []
    for route in data.routes:
        say(f"fetching {data.name}: {route.label}")
        with tempfile.TemporaryDirectory(prefix="adlm-") as scratch:
            try:
                arrays = read_parts(data, route.fetch(Path(scratch)), PARTS)
            except (RouteError, UserError) as error:
                reason = str(error).replace(f"{scratch}/", "").replace(scratch, "the download")
                closed.append(f"{route.label}: {reason}")
                say(f"could not ({reason})")
                continue
        _keep(data, dict(zip(PARTS, arrays, strict=True)), replace)
        return
    raise UserError(
        f"could not get {data.name} ({' | '.join(closed)}); check the network and try again, or set "
        f"ADLM_DATA to a folder whose sub-folder {data.name} has the original files"
    )


def _keep(data: DataSet, arrays: dict[str, NDArray[np.uint8]], replace: bool) -> None:
    target = cache_folder(data)
    try:
        if replace and target.exists():
            shutil.rmtree(target)
        with new_folder(target, what=f"copy of {data.name}") as folder:
            for part, array in arrays.items():
                np.save(folder / f"{part}.npy", array, allow_pickle=False)
    except (UserError, OSError) as error:
        if isinstance(error, UserError) and target.is_dir():
            return  # another process was first, with the same verified arrays
        raise UserError(
            f"{error}; free some space or set ADLM_CACHE to a folder that can be written"
        ) from None
