"""Seeded releases, bit for bit: moving code about must not change a number that is released."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from adlm import Ledger, Release, privatise
from adlm.algorithm1 import Budgets, PrivateRecords, RelevanceSource, make_release
from adlm.analyst.networks import build
from adlm.curator.noise import Source
from adlm.public import datasets
from adlm.public.domain import Domain
from adlm.public.domain.column import Column
from adlm.public.domain.table import TableDomain
from adlm.runtime.artefact import canonical

GOLDEN = {
    "digits": "d5e44b5c784d366f813e030095b9eccedd53bf9198ac639771ce082aff5fdbdd",
    "digits, delta": "463276b215e636d0b099188838403dbbf78316ffe762ab38bf19332028b52b0f",
    "records": "7a3b3e01c3cd68570defa141b6c97243a755ffc82218aa589cb6d436a14ee92c",
    "table": "5361fdebf24a03bc8edef5df92e00d417152379bf12175593c79428122991c10",
}


def digest(release: Release) -> str:
    """SHA-256 over the released tensors, what they cost, and the stamps."""
    body: dict[str, Any] = release.certificate.to_dict()
    kept = {name: body[name] for name in ("kind", "domain", "charges", "totals", "stamps", "tensors")}
    return hashlib.sha256(canonical(kept)).hexdigest()


def test_a_release_of_digits_at_pure_epsilon_is_what_it_was() -> None:
    train = datasets.load("digits", "train")
    release = privatise(train.x, train.y, domain=train.domain, epsilon=4, seed=1)
    assert digest(release) == GOLDEN["digits"]


def test_a_release_of_digits_with_delta_is_what_it_was() -> None:
    train = datasets.load("digits", "train")
    release = privatise(train.x, train.y, domain=train.domain, epsilon=2, delta="1e-5", seed=1)
    assert digest(release) == GOLDEN["digits, delta"]


def test_a_release_of_records_is_what_it_was() -> None:
    generator = np.random.default_rng(0)
    domain = Domain(shape=(12,), lower=0.0, upper=1.0, classes=("0", "1", "2"))
    torch.manual_seed(0)
    release = make_release(
        PrivateRecords(generator.uniform(0, 1, (60, 12)), np.arange(60) % 3, domain),
        build("mlp", (12,), 3),
        Budgets.split(8),
        10,
        explained=RelevanceSource(build("mlp", (12,), 5).eval(), "public"),
        ledger=Ledger(),
        source=Source.seeded_with(1),
    )
    assert digest(release) == GOLDEN["records"]


def test_a_release_of_a_table_at_pure_epsilon_is_what_it_was() -> None:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 2000)
    age = np.clip(generator.normal(0.3 + 0.4 * y, 0.15), 0, 1)
    town = np.where(generator.random(2000) < 0.5, y, generator.integers(0, 4, 2000))
    x = np.column_stack([age, np.eye(4)[town], generator.random(2000) < 0.3]).astype(np.float32)
    table = TableDomain(
        (
            Column("age", "numeric", 0, 1),
            Column("town", "categorical", values=tuple("abcd")),
            Column("ill", "boolean"),
            Column("y", "label", classes=("no", "yes")),
        )
    )
    release = privatise(lambda: [(x, y.astype(np.int64))], domain=table, epsilon=2, seed=1)
    assert digest(release) == GOLDEN["table"]
