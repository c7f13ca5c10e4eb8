"""Random words, uniforms, Gaussians and Poisson samples inside native kernels.

**Strong** (the default): the ChaCha20 keystream (RFC 8439's block function; the 64-bit block counter and 64-bit stream number of the
original) under a 256-bit key from OS entropy, one stream per model. **Fast**: xoshiro256++, for simulations only.

Uniforms are k·2^{−53} with k uniform in 1 … 2^{53}. Gaussians are made from them by Box–Muller in float64. What floating point leaves out:
a draw is one of finitely many doubles, none lies beyond √(2·53·ln 2) ≈ 8.57 standard deviations (a true Gaussian does with probability
1e-17), and its low bits carry rounding that an exact discrete sampler would not have. So the noise is not float-safe in Mironov's sense;
Opacus' default (float32 Gaussians of a Mersenne twister) has the same caveat, coarser.

A Poisson sample is walked by geometric gaps ⌊ln u / ln(1−q)⌋: P(gap ≥ j) = (1−q)^j to within 2^{−53} and the rounding of the logarithms
(relative 1e-16), at a cost of the rows taken, not of the rows there are. At q = 1 every row is taken.
Tests: ``tests/training/test_keystream.py``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from expost.randomness.source import Randomness
from expost.training.compiled import inlined, kernel

LANES = 16
WORDS = 8 * LANES  # 64-bit words a refill
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4")

Array = npt.NDArray[Any]


class Stream(NamedTuple):
    """One model's generator: a buffer of words and the state that refills it. Kernels change it in place."""

    words: Array
    used: Array
    state: Array  # ChaCha20: constants, key, counter, stream number
    fast: Array  # xoshiro256++
    lanes: Array  # scratch, 16 words × lanes
    strong: bool


def streams(randomness: Randomness, count: int) -> list[Stream]:
    """``count`` independent streams under one fresh key: strong, or fast if the source is a simulation's anyway."""
    key = np.frombuffer(randomness.bytes(32), dtype="<u4")
    return [stream(key, number, strong=not randomness.simulated) for number in range(count)]


def stream(key: Array, number: int, *, strong: bool) -> Stream:
    """Stream ``number`` under ``key`` (eight 32-bit words)."""
    state = np.zeros(16, dtype=np.uint32)
    state[:4], state[4:12] = _CONSTANTS, key
    state[14], state[15] = number & 0xFFFFFFFF, number >> 32
    fast = key.astype(np.uint32).view(np.uint64).copy()
    _scatter(fast, np.uint64(number))
    return Stream(
        np.zeros(WORDS, dtype=np.uint64),
        np.full(1, WORDS, dtype=np.int64),
        state,
        fast,
        np.zeros((16, LANES), dtype=np.uint32),
        strong,
    )


@kernel
def _scatter(fast: Array, number: Any) -> None:
    """Seed xoshiro with splitmix64 of the key and the stream number."""
    for place in range(4):
        z = fast[place] + (number * np.uint64(4) + np.uint64(place) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        fast[place] = z ^ (z >> np.uint64(31))


@inlined
def _rotated(value: Any, bits: int) -> Any:
    return np.uint32(np.uint32(value << np.uint32(bits)) | np.uint32(value >> np.uint32(32 - bits)))


@inlined
def _quarter_round(lanes: Array, i: int, j: int, k: int, m: int) -> None:
    """RFC 8439 §2.1 in all lanes."""
    for lane in range(LANES):
        a, b, c, d = lanes[i, lane], lanes[j, lane], lanes[k, lane], lanes[m, lane]
        a = np.uint32(a + b)
        d = _rotated(np.uint32(d ^ a), 16)
        c = np.uint32(c + d)
        b = _rotated(np.uint32(b ^ c), 12)
        a = np.uint32(a + b)
        d = _rotated(np.uint32(d ^ a), 8)
        c = np.uint32(c + d)
        b = _rotated(np.uint32(b ^ c), 7)
        lanes[i, lane], lanes[j, lane], lanes[k, lane], lanes[m, lane] = a, b, c, d


@kernel
def chacha20_blocks(state: Array, lanes: Array) -> None:
    """The next LANES blocks of the keystream, word by word in ``lanes``; moves the 64-bit counter (words 12, 13) on."""
    counter = np.uint64(state[12]) | (np.uint64(state[13]) << np.uint64(32))
    for word in range(16):
        for lane in range(LANES):
            lanes[word, lane] = state[word]
    for lane in range(LANES):
        here = counter + np.uint64(lane)
        lanes[12, lane] = np.uint32(here & np.uint64(0xFFFFFFFF))
        lanes[13, lane] = np.uint32(here >> np.uint64(32))
    for _ in range(10):
        _quarter_round(lanes, 0, 4, 8, 12)
        _quarter_round(lanes, 1, 5, 9, 13)
        _quarter_round(lanes, 2, 6, 10, 14)
        _quarter_round(lanes, 3, 7, 11, 15)
        _quarter_round(lanes, 0, 5, 10, 15)
        _quarter_round(lanes, 1, 6, 11, 12)
        _quarter_round(lanes, 2, 7, 8, 13)
        _quarter_round(lanes, 3, 4, 9, 14)
    for word in range(16):
        for lane in range(LANES):
            start = state[word]
            if word == 12:
                start = np.uint32((counter + np.uint64(lane)) & np.uint64(0xFFFFFFFF))
            elif word == 13:
                start = np.uint32((counter + np.uint64(lane)) >> np.uint64(32))
            lanes[word, lane] = np.uint32(lanes[word, lane] + start)
    counter += np.uint64(LANES)
    state[12] = np.uint32(counter & np.uint64(0xFFFFFFFF))
    state[13] = np.uint32(counter >> np.uint64(32))


@kernel
def refill(source: Stream) -> None:
    """New words in the buffer; each is used once."""
    words = source.words
    if source.strong:
        lanes = source.lanes
        chacha20_blocks(source.state, lanes)
        for pair in range(8):
            for lane in range(LANES):
                low, high = np.uint64(lanes[2 * pair, lane]), np.uint64(lanes[2 * pair + 1, lane])
                words[pair * LANES + lane] = low | (high << np.uint64(32))
    else:
        a, b, c, d = source.fast[0], source.fast[1], source.fast[2], source.fast[3]
        for place in range(WORDS):
            z = a + d
            words[place] = ((z << np.uint64(23)) | (z >> np.uint64(41))) + a
            t = b << np.uint64(17)
            c ^= a
            d ^= b
            b ^= c
            a ^= d
            c ^= t
            d = (d << np.uint64(45)) | (d >> np.uint64(19))
        source.fast[0], source.fast[1], source.fast[2], source.fast[3] = a, b, c, d
    source.used[0] = 0


@inlined
def uniform(word: Any) -> Any:
    """A double in (0, 1]: k·2^{−53}, k = 1 … 2^{53}."""
    return (float(word >> np.uint64(11)) + 1.0) * 2.0**-53


@kernel
def uniforms(source: Stream, out: Array) -> None:
    """Fill ``out`` with uniforms in (0, 1]."""
    for place in range(len(out)):
        if source.used[0] == WORDS:
            refill(source)
        out[place] = uniform(source.words[source.used[0]])
        source.used[0] += 1


@kernel
def gaussians(source: Stream, out: Array) -> None:
    """Fill ``out`` with standard Gaussians: Box–Muller, a whole buffer at a time, what is left of the last one thrown away."""
    done, wanted = 0, len(out)
    half = WORDS // 2
    while done < wanted:
        refill(source)
        pairs = min(half, (wanted - done + 1) // 2)
        for pair in range(pairs):
            radius = math.sqrt(-2.0 * math.log(uniform(source.words[pair])))
            angle = 2.0 * math.pi * uniform(source.words[half + pair])
            out[done + pair] = radius * math.cos(angle)
            if done + pairs + pair < wanted:
                out[done + pairs + pair] = radius * math.sin(angle)
        done += 2 * pairs
    source.used[0] = WORDS


@kernel
def poisson_sample(source: Stream, rate: float, rows: int, out: Array) -> int:
    """The rows of one Poisson sample, ascending, in ``out`` (room for all rows); returns how many."""
    if rate >= 1.0:
        for place in range(rows):
            out[place] = place
        return rows
    scale = 1.0 / math.log1p(-rate)
    count = 0
    row = -1.0
    while True:
        if source.used[0] == WORDS:
            refill(source)
        row += 1.0 + math.floor(math.log(uniform(source.words[source.used[0]])) * scale)
        source.used[0] += 1
        if row >= rows:
            return count
        out[count] = int(row)
        count += 1
