"""Work on many small images in several threads, each with one core to itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from adlm.runtime.memory import keep_freed

WIDER = 32  # times as many rows in a block for an accelerator, which wants more work at once


def map_blocks_threaded(
    work: Callable[[Tensor, Tensor], object], x: Tensor, out: Tensor, rows: int
) -> Tensor:
    """Fill `out` from `x` by `work(x[i : i + rows], out[i : i + rows])`, block by block, and return it.

    Transforms of small images are too short to be shared out among cores one by one, so each thread takes
    whole blocks, and works on them with one core. Which blocks there are does not depend on the number of
    threads, so neither does what comes out. Work inside a lane that is itself cut into blocks stays in its
    lane.
    """
    on_cpu = x.device.type == "cpu"
    starts = range(0, len(x), rows if on_cpu else WIDER * rows)
    # What autograd records, it records in the thread that asks for it.
    threads = min(torch.get_num_threads(), len(starts)) if on_cpu and not x.requires_grad else 1
    inference, own, waiting = torch.is_inference_mode_enabled(), torch.get_num_threads(), iter(starts)

    def lane() -> None:
        with torch.inference_mode(inference):
            for start in waiting:
                stop = start + starts.step
                work(x[start:stop], out[start:stop])

    keep_freed()
    if threads <= 1:
        lane()
        return out
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for done in [pool.submit(lane) for _ in range(threads)]:
                done.result()
    finally:
        torch.set_num_threads(own)  # each thread has its own number, but new ones start with the last one set
    return out
