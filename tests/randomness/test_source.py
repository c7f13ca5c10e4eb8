"""Bits.

Never served twice (across reads, forks, threads, copies), uniform below a bound, seeded only in
simulations.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expost.errors import InvalidInput, SimulationOnly
from expost.randomness.source import Randomness, SimulationRandomness, require_protection
from tests.randomness.bit_tree import enumerate_law

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def in_child(work: Callable[[], bytes]) -> bytes:
    """What ``work`` returns in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, work())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


def windows(stream: bytes, size: int = 8) -> set[bytes]:
    return {stream[start : start + size] for start in range(len(stream) - size + 1)}


def assert_nothing_shared(*streams: bytes) -> None:
    """No 8 bytes in a row occur in two streams (by chance: below 1e-14)."""
    seen: set[bytes] = set()
    for stream in streams:
        assert len(stream) >= 64
        mine = windows(stream)
        assert not mine & seen
        seen |= mine


class Counting(Randomness):
    """Serves 0, 1, 2, … as 4-byte numbers, and notes which thread asked for fresh bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.next = 0
        self.askers: list[int] = []

    def _fresh(self, count: int) -> bytes:
        self.askers.append(threading.get_ident())
        numbers = np.arange(self.next, self.next + count // 4, dtype=np.uint32)
        self.next += count // 4
        return numbers.tobytes()


@needs_fork
@pytest.mark.parametrize("used", [0, 1, 100, 8000, 8192])
def test_fork_child_does_not_repeat_the_parent(used: int) -> None:
    """Would catch a child that reads on in the inherited buffer, fresh, part-used or used up."""
    source = Randomness()
    before = source.bytes(used)
    child = in_child(lambda: source.bytes(64))
    assert_nothing_shared(child, source.bytes(64))
    assert not windows(child) & windows(before)


@needs_fork
def test_fork_of_a_fork_and_siblings() -> None:
    """Would catch a child whose buffer is marked as its own but is passed on to its children."""
    source = Randomness()
    source.bytes(10)

    def child() -> bytes:
        own = source.bytes(64)
        return own + in_child(lambda: source.bytes(64)) + source.bytes(64)

    first, second = in_child(child), in_child(child)
    streams = [family[start : start + 64] for family in (first, second) for start in (0, 64, 128)]
    assert_nothing_shared(*streams, source.bytes(64))


@needs_fork
def test_fork_is_noticed_by_the_counter_even_if_the_process_number_is_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Would catch a guard that compares process numbers alone."""
    source = Randomness()
    source.bytes(1)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    source.bytes(1)
    assert_nothing_shared(in_child(lambda: source.bytes(64)), source.bytes(64))


@needs_fork
def test_fork_many_children() -> None:
    """Would catch children of one parent that agree with each other, as workers of a pool would."""
    context = multiprocessing.get_context("fork")
    source = Randomness()
    source.bytes(123)
    queue = context.SimpleQueue()
    children = [context.Process(target=lambda: queue.put(source.bytes(64))) for _ in range(24)]
    for child in children:
        child.start()
    streams = [queue.get() for _ in children]
    for child in children:
        child.join()
    assert_nothing_shared(*streams, source.bytes(64))


def test_reads_never_overlap() -> None:
    """Would catch a read that steps back in the buffer, or a refill that keeps the old position."""
    source = Counting()
    served = np.frombuffer(
        b"".join(source.bytes(4 * size) for size in (1, 2047, 1, 3000, 7, 2048, 2045, 1, 5)),
        np.uint32,
    )
    assert len(np.unique(served)) == len(served)


@pytest.mark.parametrize("first", [8180, 8190, 8191, 8192])
@pytest.mark.parametrize("second", [1, 2, 3, 12, 13])
def test_reads_at_the_end_of_the_buffer_are_whole(first: int, second: int) -> None:
    """Would catch a read cut short by the end of the buffer.

    Fewer bits than asked for are not uniform.
    """
    source = Randomness()
    source.bytes(first)
    assert len(source.bytes(second)) == second


def test_threads_have_a_buffer_each() -> None:
    """Would catch a buffer shared by threads, from which two can read the same bytes."""
    source = Counting()
    source.bytes(4)
    threads = [threading.Thread(target=source.bytes, args=(4,)) for _ in range(5)]
    for thread in threads:
        thread.start()
        thread.join()
    assert len(source.askers) == 6


def test_threads_never_share_bytes() -> None:
    """Would catch a race between threads that hammer one source."""
    source = Randomness()
    blocks: list[list[bytes]] = [[] for _ in range(8)]
    barrier = threading.Barrier(8)

    def read(mine: list[bytes]) -> None:
        barrier.wait()
        mine.extend(source.bytes(16) for _ in range(2000))

    threads = [threading.Thread(target=read, args=(mine,)) for mine in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({block for mine in blocks for block in mine}) == 16000


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda source: pickle.loads(pickle.dumps(source))],
)
def test_copies_start_afresh(duplicate: Callable[[Randomness], Randomness]) -> None:
    """Would catch a copy that continues the original's buffer."""
    source = Randomness()
    source.bytes(10)
    twin = duplicate(source)
    assert type(twin) is Randomness
    assert_nothing_shared(twin.bytes(64), source.bytes(64))


def test_a_pickle_holds_no_bits() -> None:
    """Would catch a buffer written to disk: it holds the coins still to come."""
    source = Randomness()
    source.bytes(10)
    assert len(pickle.dumps(source)) < 200


def test_repr_shows_no_bits() -> None:
    """Would catch a buffer or a seed in a log."""
    source = SimulationRandomness(987654321)
    source.bytes(1)
    assert repr(source) == "SimulationRandomness()"


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 6, 7, 12, 17])
def test_below_is_uniform_on_single_bits(bound: int) -> None:
    """Would catch a modulo instead of a rejection, or a rejection at the wrong place.

    Exact, on the tree of bits.
    """
    masses, undecided = enumerate_law(lambda r: r.below(bound), 400, within=1e-30, single_bits=True)
    assert set(masses) == set(range(bound))
    assert undecided <= Fraction(1, 10**30)
    assert all(mass <= Fraction(1, bound) <= mass + undecided for mass in masses.values())


@given(st.integers(1, 2**200))
def test_below_stays_below(bound: int) -> None:
    """Would catch an off-by-one at the bound or a wrong bit count for large bounds."""
    value = Randomness().below(bound)
    assert 0 <= value < bound


@pytest.mark.parametrize("bound", [2**64 - 1, 2**64, 2**64 + 1])
def test_below_uses_the_whole_range(bound: int) -> None:
    """Would catch a top bit that is never set."""
    source = SimulationRandomness(1)
    values = [source.below(bound) for _ in range(200)]
    assert 2**63 < max(values) < bound
    assert min(values) < 2**60


@pytest.mark.parametrize("bound", [0, -1, -(10**30)])
def test_below_refuses(bound: int) -> None:
    """Would catch an endless loop on an impossible bound."""
    with pytest.raises(InvalidInput, match="bound"):
        Randomness().below(bound)


@pytest.mark.parametrize("count", range(9))
def test_bits_maps_bytes_evenly(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch bits taken from a byte with uneven weights.

    Every value comes from the same number of bytes.
    """
    source = Randomness()
    values: list[int] = []
    for byte in range(256):
        monkeypatch.setattr(source, "bytes", lambda size, byte=byte: bytes([byte] * size))
        values.append(source.bits(count))
    assert {values.count(value) for value in range(2**count)} == {256 >> count}


def test_bits_beyond_a_byte_are_all_used() -> None:
    """Would catch a shift that loses or doubles bits.

    The or of many draws sets all, the and none.
    """
    source = SimulationRandomness(2)
    draws = [source.bits(77) for _ in range(200)]
    assert np.bitwise_or.reduce(np.array(draws, dtype=object)) == 2**77 - 1
    assert np.bitwise_and.reduce(np.array(draws, dtype=object)) == 0


@pytest.mark.parametrize("count", [0, 1, 8191, 8192, 8193, 50000])
def test_bytes_and_words_have_the_right_length(count: int) -> None:
    """Would catch short reads around the size of the buffer."""
    source = Randomness()
    assert len(source.bytes(count)) == count
    words = source.words(count)
    assert words.shape == (count,)
    assert words.dtype == np.uint64


def test_simulation_is_reproducible() -> None:
    """Would catch a seeded source that mixes in entropy, or ignores its seed."""

    def stream(seed: int) -> tuple[object, ...]:
        source = SimulationRandomness(seed)
        return (
            source.bytes(100),
            source.bits(33),
            source.below(1000),
            tuple(source.words(2000).tolist()),
        )

    assert stream(5) == stream(5)
    assert stream(5) != stream(6)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_simulation_is_not_copied(duplicate: Callable[[Randomness], object]) -> None:
    """Would catch two simulations that silently share a stream."""
    with pytest.raises(TypeError, match="its own seed"):
        duplicate(SimulationRandomness(5))


def test_require_protection_refuses_a_seed() -> None:
    """Would catch seeded noise on real data."""
    seeded = SimulationRandomness(5)
    with pytest.raises(SimulationOnly, match="simulation=True"):
        require_protection(seeded, simulation=False)
    assert require_protection(seeded, simulation=True) is seeded


def test_require_protection_gives_entropy_by_default() -> None:
    """Would catch a default that is seeded, or a given source that is replaced."""
    assert type(require_protection(None, simulation=True)) is Randomness
    own = Randomness()
    assert require_protection(own, simulation=False) is own
    assert not own.simulated


@pytest.mark.parametrize("impostor", [5, "os", np.random.default_rng(5)])
def test_require_protection_refuses_other_things(impostor: object) -> None:
    """Would catch a numpy generator taken for a source of protection."""
    with pytest.raises(InvalidInput, match="randomness"):
        require_protection(impostor, simulation=True)  # type: ignore[arg-type]
