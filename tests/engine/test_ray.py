"""Statements about the engine ray, on a real cluster of two workers: the same integers, whatever happens."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.declared import AGE_COLUMN, DOSE, ILL, MISSING, PERSON, TOWN

from adlm.data import datasets
from adlm.domain.table import TableDomain
from adlm.engine import Engine, open_engine
from adlm.engine.local import LocalEngine
from adlm.engine.passes import Part, Records, Totals
from adlm.errors import UserError
from adlm.mechanism.calibration import MomentConfig
from adlm.mechanism.class_sums import ClassSums
from adlm.mechanism.privatise import privatise
from adlm.mechanism.second_moments import Products
from adlm.privacy.clipping import Clip
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'adlm[ray]')")
pytestmark = pytest.mark.filterwarnings("ignore")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

TOML = PERSON + AGE_COLUMN + MISSING + DOSE + TOWN + ILL
ALONE = TOML.replace('kind = "person"\nrecords = 2', 'kind = "ignored"')


def visits(rows: int = 3000) -> pd.DataFrame:
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
    frame[:1000].to_csv(made / "one.csv", index=False)
    frame[1000:1200].to_csv(made / "two.csv.gz", index=False)
    frame[1200:].to_parquet(made / "three.parquet", row_group_size=500)
    return made


@pytest.mark.parametrize(
    ("toml", "epsilon", "delta"),
    [
        (ALONE, "1", "1e-6"),
        (ALONE, "1", "0"),
        (ALONE, "0.05", "0"),
        (TOML, "3", "1e-6"),
        (TOML, "2", "0"),
        (TOML, "0.1", "0"),
    ],
    ids=["rounds", "indicators", "centred", "rounds, persons", "indicators, persons", "centred, persons"],
)
def test_a_table_gives_the_same_bytes_on_both_engines(
    cluster: Engine, folder: Path, toml: str, epsilon: str, delta: str, request: pytest.FixtureRequest
) -> None:
    table = TableDomain.from_toml(toml)
    one, two = (
        privatise(folder, domain=table, epsilon=epsilon, delta=delta, seed=1, size=2000, engine=engine)
        for engine in (LocalEngine(), cluster)
    )
    assert one.certificate.to_dict() == two.certificate.to_dict()
    form = request.node.callspec.id.partition(",")[0]
    assert one.certificate.settings["plan"].get("form", "rounds") == form
    assert one.engine is not None
    assert two.engine is not None
    assert (one.engine["name"], two.engine["name"]) == ("local", "ray")


@pytest.mark.parametrize("delta", ["0", "1e-5"])
def test_images_give_the_same_bytes_on_both_engines(cluster: Engine, delta: str) -> None:
    train = datasets.load("digits", "train")
    one, two = (
        privatise(train.x[:600], train.y[:600], domain=train.domain, epsilon=2, delta=delta, seed=1, engine=e)
        for e in ("local", cluster)
    )
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


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_is_killed_changes_nothing(
    cluster: Engine, folder: Path, tmp_path: Path, times: int
) -> None:
    """Once, and twice in a row: the pass completes with the same integers."""
    table = TableDomain.from_toml(ALONE)
    expected = sums(LocalEngine().table(folder, table).total(Killed(tmp_path, 0)))
    records = cluster.table(folder, table)
    assert sums(records.total(Killed(tmp_path, times))) == expected
    assert len(list(tmp_path.iterdir())) == times
    kept, totals = records.keep(lambda part: (part, Killed(tmp_path, 0)(part)))
    assert sums(totals) == expected
    assert sums(kept.total(Killed(tmp_path, 0))) == expected


def test_a_cluster_that_cannot_go_on_says_so_in_a_sentence(cluster: Engine, folder: Path) -> None:
    records = cluster.table(folder, TableDomain.from_toml(ALONE))

    def broken(part: Part) -> tuple[Any, ...]:
        raise MemoryError(f"a record: {part[0][0]}")

    with pytest.raises(UserError, match=r"^the Ray cluster could not finish its work \(MemoryError\); see"):
        records.total(broken)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("one.csv", "\n", "\n7,secret,1,a,no\n", r"one\.csv, row 1, column 'age': 'secret' is not a number$"),
        ("one.csv", ",dose,", ",rose,", r"one\.csv has no column 'dose'"),
        ("three.parquet", None, None, r"three\.parquet is not a whole Parquet file"),
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


def test_what_workers_hold_is_no_part_of_their_logs(cluster: Engine, tmp_path: Path) -> None:
    """After mistakes, which quote a cell to the driver: the cell is in no file of the cluster."""
    word = "unmistakable-cell"
    (tmp_path / "a.csv").write_text(f"age,dose,town,ill\n{word},1,a,no\n")
    with pytest.raises(UserError, match=word):
        cluster.table(
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
        if isinstance(thing, Ledger | Source | MomentConfig | Fraction):
            raise AssertionError(f"a {type(thing).__name__} is sent to workers")


class Watched(Records):
    """Records that look at every function that goes to them."""

    def __init__(self, inner: Records, seen: list[str]) -> None:
        self._inner, self._seen, self.rows = inner, seen, inner.rows

    def _look(self, function: Any) -> None:
        Innocent(io.BytesIO()).dump(function)
        self._seen.append(type(function).__name__)

    def total(self, partial: Any, advance: Any = None) -> Totals | None:
        """Look, and add up."""
        self._look(partial)
        return self._inner.total(partial, advance)

    def keep(self, function: Any, advance: Any = None) -> tuple[Records, Totals | None]:
        """Look, add up and keep."""
        self._look(function)
        kept, totals = self._inner.keep(function, advance)
        return Watched(kept, self._seen), totals

    def mapped(self, transform: Any) -> Records:
        """Look, and map."""
        self._look(transform)
        return Watched(self._inner.mapped(transform), self._seen)


class WatchedEngine(LocalEngine):
    """The local engine, with records that look."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def table(self, *given: Any) -> Records:
        """Watch a table."""
        return Watched(super().table(*given), self.seen)

    def features(self, *given: Any) -> Records:
        """Watch features."""
        return Watched(super().features(*given), self.seen)


def test_functions_that_go_to_workers_know_no_budget_ledger_or_noise(folder: Path) -> None:
    train, engine = datasets.load("digits", "train"), WatchedEngine()
    for delta in ("0", "1e-6"):
        for epsilon in ("1", "0.05"):
            privatise(
                folder,
                domain=TableDomain.from_toml(ALONE),
                epsilon=epsilon,
                delta=delta,
                size=2000,
                seed=1,
                engine=engine,
            )
        for allocation in (None, "identical"):
            privatise(
                train.x[:300],
                train.y[:300],
                domain=train.domain,
                epsilon=9,
                delta=delta,
                allocation=allocation,
                engine=engine,
            )
    assert {
        "IndicatorCounts",
        "ClassSumsKept",
        "RoundSum",
        "RightCount",
        "Expanded",
        "TableFeatures",
        "ClassSums",
        "CentreSum",
        "DistanceSum",
        "SecondMoments",
        "LossGradient",
        "Correct",
    } <= set(engine.seen)
    Innocent(io.BytesIO()).dump(Products(Clip("l2", (1.0, 1.0), 1.0), np.zeros((2, 2)), np.eye(2)))
    with pytest.raises(AssertionError, match="MomentConfig is sent"):
        Innocent(io.BytesIO()).dump((ClassSums, MomentConfig(Fraction(1), Fraction(0), 2, 1.0)))


def command(*words: str, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RAY_ADDRESS": "", **changes}
    return subprocess.run(
        [sys.executable, "-m", "adlm", *words], capture_output=True, text=True, check=False, env=environment
    )


def test_the_command_writes_the_same_certificate_but_for_the_engines_line(
    cluster: Engine, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.toml").write_text(ALONE)
    address = ray.get_runtime_context().gcs_address
    made = {}
    for engine, more in (("local", ()), ("ray", ("--ray-address", address))):
        out = tmp_path / engine
        done = command(
            "release",
            f"{folder}/*.*",
            "--domain",
            str(tmp_path / "t.toml"),
            "--seed",
            "1",
            "--engine",
            engine,
            *more,
            "--out",
            str(out),
            "--ledger",
            str(tmp_path / f"{engine}.ledger"),
            "--json",
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert json.loads(done.stdout)["n"] == 3000
        made[engine] = json.loads((out / "certificate.json").read_text())
        assert Release.load(out).engine == made[engine]["engine"]
    assert made["local"].pop("engine") != made["ray"].pop("engine")
    assert made["local"] == made["ray"]


def test_a_driver_that_is_killed_after_the_charge_leaves_the_charge_and_nothing_else(
    folder: Path, tmp_path: Path
) -> None:
    """A cluster of its own; its folder is removed by the next one, and by `adlm cache clear`."""
    (tmp_path / "t.toml").write_text(ALONE)
    short = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    ledger, out = tmp_path / "ledger", tmp_path / "out"
    words = [
        "release",
        str(folder),
        "--domain",
        str(tmp_path / "t.toml"),
        "--delta",
        "1e-6",
        "--epsilon",
        "8",
        "--engine",
        "ray",
        "--out",
        str(out),
        "--ledger",
        str(ledger),
    ]
    environment = {**os.environ, "TMPDIR": str(short)}
    with subprocess.Popen(
        [sys.executable, "-m", "adlm", *words], env=environment, stderr=subprocess.DEVNULL
    ) as driver:
        deadline = time.monotonic() + 300
        while not (ledger.exists() and ledger.stat().st_size > 200) and driver.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL
    assert Ledger(ledger).charges
    assert not out.exists()
    assert not list(tmp_path.glob("out*"))
    assert list(short.glob("adlm-ray-*"))
    cleared = command("cache", "clear", "--json", TMPDIR=str(short), ADLM_CACHE=str(tmp_path / "c"))
    assert json.loads(cleared.stdout)["clusters"] == 1
    assert not list(short.glob("adlm-ray-*"))


LOST_NODE = """
import sys
import time
import numpy as np
import ray
from ray.cluster_utils import Cluster
from adlm.engine.local import LocalEngine
from adlm.engine.ray import RayEngine
from adlm.domain.table import TableDomain

table = TableDomain.load(sys.argv[2])
size = 150 * 1024 * 1024
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": size})
second = cluster.add_node(num_cpus=2, object_store_memory=size)
ray.init(address=cluster.address, log_to_driver=False)
engine = RayEngine()

def count(part):
    time.sleep(0.2)  # so that one worker alone would be too slow
    return (np.array([part[-1].sum(), len(part[0])], dtype=np.int64),)

records = engine.table(sys.argv[1], table)
kept, first = records.keep(lambda part: ((np.ones((len(part[0]), 99)), *part), count(part)))
where = ray.experimental.get_object_locations([part.ref for part in kept._parts])
away = [ref for ref, found in where.items() if second.node_id in found["node_ids"]]
cluster.remove_node(second, allow_graceful=False)
again = kept.total(count)
local = LocalEngine().table(sys.argv[1], table).total(count)
print(len(away), *(total[0].integers().tolist() for total in (first, again, local)))
ray.shutdown()
cluster.shutdown()
"""


def test_a_node_that_is_lost_changes_nothing(folder: Path, tmp_path: Path) -> None:
    """What it kept is made anew from the files; in a process of its own, for a process has one cluster."""
    (tmp_path / "t.toml").write_text(ALONE)
    done = subprocess.run(
        [sys.executable, "-c", LOST_NODE, str(folder), str(tmp_path / "t.toml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    away, rest = done.stdout.strip().splitlines()[-1].split(" ", 1)
    first, again, local = rest.replace("] [", "]|[").split("|")
    assert int(away) > 0
    assert first == again == local


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


def test_a_cluster_that_does_not_answer_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,ill\n1,no\n")
    (tmp_path / "t.toml").write_text(
        '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 9\n[columns.ill]\nkind = "label"\n'
        'classes = ["no", "yes"]\n'
    )
    done = command(
        "release",
        str(tmp_path / "a.csv"),
        "--domain",
        str(tmp_path / "t.toml"),
        "--engine",
        "ray",
        "--ray-address",
        "127.0.0.1:1",
        "--out",
        str(tmp_path / "out"),
        "--ledger",
        str(tmp_path / "ledger"),
    )
    assert done.returncode == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
