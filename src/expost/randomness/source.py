"""Sources of random bits: the operating system, or a seeded stream for simulations.

Tests: ``tests/randomness/test_source.py``.
"""

from __future__ import annotations

import os
import threading

import numpy as np
import numpy.typing as npt

from expost.errors import InvalidInput, SimulationOnly

_BUFFER_BYTES = 8192

_forks = 0


def _count_fork() -> None:
    """Count the forks between the first process and this one."""
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def lineage() -> tuple[int, int]:
    """Identify this process among its forked parents and children.

    Returns
    -------
    tuple of int
        The number of forks that led to this process, and the process id. The pair distinguishes a
        process from its relatives even where the system uses a process id again.
    """
    return _forks, os.getpid()


class _Buffer(threading.local):
    """One buffer per thread, so that two threads never read the same bytes."""

    def __init__(self) -> None:
        self.data = b""
        self.used = 0
        self.owner = (0, 0)


class Randomness:
    """Buffered random bits from the operating system.

    A forked child discards the inherited buffer before its first read, so parent and child never
    share a bit. Each thread has its own buffer. A copy or an unpickled instance starts with an
    empty buffer.

    Attributes
    ----------
    simulated : bool
        False: this source protects data.
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
        """Return random bytes.

        Parameters
        ----------
        count : int
            How many.

        Returns
        -------
        bytes
            The bytes.
        """
        if count > _BUFFER_BYTES:
            return self._fresh(count)
        buffer, owner = self._buffer, lineage()
        if buffer.owner != owner or buffer.used + count > len(buffer.data):
            buffer.data, buffer.used, buffer.owner = self._fresh(_BUFFER_BYTES), 0, owner
        start = buffer.used
        buffer.used = start + count
        return buffer.data[start : start + count]

    def bits(self, count: int) -> int:
        """Return a uniform integer in [0, 2^count)."""
        whole = (count + 7) // 8
        return int.from_bytes(self.bytes(whole), "little") >> (8 * whole - count)

    def below(self, bound: int) -> int:
        """Return a uniform integer in [0, bound), by rejection.

        Parameters
        ----------
        bound : int
            Greater than 0.

        Returns
        -------
        int
            The integer.

        Raises
        ------
        InvalidInput
            If ``bound`` is not greater than 0.
        """
        if bound <= 0:
            raise InvalidInput("bound", bound, "give a whole number > 0")
        count = (bound - 1).bit_length()
        while True:
            value = self.bits(count)
            if value < bound:
                return value

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return ``count`` uniform 64-bit words as an array of uint64."""
        return np.frombuffer(self.bytes(8 * count), dtype=np.uint64)


class SimulationRandomness(Randomness):
    """A seeded stream of random bits, for simulations and tests.

    It protects no data: anyone who knows the seed knows every draw. Selectors refuse it unless they
    are called with ``simulation=True``.

    Parameters
    ----------
    seed : int
        The seed. Equal seeds give equal streams.

    Attributes
    ----------
    simulated : bool
        True: this source protects no data.
    """

    simulated = True

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def __reduce__(self) -> tuple[type[Randomness], tuple[()]]:
        raise TypeError(
            "a SimulationRandomness is not copied or pickled: give each simulation its own seed"
        )

    def _fresh(self, count: int) -> bytes:
        return self._generator.bytes(count)


def require_protection(randomness: Randomness | None, *, simulation: bool) -> Randomness:
    """Return the source to use; refuse a seeded one unless this is a simulation.

    Parameters
    ----------
    randomness : Randomness or None
        The source, or None for entropy of the operating system.
    simulation : bool
        Whether the caller says that this is a simulation without real data.

    Returns
    -------
    Randomness
        The source.

    Raises
    ------
    InvalidInput
        If an argument is of the wrong type.
    SimulationOnly
        If the source is seeded and ``simulation`` is False.
    """
    if not isinstance(simulation, bool):
        raise InvalidInput("simulation", simulation, "give True or False")
    if randomness is None:
        return Randomness()
    if not isinstance(randomness, Randomness):
        raise InvalidInput(
            "randomness",
            type(randomness).__name__,
            "give an expost.Randomness, or omit it to use the operating system's entropy",
        )
    if randomness.simulated and not simulation:
        raise SimulationOnly(
            f"{type(randomness).__name__} protects no data: omit `randomness`, "
            "or pass simulation=True if no data of real people is used"
        )
    return randomness
