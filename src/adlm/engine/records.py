"""Transforms of private records in passes: public features, encoded columns, a subset of records."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray
from torch import Tensor

from adlm.domain import Domain
from adlm.domain.encoding import expanded
from adlm.domain.table import TableDomain
from adlm.engine.passes import Integers, Part, private_folder
from adlm.features import Features, Narrowed, user_supplied
from adlm.features.tables import TableIndicators
from adlm.privacy.clipping import Clip
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from adlm.runtime.machine import blocks_in_cache, keep_freed

# ---- Compute public features of private records: in batches, with progress, cached on disk on request.
#
# A file of features of private records is private data: it is readable by its owner alone, never goes into
# a release, and `adlm cache clear` removes it.


def cache_folder() -> Path:
    """Return the folder of cached features of private records; ADLM_CACHE sets it."""
    return private_folder()


def clear_cache() -> int:
    """Remove every cached file of features; return their number."""
    folder = cache_folder()
    count = len(list(folder.glob("*.npy")))
    shutil.rmtree(folder, ignore_errors=True)
    return count


def featurise(
    x: npt.ArrayLike, domain: Domain, features: Features, *, device: str = "cpu", cache: bool = False
) -> npt.NDArray[np.float32]:
    """Scale records by their domain and map them to (n, width) features.

    Parameters
    ----------
    x : (n, *shape) private records in the units of the domain.
    domain : of the records.
    features : the frozen public map.
    device : where features are computed.
    cache : keep the features on disk, readable by their owner alone.

    Formal guarantees
    -----------------
    A record's features are a function of that record alone, to the last bit. On a processor adlm's own maps
    work on one image at a time and on exact grids, so that neither the size of a batch, nor a place in it,
    nor threads show (by the audit, as separability). A user-supplied map promises no such thing: in a
    batch it could let one record change the features of others (experts with a capacity, statistics of the
    batch), and round a record by its place, which other records change under add-remove and wherever a
    person may have several. So it maps each record in a call of its own, under both relations. It must not
    keep state between calls. Narrow features can depend on `cache`: they are then cut from wide ones.
    """
    records = np.asarray(x)
    with progress.bar(len(records), "features", "records") as advance:
        return featurised(records, domain, features, device, cache, advance)


def featurised(
    records: NDArray[Any],
    domain: Domain,
    features: Features,
    device: str,
    cache: bool,
    advance: progress.Advance,
) -> NDArray[np.float32]:
    """As `featurise`; `advance` is called with the number of records done."""
    if cache and isinstance(features, Narrowed):  # the wide features serve every width
        wide = featurised(records, domain, features.inner, device, cache, advance)
        step = 1 if user_supplied(features) else 4096
        parts = [features.of(torch.from_numpy(wide[i : i + step].copy())) for i in range(0, len(wide), step)]
        return torch.cat(parts).numpy()
    cached = cache_folder() / f"{_key(records, domain, features)}.npy" if cache else None
    if cached is not None and cached.exists():
        return np.asarray(np.load(cached, mmap_mode="r", allow_pickle=False))
    keep_freed()
    mapped = np.empty((len(records), features.width), dtype=np.float32)
    features = features.to(device).eval()
    with torch.inference_mode():
        for start in range(0, len(records), features.batch):
            scaled = torch.from_numpy(domain.scale(records[start : start + features.batch])).to(device)
            together = 1 if user_supplied(features) else len(scaled)
            for at, part in enumerate(torch.split(scaled, together), start):
                alone = part.clone() if together == 1 else part  # alignment in memory can change rounding
                mapped[at : at + len(part)] = features(alone).cpu().numpy()
            advance(len(scaled))
    if cached is not None:
        cached.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        buffer = io.BytesIO()
        np.save(buffer, mapped, allow_pickle=False)
        write_file(cached, buffer.getvalue(), what="features cache", private=True)
    return mapped


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """From records in the units of their domain to public features, on a worker.

    Parameters
    ----------
    domain, features : of the records, and the map.
    device : where the map runs.
    threads : of the driver, so that the same operations run in the same order.
    """

    domain: Domain
    features: Features
    device: str
    threads: int

    def __call__(self, part: Part) -> tuple[Part, tuple[Integers, ...]]:
        """Return (n, width) features with the codes, and no sums."""
        torch.set_num_threads(self.threads)
        x, codes = part
        z = featurised(x, self.domain, self.features, self.device, False, lambda rows: None)
        return (z, codes), ()


def _key(records: npt.NDArray[np.generic], domain: Domain, features: Features) -> str:
    alone = " one at a time" if user_supplied(features) else ""
    digest = hashlib.sha256(
        f"{features.fingerprint()}{domain.to_dict()}{records.shape}{records.dtype}{alone}".encode()
    )
    digest.update(np.ascontiguousarray(records).tobytes())
    return digest.hexdigest()


# ---- Transforms of a table's records in passes: stored columns to encoded records, features and counts.


@dataclass(frozen=True)
class Expanded:
    """From the stored columns of a table's records, with their classes, to their encoding."""

    table: TableDomain

    def __call__(self, part: Part) -> Part:
        """Return (n, width) numbers in [0, 1], and (n,) classes."""
        *columns, codes = part
        return expanded(self.table.features, columns), codes


@dataclass(frozen=True, eq=False)
class TableFeatures:
    """From encoded records to the features of a table; numbers outside [0, 1] are clipped to it first."""

    features: Features

    def __call__(self, part: Part) -> Part:
        """Return (n, width) features, and (n,) classes."""
        pieces = _in_cache(np.clip(part[0], 0, 1), self.features.width)
        return torch.cat([self.features(x) for x in pieces]).numpy(), part[1]


@dataclass(frozen=True, eq=False)
class IndicatorCounts:
    """Counts of a table's active indicators in a part: (width,).

    Formal guarantees
    -----------------
    A record adds a row of `Clip.counts`, whatever its numbers are: one outside [0, 1], from a user's reader,
    moves the counts no further than others. Sensitivity: `Clip.counts_sensitivity`.
    """

    indicators: TableIndicators
    clip: Clip

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Count."""
        counts = np.zeros(self.indicators.width, dtype=np.int64)
        for x in _in_cache(part[0], self.indicators.width):
            counts += self.clip.counts(self.indicators(x).numpy()).sum(0).astype(np.int64)
        return (counts,)


def _in_cache(x: NDArray[np.float32], width: int) -> Iterator[Tensor]:
    """Split encoded records so that their rows of some width fit into a CPU cache."""
    for rows in blocks_in_cache(len(x), width // 3):  # fewer rows would spend more on calls
        yield torch.from_numpy(x[rows])


# ---- A subset of the records, such that no record affects whether another is read.

STEPS = 1 << 64


def window(
    x: npt.ArrayLike, codes: npt.ArrayLike, limit: int, *, neighbours: str, size: int
) -> npt.NDArray[np.int64]:
    """Return the indices of the records to read when only some are wanted, in order.

    Parameters
    ----------
    x, codes : (n, *shape) records as they are stored, and (n,) class codes.
    limit : number of records to read.
    size : a public number of records, of which `limit` is a share; not used under replace-one.

    Formal guarantees
    -----------------
    Under replace-one the first `limit` places are read: another record in one place changes one record of
    what is read. Under add-remove that would not do, for everybody behind a missing record moves up and one
    more comes in. There a record is read if a hash of its own values and class falls below limit / size, so
    adding or removing a record changes that record alone; about `limit` records are read.
    """
    records, labels = np.asarray(x), np.asarray(codes)
    if neighbours == "replace-one" or limit >= size:
        return np.arange(len(records) if neighbours == "add-remove" else min(limit, len(records)))
    below = limit * STEPS // size
    return np.flatnonzero([_place(x, y) < below for x, y in zip(records, labels, strict=True)])


def _place(record: npt.NDArray[np.generic], code: np.generic) -> int:
    """A number in [0, 2^64) that depends on one record and its class alone."""
    digest = hashlib.sha256(f"adlm window {record.dtype} {record.shape} {int(code)} ".encode())
    digest.update(np.ascontiguousarray(record).tobytes())
    return int.from_bytes(digest.digest()[:8], "big")
