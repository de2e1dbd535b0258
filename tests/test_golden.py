"""Seeded releases, bit for bit: moving code about must not change a number that is released.

Digests cover what is the same on every machine: integer sums of features that are the records themselves,
gradients of rounds, charges. Image features, heads of closed forms and minima of perturbed losses have last
bits of a machine's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adlm import Ledger, Release, privatise
from adlm.data import datasets
from adlm.domain import Domain
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.features.base import Identity
from adlm.mechanism.planner import plan_class_sums
from adlm.paper import Budgets, PrivateRecords, make_release
from adlm.paper.networks import build
from adlm.privacy.noise import Source
from adlm.runtime.artefact import canonical

ROOT = Path(__file__).parents[1]
GOLDEN = {
    "digits": "f10954ba7b5f974c003e2aa6bbb31e1980d778ab850e54956fd712c55cced193",
    "digits, delta": "231cdf1580f1bd23d6bf0cfa595c8e3f4eba8fa0d37bc8ed82ca07654d8f95fc",
    "digits, perturbed loss": "e1ddeb6d3cdca6eb72814d8aaa04a39d5061a65401776d0fc838fba075417d43",
    "records": "4b9a08cc7272434015e272c7c0838134979d31c36ba6c700da50043708603f56",
    "table": "292b7f324244d52b7053da6649d63abd8e8ec2493d9aef15c84e16a5950bc98f",
    "table, rounds": "100739ed50c074822fff9dab72581e049b16ef7710268541f5d79a2eae7da07e",
}


def digest(release: Release, *tensors: str) -> str:
    """SHA-256 over released tensors, what the release cost, and its stamps."""
    body: dict[str, Any] = release.certificate.to_dict()
    kept = {name: body[name] for name in ("kind", "domain", "charges", "totals", "stamps")}
    kept["tensors"] = {name: body["tensors"][name] for name in tensors or body["tensors"]}
    return hashlib.sha256(canonical(kept)).hexdigest()


def digits(epsilon: int, delta: str, *, sums_alone: bool = False) -> str:
    train = datasets.load("digits", "train")
    features = Identity(train.domain.shape)
    options: Any = {"features": features, "seed": 1}
    if sums_alone:  # without a public prior the planner would perturb the loss
        options["plan"] = plan_class_sums(features, len(train), 10, epsilon, 0.0, train.domain.neighbours)
    release = privatise(train.x, train.y, train.domain, epsilon=epsilon, delta=delta, **options)
    return digest(release, "class_sums")


def records() -> str:
    generator = np.random.default_rng(0)
    domain = Domain(shape=(12,), lower=0.0, upper=1.0, classes=("0", "1", "2"))
    release = make_release(
        PrivateRecords(generator.uniform(0, 1, (60, 12)), np.arange(60) % 3, domain),
        build("mlp", (12,), 3),
        Budgets.split(8, method="ilm"),
        10,
        explained=None,
        ledger=Ledger(),
        source=Source.seeded_with(1),
    )
    return digest(release)


def table(delta: str, *tensors: str) -> str:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 2000)
    age = np.clip(generator.integers(0, 1 << 10, 2000) / 2048 + 0.4 * y, 0, 1)
    town = np.where(generator.random(2000) < 0.5, y, generator.integers(0, 4, 2000))
    x = np.column_stack([age, np.eye(4)[town], generator.random(2000) < 0.3]).astype(np.float32)
    declared = TableDomain(
        (
            Column("age", "numeric", 0, 1),
            Column("town", "categorical", values=tuple("abcd")),
            Column("ill", "boolean"),
            Column("y", "label", classes=("no", "yes")),
        )
    )
    batches = lambda: [(x, y.astype(np.int64))]  # noqa: E731
    return digest(privatise(batches, domain=declared, epsilon=4, delta=delta, seed=1), *tensors)


RELEASES: dict[str, Callable[[], str]] = {
    "digits": lambda: digits(40, "0", sums_alone=True),
    "digits, delta": lambda: digits(4, "1e-5"),
    "digits, perturbed loss": lambda: digits(40, "0"),
    "records": records,
    "table": lambda: table("0", "class_sums"),
    "table, rounds": lambda: table("1e-5"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_seeded_release_is_what_it_was(name: str) -> None:
    assert RELEASES[name]() == GOLDEN[name]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names instruction sets of x86")
def test_other_instructions_release_the_same_numbers_and_build_the_same_features() -> None:
    """NumPy and PyTorch choose instructions by the processor; here they are told to do without the newer."""
    code = (
        "import json, tests.test_golden as g\n"
        "from adlm.ui.choices import named\n"
        "from adlm.runtime import progress\n"
        "progress.enable(False)\n"
        "maps = {choice.key: choice.features.fingerprint() for choice in named()}\n"
        "print(json.dumps([maps, {name: made() for name, made in g.RELEASES.items()}]))\n"
    )
    from adlm.ui.choices import named

    core: Any = np._core._multiarray_umath  # type: ignore[attr-defined]
    known = [name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name)]
    plain = {"NPY_DISABLE_CPU_FEATURES": " ".join(known), "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | plain, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    maps, releases = json.loads(done.stdout)
    assert maps == {choice.key: choice.features.fingerprint() for choice in named()}
    assert releases == GOLDEN
