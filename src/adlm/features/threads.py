"""Map many small records in several threads with one core each, so that no batch shows in a record's bits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from adlm.features.tables import is_plain_tensor as plain
from adlm.runtime.compiled import Floats
from adlm.runtime.machine import keep_freed

ACCELERATED = 1024  # records in a batch on an accelerator, which needs large ones


def map_records(
    x: Tensor,
    shape: tuple[int, ...],
    compiled: Callable[[Floats], Floats],
    batched: Callable[[Tensor], Tensor],
    rows: int,
) -> Tensor:
    """Map records (n, ...) to (n, *shape): on a processor by compiled loops, else by PyTorch.

    Parameters
    ----------
    x : records.
    shape : of what a record is mapped to.
    compiled : maps arrays, record by record.
    batched : the same up to rounding, for gradients, ONNX files and accelerators.
    rows : records that a thread takes.

    Formal guarantees
    -----------------
    A library may add in another order for another shape, another place in a batch, another alignment in
    memory or another number of threads, and so round a record differently. A compiled loop takes one record
    after the other, by elementary operations in the order of its source, so on a processor what comes out for
    a record is a function of that record alone. On an accelerator `batched` gets batches of one fixed shape;
    that a place in a batch does not matter there is measured (by the audit, as separability), for no
    library promises it.
    """
    if not plain(x):
        if x.device.type == "cpu" or x.requires_grad or torch.onnx.is_in_onnx_export():
            return batched(x)
        return torch.cat([_padded(batched, part) for part in torch.split(x, ACCELERATED)])
    out = np.empty((len(x), *shape), np.float32)
    records = x.detach().numpy()

    def work(start: int) -> None:
        out[start : start + rows] = compiled(np.ascontiguousarray(records[start : start + rows], np.float32))

    keep_freed()
    starts = range(0, len(x), rows)
    threads = min(torch.get_num_threads(), len(starts))
    if threads <= 1:
        for start in starts:
            work(start)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(work, start) for start in starts]:
                done.result()
    return torch.from_numpy(out)


def _padded(batched: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Map records of an accelerator in a batch of one fixed shape."""
    if len(x) == ACCELERATED:
        return batched(x)
    block = x.new_zeros(ACCELERATED, *x.shape[1:])
    block[: len(x)] = x
    return batched(block)[: len(x)]
