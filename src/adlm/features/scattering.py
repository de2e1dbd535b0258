"""Wavelet scattering of square images (Bruna and Mallat 2013): local, stable, and learnt from nothing.

With Morlet wavelets psi_(j, theta) at two dyadic scales j, fine and coarse, and eight angles theta, and a
Gaussian phi,

    order 0    x * phi
    order 1    |x * psi_(j, theta)| * phi
    order 2    ||x * psi_(fine, theta1)| * psi_(coarse, theta2)| * phi

sampled every four pixels. The others of order 2 carry next to no energy and are not computed.

There are two forms. On a processor a compiled loop takes one or two images at a time, with their angles in
the lanes of vector instructions (`runtime.compiled`): Fourier transforms by fixed butterflies, so that this
file fixes every bit. For gradients, accelerators and ONNX files, a Fourier transform is two products with a
matrix.

Averages over phi are linear, so averages over larger cells cost nothing more: `Pooling` holds the weights of
rows and of columns of a modulus in each cell.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from adlm.errors import UserError
from adlm.features.linear import map_records
from adlm.runtime.compiled import (
    LANES,
    Compiled,
    Floats,
    Lanes,
    every,
    fused,
    halves,
    larger,
    load,
    numbers,
    root,
    store,
)

SIGMA = 0.8  # spread of the finest wavelet's envelope, in pixels
XI = 3 * math.pi / 4  # centre frequency of the finest wavelet
SLANT = 0.5  # ratio of the axes of a wavelet's envelope
GRID = float(1 << 22)  # steps in one unit of a filter
SCALES, ANGLES = 2, 8  # of wavelets, and angles in [0, pi)
STEP = 1 << SCALES  # pixels between outputs
BEFORE = STEP // 2  # pixels by which an image is mirrored in front
ORDERS = torch.tensor([0] + [1] * SCALES * ANGLES + [2] * ANGLES**2)  # of each channel
CHANNELS = len(ORDERS)
ROWS = 32  # images that a thread takes
COMPLEX = 2 * LANES  # numbers in a complex number of every lane: real parts, then imaginary parts
IMAGES = LANES // ANGLES  # in a vector register, with all their angles
ZERO, HALF = np.float32(0.0), np.float32(-0.5)
NOTHING = 1e-30  # a squared modulus, or a squared norm
SUMS = 16  # that a sum over coefficients is split into, of every 16th number
ROOT_3_4 = np.float32(math.sqrt(0.75))
ROOT_1_2 = np.float32(math.sqrt(0.5))

# Places in the integers of a plan: sizes, places in what it works on, places in its table for each scale.
SIDE, SIZE, TALL, WIDE, DENSER, GAIN, SECOND = range(7)
SPECTRUM, SPECTRA, PRODUCT, MODULI, WORK, LINE, CELLS = range(7, 14)
TURNS, FIRST, ROW_WEIGHTS, COLUMN_WEIGHTS, ROW_BANDS, COLUMN_BANDS = range(14, 14 + 6 * SCALES, SCALES)
RADICES = COLUMN_BANDS + SCALES  # of the first pass at each scale, then of the second
HEADER = RADICES + 2 * SCALES

Complex = tuple[Tensor, Tensor]  # real and imaginary part
Integers = NDArray[np.int64]


def gaussian(size: int, sigma: float) -> NDArray[np.float64]:
    """Sampled Gaussian of unit mass on a circle of `size` pixels, centred on 0: (size,)."""
    u = np.arange(size)[None] + size * np.arange(-3, 4)[:, None]
    density = np.exp(-(u**2) / (2 * sigma**2)).sum(0)
    return np.asarray(density / density.sum())


def morlet(shape: tuple[int, int], scale: int, angle: float, slant: float) -> NDArray[np.complex128]:
    """Morlet wavelet on a torus, with mean exactly zero: (H, W), centred on pixel (0, 0).

    psi(u) = envelope(u) (exp(i xi.u) - c), the envelope a Gaussian elongated by 1/slant across the wave.

    Parameters
    ----------
    shape : (H, W) of the torus.
    scale : j; the wave is 2^j times as long.
    angle : radians.
    slant : ratio of the envelope's axes.
    """
    sigma, xi = SIGMA * 2**scale, XI / 2**scale
    height, width = shape
    envelope, wave = np.zeros(shape), np.zeros(shape, dtype=np.complex128)
    for row in range(-2, 3):
        for column in range(-2, 3):
            y, x = np.mgrid[:height, :width] + np.array([row * height, column * width])[:, None, None]
            along, across = (
                x * math.cos(angle) + y * math.sin(angle),
                y * math.cos(angle) - x * math.sin(angle),
            )
            window = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
            envelope += window
            wave += window * np.exp(1j * xi * along)
    psi = wave - envelope * (wave.sum() / envelope.sum())
    return np.asarray(psi * (slant / (2 * math.pi * sigma**2)))


def _on_grid(values: NDArray[Any]) -> NDArray[Any]:
    """Round filters so coarsely that the last bits of a library, which differ between machines, are gone.

    So is the sign of a zero, which depends on those bits too: -0.0 + 0.0 is 0.0.
    """
    return np.asarray(np.round(values * GRID) / GRID + 0.0)


@cache
def _spectra_of(size: int) -> NDArray[np.complex64]:
    """Spectra of the wavelets on a torus of `size` pixels: (SCALES, ANGLES, size, size)."""
    angles = [math.pi * t / ANGLES for t in range(ANGLES)]
    waves = [[morlet((size, size), j, angle, SLANT) for angle in angles] for j in range(SCALES)]
    spectra = np.stack([[np.fft.fft2(wave) for wave in each] for each in waves])
    # One common factor, so that |phi|^2 + sum |psi|^2 <= 1.
    low = np.fft.fft(gaussian(size, SIGMA * 2 ** (SCALES - 1))).real
    remaining = 1 - (low[:, None] * low[None]) ** 2
    energy = (np.abs(spectra) ** 2).sum((0, 1))
    both = (energy + np.roll(energy[::-1, ::-1], (1, 1), (0, 1))) / 2
    used = both > 1e-9 * both.max()
    spectra *= float(np.sqrt((remaining[used] / both[used]).min()))
    return _on_grid(spectra).astype(np.complex64)


def fold(spectrum: Tensor, step: int) -> Tensor:
    """Spectrum of a signal sampled every `step` pixels, from its full one: (..., H, W) to (..., H/s, W/s)."""
    if step == 1:
        return spectrum
    height, width = spectrum.shape[-2] // step, spectrum.shape[-1] // step
    # Sums of slices: a reduction over strided dimensions is some twenty times slower on a CPU.
    bands = [spectrum[..., i * height : (i + 1) * height, :] for i in range(step)]
    rows = torch.stack(bands).sum(0) if step > 2 else bands[0] + bands[1]
    folded = rows[..., :width].clone()
    for i in range(1, step):
        folded += rows[..., i * width : (i + 1) * width]
    return folded / step**2


# ---- The compiled form: Fourier transforms of a signal in every lane ----
#
# Everything lies in flat arrays: `s` is what is worked on, `table` holds filters, weights and twiddle
# factors, and `at` holds sizes and places in both. A complex number is the real parts of all lanes and
# then their imaginary parts. A lane is one angle of one image: a register holds one or two images.


@cache
def radices_of(size: int) -> tuple[int, int]:
    """Split the size of a transform into the radices of its two passes, which are alike."""
    pairs = [(r, size // r) for r in (8, 6, 4, 3) if size % r == 0 and size // r in (8, 6, 4, 3)]
    if not pairs:
        raise UserError(f"a transform is of 9 to 64 numbers, a product of two of 3, 4, 6 and 8 (got {size})")
    return min(pairs, key=max)


def turns_of(size: int) -> Floats:
    """Twiddle factors exp(-2 pi i j p / size) between both passes."""
    one, two = radices_of(size)
    values = np.array([np.exp(-2j * np.pi * j * p / size) for p in range(two) for j in range(1, one)])
    return _on_grid(np.stack([values.real, values.imag], 1)).astype(np.float32).ravel()


def _three(s: Floats, i: int, leg: int) -> tuple[Lanes, ...]:
    """Transform of three complex numbers."""
    ar, ai, br, bi = load(s, i), load(s, i + LANES), load(s, i + leg), load(s, i + leg + LANES)
    cr, ci = load(s, i + 2 * leg), load(s, i + 2 * leg + LANES)
    sr, si = br + cr, bi + ci
    dr, di = (br - cr) * every(ROOT_3_4), (bi - ci) * every(ROOT_3_4)
    mr, mi = fused(every(HALF), sr, ar), fused(every(HALF), si, ai)
    return ar + sr, ai + si, mr + di, mi - dr, mr - di, mi + dr


def _four(s: Floats, i: int, leg: int) -> tuple[Lanes, ...]:
    """Transform of four complex numbers."""
    ar, ai, cr, ci = load(s, i), load(s, i + LANES), load(s, i + 2 * leg), load(s, i + 2 * leg + LANES)
    er, ei, fr, fi = ar + cr, ai + ci, ar - cr, ai - ci
    br, bi = load(s, i + leg), load(s, i + leg + LANES)
    dr, di = load(s, i + 3 * leg), load(s, i + 3 * leg + LANES)
    gr, gi, hr, hi = br + dr, bi + di, br - dr, bi - di
    return er + gr, ei + gi, fr + hi, fi - hr, er - gr, ei - gi, fr - hi, fi + hr


def _keep(s: Floats, o: int, re: Lanes, im: Lanes) -> None:
    """Store a complex number."""
    store(s, o, re)
    store(s, o + LANES, im)


def _six(s: Floats, i: int, leg: int, o: int, ahead: int) -> None:
    """A transform of three of the places 0, 2, 4, one of 3, 5, 1, and three of two."""
    er, ei, fr, fi, gr, gi = _three(s, i, 2 * leg)
    br, bi, cr, ci = (
        load(s, i + 5 * leg),
        load(s, i + 5 * leg + LANES),
        load(s, i + leg),
        load(s, i + leg + LANES),
    )
    ar, ai = load(s, i + 3 * leg), load(s, i + 3 * leg + LANES)
    sr, si = br + cr, bi + ci
    dr, di = (br - cr) * every(ROOT_3_4), (bi - ci) * every(ROOT_3_4)
    mr, mi = fused(every(HALF), sr, ar), fused(every(HALF), si, ai)
    hr, hi, jr, ji, kr, ki = ar + sr, ai + si, mr + di, mi - dr, mr - di, mi + dr
    _keep(s, o, er + hr, ei + hi)
    _keep(s, o + ahead, fr - jr, fi - ji)
    _keep(s, o + 2 * ahead, gr + kr, gi + ki)
    _keep(s, o + 3 * ahead, er - hr, ei - hi)
    _keep(s, o + 4 * ahead, fr + jr, fi + ji)
    _keep(s, o + 5 * ahead, gr - kr, gi - ki)


def _eight(s: Floats, i: int, leg: int, o: int, ahead: int) -> None:
    """Transforms of four, of the even and of the odd places, then four of two."""
    ar, ai, br, bi, cr, ci, dr, di = _four(s, i, 2 * leg)
    er, ei, fr, fi, gr, gi, hr, hi = _four(s, i + leg, 2 * leg)
    half = every(ROOT_1_2)
    jr, ji = half * (fr + fi), half * (fi - fr)  # times (1 - i) / sqrt 2
    kr, ki = half * (hi - hr), half * (hr + hi)  # times (1 + i) / sqrt 2, the imaginary part negative
    _keep(s, o, ar + er, ai + ei)
    _keep(s, o + ahead, br + jr, bi + ji)
    _keep(s, o + 2 * ahead, cr + gi, ci - gr)
    _keep(s, o + 3 * ahead, dr + kr, di - ki)
    _keep(s, o + 4 * ahead, ar - er, ai - ei)
    _keep(s, o + 5 * ahead, br - jr, bi - ji)
    _keep(s, o + 6 * ahead, cr - gi, ci + gr)
    _keep(s, o + 7 * ahead, dr - kr, di + ki)


def _few(s: Floats, i: int, leg: int, radix: int, o: int, ahead: int) -> None:
    """Transform 3, 4, 6 or 8 complex numbers from i on, `leg` apart, to places from o on, `ahead` apart."""
    if radix == 8:
        _eight(s, i, leg, o, ahead)
    elif radix == 6:
        _six(s, i, leg, o, ahead)
    elif radix == 4:
        ar, ai, br, bi, cr, ci, dr, di = _four(s, i, leg)
        _keep(s, o, ar, ai)
        _keep(s, o + ahead, br, bi)
        _keep(s, o + 2 * ahead, cr, ci)
        _keep(s, o + 3 * ahead, dr, di)
    else:
        er, ei, fr, fi, gr, gi = _three(s, i, leg)
        _keep(s, o, er, ei)
        _keep(s, o + ahead, fr, fi)
        _keep(s, o + 2 * ahead, gr, gi)


def _transform(
    s: Floats, start: int, step: int, out: int, ahead: int, table: Floats, at: Integers, scale: int
) -> None:
    """Fourier transform of a line of complex numbers in every lane, by two passes (Cooley and Tukey).

    Parameters
    ----------
    s : numbers that are read, written and worked on.
    start, step : place of the first number, and from one to the next.
    out, ahead : the same of the result, which may lie where the line lies.
    table, at : of the plan.
    scale : j; the line has P / 2^j numbers.
    """
    one, two, work, turn = at[RADICES + scale], at[RADICES + SCALES + scale], at[WORK], at[TURNS + scale]
    for p in range(two):
        to = work + one * p * COMPLEX
        _few(s, start + step * p, step * two, one, to, COMPLEX)
        if p == 0:
            continue
        for k in range(1, one):
            c, w = table[turn + 2 * ((one - 1) * p + k - 1)], table[turn + 2 * ((one - 1) * p + k - 1) + 1]
            re, im = load(s, to + k * COMPLEX), load(s, to + k * COMPLEX + LANES)
            turned = fused(every(w), re, every(c) * im)
            _keep(s, to + k * COMPLEX, fused(every(-w), im, every(c) * re), turned)
    for q in range(one):
        _few(s, work + q * COMPLEX, one * COMPLEX, two, out + ahead * q, ahead * one)


def _moduli(s: Floats, table: Floats, at: Integers, j: int, kept: bool) -> None:
    """Transform the columns of what was folded to scale j, and average its moduli; keep them if `kept`."""
    level = max(j - at[DENSER], 0)
    tall, wide, h, w = at[SIZE] >> j, at[SIZE] >> level, at[TALL], at[WIDE]
    y, line, u, cells = at[PRODUCT], at[LINE], at[MODULI], at[CELLS]
    for place in range(cells, cells + h * w * LANES, LANES):
        store(s, place, every(ZERO))
    for x in range(wide):
        _transform(s, y + x * COMPLEX, (wide + 1) * COMPLEX, line, COMPLEX, table, at, j)
        for row in range(tall):
            re, im = load(s, line + row * COMPLEX), load(s, line + row * COMPLEX + LANES)
            modulus = root(fused(im, im, re * re))
            store(s, line + row * LANES, modulus)  # before what is read next
            if kept:
                store(s, u + (row * wide + x) * LANES, modulus)
        columns = at[COLUMN_BANDS + j] + 2 * x
        first, last, shares = at[columns], at[columns + 1], at[COLUMN_WEIGHTS + j] + x
        for a in range(h):
            weights, rows = at[ROW_WEIGHTS + j] + a * tall, at[ROW_BANDS + j] + 2 * a
            total = every(ZERO)
            for row in range(at[rows], at[rows + 1]):
                total = fused(every(table[weights + row]), load(s, line + row * LANES), total)
            for b in range(first, last):
                cell = cells + (a * w + b) * LANES
                store(s, cell, fused(every(table[shares + b * wide]), total, load(s, cell)))


def _spread(s: Floats, out: Floats, place: int, stride: int, images: int, at: Integers) -> None:
    """Write the cells of each lane to the coefficients: together for a lane, angles `stride` apart."""
    count = at[TALL] * at[WIDE]
    for image in range(images):
        for angle in range(ANGLES):
            to, lane = place + angle * stride + image * CHANNELS * count, image * ANGLES + angle
            for cell in range(count):
                out[to + cell] = s[at[CELLS] + cell * LANES + lane]


def _spectrum(s: Floats, image: Floats, start: int, which: int, table: Floats, at: Integers) -> None:
    """Fourier transform of a padded image (P, P): columns in the lanes, then frequencies.

    (ky, kx, 4): the real parts of the first and of the second image, then the imaginary parts.
    """
    size, line, work = at[SIZE], at[LINE], at[SPECTRA]
    groups = (size + LANES - 1) // LANES
    for group in range(groups):
        kept = min(size - group * LANES, LANES)
        for y in range(size):
            place = line + y * COMPLEX
            _keep(s, place, every(ZERO), every(ZERO))
            for x in range(kept):
                s[place + x] = image[start + y * size + group * LANES + x]
        _transform(s, line, COMPLEX, line, COMPLEX, table, at, 0)
        for x in range(kept):
            place = work + (group * LANES + x) * groups * COMPLEX
            for ky in range(size):
                to = place + ky // LANES * COMPLEX + ky % LANES
                s[to] = s[line + ky * COMPLEX + x]
                s[to + LANES] = s[line + ky * COMPLEX + LANES + x]
    for group in range(groups):
        _transform(s, work + group * COMPLEX, groups * COMPLEX, line, COMPLEX, table, at, 0)
        for ky in range(min(size - group * LANES, LANES)):
            to = at[SPECTRUM] + (group * LANES + ky) * size * 4 + which
            for kx in range(size):
                s[to + 4 * kx] = s[line + kx * COMPLEX + ky]
                s[to + 4 * kx + 2] = s[line + kx * COMPLEX + LANES + ky]


def _first_rows(s: Floats, table: Floats, at: Integers, j: int) -> None:
    """Multiply the spectra of two images with the wavelets of scale j, fold them, and transform the rows.

    Real and imaginary parts change places: then a forward transform is the inverse, up to that exchange.
    """
    size, line, waves, spectrum = at[SIZE], at[LINE], at[FIRST + j], at[SPECTRUM]
    level = max(j - at[DENSER], 0)
    tall, wide = size >> j, size >> level
    for row in range(tall):
        for ky in range(row, size, tall):
            for fold in range(0, size, wide):
                for kx in range(wide):
                    source, to = ky * size + fold + kx, line + kx * COMPLEX
                    wave, place = load(table, waves + source * LANES), spectrum + 4 * source
                    re, im = halves(s[place], s[place + 1]), halves(s[place + 2], s[place + 3])
                    if ky == row and fold == 0:
                        _keep(s, to, wave * im, wave * re)
                    else:
                        _keep(s, to, fused(wave, im, load(s, to)), fused(wave, re, load(s, to + LANES)))
        _transform(s, line, COMPLEX, at[PRODUCT] + row * (wide + 1) * COMPLEX, COMPLEX, table, at, level)


def _second_rows(s: Floats, table: Floats, at: Integers, angle: int) -> None:
    """Multiply spectra of fine moduli with a coarse wavelet, fold them, and transform the rows.

    Two rows are folded to one, and two columns as well if columns are not sampled more densely.
    """
    size, line, spectra = at[SIZE], at[LINE], at[SPECTRA]
    level = 1 - at[DENSER]
    tall, wide = size >> 1, size >> level
    waves = at[SECOND] + angle * size * size
    for row in range(tall):
        for fold in range(0, size, wide):
            one, two = waves + row * size + fold, waves + (row + tall) * size + fold
            a, b = (
                spectra + (row * (size + 1) + fold) * COMPLEX,
                spectra + ((row + tall) * (size + 1) + fold) * COMPLEX,
            )
            for kx in range(wide):
                first, second, place = every(table[one + kx]), every(table[two + kx]), kx * COMPLEX
                if fold == 0:
                    re, im = first * load(s, a + place), first * load(s, a + place + LANES)
                else:
                    re = fused(first, load(s, a + place), load(s, line + place + LANES))
                    im = fused(first, load(s, a + place + LANES), load(s, line + place))
                re = fused(second, load(s, b + place), re)
                im = fused(second, load(s, b + place + LANES), im)
                _keep(s, line + place, im, re)
        _transform(s, line, COMPLEX, at[PRODUCT] + row * (wide + 1) * COMPLEX, COMPLEX, table, at, level)


def _spectra(s: Floats, table: Floats, at: Integers) -> None:
    """Fourier transforms of the fine moduli, times two.

    Two rows, which are real, are the real and imaginary parts of one line: with Z its transform, those of the
    rows are Z(k) + conj Z(-k) and (Z(k) - conj Z(-k)) / i, over two. Half of the columns follow from the
    other half.
    """
    size, line, spectra, moduli = at[SIZE], at[LINE], at[SPECTRA], at[MODULI]
    stride = (size + 1) * COMPLEX
    for row in range(0, size, 2):
        place, u = spectra + row * stride, moduli + row * size * LANES
        for x in range(size):
            _keep(s, line + x * COMPLEX, load(s, u + x * LANES), load(s, u + (size + x) * LANES))
        _transform(s, line, COMPLEX, line, COMPLEX, table, at, 0)
        for k in range(size // 2 + 1):
            one, two, to = line + k * COMPLEX, line + (size - k) % size * COMPLEX, place + k * COMPLEX
            a, b, c, d = load(s, one), load(s, one + LANES), load(s, two), load(s, two + LANES)
            _keep(s, to, a + c, b - d)
            _keep(s, to + stride, b + d, c - a)
    for x in range(size // 2 + 1):
        column = spectra + x * COMPLEX
        _transform(s, column, stride, column, stride, table, at, 0)
    for y in range(size):
        to, mirrored = spectra + y * stride, spectra + (size - y) % size * stride
        for x in range(size // 2 + 1, size):
            source = mirrored + (size - x) * COMPLEX
            _keep(s, to + x * COMPLEX, load(s, source), every(ZERO) - load(s, source + LANES))


def _average(
    s: Floats, image: Floats, start: int, corner: Any, out: Floats, place: int, table: Floats, at: Integers
) -> None:
    """Write the cells of a padded image, less its corner: some columns at a time, then cell by cell."""
    size, w, line = at[SIZE], at[WIDE], at[LINE]
    for a in range(at[TALL]):
        band, weights = at[ROW_BANDS] + 2 * a, at[ROW_WEIGHTS] + a * size
        for x in range(0, size, LANES):
            total = every(ZERO)
            for y in range(at[band], at[band + 1]):
                total = fused(every(table[weights + y]), load(image, start + y * size + x), total)
            store(s, line + x, total)
        for b in range(w):
            cell = corner * table[at[GAIN]]
            for x in range(size):
                cell += table[at[COLUMN_WEIGHTS] + b * size + x] * s[line + x]
            out[place + a * w + b] = cell


def _scatter_images(
    images: Floats, n: int, count: int, out: Floats, s: Floats, padded: Floats, table: Floats, at: Integers
) -> None:
    """Write the coefficients (CHANNELS, h, w) of the n-th image, and of `count` - 1 that follow it."""
    side, size, cells = at[SIDE], at[SIZE], at[TALL] * at[WIDE]
    for which in range(2):
        image, start = n + min(which, count - 1), which * size * size
        # Wavelets ignore a constant, and averages keep it. Less its corner, a flat image is exactly zero.
        corner = images[image * side * side]
        for row in range(size):
            a = abs(row - BEFORE)
            a = image * side + min(a, 2 * (side - 1) - a)
            for column in range(size):
                b = abs(column - BEFORE)
                pixel = images[a * side + min(b, 2 * (side - 1) - b)]
                padded[start + row * size + column] = pixel - corner
        if which < count:
            _average(s, padded, start, corner, out, image * CHANNELS * cells, table, at)
        if which < IMAGES:
            _spectrum(s, padded, start, which, table, at)
    place = n * CHANNELS * cells
    for j in range(SCALES):
        _first_rows(s, table, at, j)
        _moduli(s, table, at, j, j == 0)
        _spread(s, out, place + (1 + j * ANGLES) * cells, cells, count, at)
    _spectra(s, table, at)
    for angle in range(ANGLES):
        _second_rows(s, table, at, angle)
        _moduli(s, table, at, 1, False)
        _spread(s, out, place + (1 + (SCALES * ANGLES) + angle) * cells, ANGLES * cells, count, at)


def _scatter(images: Floats, out: Floats, s: Floats, padded: Floats, table: Floats, at: Integers) -> None:
    """Write the coefficients (n, CHANNELS, h, w) of images (n, H, H), all flat, one or two at a time.

    Parameters
    ----------
    images, out : flat.
    s, padded : to work on; (2, P, P) for padded images.
    table, at : of the plan.
    """
    count = len(images) // (at[SIDE] * at[SIDE])
    read, written, places = numbers(images), numbers(out), numbers(at)
    work, image, weights = numbers(s), numbers(padded), numbers(table)
    for n in range(0, count, IMAGES):
        _scatter_images(read, n, min(IMAGES, count - n), written, work, image, weights, places)


scatter = Compiled(_scatter)


class Pooling(NamedTuple):
    """Weights of the rows, and of the columns, of a modulus of each scale in each cell.

    Attributes
    ----------
    rows : for each scale j, (h, P / 2^j).
    columns : for each scale j, (w, P / 2^j), or (w, P) if columns are sampled more densely.
    denser : 1 if columns are sampled twice as densely as rows at the coarse scale, else 0.
    """

    rows: list[NDArray[np.float64]]
    columns: list[NDArray[np.float64]]
    denser: int = 0


class Plan:
    """What the compiled form reads: `table` of numbers, and `at`, sizes and places.

    Parameters
    ----------
    wavelets : (SCALES, ANGLES, P, P) spectra, which are real.
    side : H of the images.
    pooling : weights of the cells.
    """

    def __init__(self, wavelets: NDArray[np.float64], side: int, pooling: Pooling) -> None:
        size = wavelets.shape[-1]
        self.cells, self.side = (len(pooling.rows[0]), len(pooling.columns[0])), side
        at = np.zeros(HEADER, np.int64)
        at[[SIDE, SIZE, TALL, WIDE, DENSER]] = side, size, *self.cells, pooling.denser
        parts, bands = [np.zeros(0)], [at]

        def kept(values: NDArray[Any]) -> int:
            parts.append(values.ravel())
            return sum(len(part) for part in parts[:-1])

        def banded(ends: list[list[int]]) -> int:
            bands.append(np.array(ends, np.int64).ravel())
            return sum(len(part) for part in bands[:-1])

        at[GAIN] = kept(pooling.rows[0][0].sum() * pooling.columns[0][0].sum(keepdims=True))
        for j in range(SCALES):
            at[[RADICES + j, RADICES + SCALES + j]] = radices_of(size >> j)
            at[TURNS + j] = kept(turns_of(size >> j))
            # Folding divides by the number of aliases, and the inverse transform by the numbers left.
            waves = np.tile(wavelets[j].reshape(ANGLES, -1).T / size**2, IMAGES)
            at[FIRST + j] = kept(waves)
            at[ROW_WEIGHTS + j], at[COLUMN_WEIGHTS + j] = kept(pooling.rows[j]), kept(pooling.columns[j])
            at[ROW_BANDS + j] = banded([_band(row) for row in pooling.rows[j]])
            at[COLUMN_BANDS + j] = banded([_band(column) for column in pooling.columns[j].T])
        at[SECOND] = kept(wavelets[1] / size**2 / 2)  # of spectra times two
        # Rows are one number longer, so that a column's places do not fall on the same lines of the cache.
        rooms = {
            SPECTRUM: 4 * size * size,
            SPECTRA: size * (size + LANES) * COMPLEX,
            PRODUCT: size * (size + 1) * COMPLEX,
            MODULI: size * size * LANES,
            WORK: size * COMPLEX,
            LINE: size * COMPLEX + LANES,
            CELLS: self.cells[0] * self.cells[1] * LANES,
        }
        self.room = 0
        for name, room in rooms.items():
            at[name] = self.room
            self.room += room
        self.table, self.at = np.concatenate(parts).astype(np.float32), np.concatenate(bands)

    def __call__(self, images: Floats) -> Floats:
        """Coefficients (n, CHANNELS, h, w) of images (n, H, H)."""
        out = np.empty((len(images), CHANNELS, *self.cells), np.float32)
        s, padded = np.zeros(self.room, np.float32), np.zeros(2 * int(self.at[SIZE]) ** 2 + LANES, np.float32)
        flat = np.ascontiguousarray(images, np.float32).reshape(-1)
        scatter(flat, out.reshape(-1), s, padded, self.table, self.at)
        return out


def _band(weights: NDArray[np.float64]) -> list[int]:
    """First weight that is not zero, and one beyond the last; nothing if all are."""
    used = np.flatnonzero(weights)
    return [int(used[0]), int(used[-1]) + 1] if len(used) else [0, 0]


# ---- The transform ----


class Scattering(nn.Module):
    """Scattering coefficients of orders 0, 1 and 2 of square images.

    Parameters
    ----------
    size : side of the images.

    Notes
    -----
    The image is mirrored at its edges by two pixels and then treated as a torus. Wavelets are scaled by one
    common factor so that |phi|^2 + sum |psi|^2 <= 1 at every frequency, which makes the transform
    non-expansive (times 4, for the sampling). Channels come in the order (0), (j1, theta1),
    (theta1, theta2); `ORDERS` gives the order of each.
    """

    wavelets: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.output = size, (math.ceil(size / STEP),) * 2
        self.padded = STEP * (self.output[0] + 1)
        try:
            radices_of(self.padded), radices_of(self.padded // 2)
        except UserError:
            raise UserError(
                "scattering takes images of 17 to 20, 25 to 32, 41 to 44 or 57 to 60 pixels a side "
                f"(got {size})"
            ) from None
        self.register_buffer("wavelets", torch.from_numpy(_spectra_of(self.padded).copy()))
        for j in range(SCALES):
            for name in ("rows", "columns"):
                self.register_buffer(f"{name}{j}", self._average(j))
        # What both forms read follows from the buffers, and so is not in the fingerprint.
        waves = self.wavelets.real.double()
        self.plan = self.plan_for(Pooling(self.weights(), self.weights()))
        self.gain = float(self.weights()[0][0].sum() ** 2)  # of a constant image
        for j in range(SCALES):
            places = np.arange(self.padded >> j)
            turns = 2 * np.pi * np.outer(places, places) / len(places)
            for name, values in (("cos", np.cos(turns)), ("sin", np.sin(turns))):
                self.register_buffer(f"{name}{j}", torch.from_numpy(values).float(), persistent=False)
            self.register_buffer(f"wave{j}", waves[j].float(), persistent=False)

    def weights(self) -> list[NDArray[np.float64]]:
        """Weights of rows, or of columns, of moduli of each scale in each output: (h, P / 2^j)."""
        return [self.get_buffer(f"rows{j}").double().numpy() for j in range(SCALES)]

    def plan_for(self, pooling: Pooling) -> Plan:
        """The compiled form, with other cells."""
        return Plan(self.wavelets.real.double().numpy(), self.size, pooling)

    def _average(self, j: int) -> Tensor:
        """Matrix that averages a signal sampled every 2^j pixels and samples it every 4: (h, P / 2^j)."""
        # The coarse signal has 2^j times fewer samples, so its Gaussian is that much narrower.
        kernel = gaussian(self.padded // 2**j, SIGMA * 2 ** (SCALES - 1 - j))
        rows = [np.roll(kernel, (i + 1) * STEP // 2**j) for i in range(self.output[0])]
        return torch.from_numpy(_on_grid(np.stack(rows)).astype(np.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, H, H) or (n, C, H, H) to (n, C * CHANNELS, H / 4, H / 4), rounded up."""
        if x.shape[-2:] != (self.size, self.size) or x.ndim not in (3, 4):
            raise UserError(
                f"scattering was built for images of {self.size} x {self.size} pixels, "
                f"as (n, H, H) or (n, C, H, H) (got an array of shape {tuple(x.shape)})"
            )
        flat = x.reshape(-1, self.size, self.size).float()
        found = map_records(flat, (CHANNELS, *self.output), self.plan, self.products, ROWS)
        return found.reshape(len(x), -1, *self.output)

    # ---- The form for gradients, accelerators and ONNX files ----

    def products(self, x: Tensor) -> Tensor:
        """Coefficients of images (n, H, H) by products with Fourier matrices: (n, CHANNELS, h, h)."""
        corner = x[:, :1, :1]  # a flat image less its corner is exactly zero
        images = self.pad(x - corner)
        spectrum = self._fourier((images[:, None], torch.zeros_like(images[:, None])), 1.0, 0)
        fine, coarse = self._response(spectrum, 0), self._response(spectrum, 1)
        inner = self._fourier((fine[:, :, None], torch.zeros_like(fine[:, :, None])), 1.0, 0)
        parts = [
            (self._low_pass(images, 0) + corner * self.gain)[:, None],
            self._low_pass(fine, 0),
            self._low_pass(coarse, 1),
            self._low_pass(self._response(inner, 1), 1).flatten(1, 2),
        ]
        return torch.cat(parts, 1)

    def pad(self, x: Tensor) -> Tensor:
        """Mirror images (n, H, H) at their edges: (n, P, P)."""
        after = self.padded - self.size - BEFORE
        return functional.pad(x[:, None], (BEFORE, after, BEFORE, after), mode="reflect")[:, 0]

    def _low_pass(self, u: Tensor, j: int) -> Tensor:
        """Average signals sampled every 2^j pixels: (..., P / 2^j, P / 2^j) to (..., h, h)."""
        rows, columns = self.get_buffer(f"rows{j}"), self.get_buffer(f"columns{j}")
        return torch.matmul(rows, torch.matmul(u, columns.T))

    def _fourier(self, x: Complex, sign: float, j: int) -> Complex:
        """Transform the last two axes: exp(-i) for sign 1, exp(+i), unscaled, for sign -1."""
        cos, sin = self.get_buffer(f"cos{j}"), sign * self.get_buffer(f"sin{j}")
        re, im = x[0] @ cos + x[1] @ sin, x[1] @ cos - x[0] @ sin
        return cos @ re + sin @ im, cos @ im - sin @ re

    def _response(self, x: Complex, j: int) -> Tensor:
        """|x * psi| at scale j, sampled every 2^j pixels, of a spectrum x."""
        wave, size = self.get_buffer(f"wave{j}"), self.padded >> j
        re, im = self._fourier((fold(x[0] * wave, 2**j), fold(x[1] * wave, 2**j)), -1.0, j)
        modulus = (re.square() + im.square()).clamp_min(NOTHING).sqrt()  # a root has no slope at zero
        found: Tensor = (modulus - math.sqrt(NOTHING)) / size**2
        return found


def mirrored_channels() -> NDArray[np.int64]:
    """Index of each channel in the mirrored image: an angle t pi / 8 becomes -t pi / 8."""
    turned = -np.arange(ANGLES) % ANGLES
    first = [1 + j * ANGLES + turned for j in range(SCALES)]
    second = 1 + (SCALES + turned[:, None]) * ANGLES + turned
    return np.concatenate([[0], *first, second.ravel()])


# ---- Coefficients normed within each order ----


class OrderNorms(nn.Module):
    """Rooted, centred and scaled coefficients of each order.

    With c the coefficients of an order, r = sqrt(max(c, share * max(mean(c), 0))), or r = c in an order that
    is not rooted; the result is (r - mean(r)) / max(|r - mean(r)| + added, least).

    Parameters
    ----------
    orders : (width,) order of each coordinate, in rising order.
    share : of the mean: what is less is raised to it.
    added : to the norm of each order.
    least : norm of an order that is scaled to one; shorter ones stay short.
    plain : orders, from the first on, that are not rooted.
    """

    members: Tensor
    first: Tensor
    averages: Tensor
    added: Tensor

    def __init__(
        self, orders: Tensor, share: float, added: tuple[float, ...], least: float, plain: int = 0
    ) -> None:
        super().__init__()
        members = functional.one_hot(orders).float().T.contiguous()
        self.register_buffer("members", members, persistent=False)
        self.register_buffer("first", members.argmax(1), persistent=False)
        self.register_buffer("averages", members / members.sum(1, keepdim=True), persistent=False)
        self.register_buffer("added", torch.tensor(added[: len(members)]), persistent=False)
        self.share, self.least, self.plain = share, least, plain
        self.bounds = np.array([0, *np.cumsum(members.sum(1).numpy())], np.int64)

    def compiled(self, rows: Floats) -> Floats:
        """Write over coefficients (n, width), record by record, and return them."""
        settings = np.array([self.share, self.least, self.plain, *self.added.tolist()], np.float32)
        norm_orders(rows.reshape(-1), self.bounds, settings, np.empty(SUMS, np.float32))
        return rows

    def forward(self, rows: Tensor) -> Tensor:
        """Map (n, width), by operations that have gradients and can be exported."""
        raised = rows.maximum(self._spread(self.share * self._means(rows).clamp_min(0.0)))
        if self.plain:
            kept = int(self.bounds[self.plain])
            roots = torch.cat([rows[:, :kept], raised[:, kept:].clamp_min(NOTHING).sqrt()], 1)
        else:
            roots = raised.clamp_min(NOTHING).sqrt()
        uneven = roots - self._spread(roots.index_select(1, self.first))
        centred = uneven - self._spread(self._means(uneven))
        norms = (centred.square() @ self.members.T).clamp_min(NOTHING).sqrt()
        return centred * self._spread((norms + self.added).clamp_min(self.least).reciprocal())

    def _means(self, rows: Tensor) -> Tensor:
        """Mean of each order of rows (n, width): (n, orders)."""
        return rows @ self.averages.T

    def _spread(self, values: Tensor) -> Tensor:
        """Put a value of each order (n, orders) in all places of that order: (n, width)."""
        return values @ self.members


def _total(x: Floats, start: int, stop: int, spare: Floats) -> np.float32:
    """Sum of some numbers: 16 sums of every 16th, then those, then the numbers that are left."""
    whole = start + (stop - start) // SUMS * SUMS
    for part in range(0, SUMS, LANES):
        total = every(ZERO)
        for i in range(start + part, whole, SUMS):
            total = total + load(x, i)
        store(spare, part, total)
    value = _joined(spare)
    for i in range(whole, stop):
        value += x[i]
    return value


def _joined(spare: Floats) -> np.float32:
    value = ZERO
    for part in range(SUMS):
        value += spare[part]
    return value


def _norm_orders(rows: Floats, bounds: NDArray[np.int64], settings: Floats, spare: Floats) -> None:
    """Root, centre and scale the coefficients (n, width) of each record, flat, in place.

    Parameters
    ----------
    rows : coefficients of one record after the other.
    bounds : where each order starts, then the width.
    settings : `share`, `least`, `plain` and `added` of `OrderNorms`.
    spare : 16 numbers to work on.
    """
    width, size, orders = bounds[len(bounds) - 1], len(rows), len(bounds) - 1
    x, sums = numbers(rows), numbers(spare)
    for record in range(0, size, width):
        for order in range(orders):
            start, stop = record + bounds[order], record + bounds[order + 1]
            count, whole = np.float32(stop - start), start + (stop - start) // SUMS * SUMS
            if order >= settings[2]:
                floor = settings[0] * max(_total(x, start, stop, sums) / count, ZERO)
                for i in range(start, whole, LANES):
                    store(x, i, root(larger(load(x, i), every(floor))))
                for i in range(whole, stop):
                    x[i] = np.sqrt(max(x[i], floor))
            first = x[start]
            for i in range(start, whole, LANES):
                store(x, i, load(x, i) - every(first))
            for i in range(whole, stop):
                x[i] -= first
            mean = _total(x, start, stop, sums) / count
            for part in range(0, SUMS, LANES):
                square = every(ZERO)
                for i in range(start + part, whole, SUMS):
                    centred = load(x, i) - every(mean)
                    store(x, i, centred)
                    square = fused(centred, centred, square)
                store(sums, part, square)
            length = _joined(sums)
            for i in range(whole, stop):
                x[i] -= mean
                length += x[i] * x[i]
            scale = np.float32(1.0) / max(np.sqrt(length) + settings[3 + order], settings[1])
            for i in range(start, whole, LANES):
                store(x, i, load(x, i) * every(scale))
            for i in range(whole, stop):
                x[i] *= scale


norm_orders = Compiled(_norm_orders)
