"""A noise source that records its inputs and outputs, for the audit.

Every mechanism takes a `Source`, draws noise by its methods, and adds it. A `Tap` is a source whose noise is
a proxy that records what it is added to: the mechanism's input. The code under audit is the product's own,
unchanged; noise made in any other way is detected, because a tap refuses to return random bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from adlm.curator.ledger import Ledger
from adlm.curator.noise import Scale, Source
from adlm.privacy.accounting import Mechanism

Integers = npt.NDArray[np.int64]
Shape = int | tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One use of noise: its input, its output, and the charges made by then.

    Attributes
    ----------
    mechanism : `laplace`, `gaussian` or `radial`.
    scale : of the noise, in grid steps.
    inputs : integers that the noise was added to; zeros when it was used alone.
    output : their sum with the noise.
    charged : number of charges in the ledger when the noise was drawn.
    """

    mechanism: Mechanism
    scale: Fraction
    inputs: Integers
    output: Integers
    charged: int


class Tap(Source):
    """Records the draws of a run; given those of an earlier run, returns their outputs again.

    Parameters
    ----------
    source : where real noise comes from.
    ledger : the one that the run charges.
    frozen : calls of an earlier run. Call i then returns the earlier output, whatever its input.
    weaken : factor on every noise scale while the charges stay as they are, for negative controls.
    """

    def __init__(
        self,
        source: Source,
        ledger: Ledger,
        frozen: Sequence[Call] | None = None,
        weaken: Fraction = Fraction(1),
    ) -> None:
        super().__init__(bytes(32), seeded=False)
        self.source, self.ledger, self.frozen, self.weaken = source, ledger, frozen, weaken
        self.calls: list[Call | None] = []

    def octets(self, count: int) -> npt.NDArray[np.uint8]:
        """Refuse."""
        raise AssertionError("noise was drawn past a source's methods, where the audit cannot see its input")

    def laplace(self, shape: Shape, scale: Scale) -> Any:
        """Stand in for Laplace noise."""
        return self._recorded("laplace", shape if isinstance(shape, tuple) else (shape,), scale)

    def gaussian(self, shape: Shape, scale: Scale) -> Any:
        """Stand in for Gaussian noise."""
        return self._recorded("gaussian", shape if isinstance(shape, tuple) else (shape,), scale)

    def radial(self, rows: int, width: int, scale: Scale) -> Any:
        """Stand in for radial noise."""
        return self._recorded("radial", (rows, width), scale)

    def _recorded(self, mechanism: Mechanism, shape: tuple[int, ...], scale: Scale) -> _Noise:
        index, exact = len(self.calls), Fraction(scale) * self.weaken
        self.calls.append(None)
        charged = len(self.ledger.charges)
        drawn = self.source.draw(mechanism, shape, exact) if self.frozen is None else None

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

        return _Noise(shape, settle)

    def finished(self) -> tuple[Call, ...]:
        """All calls, once the run is over."""
        return tuple(call for call in self.calls if call is not None)


class DivergedError(Exception):
    """The second run diverged from the first: its control flow depends on more than the outputs."""


class _Noise(np.lib.mixins.NDArrayOperatorsMixin):
    """Proxy of an array of noise: may be added once to integers of its shape, or read as it is."""

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
