"""What is freed between blocks is kept, so that no page is cleared twice."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

LOOP = """
import resource
import numpy as np
from adlm.runtime.machine import keep_freed

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_freed()
def block():
    parts = [np.ones(1 << 20, dtype=np.uint8) for _ in range(5)]
    del parts
block()
before = faults()
for _ in range(20):
    block()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is GNU's C library that returns memory")
def test_blocks_of_the_same_work_share_their_pages() -> None:
    """Twenty blocks of 5 MB are 25,600 pages of 4 kB, if each is cleared anew for every block."""
    done = subprocess.run([sys.executable, "-c", LOOP], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2_500
