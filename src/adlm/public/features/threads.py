"""Work on many small images in blocks of one fixed shape, in several threads with a core to each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import torch
from torch import Tensor

from adlm.runtime.memory import keep_freed

ACCELERATED = 1024  # rows of a block on an accelerator, which wants more work at once


_UNPADDED: ContextVar[bool] = ContextVar("unpadded", default=False)


@contextlib.contextmanager
def unpadded() -> Iterator[None]:
    """Work on no more records than there are, while this lasts: for a prediction that somebody waits for.

    Last bits may then depend on how many records there are. That is of no concern to a prediction, which is
    made of a release; before a release it would be.
    """
    token = _UNPADDED.set(True)
    try:
        yield
    finally:
        _UNPADDED.reset(token)


def map_blocks_threaded(
    work: Callable[[Tensor, Tensor], object], x: Tensor, out: Tensor, rows: int
) -> Tensor:
    """Fill `out` from `x` by `work(block, its part of out)`, block by block, and return it.

    Transforms of small images are too short to be shared out among cores one by one, so each thread takes
    whole blocks, and works on them with one core. Work inside a thread that is itself cut into blocks stays
    in its thread.

    Parameters
    ----------
    work : fills its part of the result.
    x, out : inputs and results, record by record.
    rows : records of a block.

    Formal guarantees
    -----------------
    A library may add in another order for another shape, another alignment in memory or another number of
    threads, and so round a record differently. Here `work` always gets a copy of `rows` records, the last
    block filled up with zeros, in memory of its own, with one thread. So what comes out for a record does not
    depend on how many others there are, or on threads. That it does not depend on its place in a block is
    measured (the rung separability of the audit), for no library promises it.
    """
    on_cpu = x.device.type == "cpu"
    starts = range(0, len(x), rows if on_cpu else ACCELERATED)
    own, inference, waiting = torch.get_num_threads(), torch.is_inference_mode_enabled(), iter(starts)
    # What autograd records, it records in the thread that asks for it.
    threads = min(own, len(starts)) if on_cpu and not x.requires_grad else 1

    def worker() -> None:
        with torch.inference_mode(inference):
            for start in waiting:
                _fill(work, x[start : start + starts.step], out[start : start + starts.step], starts.step)

    keep_freed()
    try:
        if threads <= 1:
            if on_cpu and own > 1:
                torch.set_num_threads(1)
            worker()
            return out
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for done in [pool.submit(worker) for _ in range(threads)]:
                done.result()
    finally:
        if torch.get_num_threads() != own or threads > 1:
            torch.set_num_threads(own)  # each thread has its own, but new ones start with the last one set
    return out


def _fill(work: Callable[[Tensor, Tensor], object], x: Tensor, out: Tensor, rows: int) -> None:
    """Do the work on a block of exactly `rows` records, and keep what belongs to those that are there."""
    if _UNPADDED.get():
        work(x, out)
        return
    block = x.new_zeros(rows, *x.shape[1:])
    block[: len(x)] = x
    if len(x) == rows:
        work(block, out)
        return
    whole = out.new_zeros(rows, *out.shape[1:])
    work(block, whole)
    out.copy_(whole[: len(x)])
