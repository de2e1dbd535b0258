"""Passes over records on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from adlm.engine.passes import Part, PartStore, Records

ROOT = Path(__file__).parents[2]


def threads_of_libraries() -> list[int]:
    """How many threads OpenMP and BLAS would use in the threads of a pass over eight parts."""
    found: set[int] = set()

    def work(part: Part) -> tuple[NDArray[Any], ...]:
        found.update(entry["num_threads"] for entry in threadpool_info())
        return (part[0].astype(np.int64).sum(0),)

    store = PartStore()
    for _ in range(8):
        store.append((np.ones((4, 1), dtype=np.int16),))
    records = Records(store)
    total = records.total(work)
    records.close()
    assert total is not None
    assert total[0].integers().tolist() == [32]
    return sorted(found)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one core")
def test_libraries_use_one_thread_inside_each_thread_of_a_pass() -> None:
    """OpenMP has a number of threads for each thread: what the main thread sets does not hold in others."""
    code = "from tests.engine.test_passes import threads_of_libraries; print(threads_of_libraries())"
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1]"
