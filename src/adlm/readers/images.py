"""One image file to one record: decoded, rotated, and resized to the declared size and colour.

The transform is a function of the file's bytes and of the declaration alone, step by step:

1. The file is decoded as JPEG, PNG, WebP, TIFF or BMP; of several frames, the first. Colour profiles are not
   applied.
2. EXIF rotation is applied.
3. 16-bit values are cut to their high byte. Transparent pixels are blended with white. Colour becomes grey
   by the luma of ITU-R 601-2 (L = 0.299 R + 0.587 G + 0.114 B), grey into colour by repeating it.
4. An image of another size is resized with an antialiased filter (Pillow's Lanczos, whose support grows with
   the reduction). `crop`: so that it covers the size, of which the centre is kept; `pad`: so that it fits
   into the size, centred on black; `stretch`: each side by itself.

An 8-bit image of the declared size and colour is unchanged, bit for bit.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from adlm.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp")
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP")
LEAST_SIDE = 2  # pixels
MOST_PIXELS = 1 << 27
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
_UNDECLARED = ("I", "F")  # 32-bit integers and floats: their range is unknown


class ImageError(UserError):
    """An unreadable image; the caller adds the file's name to the sentence."""


def pixels_of(data: bytes | Path, shape: tuple[int, ...], fit: str | None = None) -> NDArray[np.uint8]:
    """Return the record of an image file: `shape` bytes.

    Parameters
    ----------
    data : the bytes of an image file, or its path.
    shape : (H, W) for grey, (1, H, W) for grey, (3, H, W) for colour.
    fit : `crop` (or None), `pad` or `stretch`.

    Formal guarantees
    -----------------
    The result depends on `data` and on the declared shape and fit alone.
    """
    colour = len(shape) == 3 and shape[0] == 3
    try:
        source = data if isinstance(data, Path) else io.BytesIO(data)
        with Image.open(source, formats=FORMATS) as opened:
            _check_size(opened)
            opened.load()
            image = _in_colour(ImageOps.exif_transpose(opened), colour, opened.format)
    except ImageError:
        raise
    except Image.DecompressionBombError:
        raise ImageError(f"the image has more than {MOST_PIXELS} pixels; make it smaller") from None
    except UnidentifiedImageError:
        raise ImageError("it is no image of a known format (JPEG, PNG, WebP, TIFF, BMP)") from None
    except FileNotFoundError:
        raise ImageError("there is no such file") from None
    except Exception as error:  # Pillow has many kinds of errors for broken files
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ImageError(f"the image is broken ({reason[:100]})") from None
    return _as_array(image, shape, fit)


def pixels_of_array(array: NDArray[Any], shape: tuple[int, ...], fit: str | None) -> NDArray[np.uint8]:
    """Return the record of one image of an array: (H, W), channels first or channels last.

    Unsigned 8-bit or 16-bit integers are images; other types are refused, as their range is unknown.
    """
    if array.dtype == np.uint16:
        array = (array >> 8).astype(np.uint8)
    if array.dtype != np.uint8:
        raise ImageError(f"an image holds unsigned 8-bit or 16-bit integers (got {array.dtype})")
    if array.shape == shape:
        return np.ascontiguousarray(array)
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise ImageError(f"an image has the shape (H, W), (H, W, 3) or (3, H, W) (got {array.shape})")
    colour = len(shape) == 3 and shape[0] == 3
    image = Image.fromarray(np.ascontiguousarray(array))
    _check_size(image)
    return _as_array(_in_colour(image, colour), shape, fit)


def _as_array(image: Image.Image, shape: tuple[int, ...], fit: str | None) -> NDArray[np.uint8]:
    array = np.asarray(_fitted(image, (shape[-1], shape[-2]), fit or "crop"), dtype=np.uint8)
    return np.ascontiguousarray(array.transpose(2, 0, 1) if array.ndim == 3 else array).reshape(shape)


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if min(width, height) < LEAST_SIDE:
        raise ImageError(f"the image is {width} x {height} pixels; at least {LEAST_SIDE} a side are needed")
    if width * height > MOST_PIXELS:
        raise ImageError(f"the image has more than {MOST_PIXELS} pixels; make it smaller")


def _in_colour(image: Image.Image, colour: bool, kind: str | None = None) -> Image.Image:
    """An 8-bit image, grey or red, green and blue."""
    if image.mode in _DEEP:
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    elif image.mode == "I" and kind == "PNG":  # 16-bit grey in older versions of Pillow
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    elif image.mode in _UNDECLARED:
        raise ImageError(
            "the image holds 32-bit numbers, whose range nothing declares; save it with 8 or 16 bits"
        )
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        ground = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        image = Image.alpha_composite(ground, clear).convert("RGB")
    mode = "RGB" if colour else "L"
    return image if image.mode == mode else image.convert(mode)


def _fitted(image: Image.Image, size: tuple[int, int], fit: str) -> Image.Image:
    """Resize an image to (width, height)."""
    if image.size == size:
        return image
    if fit == "stretch":
        return image.resize(size, Image.Resampling.LANCZOS)
    across, down = size[0] / image.size[0], size[1] / image.size[1]
    if fit == "crop":
        ratio = max(across, down)
        part = (size[0] / ratio, size[1] / ratio)
        left, top = (image.size[0] - part[0]) / 2, (image.size[1] - part[1]) / 2
        box = (
            max(left, 0.0),
            max(top, 0.0),
            min(left + part[0], image.size[0]),
            min(top + part[1], image.size[1]),
        )
        return image.resize(size, Image.Resampling.LANCZOS, box=box)
    ratio = min(across, down)
    inner = (max(1, round(image.size[0] * ratio)), max(1, round(image.size[1] * ratio)))
    canvas = Image.new(image.mode, size)
    canvas.paste(
        image.resize(inner, Image.Resampling.LANCZOS),
        ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2),
    )
    return canvas
