"""Where random bits come from."""

from __future__ import annotations

import os
import threading

import numpy as np
import numpy.typing as npt

from expost.errors import InvalidInput, SimulationOnly

_BUFFER_BYTES = 8192

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def lineage() -> tuple[int, int]:
    """Tells a process from its forked parent and children, even where a process number is used again."""
    return _forks, os.getpid()


class _Buffer(threading.local):
    """One buffer a thread, so that two threads never read the same bytes."""

    def __init__(self) -> None:
        self.data = b""
        self.used = 0
        self.owner = (0, 0)


class Randomness:
    """Random bits from the operating system, buffered.

    A forked child throws the inherited buffer away before its first read, so parent and child never share a bit.
    Threads have a buffer each. A copy or an unpickled instance starts with an empty buffer.
    """

    simulated = False

    def __init__(self) -> None:
        self._buffer = _Buffer()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __reduce__(self) -> tuple[type[Randomness], tuple[()]]:
        return (Randomness, ())

    def _fresh(self, count: int) -> bytes:
        return os.urandom(count)

    def bytes(self, count: int) -> bytes:
        """``count`` random bytes."""
        if count > _BUFFER_BYTES:
            return self._fresh(count)
        buffer, owner = self._buffer, lineage()
        if buffer.owner != owner or buffer.used + count > len(buffer.data):
            buffer.data, buffer.used, buffer.owner = self._fresh(_BUFFER_BYTES), 0, owner
        start = buffer.used
        buffer.used = start + count
        return buffer.data[start : start + count]

    def bits(self, count: int) -> int:
        """A uniform integer of ``count`` bits."""
        whole = (count + 7) // 8
        return int.from_bytes(self.bytes(whole), "little") >> (8 * whole - count)

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound), by rejection."""
        if bound <= 0:
            raise InvalidInput("bound", bound, "give a whole number > 0")
        count = (bound - 1).bit_length()
        while True:
            value = self.bits(count)
            if value < bound:
                return value

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """``count`` uniform 64-bit words."""
        return np.frombuffer(self.bytes(8 * count), dtype=np.uint64)


class SimulationRandomness(Randomness):
    """A seeded stream, for simulations and tests. It protects nobody: whoever knows the seed knows every coin.

    Selectors refuse it unless they are called with ``simulation=True``.
    """

    simulated = True

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def __reduce__(self) -> tuple[type[Randomness], tuple[()]]:
        raise TypeError(
            "a SimulationRandomness is not copied or pickled: give each simulation a seed of its own"
        )

    def _fresh(self, count: int) -> bytes:
        return self._generator.bytes(count)


def require_protection(randomness: Randomness | None, *, simulation: bool) -> Randomness:
    """The source to use; refuses a seeded one unless the caller said that this is a simulation."""
    if not isinstance(simulation, bool):
        raise InvalidInput("simulation", simulation, "give True or False")
    if randomness is None:
        return Randomness()
    if not isinstance(randomness, Randomness):
        raise InvalidInput(
            "randomness",
            type(randomness).__name__,
            "give an expost.Randomness, or leave it out for OS entropy",
        )
    if randomness.simulated and not simulation:
        raise SimulationOnly(
            f"{type(randomness).__name__} protects nobody; leave randomness out, "
            "or say simulation=True if no real person's data is involved"
        )
    return randomness
