"""Work on many small things in several threads, each with one core to itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch


def in_lanes(work: Callable[[Sequence[int]], None], items: Sequence[int], threads: int) -> None:
    """Share out items among up to `threads` threads that work on theirs one after the other, on a core each.

    Transforms of small images are too short to be shared out among cores one by one. Which items there are
    does not depend on the number of threads, so neither does what comes out.
    """
    threads = min(threads, len(items))
    if threads <= 1:
        work(items)
        return
    inference, own = torch.is_inference_mode_enabled(), torch.get_num_threads()

    def lane(first: int) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode(inference):
            work(items[first::threads])

    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lane, range(threads)))
    finally:
        torch.set_num_threads(own)  # each thread has its own number, but new ones start with the last one set
