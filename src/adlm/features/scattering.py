"""Wavelet scattering of square images (Bruna and Mallat 2013): local, stable, and learnt from nothing.

With Morlet wavelets psi_(j, theta) at J dyadic scales and L angles, and a Gaussian phi of scale 2^J,

    order 0    x * phi
    order 1    |x * psi_(j1, theta1)| * phi
    order 2    ||x * psi_(j1, theta1)| * psi_(j2, theta2)| * phi      only for j2 > j1

sampled every 2^J pixels. The others of order 2 carry next to no energy and are not computed.

There are two forms. On a processor a compiled loop takes one image at a time, with the angles in the lanes of
vector instructions (`runtime.compiled`): Fourier transforms by fixed butterflies, so that this file fixes
every bit. For gradients, accelerators and ONNX files, a Fourier transform is two products with a matrix.

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

from adlm.errors import UserError
from adlm.features.tents import tent_means, tent_shares
from adlm.features.threads import map_records
from adlm.runtime.compiled import LANES, Compiled, Floats, Lanes, every, fused, load, numbers, root, store

SIGMA = 0.8  # spread of the finest wavelet's envelope, in pixels
XI = 3 * math.pi / 4  # centre frequency of the finest wavelet
GRID = float(1 << 22)  # steps in one unit of a filter
ROWS = 32  # images that a thread takes
COMPLEX = 2 * LANES  # numbers in a complex number of every lane: eight real parts, eight imaginary parts
ZERO, HALF = np.float32(0.0), np.float32(-0.5)
NOTHING = 1e-30  # a squared modulus
ROOT_3_4 = np.float32(math.sqrt(0.75))
ROOT_1_2 = np.float32(math.sqrt(0.5))

# Places in the integers of a plan: sizes, then places in its table, for each scale, then in what it works on.
MOST_SCALES, MOST_PASSES = 6, 8
SIDE, SIZE, SCALES, ANGLES, TALL, WIDE, DENSER, BEFORE, GAIN = range(9)
SPECTRUM, SPECTRA, PRODUCT, MODULI, WORK, LINE, CELLS, COLUMNS, SPARE = range(9, 18)
TURNS, UNITY, FIRST, ROW_WEIGHTS, COLUMN_WEIGHTS, ROW_BANDS, COLUMN_BANDS = range(
    18, 18 + 7 * MOST_SCALES, MOST_SCALES
)
SECOND = 18 + 7 * MOST_SCALES
RADICES = SECOND + MOST_SCALES**2
HEADER = RADICES + MOST_SCALES * MOST_PASSES

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


# ---- The compiled form: Fourier transforms of eight signals at once ----
#
# Everything lies in flat arrays: `s` is what is worked on, `table` holds filters, weights and twiddle
# factors, and `at` holds sizes and places in both. A complex number of eight lanes is eight real parts and
# then eight imaginary parts.


@cache
def radices_of(size: int) -> tuple[int, ...]:
    """Split a size into the radices of its transform's passes: few passes, of radices that are alike."""
    if size == 1:
        return ()
    primes = [n for n in range(5, size + 1) if size % n == 0 and all(n % m for m in range(2, n))]
    options = [(r, *radices_of(size // r)) for r in (8, 6, 4, 3, 2, *primes) if size % r == 0]
    return min(options, key=lambda found: (len(found), max(found)))


def turns_of(size: int) -> Floats:
    """Twiddle factors exp(-2 pi i j p / n) of every pass, after each other, then roots of unity of `size`."""
    factors: list[complex] = []
    n = size
    for radix in radices_of(size):
        factors += [np.exp(-2j * np.pi * j * p / n) for p in range(n // radix) for j in range(1, radix)]
        n //= radix
    factors += [np.exp(-2j * np.pi * j / size) for j in range(size)]
    values = np.array(factors)
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


def _turn(s: Floats, o: int, re: Lanes, im: Lanes, table: Floats, t: int) -> None:
    """Store a complex number times a twiddle factor."""
    c, w = table[t], table[t + 1]
    store(s, o, fused(every(-w), im, every(c) * re))
    store(s, o + LANES, fused(every(w), re, every(c) * im))


def _pass_three(
    s: Floats, i: int, i_step: int, o: int, o_step: int, m: int, span: int, table: Floats, t: int
) -> None:
    """One pass of radix 3."""
    leg, ahead = i_step * span * m, o_step * span
    for p in range(m):
        for q in range(span):
            ar, ai, br, bi, cr, ci = _three(s, i + i_step * (q + span * p), leg)
            to, turn = o + o_step * (q + 3 * span * p), t + 4 * p
            _keep(s, to, ar, ai)
            if p == 0:
                _keep(s, to + ahead, br, bi)
                _keep(s, to + 2 * ahead, cr, ci)
            else:
                _turn(s, to + ahead, br, bi, table, turn)
                _turn(s, to + 2 * ahead, cr, ci, table, turn + 2)


def _pass_four(
    s: Floats, i: int, i_step: int, o: int, o_step: int, m: int, span: int, table: Floats, t: int
) -> None:
    """One pass of radix 4."""
    leg, ahead = i_step * span * m, o_step * span
    for p in range(m):
        for q in range(span):
            ar, ai, br, bi, cr, ci, dr, di = _four(s, i + i_step * (q + span * p), leg)
            to, turn = o + o_step * (q + 4 * span * p), t + 6 * p
            _keep(s, to, ar, ai)
            if p == 0:
                _keep(s, to + ahead, br, bi)
                _keep(s, to + 2 * ahead, cr, ci)
                _keep(s, to + 3 * ahead, dr, di)
            else:
                _turn(s, to + ahead, br, bi, table, turn)
                _turn(s, to + 2 * ahead, cr, ci, table, turn + 2)
                _turn(s, to + 3 * ahead, dr, di, table, turn + 4)


def _pass_six(
    s: Floats, i: int, i_step: int, o: int, o_step: int, m: int, span: int, table: Floats, t: int
) -> None:
    """One pass of radix 6: a transform of three of the places 0, 2, 4, one of 3, 5, 1, and three of two."""
    leg, ahead = i_step * span * m, o_step * span
    for p in range(m):
        for q in range(span):
            a = i + i_step * (q + span * p)
            er, ei, fr, fi, gr, gi = _three(s, a, 2 * leg)
            br, bi, cr, ci = (
                load(s, a + 5 * leg),
                load(s, a + 5 * leg + LANES),
                load(s, a + leg),
                load(s, a + leg + LANES),
            )
            ar, ai = load(s, a + 3 * leg), load(s, a + 3 * leg + LANES)
            sr, si = br + cr, bi + ci
            dr, di = (br - cr) * every(ROOT_3_4), (bi - ci) * every(ROOT_3_4)
            mr, mi = fused(every(HALF), sr, ar), fused(every(HALF), si, ai)
            hr, hi, jr, ji, kr, ki = ar + sr, ai + si, mr + di, mi - dr, mr - di, mi + dr
            to, turn = o + o_step * (q + 6 * span * p), t + 10 * p
            _keep(s, to, er + hr, ei + hi)
            if p == 0:
                _keep(s, to + ahead, fr - jr, fi - ji)
                _keep(s, to + 2 * ahead, gr + kr, gi + ki)
                _keep(s, to + 3 * ahead, er - hr, ei - hi)
                _keep(s, to + 4 * ahead, fr + jr, fi + ji)
                _keep(s, to + 5 * ahead, gr - kr, gi - ki)
            else:
                _turn(s, to + ahead, fr - jr, fi - ji, table, turn)
                _turn(s, to + 2 * ahead, gr + kr, gi + ki, table, turn + 2)
                _turn(s, to + 3 * ahead, er - hr, ei - hi, table, turn + 4)
                _turn(s, to + 4 * ahead, fr + jr, fi + ji, table, turn + 6)
                _turn(s, to + 5 * ahead, gr - kr, gi - ki, table, turn + 8)


def _pass_eight(
    s: Floats, i: int, i_step: int, o: int, o_step: int, m: int, span: int, table: Floats, t: int
) -> None:
    """One pass of radix 8: transforms of four, of the even and of the odd places, then four of two."""
    leg, ahead = i_step * span * m, o_step * span
    for p in range(m):
        for q in range(span):
            a = i + i_step * (q + span * p)
            ar, ai, br, bi, cr, ci, dr, di = _four(s, a, 2 * leg)
            er, ei, fr, fi, gr, gi, hr, hi = _four(s, a + leg, 2 * leg)
            half = every(ROOT_1_2)
            jr, ji = half * (fr + fi), half * (fi - fr)  # times (1 - i) / sqrt 2
            kr, ki = half * (hi - hr), half * (hr + hi)  # times (1 + i) / sqrt 2, the imaginary part negative
            to, turn = o + o_step * (q + 8 * span * p), t + 14 * p
            _keep(s, to, ar + er, ai + ei)
            if p == 0:
                _keep(s, to + ahead, br + jr, bi + ji)
                _keep(s, to + 2 * ahead, cr + gi, ci - gr)
                _keep(s, to + 3 * ahead, dr + kr, di - ki)
                _keep(s, to + 4 * ahead, ar - er, ai - ei)
                _keep(s, to + 5 * ahead, br - jr, bi - ji)
                _keep(s, to + 6 * ahead, cr - gi, ci + gr)
                _keep(s, to + 7 * ahead, dr - kr, di + ki)
            else:
                _turn(s, to + ahead, br + jr, bi + ji, table, turn)
                _turn(s, to + 2 * ahead, cr + gi, ci - gr, table, turn + 2)
                _turn(s, to + 3 * ahead, dr + kr, di - ki, table, turn + 4)
                _turn(s, to + 4 * ahead, ar - er, ai - ei, table, turn + 6)
                _turn(s, to + 5 * ahead, br - jr, bi - ji, table, turn + 8)
                _turn(s, to + 6 * ahead, cr - gi, ci + gr, table, turn + 10)
                _turn(s, to + 7 * ahead, dr - kr, di + ki, table, turn + 12)


def _pass_any(
    s: Floats,
    i: int,
    i_step: int,
    o: int,
    o_step: int,
    m: int,
    span: int,
    table: Floats,
    t: int,
    radix: int,
    unity: int,
    spare: int,
) -> None:
    """One pass of any radix, term by term; `unity` is the place of the roots of unity of the whole size.

    `spare` is one for the result.
    """
    leg, ahead, stride = i_step * span * m, o_step * span, span * m
    for p in range(m):
        for q in range(span):
            a, to = i + i_step * (q + span * p), o + o_step * (q + radix * span * p)
            for k in range(radix):
                re, im = load(s, a), load(s, a + LANES)
                for j in range(1, radix):
                    w = unity + 2 * stride * (j * k % radix)
                    br, bi = load(s, a + j * leg), load(s, a + j * leg + LANES)
                    re = fused(every(-table[w + 1]), bi, fused(every(table[w]), br, re))
                    im = fused(every(table[w + 1]), br, fused(every(table[w]), bi, im))
                if p == 0 or k == 0:
                    _keep(s, spare + k * COMPLEX, re, im)
                else:
                    _turn(s, spare + k * COMPLEX, re, im, table, t + 2 * ((radix - 1) * p + k - 1))
            for k in range(radix):
                _keep(s, to + k * ahead, load(s, spare + k * COMPLEX), load(s, spare + k * COMPLEX + LANES))


def _transform(
    s: Floats, start: int, step: int, out: int, ahead: int, table: Floats, at: Integers, level: int
) -> None:
    """Fourier transform of a line of complex numbers in every lane (Stockham's order).

    Parameters
    ----------
    s : numbers that are read, written and worked on.
    start, step : place of the first number, and from one to the next.
    out, ahead : the same of the result, which may lie where the line lies.
    table, at : of the plan.
    level : the line has P / 2^level numbers.
    """
    size, turn, work = at[SIZE] >> level, at[TURNS + level], at[WORK]
    n, span, before = size, 1, 0
    unity = at[UNITY + level]
    for index in range(MOST_PASSES):
        radix = at[RADICES + level * MOST_PASSES + index]
        m = n // radix
        i, i_step = work + before, COMPLEX
        if index == 0:
            i, i_step = start, step
        before = COMPLEX * size - before
        o, o_step = work + before, COMPLEX
        if m == 1:
            o, o_step = out, ahead
        if radix == 8:
            _pass_eight(s, i, i_step, o, o_step, m, span, table, turn)
        elif radix == 6:
            _pass_six(s, i, i_step, o, o_step, m, span, table, turn)
        elif radix == 4:
            _pass_four(s, i, i_step, o, o_step, m, span, table, turn)
        elif radix == 3:
            _pass_three(s, i, i_step, o, o_step, m, span, table, turn)
        else:
            _pass_any(s, i, i_step, o, o_step, m, span, table, turn, radix, unity, at[SPARE])
        turn += 2 * (radix - 1) * m
        n, span = m, span * radix
        if m == 1:
            break


def _pool(s: Floats, table: Floats, at: Integers, j: int) -> None:
    """Average columns of moduli of scale j, which were added up, over rows: the cells of every lane."""
    tall, w = at[SIZE] >> j, at[WIDE]
    for a in range(at[TALL]):
        weights, band = at[ROW_WEIGHTS + j] + a * tall, at[ROW_BANDS + j] + 2 * a
        for b in range(w):
            total, column = every(ZERO), at[COLUMNS] + b * tall * LANES
            for y in range(at[band], at[band + 1]):
                total = fused(every(table[weights + y]), load(s, column + y * LANES), total)
            store(s, at[CELLS] + (a * w + b) * LANES, total)


def _moduli(s: Floats, table: Floats, at: Integers, j: int, kept: bool) -> None:
    """Transform the folded spectrum of scale j back, and pool its moduli; keep them if told to."""
    level = max(j - at[DENSER], 0)
    tall, wide = at[SIZE] >> j, at[SIZE] >> level
    y, line, u, columns = at[PRODUCT], at[LINE], at[MODULI], at[COLUMNS]
    for row in range(tall):
        place = y + row * wide * COMPLEX
        _transform(s, place, COMPLEX, place, COMPLEX, table, at, level)
    for place in range(columns, columns + tall * at[WIDE] * LANES, LANES):
        store(s, place, every(ZERO))
    for x in range(wide):
        _transform(s, y + x * COMPLEX, wide * COMPLEX, line, COMPLEX, table, at, j)
        for row in range(tall):
            re, im = load(s, line + row * COMPLEX), load(s, line + row * COMPLEX + LANES)
            store(s, line + row * LANES, root(fused(im, im, re * re)))  # before what is read next
        if kept:
            for row in range(tall):
                store(s, u + (row * wide + x) * LANES, load(s, line + row * LANES))
        band = at[COLUMN_BANDS + j] + 2 * x
        for b in range(at[band], at[band + 1]):
            share, column = every(table[at[COLUMN_WEIGHTS + j] + b * wide + x]), columns + b * tall * LANES
            for row in range(0, tall * LANES, LANES):
                store(s, column + row, fused(share, load(s, line + row), load(s, column + row)))
    _pool(s, table, at, j)


def _spread(s: Floats, out: Floats, place: int, stride: int, at: Integers) -> None:
    """Write the cells of each lane to the coefficients: together for a lane, lanes `stride` apart."""
    for cell in range(at[TALL] * at[WIDE]):
        for angle in range(at[ANGLES]):
            out[place + angle * stride + cell] = s[at[CELLS] + cell * LANES + angle]


def _spectrum(s: Floats, image: Floats, table: Floats, at: Integers) -> None:
    """Fourier transform of a padded image (P, P): eight columns in the lanes, then eight frequencies.

    (kx, ky): real parts of eight ky after each other, then their imaginary parts.
    """
    size, line = at[SIZE], at[LINE]
    groups = (size + LANES - 1) // LANES
    for group in range(groups):
        kept = min(size - group * LANES, LANES)
        for y in range(size):
            place = line + y * COMPLEX
            _keep(s, place, every(ZERO), every(ZERO))
            for x in range(kept):
                s[place + x] = image[y * size + group * LANES + x]
        _transform(s, line, COMPLEX, line, COMPLEX, table, at, 0)
        for x in range(kept):
            place = at[SPECTRUM] + (group * LANES + x) * groups * COMPLEX
            for ky in range(size):
                to = place + ky // LANES * COMPLEX + ky % LANES
                s[to] = s[line + ky * COMPLEX + x]
                s[to + LANES] = s[line + ky * COMPLEX + LANES + x]
    for g in range(groups):
        place = at[SPECTRUM] + g * COMPLEX
        _transform(s, place, groups * COMPLEX, place, groups * COMPLEX, table, at, 0)


def _first_product(s: Floats, table: Floats, at: Integers, j: int) -> None:
    """Multiply the spectrum of an image with the wavelets of scale j, one angle a lane, and fold it.

    Real and imaginary parts change places: then a forward transform is the inverse, up to that exchange.
    """
    size = at[SIZE]
    groups = (size + LANES - 1) // LANES
    tall, wide = size >> j, size >> max(j - at[DENSER], 0)
    for ky in range(size):
        line = at[PRODUCT] + ky % tall * wide * COMPLEX
        source = at[SPECTRUM] + ky // LANES * COMPLEX + ky % LANES
        for fold in range(0, size, wide):
            for kx in range(wide):
                place, waves = (
                    source + (fold + kx) * groups * COMPLEX,
                    load(table, at[FIRST + j] + (ky * size + fold + kx) * LANES),
                )
                re, im, to = waves * every(s[place]), waves * every(s[place + LANES]), line + kx * COMPLEX
                if ky >= tall or fold > 0:
                    re, im = load(s, to + LANES) + re, load(s, to) + im
                _keep(s, to, im, re)


def _second_product(s: Floats, table: Floats, at: Integers, j1: int, j2: int, angle: int) -> None:
    """Multiply spectra of moduli of scale j1, one angle a lane, with a wavelet of scale j2, and fold them."""
    size = at[SIZE] >> j1
    tall, wide = at[SIZE] >> j2, at[SIZE] >> max(j2 - at[DENSER], 0)
    waves = at[SECOND + j1 * at[SCALES] + j2] + angle * size * size
    for ky in range(size):
        line = at[PRODUCT] + ky % tall * wide * COMPLEX
        for fold in range(0, size, wide):
            wave, source = waves + ky * size + fold, at[SPECTRA] + (ky * size + fold) * COMPLEX
            if ky < tall and fold == 0:
                for kx in range(wide):
                    weight, place, to = every(table[wave + kx]), source + kx * COMPLEX, line + kx * COMPLEX
                    _keep(s, to, weight * load(s, place + LANES), weight * load(s, place))
            else:
                for kx in range(wide):
                    weight, place, to = every(table[wave + kx]), source + kx * COMPLEX, line + kx * COMPLEX
                    store(s, to, fused(weight, load(s, place + LANES), load(s, to)))
                    store(s, to + LANES, fused(weight, load(s, place), load(s, to + LANES)))


def _spectra(s: Floats, table: Floats, at: Integers, j: int) -> None:
    """Fourier transforms of the moduli of scale j."""
    size, line, spectra = at[SIZE] >> j, at[LINE], at[SPECTRA]
    for row in range(size):
        for x in range(size):
            _keep(s, line + x * COMPLEX, load(s, at[MODULI] + (row * size + x) * LANES), every(ZERO))
        _transform(s, line, COMPLEX, spectra + row * size * COMPLEX, COMPLEX, table, at, j)
    for x in range(size):
        column = spectra + x * COMPLEX
        _transform(s, column, size * COMPLEX, column, size * COMPLEX, table, at, j)


def _average(
    s: Floats, image: Floats, corner: Any, out: Floats, place: int, table: Floats, at: Integers
) -> None:
    """Write the cells of a padded image, less its corner: eight columns at a time, then cell by cell."""
    size, w, line = at[SIZE], at[WIDE], at[LINE]
    for a in range(at[TALL]):
        band, weights = at[ROW_BANDS] + 2 * a, at[ROW_WEIGHTS] + a * size
        for x in range(0, size, LANES):
            total = every(ZERO)
            for y in range(at[band], at[band + 1]):
                total = fused(every(table[weights + y]), load(image, y * size + x), total)
            store(s, line + x, total)
        for b in range(w):
            cell = corner * table[at[GAIN]]
            for x in range(size):
                cell += table[at[COLUMN_WEIGHTS] + b * size + x] * s[line + x]
            out[place + a * w + b] = cell


def _scatter_image(
    images: Floats, n: int, out: Floats, s: Floats, padded: Floats, table: Floats, at: Integers
) -> None:
    """Write the coefficients (channels, h, w) of the n-th image."""
    side, size, scales, angles = at[SIDE], at[SIZE], at[SCALES], at[ANGLES]
    count, before = at[TALL] * at[WIDE], at[BEFORE]
    channels = 1 + scales * angles + angles * angles * scales * (scales - 1) // 2
    # Wavelets ignore a constant, and averages keep it. Less its corner, a flat image is exactly zero.
    corner = images[n * side * side]
    for row in range(size):
        a = abs(row - before)
        a = n * side + min(a, 2 * (side - 1) - a)
        for column in range(size):
            b = abs(column - before)
            padded[row * size + column] = images[a * side + min(b, 2 * (side - 1) - b)] - corner
    place = n * channels * count
    _average(s, padded, corner, out, place, table, at)
    _spectrum(s, padded, table, at)
    second = 1 + scales * angles
    for j1 in range(scales):
        _first_product(s, table, at, j1)
        _moduli(s, table, at, j1, j1 + 1 < scales)
        _spread(s, out, place + (1 + j1 * angles) * count, count, at)
        if j1 + 1 == scales:
            continue
        _spectra(s, table, at, j1)
        coarser = scales - 1 - j1
        for j2 in range(j1 + 1, scales):
            for angle in range(angles):
                _second_product(s, table, at, j1, j2, angle)
                _moduli(s, table, at, j2, False)
                channel = second + (j2 - j1 - 1) * angles + angle
                _spread(s, out, place + channel * count, coarser * angles * count, at)
        second += angles * angles * coarser


def _scatter(images: Floats, out: Floats, s: Floats, padded: Floats, table: Floats, at: Integers) -> None:
    """Write the coefficients (n, channels, h, w) of images (n, H, H), all flat, image by image.

    Parameters
    ----------
    images, out : flat.
    s, padded : to work on; (P, P) for a padded image.
    table, at : of the plan.
    """
    count = len(images) // (at[SIDE] * at[SIDE])
    read, written, places = numbers(images), numbers(out), numbers(at)
    work, image, weights = numbers(s), numbers(padded), numbers(table)
    for n in range(count):
        _scatter_image(read, n, written, work, image, weights, places)


scatter = Compiled(_scatter)


class Pooling(NamedTuple):
    """Weights of the rows, and of the columns, of a modulus of each scale in each cell.

    Attributes
    ----------
    rows : for each scale j, (h, P / 2^j).
    columns : for each scale j, (w, P / 2^max(j - denser, 0)).
    denser : 1 if columns are sampled twice as densely as rows.
    """

    rows: list[NDArray[np.float64]]
    columns: list[NDArray[np.float64]]
    denser: int = 0


class Plan:
    """What the compiled form reads: `table` of numbers, and `at`, sizes and places.

    Parameters
    ----------
    wavelets : (J, L, P, P) spectra, which are real.
    side : H of the images.
    before : pixels by which an image is mirrored in front.
    pooling : weights of the cells.
    """

    def __init__(self, wavelets: NDArray[np.float64], side: int, before: int, pooling: Pooling) -> None:
        scales, angles, size, _ = wavelets.shape
        self.cells = len(pooling.rows[0]), len(pooling.columns[0])
        self.channels = 1 + scales * angles + angles * angles * scales * (scales - 1) // 2
        self.side = side
        at = np.zeros(HEADER, np.int64)
        at[[SIDE, SIZE, SCALES, ANGLES, TALL, WIDE]] = side, size, scales, angles, *self.cells
        at[[DENSER, BEFORE]] = pooling.denser, before
        parts, bands = [np.zeros(0)], [at]

        def kept(values: NDArray[Any]) -> int:
            parts.append(values.ravel())
            return sum(len(part) for part in parts[:-1])

        def banded(ends: list[list[int]]) -> int:
            bands.append(np.array(ends, np.int64).ravel())
            return sum(len(part) for part in bands[:-1])

        at[GAIN] = kept(pooling.rows[0][0].sum() * pooling.columns[0][0].sum(keepdims=True))
        for j in range(scales):
            n = size >> j
            radices = radices_of(n)
            at[RADICES + j * MOST_PASSES : RADICES + j * MOST_PASSES + len(radices)] = radices
            turns = turns_of(n)
            at[TURNS + j] = kept(turns)
            at[UNITY + j] = at[TURNS + j] + len(turns) - 2 * n
            # Folding divides by the number of aliases, and the inverse transform by the numbers left.
            waves = np.zeros((size * size, LANES))
            waves[:, :angles] = wavelets[j].reshape(angles, -1).T / size**2
            at[FIRST + j] = kept(waves)
            for j2 in range(j + 1, scales):
                # A wavelet for signals sampled every 2^j pixels is the folded full one.
                folded = wavelets[j2].reshape(angles, 1 << j, n, 1 << j, n).sum((1, 3))
                at[SECOND + j * scales + j2] = kept(folded / n**2)
            at[ROW_WEIGHTS + j], at[COLUMN_WEIGHTS + j] = kept(pooling.rows[j]), kept(pooling.columns[j])
            at[ROW_BANDS + j] = banded([_band(row) for row in pooling.rows[j]])
            at[COLUMN_BANDS + j] = banded([_band(column) for column in pooling.columns[j].T])
        rooms = {
            SPECTRUM: size * -(-size // LANES) * COMPLEX,
            SPECTRA: size * size * COMPLEX,
            PRODUCT: size * size * COMPLEX,
            MODULI: size * size * LANES,
            WORK: 2 * size * COMPLEX,
            LINE: size * COMPLEX,
            CELLS: self.cells[0] * self.cells[1] * LANES,
            COLUMNS: size * self.cells[1] * LANES,
            SPARE: size * COMPLEX,  # for a pass of any radix
        }
        self.room = 0
        for name, room in rooms.items():
            at[name] = self.room
            self.room += room
        self.table, self.at = np.concatenate(parts).astype(np.float32), np.concatenate(bands)

    def __call__(self, images: Floats) -> Floats:
        """Coefficients (n, channels, h, w) of images (n, H, H)."""
        out = np.empty((len(images), self.channels, *self.cells), np.float32)
        s, padded = np.empty(self.room, np.float32), np.zeros(int(self.at[SIZE]) ** 2 + LANES, np.float32)
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
    J : number of scales; the output is sampled every 2^J pixels.
    L : number of angles in [0, pi), at most 8.

    Notes
    -----
    The image is mirrored at its edges by 2^(J-1) pixels and then treated as a torus. Wavelets are scaled by
    one common factor so that |phi|^2 + sum |psi|^2 <= 1 at every frequency, which makes the transform
    non-expansive (times 2^J, for the sampling). Channels come in the order (0), (j1, theta1),
    (j1, theta1, j2, theta2); `orders` gives the order of each.
    """

    wavelets: Tensor

    def __init__(self, size: int, J: int = 2, L: int = 8) -> None:
        super().__init__()
        if not 1 <= J <= MOST_SCALES or not 1 <= L <= LANES or size < 2**J:
            raise UserError(
                f"scattering needs 1 to {MOST_SCALES} scales J, 1 to {LANES} angles L and images of at least "
                f"2^J pixels a side (got J={J}, L={L} and {size} pixels)"
            )
        self.size, self.J, self.L = size, J, L
        step = 2**J
        self.output = (math.ceil(size / step),) * 2
        self.padded = step * self.output[0] + step
        angles = [math.pi * t / L for t in range(L)]
        spectra = np.stack(
            [
                [np.fft.fft2(morlet((self.padded,) * 2, j, angle, min(1.0, 4 / L))) for angle in angles]
                for j in range(J)
            ]
        )
        spectra *= self._frame_factor(spectra)
        self.register_buffer("wavelets", torch.from_numpy(_on_grid(spectra).astype(np.complex64)))
        for j in range(J):
            for name in ("rows", "columns"):
                self.register_buffer(f"{name}{j}", self._average(j))
        self._prepare()
        self.channels = 1 + J * L + L * L * J * (J - 1) // 2

    def _prepare(self) -> None:
        """Store what both forms read; it is derived from the buffers, and so is not in the fingerprint."""
        waves = self.wavelets.real.double()
        self.plan = self.plan_for(Pooling(self.weights(), self.weights()))
        self.gain = float(self.weights()[0][0].sum() ** 2)  # of a constant image
        for j1 in range(self.J):
            size = self.padded >> j1
            turns = 2 * np.pi * np.outer(np.arange(size), np.arange(size)) / size
            for name, values in (("cos", np.cos(turns)), ("sin", np.sin(turns))):
                self.register_buffer(f"{name}{j1}", torch.from_numpy(values).float(), persistent=False)
            self.register_buffer(f"wave{j1}", waves[j1].float(), persistent=False)
            for j2 in range(j1 + 1, self.J):
                # A wavelet for signals sampled every 2^j1 pixels is the folded full one.
                folded = (fold(waves[j2], 2**j1) * 4**j1).float()
                self.register_buffer(f"wave{j1}_{j2}", folded, persistent=False)

    def weights(self) -> list[NDArray[np.float64]]:
        """Weights of rows, or of columns, of moduli of each scale in each output: (h, P / 2^j)."""
        return [self.get_buffer(f"rows{j}").double().numpy() for j in range(self.J)]

    def plan_for(self, pooling: Pooling) -> Plan:
        """The compiled form, with other cells."""
        return Plan(self.wavelets.real.double().numpy(), self.size, 2 ** (self.J - 1), pooling)

    @property
    def orders(self) -> Tensor:
        """Order of each output channel of a grey image: (channels,)."""
        second = self.channels - 1 - self.J * self.L
        return torch.tensor([0] + [1] * (self.J * self.L) + [2] * second)

    def _frame_factor(self, spectra: NDArray[np.complex128]) -> float:
        low = np.fft.fft(gaussian(self.padded, SIGMA * 2 ** (self.J - 1))).real
        remaining = 1 - (low[:, None] * low[None]) ** 2
        energy = (np.abs(spectra) ** 2).sum((0, 1))
        mirrored = np.roll(energy[::-1, ::-1], (1, 1), (0, 1))
        both = (energy + mirrored) / 2
        used = both > 1e-9 * both.max()
        return float(np.sqrt((remaining[used] / both[used]).min()))

    def _average(self, j: int) -> Tensor:
        """Matrix that averages a signal sampled every 2^j pixels and samples it every 2^J: (h, P / 2^j)."""
        # The coarse signal has 2^j times fewer samples, so its Gaussian is that much narrower.
        kernel = gaussian(self.padded // 2**j, SIGMA * 2 ** (self.J - 1 - j))
        rows = [np.roll(kernel, 2 ** (self.J - j) * (i + 1)) for i in range(self.output[0])]
        return torch.from_numpy(_on_grid(np.stack(rows)).astype(np.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, H, H) or (n, C, H, H) to (n, C * channels, H / 2^J, H / 2^J), rounded up."""
        if x.shape[-2:] != (self.size, self.size) or x.ndim not in (3, 4):
            raise UserError(
                f"scattering was built for images of {self.size} x {self.size} pixels, "
                f"as (n, H, H) or (n, C, H, H) (got an array of shape {tuple(x.shape)})"
            )
        flat = x.reshape(-1, self.size, self.size).float()
        shape = (self.channels, *self.output)
        found = map_records(flat, shape, self.plan, self.products, ROWS)
        return found.reshape(len(x), -1, *self.output)

    # ---- The form for gradients, accelerators and ONNX files ----

    def products(self, x: Tensor) -> Tensor:
        """Coefficients of images (n, H, H) by products with Fourier matrices: (n, channels, h, h)."""
        corner = x[:, :1, :1]  # a flat image less its corner is exactly zero
        images = self.pad(x - corner)
        parts = [(self._low_pass(images, 0) + corner * self.gain)[:, None]]
        spectrum = self._fourier((images[:, None], torch.zeros_like(images[:, None])), 1.0, 0)
        firsts = [self._response(spectrum, f"wave{j}", 0, j) for j in range(self.J)]
        parts += [self._low_pass(u, j) for j, u in enumerate(firsts)]
        for j1, u in enumerate(firsts[:-1]):
            inner = self._fourier((u[:, :, None], torch.zeros_like(u[:, :, None])), 1.0, j1)
            seconds = [
                self._low_pass(self._response(inner, f"wave{j1}_{j2}", j1, j2), j2)
                for j2 in range(j1 + 1, self.J)
            ]
            parts.append(torch.stack(seconds, 2).reshape(-1, self.L**2 * len(seconds), *self.output))
        return torch.cat(parts, 1)

    def pad(self, x: Tensor) -> Tensor:
        """Mirror images (n, H, H) at their edges: (n, P, P)."""
        before = 2 ** (self.J - 1)
        after = self.padded - self.size - before
        return nn.functional.pad(x[:, None], (before, after, before, after), mode="reflect")[:, 0]

    def _low_pass(self, u: Tensor, j: int) -> Tensor:
        """Average signals sampled every 2^j pixels: (..., P / 2^j, P / 2^j) to (..., h, h)."""
        rows, columns = self.get_buffer(f"rows{j}"), self.get_buffer(f"columns{j}")
        return torch.matmul(rows, torch.matmul(u, columns.T))

    def _fourier(self, x: Complex, sign: float, j: int) -> Complex:
        """Transform the last two axes: exp(-i) for sign 1, exp(+i), unscaled, for sign -1."""
        cos, sin = self.get_buffer(f"cos{j}"), sign * self.get_buffer(f"sin{j}")
        re, im = x[0] @ cos + x[1] @ sin, x[1] @ cos - x[0] @ sin
        return cos @ re + sin @ im, cos @ im - sin @ re

    def _response(self, x: Complex, wave: str, j1: int, j2: int) -> Tensor:
        """|x * psi|, sampled every 2^j2 pixels, of a spectrum x of what is sampled every 2^j1."""
        weights, step, size = self.get_buffer(wave), 2 ** (j2 - j1), self.padded >> j2
        re, im = self._fourier((fold(x[0] * weights, step), fold(x[1] * weights, step)), -1.0, j2)
        modulus = (re.square() + im.square()).clamp_min(NOTHING).sqrt()  # a root has no slope at zero
        found: Tensor = (modulus - math.sqrt(NOTHING)) / size**2
        return found


def mirrored_channels(J: int, L: int) -> NDArray[np.int64]:
    """Index of each scattering channel in the mirrored image: an angle t pi / L becomes -t pi / L."""
    turned = [-angle % L for angle in range(L)]
    first = [1 + j * L + angle for j in range(J) for angle in turned]
    second, start = [], 1 + J * L
    for j in range(J - 1):
        coarser = J - 1 - j
        second += [
            start + (one * coarser + scale) * L + two
            for one in turned
            for scale in range(coarser)
            for two in turned
        ]
        start += L * coarser * L
    return np.array([0, *first, *second])


class FlipScattering(Scattering):
    """Scattering averaged over cells and over the horizontal flip: (n, H, H) -> (n, channels, rows, left).

    The coefficients, of two scales, are averaged over half as many cells a side, which overlap (`tents`), and
    over an image and its mirror image. The left half is kept; the right half mirrors it, up to sampling. The
    compiled form does not transform the mirror image: its |x * psi_theta| is the mirrored |x * psi_-theta| of
    the image. A second set of cells averages that where the mirror image is sampled.

    Parameters
    ----------
    size : side of the images.
    L : number of angles.
    """

    def __init__(self, size: int, L: int = 8) -> None:
        super().__init__(size, 2, L)
        self.cells = self.output[0] // 2, (self.output[0] // 2 + 1) // 2
        self.mirrored = mirrored_channels(2, L)
        rows, columns = [], []
        for j, weights in enumerate(self.weights()):
            cells = tent_shares(self.output[0], self.cells[0]) @ weights
            dense = np.zeros((self.cells[1], self.padded))
            dense[:, :: 2**j] = cells[: self.cells[1]] / 2
            rows.append(cells)
            columns.append(np.concatenate([dense, dense[:, ::-1]]))
        self.plan = self.plan_for(Pooling(rows, columns, denser=1))

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, H, H) to cells (n, channels, rows, left)."""
        return map_records(x, (self.channels, *self.cells), self.compiled, self.both, ROWS)

    def compiled(self, images: Floats) -> Floats:
        """Map images, one by one."""
        cells, left = self.plan(images), self.cells[1]
        own = np.ascontiguousarray(cells[..., :left])
        own += cells[..., left:].take(self.mirrored, 1)
        return own

    def both(self, x: Tensor) -> Tensor:
        """Map images and their mirror images, by PyTorch."""
        plain, mirrored = (tent_means(self.products(view), self.cells[0]) for view in (x, x.flip(2)))
        return 0.5 * (plain + mirrored)[..., : self.cells[1]]
