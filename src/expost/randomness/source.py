"""Sources of random bits: the operating system, the key of a selection, or a seed for simulations.

A selection draws one 256-bit key together with its coins. Run j reads SHAKE-256(seed_j ‖ counter)
with seed_j = BLAKE2b(j) under that key. A run that was lost with its worker, or with the whole
program, and is repeated therefore gives the *same* output: nothing is drawn a second time.

Assumption: the noise of the runs is pseudo-random from 256 bits of operating-system entropy. This
is a computational assumption; the generator of the operating system rests on the same one. The key
and each seed must be kept as secret as the noise itself.

Tests: ``tests/randomness/test_source.py``, ``tests/randomness/test_keyed.py``.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from expost.errors import InvalidInput, SimulationOnly
from expost.files import on_fork

_BUFFER_BYTES = 8192

_forks = 0


def _count_fork() -> None:
    """Count the forks between the first process and this one."""
    global _forks
    _forks += 1


on_fork(after_in_child=_count_fork)


def lineage() -> tuple[int, int]:
    """Return the number of forks that led to this process, and the process id.

    The pair tells a process from its relatives even where the system uses a process id again.
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
        """Return so many random bytes."""
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
        """Return a uniform integer in [0, bound), by rejection; ``bound`` must be > 0."""
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
    """Return the source to use (None: the system's); SimulationOnly for a seeded one."""
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


SEED_BYTES = 32
"""Length of a key and of a seed in bytes."""

_FIRST, _LARGEST = 128, 8192  # bytes per refill; a run that draws little stays cheap

_leaving = threading.Lock()


def _renew_lock() -> None:
    """Replace the lock in a forked child: a thread that exists only in the parent may hold it."""
    global _leaving
    _leaving = threading.Lock()


on_fork(after_in_child=_renew_lock)


class KeyedRandomness(Randomness):
    """A deterministic stream of random bits from a 32-byte seed.

    It protects data only as long as its seed is secret. Selectors refuse an instance that a user
    creates, like any seeded source; only :class:`RunKey` makes instances that count as protecting.

    Threads share one buffer under a lock: no two read the same bytes, but their order decides which
    bytes each one gets, so a mechanism that must repeat its output reads from one thread. A forked
    child switches to a stream of its own, from the seed and fresh entropy: no bit is shared.
    """

    simulated = True

    def __init__(self, seed: bytes) -> None:
        if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
            raise InvalidInput("seed", type(seed).__name__, f"give exactly {SEED_BYTES} bytes")
        self._seed = seed
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        """Begin at the start of the stream."""
        self._counter = 0
        self._data, self._used, self._size = b"", 0, _FIRST
        self._owner = lineage()

    def __reduce__(self) -> tuple[type[Randomness], tuple[()]]:
        raise TypeError(
            "a KeyedRandomness is not copied or pickled: both copies would give the same noise"
        )

    def _fresh(self, count: int) -> bytes:
        block = hashlib.shake_256(self._seed + self._counter.to_bytes(8, "little")).digest(count)
        self._counter += 1
        return block

    def bytes(self, count: int) -> bytes:
        """Return random bytes."""
        if self._owner != lineage():
            self._leave_parent()
        with self._lock:
            if count > _LARGEST:
                return self._fresh(count)
            if self._used + count > len(self._data):
                while self._size < count:
                    self._size *= 2
                self._data, self._used = self._fresh(self._size), 0
                self._size = min(2 * self._size, _LARGEST)
            start = self._used
            self._used = start + count
            return self._data[start : start + count]

    def _leave_parent(self) -> None:
        """Switch to a stream of its own; called in a forked child before its first read."""
        with _leaving:
            if self._owner == lineage():
                return  # another thread of this child has done it
            self._lock = threading.Lock()
            self._seed = hashlib.blake2b(
                os.urandom(SEED_BYTES), key=self._seed, digest_size=SEED_BYTES
            ).digest()
            self._start()


@dataclass(frozen=True, repr=False)
class RunKey:
    """The secret key of one selection.

    The key never leaves the process that selects; only the seeds of single runs do. ``simulated``:
    whether it was drawn from a seeded source.
    """

    key: bytes
    simulated: bool

    def seed(self, run: int) -> bytes:
        """Return the seed of run number ``run``."""
        return hashlib.blake2b(
            run.to_bytes(8, "little"), key=self.key, digest_size=SEED_BYTES
        ).digest()

    def source(self, run: int) -> KeyedRandomness:
        """Return the randomness of run number ``run``, from its beginning."""
        return source_of_run(self.seed(run), simulated=self.simulated)


def source_of_run(seed: bytes, *, simulated: bool) -> KeyedRandomness:
    """Return the randomness of a run from the seed that :meth:`RunKey.seed` gave."""
    source = KeyedRandomness(seed)
    source.simulated = simulated
    return source
