"""The options of a release besides its budget, and which kinds of release they are for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from adlm.engine import Engine
from adlm.errors import UserError
from adlm.features import Features
from adlm.mechanism.planner import PurePlan
from adlm.mechanism.planning import MomentPlan, RegressionPlan
from adlm.mechanism.table_rounds import TableRoundsPlan
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source

Encoded = tuple[NDArray[np.float32], NDArray[np.int64]]  # (n, width) in [0, 1]; (n,) classes or targets
Reader = Callable[[], Iterable[Encoded]]  # called once a pass over the records
TableReleasePlan = TableRoundsPlan | RegressionPlan | PurePlan
Fourier = int | Literal["auto"]


class ReleaseOptions(TypedDict, total=False):
    """Options of `privatise`, described there."""

    neighbours: str | None
    ledger: Ledger | None
    source: Source | None
    seed: int | None
    size: int | None
    plan: MomentPlan | TableReleasePlan | None
    allocation: str | None
    features: Features | None
    k: int | None
    cache: bool
    device: str
    fourier: Fourier
    kind: str
    engine: Engine | str
    ray_address: str | None


FOR_ARRAYS = frozenset({"allocation", "features", "k", "cache", "device"})
FOR_TABLES = frozenset({"fourier", "kind"})


def check_options(options: Mapping[str, object], table: bool) -> None:
    """Refuse an option that does not exist, and one that would have no effect on this kind of release."""
    for name, value in options.items():
        if name not in ReleaseOptions.__annotations__:
            raise TypeError(f"privatise() got an unexpected keyword argument {name!r}")
        if value is None or value is False or (name, value) in (("fourier", 0), ("kind", "moments")):
            continue
        if name == "kind" and value != "synthetic":
            raise UserError(f"kind must be moments or synthetic, got {value!r}")
        if table and name in FOR_ARRAYS:
            raise UserError(f"a table's release has no setting {name}; leave it out")
        if not table and name in FOR_TABLES:
            raise UserError(f"{name} is for tables; leave it out for arrays")


def opened(options: ReleaseOptions) -> tuple[Ledger, Source]:
    """Return the ledger and the noise source; by default in memory, and the operating system's."""
    seed = options.get("seed")
    source = options.get("source") or (Source.system() if seed is None else Source.seeded_with(seed))
    return options.get("ledger") or Ledger(), source


def public_size(neighbours: str, contributions: int, size: int | None, count: Callable[[], int]) -> int:
    """Return the number of records that the rule may use.

    Parameters
    ----------
    neighbours, contributions : the relation, and records that one person may have.
    size : a public guess, if one was given.
    count : counts the records; called only where their number is public, under replace-one with one record
        a person.
    """
    if neighbours == "replace-one" and contributions == 1:
        return count() if size is None else size
    if size is not None:
        return size
    why = "under add-remove" if neighbours == "add-remove" else "when a person may have several records"
    raise UserError(
        f"{why} the number of records is private; give a public guess of it (size=..., --public-size)"
    )
