"""Loops over records that are compiled by Numba once they have enough work.

A loop is a plain Python function of integers and elementary IEEE operations, which are never reordered, nor
fused unless the source says so (`lanes`). So its bits are those of plain Python, and those of the NumPy or
PyTorch code that a loop over tables stands in for. A compiled loop makes no temporary arrays and does not
hold Python's global lock, so the threads of a pass work side by side. Compiling takes a second or two, and
some ten seconds in all for the features of images. The machine code is cached beside the source, or in the
user's cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from adlm.runtime import lanes

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_PREPARING = threading.Lock()  # Numba is taught a function once
ENOUGH = 1 << 18  # records in all, over which compiled code makes up for the time to compile it


class Compiled(Generic[Arguments, Result]):
    """A function that is compiled when it is first called.

    Parameters
    ----------
    function : what to compile; it may use what Numba supports, constants and functions of its own module,
        and `lanes`.
    enough : number of records after which compiling pays.
    """

    def __init__(self, function: Callable[Arguments, Result], enough: int = ENOUGH) -> None:
        self._function, self._enough = function, enough
        self._compiled: Callable[Arguments, Result] | None = None
        self._seen, self._lock = 0, threading.Lock()

    def pays(self, rows: int) -> bool:
        """Whether to call this for so many more records, or the code that it stands in for.

        It does not pay before `enough` records were seen, nor without Numba.
        """
        if self._compiled is not None:
            return True
        self._seen += rows
        return self._seen >= self._enough and _numba() is not None

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Call the compiled function; a full disk costs the cache alone."""
        if self._compiled is None:
            with self._lock:
                self._compiled = self._compiled or _compile(self._function, cache=True)
        try:
            return self._compiled(*args, **kwargs)
        except OSError:  # from writing the cache, before the function is run
            self._compiled = _compile(self._function, cache=False)
            return self._compiled(*args, **kwargs)


def readable(array: NDArray[Any]) -> bool:
    """Whether an array is of floating-point numbers as compiled loops read them."""
    return bool(array.flags.c_contiguous) and array.dtype in (np.float32, np.float64)


def _numba() -> Any:
    """Return Numba, or None where it is missing or switched off by NUMBA_DISABLE_JIT."""
    try:
        import numba
    except ImportError:
        return None
    return None if numba.config.DISABLE_JIT else numba


@cache
def _with_parts(function: Callable[..., Any]) -> None:
    """Let compiled code call the functions of the same module that a function calls, and those they call."""
    for name in function.__code__.co_names:
        part = function.__globals__.get(name)
        if isinstance(part, FunctionType) and part.__module__ == function.__module__:
            _with_parts(part)
            _numba().extending.register_jitable(part)


def _compile(function: Callable[Arguments, Result], *, cache: bool) -> Callable[Arguments, Result]:
    """Compile without the global lock and without any reordering of floating-point operations."""
    numba = _numba()
    if numba is None:
        return function
    with _PREPARING:
        lanes.prepare()
        _with_parts(function)
    settings = {"nogil": True, "fastmath": False, "error_model": "numpy"}
    try:
        compiled: Callable[Arguments, Result] = numba.njit(cache=cache, **settings)(function)
    except RuntimeError:  # no folder that a cache can be written to
        compiled = numba.njit(**settings)(function)
    return compiled
