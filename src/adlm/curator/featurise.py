"""Compute public features of private records: in batches, with progress, cached on disk on request.

A file of features of private records is private data: it is readable by its owner alone, never goes into a
release, and `adlm cache clear` removes it.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from adlm.public.domain import Domain
from adlm.public.features import Features, Narrowed, brought_along
from adlm.runtime import progress
from adlm.runtime.artefact import write_file
from adlm.runtime.memory import keep_freed
from adlm.runtime.part_store import private_folder


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
    if cache and isinstance(features, Narrowed):  # the wide features serve every width
        wide = featurise(x, domain, features.inner, device=device, cache=cache)
        step = 1 if brought_along(features) else 4096
        parts = [features.of(torch.from_numpy(wide[i : i + step].copy())) for i in range(0, len(wide), step)]
        return torch.cat(parts).numpy()
    records = np.asarray(x)
    cached = cache_folder() / f"{_key(records, domain, features)}.npy" if cache else None
    if cached is not None and cached.exists():
        return np.asarray(np.load(cached, mmap_mode="r", allow_pickle=False))
    keep_freed()
    mapped = np.empty((len(records), features.width), dtype=np.float32)
    features = features.to(device).eval()
    with torch.inference_mode(), progress.bar(len(records), "features", "records") as advance:
        for start in range(0, len(records), features.batch):
            scaled = torch.from_numpy(domain.scale(records[start : start + features.batch])).to(device)
            together = 1 if brought_along(features) else len(scaled)
            for at, part in enumerate(torch.split(scaled, together), start):
                mapped[at : at + len(part)] = features(part).cpu().numpy()
            advance(len(scaled))
    if cached is not None:
        cached.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(cached, _npy(mapped), what="features cache", private=True)
    return mapped


def _npy(array: npt.NDArray[np.float32]) -> bytes:
    import io

    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _key(records: npt.NDArray[np.generic], domain: Domain, features: Features) -> str:
    alone = " one at a time" if brought_along(features) else ""
    digest = hashlib.sha256(
        f"{features.fingerprint()}{domain.to_dict()}{records.shape}{records.dtype}{alone}".encode()
    )
    digest.update(np.ascontiguousarray(records).tobytes())
    return digest.hexdigest()
