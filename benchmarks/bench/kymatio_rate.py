"""Time kymatio's scattering, in an environment that has it; so this script imports nothing of this package.

`PYTHON kymatio_rate.py IMAGES SIDE THREADS` prints the seconds of one pass after a warm-up pass.
"""

import sys
import time

import torch
from kymatio.torch import Scattering2D


def main() -> None:
    images, side, threads = map(int, sys.argv[1:4])
    torch.set_num_threads(threads)
    scattering = Scattering2D(J=2, shape=(side, side), L=8)
    x = torch.rand(images, side, side)
    with torch.inference_mode():
        scattering(x[:8])
        start = time.perf_counter()
        for part in torch.split(x, 500):
            scattering(part)
        print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
