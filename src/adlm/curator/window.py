"""A subset of the records, such that no record affects whether another is read."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

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
