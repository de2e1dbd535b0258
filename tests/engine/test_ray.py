"""Statements about the engine ray, on a real cluster of two workers: the same integers, whatever happens."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet
from tests.declared import AGE_COLUMN, DOSE, ILL, MISSING, PERSON, TOWN
from typer.testing import CliRunner

from adlm.cli.app import app
from adlm.data import datasets
from adlm.data import images as image_files
from adlm.data.reading import pieces_of, read_all, read_batches, read_piece
from adlm.domain import Domain
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.engine import Engine, open_engine
from adlm.engine.local import LocalEngine
from adlm.engine.passes import Part, Records, Totals
from adlm.engine.ray import RayParts
from adlm.errors import UserError
from adlm.mechanism.class_sums import ClassSums
from adlm.mechanism.planner import Plan
from adlm.mechanism.privatise import privatise
from adlm.privacy.accounting import Budget
from adlm.privacy.clipping import Clip
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (pip install 'adlm[ray]')"),
]

TOML = PERSON + AGE_COLUMN + MISSING + DOSE + TOWN + ILL
ALONE = TOML.replace('kind = "person"\nrecords = 2', 'kind = "ignored"')


@pytest.fixture(scope="module")
def ray() -> Any:
    """The library, imported by the worker that tests it alone."""
    return importlib.import_module("ray")


@pytest.fixture(scope="module")
def cluster(ray: Any) -> Iterator[Engine]:
    """One cluster of two workers for all tests."""
    from adlm.engine.ray import RayEngine

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
    engine = RayEngine(workers=2, store_bytes=200 << 20)
    yield engine
    engine.close()


def visits(rows: int = 600) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, rows).round(2)
    frame = pd.DataFrame(
        {"person": rng.integers(0, rows // 3, rows), "age": age, "dose": rng.uniform(0, 10, rows)}
    )
    frame["town"] = rng.choice(list("abc"), rows)
    frame["ill"] = np.where(age + rng.normal(0, 20, rows) > 50, "yes", "no")
    frame["age"] = frame.age.where(rng.random(rows) > 0.1)
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Visits of the same persons in three files of two kinds."""
    made = tmp_path_factory.mktemp("visits")
    frame = visits()
    frame[:200].to_csv(made / "one.csv", index=False)
    frame[200:240].to_csv(made / "two.csv.gz", index=False)
    frame[240:].to_parquet(made / "three.parquet", row_group_size=100)
    return made


@pytest.mark.parametrize(
    ("toml", "epsilon", "delta", "method"),
    [(ALONE, "0.05", "0", "perturbed loss"), (TOML, "3", "1e-6", "gradient rounds")],
    ids=["pure epsilon", "rounds, persons"],
)
def test_a_table_gives_the_same_bytes_on_both_engines(
    cluster: Engine, folder: Path, toml: str, epsilon: str, delta: str, method: str
) -> None:
    table = TableDomain.from_toml(toml)
    one, two = (
        privatise(folder, domain=table, epsilon=epsilon, delta=delta, seed=1, size=2000, engine=engine)
        for engine in (LocalEngine(), cluster)
    )
    assert one.certificate.to_dict() == two.certificate.to_dict()
    assert one.certificate.settings["plan"]["method"] == method
    assert one.engine is not None
    assert two.engine is not None
    assert (one.engine["name"], two.engine["name"]) == ("local", "ray")


def test_arrays_give_the_same_bytes_on_both_engines(cluster: Engine) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 5)), rng.integers(0, 2, 200)
    domain = Domain((5,), -2, 2, ("no", "yes"), family="vector")
    one, two = (privatise(x, y, domain=domain, epsilon=2, seed=1, engine=e) for e in ("local", cluster))
    assert one.certificate.digest == two.certificate.digest


class Killed:
    """A partial whose worker is killed the first times that it runs."""

    def __init__(self, marks: Path, times: int) -> None:
        self.marks, self.times = marks, times

    def __call__(self, part: Part) -> tuple[Any, ...]:
        """Sum the codes, if it lives."""
        for time_ in range(self.times):
            try:
                (self.marks / str(time_)).touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
        return (np.array([part[-1].sum(), len(part[0])], dtype=np.int64),)


def sums(totals: Totals | None) -> list[list[int]]:
    assert totals is not None
    return [total.integers().tolist() for total in totals]


def descendants(pid: int) -> set[int]:
    """A process and all that it started."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pids: set[int]) -> set[str]:
    """Addresses that processes listen on, as the kernel writes them: hexadecimal, lowest byte first."""
    sockets: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A":
                sockets[f"socket:[{cells[9]}]"] = cells[1].partition(":")[0]
    addresses = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            addresses |= {sockets[link] for link in links if link in sockets}
    return addresses


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are listed by Linux alone")
def test_a_cluster_that_is_started_here_is_reached_from_this_machine_alone(cluster: Engine) -> None:
    assert cluster.name == "ray"
    found = listening(descendants(os.getpid()))
    assert found
    assert all(address.endswith("0100007F") for address in found), found  # 127.0.0.1, also inside IPv6


def test_a_worker_that_is_killed_changes_nothing(cluster: Engine, folder: Path, tmp_path: Path) -> None:
    """Twice in a row: the pass completes with the same integers."""
    times = 2
    table = TableDomain.from_toml(ALONE)
    expected = sums(LocalEngine().read(folder, table).total(Killed(tmp_path, 0)))
    records = cluster.read(folder, table)
    assert sums(records.total(Killed(tmp_path, times))) == expected
    assert len(list(tmp_path.iterdir())) == times
    kept, totals = records.keep(lambda part: (part, Killed(tmp_path, 0)(part)))
    assert sums(totals) == expected
    assert sums(kept.total(Killed(tmp_path, 0))) == expected


def test_a_cluster_that_cannot_go_on_says_so_in_a_sentence(cluster: Engine, folder: Path) -> None:
    records = cluster.read(folder, TableDomain.from_toml(ALONE))

    def broken(part: Part) -> tuple[Any, ...]:
        raise MemoryError(f"a record: {part[0][0]}")

    with pytest.raises(UserError, match=r"^the Ray cluster could not finish its work \(MemoryError\); see"):
        records.total(broken)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("one.csv", "\n", "\n7,secret,1,a,no\n", r"one\.csv, row 1, column 'age': 'secret' is not a number$"),
        ("one.csv", ",dose,", ",rose,", r"one\.csv has no column 'dose'"),
        ("three.parquet", None, None, r"three\.parquet is not a whole Parquet or Arrow file"),
        ("two.csv.gz", None, None, r"two\.csv\.gz: the file cannot be read"),
    ],
)
def test_a_mistake_on_a_worker_names_the_file_and_the_row_and_costs_nothing(
    cluster: Engine, folder: Path, tmp_path: Path, name: str, old: str | None, new: str | None, message: str
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    target = tmp_path / name
    if old is not None and new is not None:
        target.write_text(target.read_text().replace(old, new, 1))
    else:
        target.write_bytes(target.read_bytes()[:-50])
    ledger = Ledger()
    with pytest.raises(UserError, match=message) as told:
        privatise(
            tmp_path, domain=TableDomain.from_toml(ALONE), epsilon=1, size=2000, ledger=ledger, engine=cluster
        )
    assert "\n" not in str(told.value)
    assert not ledger.charges


def test_what_workers_hold_is_no_part_of_their_logs(ray: Any, cluster: Engine, tmp_path: Path) -> None:
    """After mistakes, which quote a cell to the driver: the cell is in no file of the cluster."""
    word = "unmistakable-cell"
    (tmp_path / "a.csv").write_text(f"age,dose,town,ill\n{word},1,a,no\n")
    with pytest.raises(UserError, match=word):
        cluster.read(
            tmp_path, TableDomain.from_toml(ALONE.replace('[columns.person]\nkind = "ignored"\n', ""))
        )
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [path for path in session.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if word.encode() in path.read_bytes()]
    assert session.parent.parent.stat().st_mode & 0o077 == 0


class Innocent(pickle.Pickler):
    """A pickler that refuses what workers must not have."""

    def persistent_id(self, thing: Any) -> None:
        """Look at everything on its way."""
        if isinstance(thing, Ledger | Source | Budget | Plan | Fraction):
            raise AssertionError(f"a {type(thing).__name__} is sent to workers")


class Watched(Records):
    """Records that look at every function that goes to them."""

    def __init__(self, inner: Records, seen: list[str]) -> None:
        super().__init__(inner.parts, inner.chain)
        self._seen = seen
        self._look(*inner.chain)

    def _look(self, *functions: Any) -> None:
        for function in functions:
            Innocent(io.BytesIO()).dump(function)
            while hasattr(function, "summed"):  # a pass that also counts or stores
                function = function.summed
            self._seen.append(type(function).__name__)

    def total(self, partial: Any, advance: Any = None) -> Totals | None:
        """Look, and add up."""
        self._look(partial)
        return super().total(partial, advance)

    def keep(self, function: Any, advance: Any = None) -> tuple[Records, Totals | None]:
        """Look, add up and keep."""
        self._look(function)
        kept, totals = super().keep(function, advance)
        return Watched(kept, self._seen), totals

    def mapped(self, transform: Any) -> Records:
        """Look, and map."""
        return Watched(super().mapped(transform), self._seen)


class WatchedEngine(LocalEngine):
    """The local engine, with records that look."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def read(self, *given: Any) -> Records:
        """Watch what is read."""
        found = super().read(*given)
        return Watched(found, self.seen)

    def features(self, *given: Any) -> Records:
        """Watch features."""
        return Watched(super().features(*given), self.seen)


def test_functions_that_go_to_workers_know_no_budget_ledger_or_noise(folder: Path) -> None:
    train, engine = datasets.load("digits", "train"), WatchedEngine()
    table = TableDomain.from_toml(ALONE)
    for epsilon, delta in (("1", "0"), ("0.05", "0"), ("1", "1e-6")):
        privatise(folder, domain=table, epsilon=epsilon, delta=delta, size=2000, seed=1, engine=engine)
    x, y = train.x[:200], train.y[:200]
    for delta, allocation in (("0", None), ("1e-6", None), ("0", "identical"), ("1e-6", "identical")):
        privatise(x, y, domain=train.domain, epsilon=9, delta=delta, allocation=allocation, engine=engine)
    assert {
        "IndicatorCounts",
        "RoundSum",
        "Confidences",
        "Expanded",
        "TableFeatures",
        "ClassSums",
        "CentreSum",
        "DistanceSum",
        "SecondMoments",
        "LossGradient",
        "Correct",
    } <= set(engine.seen)
    Innocent(io.BytesIO()).dump(ClassSums(2, Clip("l2", (1.0, 1.0), 1.0)))
    with pytest.raises(AssertionError, match="Budget is sent"):
        Innocent(io.BytesIO()).dump((ClassSums, Budget.of(1)))


def words(folder: Path, place: Path, name: str) -> list[str]:
    """A command that releases the visits into a folder, with a ledger of its own."""
    (place / "t.toml").write_text(ALONE)
    files = ["release", f"{folder}/*.*", "--domain", f"{place}/t.toml"]
    return [*files, "--out", f"{place}/{name}", "--ledger", f"{place}/{name}.ledger", "--json"]


def test_the_command_writes_the_same_certificate_but_for_the_engines_line(
    cluster: Engine, folder: Path, tmp_path: Path
) -> None:
    assert cluster.name == "ray"  # the command finds it in this process
    made = {}
    for engine in ("local", "ray"):
        done = CliRunner().invoke(app, [*words(folder, tmp_path, engine), "--seed", "1", "--engine", engine])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["n"] == 600
        made[engine] = json.loads((tmp_path / engine / "certificate.json").read_text())
        assert Release.load(tmp_path / engine).engine == made[engine]["engine"]
    assert made["local"].pop("engine") != made["ray"].pop("engine")
    assert made["local"] == made["ray"]


def test_a_driver_that_is_killed_after_the_charge_leaves_the_charge_and_nothing_else(
    ray: Any, cluster: Engine, folder: Path, tmp_path: Path
) -> None:
    """A process of its own, on the cluster whose address it is given."""
    assert cluster.name == "ray"
    budget = ["--delta", "1e-6", "--epsilon", "8", "--engine", "ray"]
    line = [*words(folder, tmp_path, "out"), *budget, "--ray-address", ray.get_runtime_context().gcs_address]
    ledger, deadline = tmp_path / "out.ledger", time.monotonic() + 300
    with subprocess.Popen([sys.executable, "-m", "adlm", *line], stderr=subprocess.DEVNULL) as driver:
        while not (ledger.exists() and ledger.stat().st_size > 200) and driver.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL
    assert Ledger(ledger).charges
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_cluster_whose_driver_was_killed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        monkeypatch.setenv("ADLM_CACHE", str(tmp_path))
        killed = subprocess.Popen(["true"])
        killed.wait()
        for number in (killed.pid, os.getpid()):
            (Path(short) / f"adlm-ray-{number}-x" / "r").mkdir(parents=True)
        done = CliRunner().invoke(app, ["cache", "clear", "--json"])
        assert json.loads(done.stdout)["clusters"] == 1
        assert [folder.name for folder in Path(short).iterdir()] == [f"adlm-ray-{os.getpid()}-x"]


def test_without_ray_the_engine_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(UserError, match=r"needs Ray; install it with: pip install 'adlm\[ray\]'"),
        open_engine("ray"),
    ):
        pass


def test_engines_that_there_are_not_are_refused_in_a_sentence() -> None:
    with (
        pytest.raises(UserError, match="engine must be one of local, ray, got 'spark'"),
        open_engine("spark"),
    ):
        pass
    with pytest.raises(UserError, match="a Ray address is for the engine ray"), open_engine("local", "auto"):
        pass


def test_a_cluster_that_does_not_answer_is_told_in_a_sentence(
    ray: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    line = [*words(folder, tmp_path, "out"), "--engine", "ray", "--ray-address", "127.0.0.1:1"]
    done = CliRunner().invoke(app, line)
    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith("no Ray cluster answers at 127.0.0.1:1 (")
    assert not (tmp_path / "out").exists()


# ---- Files of images and vectors.

LABEL = Column("digit", "label", classes=tuple("0123456789"))
DIGITS = TableDomain((Column("image", "image", size=(8, 8), colour="grey", family="drawn"), LABEL))
VECTORS = TableDomain((Column("image", "vector", size=64, norm=4.0), LABEL))
PERSONS = TableDomain((*VECTORS.columns, Column("who", "person", records=2)))
COUNT = 250


def digits() -> tuple[NDArray[np.uint8], NDArray[Any]]:
    train = datasets.load("digits", "train")
    return (np.asarray(train.x[:COUNT]) * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8), train.y[:COUNT]


def png(pixels: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each class; a Parquet file and a list of the same images, with persons, beside it."""
    made = tmp_path_factory.mktemp("photos")
    x, y = digits()
    for at, (pixels, digit) in enumerate(zip(x, y, strict=True)):
        folder = made / "folders" / str(digit)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{at:04d}.png").write_bytes(png(pixels))
    who = [f"p{at % 90}" for at in range(COUNT)]
    columns = {"digit": [str(digit) for digit in y], "who": who}
    images = pa.table({"image": [png(pixels) for pixels in x], **columns})
    parquet.write_table(images, made / "images.parquet", row_group_size=70)
    vectors = pa.table({"image": list(x.reshape(COUNT, -1) / 255.0), **columns})
    parquet.write_table(vectors, made / "vectors.parquet", row_group_size=64)
    rows = [
        f"{digit}/{at:04d}.png,{digit},{name}" for at, (digit, name) in enumerate(zip(y, who, strict=True))
    ]
    (made / "folders" / "list.csv").write_text("\n".join(["image,digit,who", *rows]) + "\n")
    return made


@pytest.mark.parametrize("name", ["images", "vectors"])
def test_files_that_workers_read_give_the_bytes_of_one_machine(
    cluster: Engine, photos: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Vectors belong to persons with at most two records each."""
    declared = DIGITS if name == "images" else PERSONS
    monkeypatch.setattr(image_files, "GROUP_ROWS", 100)
    given: dict[str, Any] = {"domain": declared, "epsilon": 2, "delta": "1e-5", "seed": 1, "size": COUNT}
    one, two = (
        privatise(photos / f"{name}.parquet", engine=engine, **given) for engine in ("local", cluster)
    )
    assert one.certificate.to_dict() == two.certificate.to_dict()


def test_a_data_frame_and_a_file_give_the_same_bytes_on_both_engines(cluster: Engine, folder: Path) -> None:
    table, frame = TableDomain.from_toml(TOML), visits()
    frame["town"] = frame["town"].astype("category")
    made = [
        privatise(source, domain=table, epsilon=2, delta="1e-6", seed=1, size=600, engine=engine)
        for source, engine in ((folder, "local"), (frame, "local"), (frame, cluster))
    ]
    assert len({release.certificate.digest for release in made}) == 1


def test_pieces_hold_the_records_that_one_machine_reads_in_their_order(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "FILES", 64)
    monkeypatch.setattr(image_files, "GROUP_ROWS", 100)
    for name, declared in (("images.parquet", DIGITS), ("folders", DIGITS), ("vectors.parquet", VECTORS)):
        whole, codes = read_all(photos / name, declared)
        pieces = pieces_of(photos / name, declared)
        assert len(pieces) > 2
        batches = [b for piece in pieces for b in read_piece(piece, declared, rows=33)]
        assert np.array_equal(np.concatenate([batch.x for batch in batches]), whole)
        assert np.array_equal(np.concatenate([batch.y for batch in batches]), codes)
        names = [name for batch in read_batches(photos / name, declared) for name in batch.names]
        assert [name for batch in batches for name in batch.names] == names


def test_a_broken_image_on_a_worker_is_named_and_costs_nothing(
    cluster: Engine, photos: Path, tmp_path: Path
) -> None:
    images = parquet.read_table(photos / "images.parquet").to_pydict()
    images["image"][123] = images["image"][123][:40]
    parquet.write_table(pa.table(images), tmp_path / "images.parquet", row_group_size=70)
    ledger = Ledger()
    with pytest.raises(UserError, match=r"images\.parquet, row 124: ") as told:
        privatise(tmp_path / "images.parquet", domain=DIGITS, epsilon=1, ledger=ledger, engine=cluster)
    assert "\n" not in str(told.value)
    assert not ledger.charges


# ---- The last test: it changes the cluster.


def test_a_node_that_is_lost_changes_nothing(ray: Any, cluster: Engine, folder: Path) -> None:
    """What it kept is made anew from the files."""
    from ray.cluster_utils import Cluster
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = Cluster()
    nodes.head_node = ray._private.worker._global_node
    nodes.redis_address = nodes.head_node.redis_address
    second = nodes.add_node(wait=False, num_cpus=2, object_store_memory=100 << 20)
    while sum(node["Alive"] for node in ray.nodes()) < 2:
        time.sleep(0.1)
    here = NodeAffinitySchedulingStrategy(nodes.head_node.node_id, soft=False)

    def count(part: Part) -> tuple[Any, ...]:
        return (np.array([part[-1].sum(), len(part[0])], dtype=np.int64),)

    records = cluster.read(folder, TableDomain.from_toml(ALONE))
    rest = ray.remote(num_cpus=2, max_retries=0)(lambda: time.sleep(999))
    busy = rest.options(scheduling_strategy=here).remote()
    while ray.available_resources().get("CPU", 0) > 2:  # so that the second node has to work
        time.sleep(0.1)
    kept, first = records.keep(lambda part: ((np.ones((len(part[0]), 99)), *part), count(part)))
    ray.cancel(busy, force=True)
    assert isinstance(kept.parts, RayParts)
    where = ray.experimental.get_object_locations([part.ref for part in kept.parts.blocks])
    away = [ref for ref, found in where.items() if second.node_id in found["node_ids"]]
    nodes.remove_node(second, allow_graceful=False)
    assert away
    local = LocalEngine().read(folder, TableDomain.from_toml(ALONE)).total(count)
    assert sums(first) == sums(kept.total(count)) == sums(local)
