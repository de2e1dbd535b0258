"""Time the features of images of whichever checkout is on the path: it asks for maps by their names.

`PYTHON image_rate.py IMAGES` prints a JSON object: images a processor second of each map, on one thread.
"""

import json
import sys
import time
from typing import Any

import torch

try:
    from adlm.features import build
except ImportError:  # a version before the rooms of today
    from adlm.public.features import build  # type: ignore[import-not-found,no-redef]

MAPS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "drawn images": ({"name": "prior-projection", "family": "drawn", "shape": [28, 28]}, (28, 28)),
    "garments": ({"name": "prior-projection", "family": "garments", "shape": [28, 28]}, (28, 28)),
    "photographs": ({"name": "natural", "width": 1000, "weights": "natural-32"}, (3, 32, 32)),
}


def main() -> None:
    images = int(sys.argv[1])
    torch.set_num_threads(1)
    rates = {}
    for name, (spec, shape) in MAPS.items():
        features, x = build(spec).eval(), torch.rand(images, *shape)
        with torch.inference_mode():
            features(x[:8])
            start = time.process_time()
            for part in torch.split(x, 500):
                features(part)
            rates[name] = images / (time.process_time() - start)
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
