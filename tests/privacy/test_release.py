"""A release is whole or not there, and any change to it is found."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.features.base import Identity
from adlm.mechanism.planner import Plan
from adlm.mechanism.privatise import release_by_plan
from adlm.privacy.accounting import Budget
from adlm.privacy.certificate import SEEDED
from adlm.privacy.folders import CERTIFICATE, TENSORS
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

DOMAIN = Domain(shape=(6,), lower=0, upper=1, classes=("no", "yes"))


def make(source: Source | None = None, ledger: Ledger | None = None) -> Release:
    rng = np.random.default_rng(3)
    z, y = rng.normal(size=(200, 6)), rng.integers(0, 2, 200)
    return release_by_plan(
        lambda: [(z, y)],
        DOMAIN,
        features=Identity((6,)),
        plan=Plan("class sums", 2, 6, "laplace", sums_norm=4.0),
        budget=Budget.of(1),
        ledger=ledger or Ledger(),
        source=source or Source.system(),
    )


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    release = make()
    release.save(tmp_path / "r")
    again = Release.load(tmp_path / "r")
    assert again.certificate.to_dict() == release.certificate.to_dict()
    assert all((again.tensors[name] == tensor).all() for name, tensor in release.tensors.items())
    assert again.features().fingerprint() == Identity((6,)).fingerprint()
    assert {p.name for p in (tmp_path / "r").iterdir()} == {TENSORS, CERTIFICATE}


def test_a_seed_stamps_the_certificate_and_does_not_stand_in_it(tmp_path: Path) -> None:
    first, second = make(Source.seeded_with(987654321)), make(Source.seeded_with(987654321))
    assert (first.tensors["class_sums"] == second.tensors["class_sums"]).all()
    assert SEEDED in first.certificate.stamps
    assert not first.certificate.private
    first.save(tmp_path / "r")
    assert "987654321" not in (tmp_path / "r" / CERTIFICATE).read_text()
    assert make().certificate.stamps == ()


def corrupt(data: bytes, rng: random.Random) -> bytes:
    position = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            return data[:position] + bytes([data[position] ^ (1 << rng.randrange(8))]) + data[position + 1 :]
        case 1:
            return data[:position]
        case 2:
            return data[:position] + data[position + 1 :]
        case _:
            return data[:position] + bytes([rng.randrange(256)]) + data[position:]


def test_two_hundred_corruptions_are_all_found(tmp_path: Path) -> None:
    make().save(tmp_path / "r")
    rng = random.Random(5)
    originals = {name: (tmp_path / "r" / name).read_bytes() for name in (TENSORS, CERTIFICATE)}
    for attempt in range(200):
        name = (TENSORS, CERTIFICATE)[attempt % 2]
        altered = corrupt(originals[name], rng)
        (tmp_path / "r" / name).write_bytes(altered)
        if altered != originals[name]:
            with pytest.raises(UserError):
                Release.load(tmp_path / "r")
        (tmp_path / "r" / name).write_bytes(originals[name])
    Release.load(tmp_path / "r")


def test_an_altered_tensor_is_named(tmp_path: Path) -> None:
    make().save(tmp_path / "r")
    path = tmp_path / "r" / TENSORS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"tensor '[a-z_]+' in .* was altered"):
        Release.load(tmp_path / "r")


def test_a_missing_release_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a release"):
        Release.load(tmp_path / "nowhere")


def test_a_disk_that_takes_no_more_leaves_nothing_behind(tmp_path: Path) -> None:
    release = make()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        with pytest.raises(UserError, match="nothing is left behind"):
            release.save(tmp_path / "r")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    make().save(tmp_path / "r")
    with pytest.raises(UserError, match="exists already"):
        make().save(tmp_path / "r")


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_release import make
from adlm.privacy.ledger import Ledger
from adlm.privacy.release import Release
from adlm.errors import UserError

base, rng, whole = Path({base!r}), random.Random(11), 0
make()

def start(target, ledger):
    child = os.fork()
    if child == 0:
        make(ledger=Ledger(ledger)).save(target)
        os._exit(0)
    return child

took = 0.0
for trial in range(3):
    begun = time.monotonic()
    os.waitpid(start(base / f"t{{trial}}", base / f"tl{{trial}}"), 0)
    took = max(took, time.monotonic() - begun)
for attempt in range(50):
    target, ledger = base / f"r{{attempt}}", base / f"l{{attempt}}"
    child = start(target, ledger)
    time.sleep(3 * took * rng.random() ** 2)  # a third of them after the time that a release takes
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if target.exists():
        whole += 1
        release = Release.load(target)
        assert Ledger(ledger).charges == release.certificate.charges, "an uncharged release"
print(whole)
"""


def test_a_killed_process_leaves_a_whole_release_or_none_and_never_an_uncharged_one(tmp_path: Path) -> None:
    script = KILLER.format(tests=str(Path(__file__).parent), base=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 50  # kills fell on both sides of the rename
