"""The randomness of a run, from the secret key of its selection: the same run draws the same bits wherever and however often it is made.

A selection draws one 256-bit key beside its coins. Run j reads SHAKE-256(seed_j ‖ counter) with seed_j = BLAKE2b(j) under that key. So a
run that is lost with its worker, or with the whole program, and made again gives the *same* output: nothing is drawn a second time, and
where a run was made changes nothing.

What this assumes: the noise of the runs is pseudo-random from 256 bits of OS entropy. That is a computational assumption, the one which the
operating system's own generator rests on as well. The key, and each seed, is as secret as the noise itself.
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
_FIRST, _LARGEST = 128, 8192  # bytes a refill: a run that draws little costs little

_leaving = threading.Lock()


def _renew_lock() -> None:
    """In a forked child: the inherited lock may be held by a thread that does not exist here."""
    global _leaving
    _leaving = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class KeyedRandomness(Randomness):
    """A deterministic stream from a 32-byte seed. It protects exactly as well as its seed is secret.

    Made by hand it counts as simulated, and selectors refuse it like any seeded source; only :class:`RunKey` makes ones that protect.

    Threads share one buffer under a lock: no two read the same bytes, but who reads first decides which. A mechanism whose output must be
    the same when it is made again reads from one thread. A forked child leaves the stream for one of its own (seed and fresh OS entropy
    together), so that parent and child never share a bit.
    """

    simulated = True

    def __init__(self, seed: bytes) -> None:
        if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
            raise InvalidInput("seed", type(seed).__name__, f"give {SEED_BYTES} bytes")
        self._seed = seed
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._counter = 0
        self._data, self._used, self._size = b"", 0, _FIRST
        self._owner = lineage()

    def __reduce__(self) -> tuple[type[Randomness], tuple[()]]:
        raise TypeError(
            "a KeyedRandomness is not copied or pickled: two readers of one stream would share their noise"
        )

    def _fresh(self, count: int) -> bytes:
        block = hashlib.shake_256(self._seed + self._counter.to_bytes(8, "little")).digest(count)
        self._counter += 1
        return block

    def bytes(self, count: int) -> bytes:
        """``count`` random bytes."""
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
        """In a forked child, before its first read."""
        with _leaving:
            if self._owner == lineage():
                return  # another thread of this child was first
            self._lock = threading.Lock()
            self._seed = hashlib.blake2b(
                os.urandom(SEED_BYTES), key=self._seed, digest_size=SEED_BYTES
            ).digest()
            self._start()


@dataclass(frozen=True, repr=False)
class RunKey:
    """The seed material of one selection; it never leaves the process that selects, only the seeds of single runs do."""

    key: bytes
    simulated: bool

    def seed(self, run: int) -> bytes:
        """What the randomness of run number ``run`` is made from."""
        return hashlib.blake2b(
            run.to_bytes(8, "little"), key=self.key, digest_size=SEED_BYTES
        ).digest()

    def source(self, run: int) -> KeyedRandomness:
        """The randomness of run number ``run``, from its beginning."""
        return source_of_run(self.seed(run), simulated=self.simulated)


def source_of_run(seed: bytes, *, simulated: bool) -> KeyedRandomness:
    """The randomness of a run from its seed; ``simulated`` as the source that the selection's key was drawn from."""
    source = KeyedRandomness(seed)
    source.simulated = simulated
    return source
