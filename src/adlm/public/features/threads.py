"""Map many small images, one by one, in several threads with one core each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import torch
from torch import Tensor

from adlm.runtime.memory import keep_freed

ALIGNED = 64  # bytes: alignment of new memory
ACCELERATED = 1024  # rows of a block on an accelerator, which needs larger batches


_TOGETHER: ContextVar[bool] = ContextVar("together", default=False)


@contextlib.contextmanager
def records_together() -> Iterator[None]:
    """Map many records at once inside this context: for public records and for predictions.

    Last bits may then depend on the batch. That does not matter for a prediction, which is post-processing;
    before a release it would.
    """
    token = _TOGETHER.set(True)
    try:
        yield
    finally:
        _TOGETHER.reset(token)


def map_blocks_threaded(
    work: Callable[[Tensor, Tensor], object], x: Tensor, out: Tensor, rows: int
) -> Tensor:
    """Fill `out` from `x` by `work(records, their part of out)`, one by one, and return it.

    Transforms of small images are too short to be parallelised one by one, so each thread takes whole blocks
    on one core. Nested calls stay in their thread.

    Parameters
    ----------
    work : fills its part of the result.
    x, out : inputs and results, record by record.
    rows : records that a thread takes; it works on as many at once under `records_together`.

    Formal guarantees
    -----------------
    A library may add in another order for another shape, another place in a batch, another alignment in
    memory or another number of threads, and so round a record differently. Here `work` gets one record, in
    memory of its own, with one thread. So on a processor what comes out for a record is a function of that
    record alone. On an accelerator `work` gets blocks of one fixed shape; that a place in a block does not
    matter there is measured (the rung separability of the audit), for no library promises it.
    """
    on_cpu = x.device.type == "cpu"
    starts = range(0, len(x), rows if on_cpu else ACCELERATED)
    # Threads do not see the context variable; gradients are never taken of private records.
    alone = on_cpu and not _TOGETHER.get() and not x.requires_grad
    cores, inference, waiting = torch.get_num_threads(), torch.is_inference_mode_enabled(), iter(starts)
    # Autograd records operations in the calling thread only.
    threads = min(cores, len(starts)) if on_cpu and not x.requires_grad else 1

    def worker() -> None:
        with torch.inference_mode(inference):
            for start in waiting:
                part = slice(start, start + starts.step)
                _fill(work, x[part], out[part], alone=alone, rows=starts.step)

    keep_freed()
    try:
        if threads <= 1:
            if on_cpu and cores > 1:
                torch.set_num_threads(1)
            worker()
            return out
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for done in [pool.submit(worker) for _ in range(threads)]:
                done.result()
    finally:
        if torch.get_num_threads() != cores or threads > 1:
            torch.set_num_threads(cores)  # per thread, but new threads inherit the last value set
    return out


def _fill(
    work: Callable[[Tensor, Tensor], object], x: Tensor, out: Tensor, *, alone: bool, rows: int
) -> None:
    """Map each record alone; or all of them, on an accelerator padded to `rows`."""
    if alone and len(x) == 1 and x.is_contiguous() and x.data_ptr() % ALIGNED == 0:
        work(x, out)
        return
    if alone:
        for record, place in zip(torch.split(x, 1), torch.split(out, 1), strict=True):
            copied = place.clone(memory_format=torch.contiguous_format)
            work(record.clone(memory_format=torch.contiguous_format), copied)
            place.copy_(copied)
        return
    if x.device.type == "cpu" or len(x) == rows:
        work(x, out)
        return
    block, mapped = x.new_zeros(rows, *x.shape[1:]), out.new_zeros(rows, *out.shape[1:])
    block[: len(x)] = x
    work(block, mapped)
    out.copy_(mapped[: len(x)])
