"""Learn the features of photographs of 32, 64 and 96 pixels from procedural scenes of these sizes.

`python -m adlm.features.priors.multiscale FOLDER --size 64 --colour` writes the weights that are shipped.
Shares, whitening and its floor are those of `features.priors.natural`; nothing was tuned for these sizes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from adlm.features.multiscale import SCALES, WIDTH, MultiscaleBlocks, weights_name
from adlm.features.priors import scenes
from adlm.features.priors.natural import principal_weights
from adlm.features.priors.weights import write_weights

# Synthetic variance given to each block: scattering and thumbnail of grey images; scattering of luminance and
# of chroma, histogram and thumbnail of colour images.
SHARES = {False: (1.0, 0.1), True: (1.0, 0.5, 0.3, 0.1)}
_ROWS = 200


def build_multiscale(
    size: int, colour: bool, *, seed: int = 0, classes: int = 600, per_class: int = 10, width: int = WIDTH
) -> dict[str, Tensor]:
    """Learn the weights of `MultiscaleImages` from scene classes.

    Parameters
    ----------
    size : side of the images, one of `SCALES`.
    colour : for red, green and blue, else for grey.
    seed : of every random number.
    classes, per_class : scene classes, and pictures of each.
    width : coordinates to keep.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = MultiscaleBlocks(size, colour)
    with torch.no_grad():
        images, _ = scenes.draw(classes, per_class, generator, size)
        images = images if colour else images.mean(1, keepdim=True)
        raw = torch.cat([blocks(part) for part in torch.split(images, _ROWS)])
        shared = list(zip(blocks.widths, SHARES[colour], strict=True))
        return principal_weights(raw, shared, per_class, width, generator)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn features of photographs from procedural scenes.")
    parser.add_argument("folder", type=Path, help="where to write the .safetensors file")
    parser.add_argument("--size", type=int, choices=sorted(SCALES), required=True)
    parser.add_argument("--colour", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    learnt = build_multiscale(options.size, options.colour, seed=options.seed)
    file = options.folder / f"{weights_name(options.size, options.colour)}.safetensors"
    write_weights(file, learnt)
