"""Random bits, and Bernoulli trials that compare them with a probability to as many digits as needed."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from adlm.errors import UserError
from adlm.runtime.roots import MP, MPMATH_LOCK


class RandomBits:
    """Uniform random bytes: AES-256 in counter mode.

    `system()` is keyed by the operating system and is the only source that gives privacy.
    `seeded_with(seed)` is reproducible; every release made with it must be stamped `NOT PRIVATE: seeded`.
    """

    def __init__(self, key: bytes, *, seeded: bool) -> None:
        self.seeded = seeded
        self._start(key)

    def _start(self, key: bytes) -> None:
        self._pid = os.getpid()
        self._stream = Cipher(AES(key), CTR(bytes(16))).encryptor()

    @classmethod
    def system(cls) -> Self:
        """Return a source keyed with 256 bits from the operating system."""
        return cls(os.urandom(32), seeded=False)

    @classmethod
    def seeded_with(cls, seed: int) -> Self:
        """Return a source that depends on the seed alone. Its noise gives no privacy."""
        return cls(hashlib.sha256(f"adlm seeded noise {seed}".encode()).digest(), seeded=True)

    def octets(self, count: int) -> npt.NDArray[np.uint8]:
        """Return `count` uniform bytes."""
        if os.getpid() != self._pid:  # a forked child must not repeat its parent's noise
            if self.seeded:
                raise UserError(
                    "a seeded noise source cannot be shared by forked processes; make one in each"
                )
            self._start(os.urandom(32))
        return np.frombuffer(self._stream.update(bytes(count)), dtype=np.uint8)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return `count` uniform 64-bit words."""
        return self.octets(8 * count).view(np.uint64)


@dataclass(frozen=True)
class Probability:
    """A transcendental probability, given by a function that evaluates it to any precision."""

    evaluate: Callable[[Any], Any]  # from mpmath's functions at the precision in force to a number

    def digits(self, bits: int) -> int:
        """Return floor(p 2^bits), raising the working precision until the floor is certain."""
        extra = 64
        while True:
            with MPMATH_LOCK, MP.workprec(bits + extra):
                scaled = MP.ldexp(self.evaluate(MP), bits)
                low = int(MP.floor(scaled - MP.ldexp(1, -extra // 2)))
                high = int(MP.floor(scaled + MP.ldexp(1, -extra // 2)))
            if low == high:
                return low
            extra *= 2


@dataclass
class Trials:
    """A row of independent Bernoulli trials, each with its own probability, drawn for many lanes at once."""

    probabilities: tuple[Probability, ...]
    _limbs: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    _octet: npt.NDArray[np.uint8] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)  # threads share the cached digits

    def first_octet(self) -> npt.NDArray[np.uint8]:
        """Return the first eight binary digits of every probability, (trials,)."""
        if self._octet is None:
            self._octet = np.array([p.digits(8) for p in self.probabilities], dtype=np.uint8)
        return self._octet

    def limb(self, index: int) -> npt.NDArray[np.uint64]:
        """Return binary digits 8 + 64 index .. 8 + 64 (index + 1) of every probability, (trials,)."""
        mask = (1 << 64) - 1
        with self._lock:
            while len(self._limbs) <= index:
                bits = 8 + 64 * (len(self._limbs) + 1)
                found = [p.digits(bits) & mask for p in self.probabilities]
                self._limbs.append(np.array(found, dtype=np.uint64))
            return self._limbs[index]

    def draw(self, lanes: int, source: RandomBits) -> npt.NDArray[np.bool_]:
        """Return (trials, lanes) outcomes: whether the uniform real with these random digits is below p."""
        octets = source.octets(len(self.probabilities) * lanes).reshape(-1, lanes)
        first = self.first_octet()[:, None]
        outcome = octets < first
        tied = np.flatnonzero(octets == first)
        index = 0
        while tied.size:  # 1 in 256 after the first byte, 1 in 2^72 after the first word
            threshold = self.limb(index)[tied // lanes]
            words = source.words(tied.size)
            outcome.flat[tied] = words < threshold
            tied = tied[words == threshold]
            index += 1
        return outcome
