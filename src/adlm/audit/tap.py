"""Where the audit stands between a mechanism and its noise.

Every mechanism draws from `adlm.curator.noise` and adds what it gets. Inside `tapped`, whoever calls
a noise function gets a stand-in that sees what it is added to: that is the mechanism's input. The code
under audit is the product's own, unchanged; noise drawn in any other way is noticed, because the source that
the code is given refuses to give a single byte.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from adlm.curator import noise
from adlm.curator.ledger import Ledger

Integers = npt.NDArray[np.int64]
Shape = int | tuple[int, ...]
Draw = Callable[[str, Shape, noise.Scale, noise.Source], Any]  # the first argument names the mechanism
NAMES = ("laplace", "gaussian", "radial")
_ORIGINAL: dict[str, Any] = {name: getattr(noise, name) for name in NAMES}


def draw(mechanism: str, shape: Shape, scale: noise.Scale, source: noise.Source) -> Integers:
    """Draw the product's own noise; for `radial` the last axis is the width of a row."""
    if mechanism == "radial":
        assert isinstance(shape, tuple)
        rows = _ORIGINAL["radial"](math.prod(shape[:-1]), shape[-1], scale, source)
        return np.asarray(rows.reshape(shape))
    return np.asarray(_ORIGINAL[mechanism](shape, scale, source))


@dataclass(frozen=True)
class Call:
    """One use of noise: what went in, what came out, and how much was charged by then.

    Attributes
    ----------
    mechanism : `laplace`, `gaussian` or `radial`.
    scale : of the noise, in grid steps.
    inputs : integers that the noise was added to; zeros when it was used alone.
    output : their sum with the noise.
    charged : number of charges in the ledger when the noise was drawn.
    """

    mechanism: str
    scale: Fraction
    inputs: Integers
    output: Integers
    charged: int


class Sealed(noise.Source):
    """A source that gives nothing: whoever asks it draws noise past the audit."""

    def __init__(self) -> None:
        super().__init__(bytes(32), seeded=False)

    def octets(self, count: int) -> npt.NDArray[np.uint8]:
        """Refuse."""
        raise AssertionError("noise was drawn past adlm.curator.noise, where the audit cannot see its input")


class Tape:
    """Records the calls of a run; given those of an earlier run, gives their outputs out again.

    Parameters
    ----------
    source : where real noise comes from.
    ledger : what the run charges.
    frozen : calls of an earlier run. Call i then returns the earlier output, whatever goes in.
    weaken : factor on every noise scale while the charges stay as they are, for negative controls.
    """

    def __init__(
        self,
        source: noise.Source,
        ledger: Ledger,
        frozen: Sequence[Call] | None = None,
        weaken: Fraction = Fraction(1),
    ) -> None:
        self.source, self.ledger, self.frozen, self.weaken = source, ledger, frozen, weaken
        self.calls: list[Call | None] = []

    def stand_in(self, mechanism: str, shape: Shape, scale: noise.Scale) -> _Noise:
        """Stand in for one call of a noise function."""
        size = shape if isinstance(shape, tuple) else (shape,)
        index, exact = len(self.calls), Fraction(scale) * self.weaken
        self.calls.append(None)
        charged = len(self.ledger.charges)
        drawn: Integers | None = None
        if self.frozen is None:
            drawn = draw(mechanism, size, exact, self.source)

        def settle(inputs: Integers) -> Integers:
            if self.calls[index] is not None:
                raise AssertionError("one draw of noise was used twice")
            if drawn is not None:
                output = inputs + drawn
            else:
                assert self.frozen is not None
                if index >= len(self.frozen) or self.frozen[index].output.shape != inputs.shape:
                    raise DivergedError(f"noise call {index + 1} has no counterpart of shape {inputs.shape}")
                output = self.frozen[index].output
            self.calls[index] = Call(mechanism, exact, inputs.copy(), output.copy(), charged)
            return np.asarray(output.copy())

        return _Noise(size, settle)

    def finished(self) -> tuple[Call, ...]:
        """All calls, once the run is over."""
        return tuple(call for call in self.calls if call is not None)


class DivergedError(Exception):
    """The second run went another way than the first: its control flow depends on more than the outputs."""


class _Noise(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array of noise: may be added once to integers of its shape, or read as it is."""

    def __init__(self, shape: tuple[int, ...], settle: Callable[[Integers], Integers]) -> None:
        self.shape, self._settle = shape, settle

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        others = [operand for operand in inputs if operand is not self]
        if ufunc is not np.add or method != "__call__" or len(others) != 1:
            raise AssertionError(f"noise may be added and nothing else before it is released, not {ufunc}")
        values = np.asarray(others[0])
        if values.dtype.kind not in "iu" or values.shape != self.shape:
            raise AssertionError(f"noise must be added to integers of its shape, not {values.dtype}")
        result = self._settle(values.astype(np.int64))
        out = kwargs.get("out")
        if out is None:
            return result
        out[0][...] = result
        return out[0]

    def __getitem__(self, key: Any) -> Any:
        return self._settle(np.zeros(self.shape, dtype=np.int64))[key]


@functools.lru_cache(maxsize=1)
def _places(modules: int) -> tuple[tuple[dict[str, Any], str], ...]:
    """Find where the package refers to a noise function; again once there are more modules than before.

    Modules by the thousand are looked through, which would take longer than a small release does.
    """
    del modules
    return tuple(
        (vars(module), name)
        for key, module in list(sys.modules.items())
        if key.startswith("adlm.") and not key.startswith("adlm.audit")
        for name in NAMES
        if vars(module).get(name) is _ORIGINAL[name]
    )


@contextlib.contextmanager
def replaced(other: Draw) -> Iterator[None]:
    """Put another function in the place of the noise functions, wherever the package refers to them."""
    puts: dict[str, Any] = {
        "laplace": lambda shape, scale, source: other("laplace", shape, scale, source),
        "gaussian": lambda shape, scale, source: other("gaussian", shape, scale, source),
        "radial": lambda rows, width, scale, source: other("radial", (rows, width), scale, source),
    }
    places = [(names, name) for names, name in _places(len(sys.modules)) if names[name] is _ORIGINAL[name]]
    for names, name in places:
        names[name] = puts[name]
    try:
        yield
    finally:
        for names, name in places:
            names[name] = _ORIGINAL[name]


@contextlib.contextmanager
def tapped(tape: Tape) -> Iterator[noise.Source]:
    """Let a tape listen to all noise; gives the source to hand to the code under audit."""
    with replaced(lambda mechanism, shape, scale, source: tape.stand_in(mechanism, shape, scale)):
        yield Sealed()
