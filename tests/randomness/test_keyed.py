"""The runs' own randomness.

The same run gets the same bits, two runs never do, and nothing is shown to observers.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
import threading

import pytest

from expost.errors import InvalidInput, SimulationOnly
from expost.randomness.source import KeyedRandomness, RunKey, require_protection, source_of_run
from tests.randomness.test_source import assert_nothing_shared, in_child, needs_fork, windows

KEY = RunKey(bytes(range(32)), simulated=False)


def test_the_stream_is_shake_of_seed_and_counter() -> None:
    """Known answers, computed here from the definition.

    Catches a stream that changes between versions, and with it every resumed run.
    """
    seed = hashlib.blake2b((7).to_bytes(8, "little"), key=KEY.key, digest_size=32).digest()
    assert KEY.seed(7) == seed

    def block(counter: int, size: int) -> bytes:
        return hashlib.shake_256(seed + counter.to_bytes(8, "little")).digest(size)

    source = KEY.source(7)
    assert source.bytes(100) == block(0, 128)[:100]
    assert source.bytes(28) == block(0, 128)[100:]
    assert source.bytes(1) == block(1, 256)[:1]
    assert source.bytes(10_000) == block(2, 10_000)
    assert source.bytes(255) == block(1, 256)[1:]


def test_a_run_that_is_made_again_reads_the_same() -> None:
    sizes = [1, 31, 5000, 64, 9000, 8192, 3]
    first, again = (
        [source.bytes(size) for size in sizes] for source in (KEY.source(3), KEY.source(3))
    )
    assert first == again


def test_no_two_runs_and_no_two_reads_share_bytes() -> None:
    sources = [KEY.source(run) for run in range(20)] + [
        RunKey(bytes(32), simulated=False).source(0)
    ]
    assert_nothing_shared(
        *(source.bytes(size) for source in sources for size in (64, 100, 700, 8192, 20_000))
    )


def test_threads_never_read_the_same_bytes() -> None:
    """One buffer under a lock.

    Together, threads read exactly what one reader would have read, each byte once.
    """
    source, alone = KEY.source(0), KEY.source(0)
    parts: list[bytes] = []

    def read() -> None:
        parts.extend(source.bytes(16) for _ in range(2000))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(parts) == sorted(alone.bytes(16) for _ in range(8000))


@needs_fork
@pytest.mark.parametrize("used", [0, 1, 100, 8000])
def test_a_forked_child_shares_nothing_with_its_parent_or_its_siblings(used: int) -> None:
    source = KEY.source(0)
    before = source.bytes(used)
    children = [in_child(lambda: source.bytes(64)) for _ in range(2)]
    after = source.bytes(64)
    assert_nothing_shared(*children, after)
    assert not windows(children[0]) & windows(before)
    undisturbed = KEY.source(0)
    undisturbed.bytes(used)
    assert after == undisturbed.bytes(64)  # the parent goes on as if nothing had happened


def test_a_seed_that_somebody_chose_is_a_simulation() -> None:
    chosen = KeyedRandomness(bytes(32))
    with pytest.raises(SimulationOnly):
        require_protection(chosen, simulation=False)
    assert require_protection(chosen, simulation=True) is chosen
    made = KEY.source(0)
    assert require_protection(made, simulation=False) is made
    assert RunKey(bytes(32), simulated=True).source(0).simulated
    assert not source_of_run(bytes(32), simulated=False).simulated


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33), 7, "x" * 32, None])
def test_bad_seeds(seed: object) -> None:
    with pytest.raises(InvalidInput, match="32 bytes"):
        KeyedRandomness(seed)  # type: ignore[arg-type]


def test_a_stream_is_not_copied_and_shows_nothing() -> None:
    source = KEY.source(0)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="not copied"):
            duplicate(source)
    assert repr(source) == "KeyedRandomness()"
    assert KEY.key.hex() not in repr(KEY)
    assert repr(KEY.key) not in repr(KEY)
    with pytest.raises(InvalidInput) as caught:
        KeyedRandomness(b"secret")
    assert "secret" not in str(caught.value)
