"""One image file is one record, by a transform that looks at that file and at the declaration alone."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from adlm.data.images import pixels_of, pixels_of_array
from adlm.errors import UserError


def noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def saved(image: Image.Image, kind: str = "PNG", **settings: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()


def ramp(width: int, height: int) -> NDArray[np.uint8]:
    """Grey that rises from left to right."""
    return np.tile(np.linspace(0, 255, width).round().astype(np.uint8), (height, 1))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "WEBP"])
def test_an_image_of_the_declared_size_and_colour_is_left_as_it_is(kind: str) -> None:
    colour, grey = noise(20, 30, 3), noise(20, 30)
    settings = {"lossless": True} if kind == "WEBP" else {}
    assert (
        pixels_of(saved(Image.fromarray(colour), kind, **settings), (3, 20, 30)) == colour.transpose(2, 0, 1)
    ).all()
    if kind != "WEBP":  # which has no grey
        assert (pixels_of(saved(Image.fromarray(grey), kind), (20, 30)) == grey).all()
        assert pixels_of(saved(Image.fromarray(grey), kind), (1, 20, 30)).shape == (1, 20, 30)


def test_a_file_on_disk_and_its_bytes_are_the_same_record(tmp_path: Path) -> None:
    data = saved(Image.fromarray(noise(50, 41, 3)), "JPEG")
    (tmp_path / "a.jpg").write_bytes(data)
    assert (pixels_of(tmp_path / "a.jpg", (3, 16, 16)) == pixels_of(data, (3, 16, 16))).all()


def test_grey_becomes_colour_by_repetition_and_colour_grey_by_its_luma() -> None:
    grey = noise(9, 9)
    found = pixels_of(saved(Image.fromarray(grey)), (3, 9, 9))
    assert (found == grey).all()
    red = np.zeros((9, 9, 3), np.uint8)
    red[..., 0] = 200
    assert (pixels_of(saved(Image.fromarray(red)), (9, 9)) == round(0.299 * 200)).all()


def test_sixteen_bits_are_cut_to_the_high_byte_in_every_format() -> None:
    grey = noise(12, 12)
    deep = grey.astype(np.uint16) * 256 + 77
    for kind in ("PNG", "TIFF"):
        assert (pixels_of(saved(Image.fromarray(deep), kind), (12, 12)) == grey).all()
    assert (pixels_of_array(deep, (12, 12), None) == grey).all()


def test_transparent_pixels_are_laid_on_white_and_opaque_ones_are_kept() -> None:
    colour = noise(8, 8, 4)
    colour[:4, :, 3], colour[4:, :, 3] = 0, 255
    found = pixels_of(saved(Image.fromarray(colour)), (3, 8, 8)).transpose(1, 2, 0)
    assert (found[:4] == 255).all()
    assert (found[4:] == colour[4:, :, :3]).all()
    with_alpha = np.stack([noise(8, 8), np.full((8, 8), 255, np.uint8)], 2)
    assert (pixels_of(saved(Image.fromarray(with_alpha, "LA")), (8, 8)) == with_alpha[..., 0]).all()
    palette = Image.fromarray(ramp(8, 8)).convert("P")
    palette.info["transparency"] = int(np.asarray(palette)[0, 0])
    assert (pixels_of(saved(palette), (8, 8))[:, 0] == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(orientation: int) -> None:
    upright = np.zeros((24, 16), np.uint8)
    upright[:12, :8] = 255  # bright in the upper left corner
    turns = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # how a camera that was held so stores it
    image = Image.fromarray(upright)
    back = {
        0: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        1: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        2: Image.Transpose.ROTATE_90,
        6: Image.Transpose.TRANSVERSE,
        4: Image.Transpose.ROTATE_270,
    }
    if orientation > 1:
        image = image.transpose(back[turns[orientation]])
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert (pixels_of(saved(image, "PNG", exif=exif), (24, 16)) == upright).all()


def test_each_fit_keeps_what_it_says() -> None:
    wide = saved(Image.fromarray(ramp(300, 100)))
    crop, pad, stretch = (pixels_of(wide, (20, 20), fit) for fit in ("crop", "pad", "stretch"))
    assert (pixels_of(wide, (20, 20)) == crop).all()
    assert 80 < crop[10, 0] < 95  # the left third is cut off
    assert 160 < crop[10, -1] < 175
    assert stretch[10, 0] < 10
    assert stretch[10, -1] > 245
    assert (pad[:6] == 0).all()
    assert (pad[-6:] == 0).all()
    assert pad[10, -1] > 240


def test_resizing_is_antialiased() -> None:
    """Stripes of one pixel become their mean, which sampling every eighth pixel would not give."""
    stripes = np.zeros((256, 256), np.uint8)
    stripes[:, ::2] = 255
    inside = pixels_of(saved(Image.fromarray(stripes)), (32, 32))[4:-4, 4:-4].astype(int)
    assert abs(inside - 127.5).max() < 4


def test_arrays_come_with_channels_first_or_last() -> None:
    colour = noise(40, 30, 3)
    first = pixels_of_array(colour.transpose(2, 0, 1), (3, 16, 16), None)
    assert (first == pixels_of_array(colour, (3, 16, 16), None)).all()
    assert (first == pixels_of(saved(Image.fromarray(colour)), (3, 16, 16))).all()
    for wrong, words in ((noise(4, 5, 6, 3), "shape"), (np.zeros((9, 9)), "integers")):
        with pytest.raises(UserError, match=words):
            pixels_of_array(wrong, (3, 16, 16), None)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no image of a known format"),
        (b"GIF89a" + bytes(100), "no image of a known format"),
        (saved(Image.fromarray(noise(90, 90, 3)), "JPEG")[:500], "the image is broken"),
        (saved(Image.fromarray(noise(90, 90, 3)))[:900], "the image is broken"),
        (saved(Image.new("L", (1, 1))), "1 x 1 pixels; at least 2 a side"),
        (saved(Image.new("L", (900, 1))), "900 x 1 pixels"),
        (saved(Image.fromarray(np.ones((9, 9), np.float32)), "TIFF"), "32-bit numbers"),
        (saved(Image.new("1", (30000, 30000))), "more than 134217728 pixels"),
    ],
)
def test_what_is_no_picture_is_told_in_a_sentence(data: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words):
        pixels_of(data, (3, 16, 16))
