"""Reproducible randomness for each run, derived from the secret key of its selection.

A selection draws one 256-bit key together with its coins. Run j reads SHAKE-256(seed_j ‖ counter)
with seed_j = BLAKE2b(j) under that key. A run that was lost with its worker, or with the whole
program, and is repeated therefore gives the *same* output: nothing is drawn a second time, and the
place where a run is executed changes nothing.

Assumption: the noise of the runs is pseudo-random from 256 bits of operating-system entropy. This
is a computational assumption; the generator of the operating system rests on the same one. The key
and each seed must be kept as secret as the noise itself.

Tests: ``tests/randomness/test_keyed.py``.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass

from expost.errors import InvalidInput
from expost.randomness.source import Randomness, lineage

SEED_BYTES = 32
"""Length of a key and of a seed in bytes."""

_FIRST, _LARGEST = 128, 8192  # bytes per refill; a run that draws little stays cheap

_leaving = threading.Lock()


def _renew_lock() -> None:
    """Replace the lock in a forked child: a thread that exists only in the parent may hold it."""
    global _leaving
    _leaving = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class KeyedRandomness(Randomness):
    """A deterministic stream of random bits from a 32-byte seed.

    It protects data only as long as its seed is secret. An instance that a user creates counts as
    simulated, and selectors refuse it like any seeded source. Only :class:`RunKey` creates
    instances that count as protecting.

    Parameters
    ----------
    seed : bytes
        32 bytes.

    Raises
    ------
    InvalidInput
        If ``seed`` is not 32 bytes long.

    Notes
    -----
    Threads share one buffer under a lock. No two threads read the same bytes, but the order in
    which they read decides which bytes each one gets. A mechanism whose output must be the same
    when it is repeated must read from one thread. A forked child switches to a stream of its own,
    derived from the seed and fresh entropy, so that parent and child never share a bit.
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

    The key never leaves the process that selects; only the seeds of single runs do.

    Parameters
    ----------
    key : bytes
        32 secret bytes.
    simulated : bool
        Whether the key was drawn from a seeded source.
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
    """Return the randomness of a run from its seed.

    Parameters
    ----------
    seed : bytes
        The seed that :meth:`RunKey.seed` gave.
    simulated : bool
        Whether the key of the selection was drawn from a seeded source.

    Returns
    -------
    KeyedRandomness
        The stream, from its beginning.
    """
    source = KeyedRandomness(seed)
    source.simulated = simulated
    return source
