"""Random words of the native kernels; at the end of a step exact Gaussian noise, and the optimiser.

**Strong** (the default): the ChaCha20 keystream (the block function of RFC 8439, with the 64-bit
block counter and the 64-bit stream number of the original) under a 256-bit key from OS entropy, one
stream per model. **Fast**: xoshiro256++, for simulations only.

Uniforms are k·2^{−53} with k uniform in 1 … 2^{53}. Gaussian noise is made from the same words. The
logarithm has a relative error of 4·2^{−53} at most, and cosine and sine have an absolute error of
3.2·2^{−53} at most (:mod:`expost.training.exact_noise` has the analysis). They are series of plain
operations, so that loops over them use vector registers and the bounds hold on every machine.

Stream numbers from 2^{63} on are reserved for further digits of noise (:func:`further_digits`).

A Poisson sample is drawn by geometric gaps ⌊ln u / ln(1−q)⌋: P(gap ≥ j) = (1−q)^j up to 2^{−53} and
the rounding of the logarithms (relative 2^{−52}). The cost grows with the rows taken, not with all
rows. At q = 1 every row is taken.

The ChaCha20 block function is written on vectors, as LLVM instructions: sixteen blocks are computed
side by side, and the state stays in registers. A compiled loop over the lanes would access memory
after every quarter round and be four times slower. LLVM splits the vectors on processors with
narrower registers.

:func:`add_lattice_noise` adds noise to a sum and rounds it to a lattice. Every coordinate is
decided from two words of the keystream in float64, with a proven bound on the error
(:mod:`expost.training.exact_noise` defines the release and has the proof). A coordinate that the
bound does not decide is left open: its sum stays as it is and ``open`` is set there. Then the
kernel returns to the host, where :func:`settle` finds the same words again and decides by exact
arithmetic with further digits from a reserved stream of the same key.

:func:`step_settings` collects the numbers that stay the same during a training.

Tests: ``tests/training/test_keystream.py`` (test vectors of RFC 8439),
``tests/training/test_exact_noise.py``, ``tests/training/test_linear.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from expost.arrays import Array
from expost.randomness.samplers import (
    ARTANH,
    CONSTANT_ERROR,
    COSINE,
    HALF_ROOT,
    LAST,
    LENGTH_ERROR,
    LN2_HIGH,
    LN2_LOW,
    QUARTER,
    RADIUS_ERROR,
    SINE,
    UNREAD,
    NoiseLattice,
    decided_release,
)
from expost.randomness.source import Randomness
from expost.training._native.compiled import cgutils, extending, ir, kernel, ordered, types
from expost.training._native.vector_products import Emitter, loop
from expost.training.configuration import (
    BETA1,
    BETA2,
    OPTIMISERS,
    TINY,
    Configuration,
    TrainingPlan,
)
from expost.training.exact_noise import Bound, clip_bound, lattice_of

LANES = 16
_ROUNDS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)
_WORD, _LONG = ir.IntType(32), ir.IntType(64)
_WORDS, _LONGS = ir.VectorType(_WORD, LANES), ir.VectorType(_LONG, LANES)


def _blocks(typing: Any, state: Any, lanes: Any) -> Any:
    """Return the type and the code generator of :data:`blocks`."""
    utilities: Any = cgutils

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        rotate = utilities.get_or_insert_function(
            builder.module, ir.FunctionType(_WORDS, [_WORDS] * 3), f"llvm.fshl.v{LANES}i32"
        )

        def index_of_word(word: int) -> Any:
            return builder.gep(source, [ir.Constant(_LONG, word)])

        def quarter_round(x: list[Any], a: int, b: int, c: int, d: int) -> None:
            """Apply the quarter round of RFC 8439 §2.1."""
            for first, second, third, bits in (
                (a, b, d, 16),
                (c, d, b, 12),
                (a, b, d, 8),
                (c, d, b, 7),
            ):
                x[first] = builder.add(x[first], x[second])
                mixed = builder.xor(x[third], x[first])
                x[third] = builder.call(rotate, [mixed, mixed, ir.Constant(_WORDS, [bits] * LANES)])

        words = [builder.load(index_of_word(word)) for word in range(16)]
        counter = builder.or_(
            builder.zext(words[12], _LONG),
            builder.shl(builder.zext(words[13], _LONG), ir.Constant(_LONG, 32)),
        )
        emit = Emitter(context, builder, types.int32, LANES)
        counters = builder.add(emit.longs(counter), ir.Constant(_LONGS, list(range(LANES))))
        start = [emit.everywhere(word) for word in words]
        start[12] = builder.trunc(counters, _WORDS)
        start[13] = builder.trunc(builder.lshr(counters, ir.Constant(_LONGS, [32] * LANES)), _WORDS)

        def two_rounds(index: Any, held: Sequence[Any]) -> Sequence[Any]:
            x = list(held)
            for quarter in _ROUNDS:
                quarter_round(x, *quarter)
            return x

        x = loop(builder, ir.Constant(_LONG, 10), 1, start, two_rounds)
        for word in range(16):
            row = builder.bitcast(
                builder.gep(target, [ir.Constant(_LONG, word * LANES)]), _WORDS.as_pointer()
            )
            builder.store(builder.add(x[word], start[word]), row, align=4)
        moved = builder.add(counter, ir.Constant(_LONG, LANES))
        builder.store(builder.trunc(moved, _WORD), index_of_word(12))
        builder.store(
            builder.trunc(builder.lshr(moved, ir.Constant(_LONG, 32)), _WORD), index_of_word(13)
        )
        return context.get_dummy_value()

    return types.void(state, lanes), generate


blocks: Any = extending.intrinsic(_blocks)
"""blocks(state, lanes): write the next LANES blocks, word by word, to ``lanes`` (16 × LANES).

The 64-bit counter (words 12 and 13) is advanced."""


WORDS = 8 * LANES  # 64-bit words per refill
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4")


class Stream(NamedTuple):
    """Generator of one model: a buffer of words and its state. Kernels change it in place."""

    words: Array
    used: Array
    state: Array  # ChaCha20: constants, key, counter, stream number
    fast: Array  # xoshiro256++
    lanes: Array  # scratch, 16 words × lanes
    strong: bool
    gaps: Array  # scratch, the words converted to gaps of a Poisson sample
    noise_state: Array  # ``state`` and ``fast`` when the noise of the current step began
    noise_fast: Array


def streams(sources: Sequence[Randomness]) -> list[Stream]:
    """Return one stream per source, under a new key from it.

    A stream is strong, or fast if its source is for simulations.
    """
    keys = [np.frombuffer(source.bytes(32), dtype="<u4") for source in sources]
    return [
        stream(key, 0, strong=not source.simulated)
        for key, source in zip(keys, sources, strict=True)
    ]


def stream(key: Array, number: int, *, strong: bool) -> Stream:
    """Return stream ``number`` under ``key`` (eight 32-bit words)."""
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
        np.zeros(WORDS),
        state.copy(),
        fast.copy(),
    )


def further_digits(state: Array, pair: int, part: int) -> tuple[int, int]:
    """Return 256 further digits of U and V of a pair: a block of a reserved stream of this key.

    ``pair`` is the number of the pair among all pairs of the stream.
    """
    reserved, lanes = state.copy(), np.zeros((16, LANES), dtype=np.uint32)
    reserved[12], reserved[13] = pair & 0xFFFFFFFF, (pair >> 32) & 0xFFFFFFFF
    reserved[15] = 0x80000000 | part
    chacha20_blocks(reserved, lanes)
    words = lanes[:, 0].astype("<u4").tobytes()
    return int.from_bytes(words[:32], "little"), int.from_bytes(words[32:], "little")


@kernel
def _scatter(fast: Array, number: Any) -> None:
    """Seed xoshiro with splitmix64 of the key and the stream number."""
    for index in range(4):
        z = fast[index] + (number * np.uint64(4) + np.uint64(index) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        fast[index] = z ^ (z >> np.uint64(31))


@kernel
def chacha20_blocks(state: Array, lanes: Array) -> None:
    """Write the next LANES blocks to ``lanes``, word by word; advance the 64-bit counter."""
    blocks(state, lanes)


@kernel
def refill(source: Stream) -> None:
    """Fill the buffer with new words; each word is used once."""
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
        for index in range(WORDS):
            z = a + d
            words[index] = ((z << np.uint64(23)) | (z >> np.uint64(41))) + a
            t = b << np.uint64(17)
            c ^= a
            d ^= b
            b ^= c
            a ^= d
            c ^= t
            d = (d << np.uint64(45)) | (d >> np.uint64(19))
        source.fast[0], source.fast[1], source.fast[2], source.fast[3] = a, b, c, d
        before = source.state[12]
        source.state[12] = before + np.uint32(LANES)  # counts as for the strong stream
        if source.state[12] < before:
            source.state[13] += np.uint32(1)
    source.used[0] = 0


@ordered
def uniform(word: Any) -> Any:
    """Return a double in (0, 1]: k·2^{−53}, k = 1 … 2^{53}."""
    return (np.float64(np.int64(word >> np.uint64(11))) + 1.0) * 2.0**-53


@ordered
def _series(coefficients: tuple[float, ...], z: float) -> float:
    """Evaluate a polynomial by Horner's rule, highest power first."""
    total = 0.0
    for coefficient in coefficients:
        total = total * z + coefficient
    return total


@ordered
def logarithm(u: float) -> float:
    """Return ln u of a positive normal double; relative error below 4·2^{−53}.

    u = m·2^e with m in [√½, √2), and ln m = 2·artanh s with s = (m − 1)/(m + 1). The series ends
    where a term is below 2^{−56} of the first. There is no table and no branch, so that loops over
    this function use vector instructions.
    """
    bits = np.float64(u).view(np.int64)
    exponent = (bits - HALF_ROOT) >> np.int64(52)
    f = np.int64(bits - (exponent << np.int64(52))).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    tail = z * _series(ARTANH, z)
    half, e = 0.5 * f * f, np.float64(np.int32(exponent))
    return e * LN2_HIGH - ((half - (s * (half + tail) + e * LN2_LOW)) - f)


@ordered
def turn(word: Any) -> tuple[float, float]:
    """Return cosine and sine of word / 2^{64} of a full turn; absolute error below 3.2·2^{−53}.

    The nearest quarter of a turn is subtracted exactly, in integers; the rest is a Taylor series.
    """
    angle = np.int64(word)  # angles above half a turn become negative ones
    quarter = (angle + np.int64(1 << 61)) >> np.int64(62)
    x = np.float64(angle - (quarter << np.int64(62))) * QUARTER
    z = x * x
    sine, cosine = x + x * z * _series(SINE, z), 1.0 - (0.5 * z - z * z * _series(COSINE, z))
    odd = (quarter & 1) != 0
    first, second = (sine if odd else cosine), (cosine if odd else sine)
    return (
        (-first if ((quarter + 1) & 2) != 0 else first),
        (-second if (quarter & 2) != 0 else second),
    )


@kernel
def uniforms(source: Stream, out: Array) -> None:
    """Fill ``out`` with uniforms in (0, 1]."""
    for index in range(len(out)):
        if source.used[0] == WORDS:
            refill(source)
        out[index] = uniform(source.words[source.used[0]])
        source.used[0] += 1


@ordered
def _gaps(words: Array, scale: float, gaps: Array) -> None:
    """Convert words to the gaps between the rows of a Poisson sample."""
    for index in range(len(words)):
        gaps[index] = 1.0 + np.floor(logarithm(uniform(words[index])) * scale)


@kernel
def poisson_sample(source: Stream, rate: float, rows: int, out: Array) -> int:
    """Write one Poisson sample, ascending, to ``out`` (room for all rows); return its size."""
    if rate >= 1.0:
        for index in range(rows):
            out[index] = index
        return rows
    scale, words, gaps = 1.0 / math.log1p(-rate), source.words, source.gaps
    count, row = 0, -1.0
    while True:
        if source.used[0] == WORDS:
            refill(source)
        first = source.used[0]
        _gaps(words[first:], scale, gaps[first:])
        for index in range(first, WORDS):
            row += gaps[index]
            if row >= rows:
                source.used[0] = index + 1
                return count
            out[count] = int(row)
            count += 1
        source.used[0] = WORDS


_PAIRS = WORDS // 2  # pairs of coordinates per refill; 16 blocks of the keystream


@ordered
def scaled_pairs(
    radii: Array, angles: Array, deviation: float, first: Array, second: Array, errors: Array
) -> None:
    """Write both Gaussians of each pair, times ``deviation``, and the bound on their error."""
    for pair in range(len(errors)):
        u = np.float64(np.int64((radii[pair] >> np.uint64(1)) | np.uint64(1))) * LAST
        r = math.sqrt(-2.0 * logarithm(u))
        length, (x, y) = deviation * r, turn(angles[pair])
        first[pair], second[pair] = length * x, length * y
        rest = u - LAST  # 0 where all leading digits are 0: then the error is infinite
        unread = (LENGTH_ERROR * rest + UNREAD) / (rest * r)
        errors[pair] = deviation * (RADIUS_ERROR * r + unread) + CONSTANT_ERROR


@ordered
def _round(total: Array, noise: Array, errors: Array, scale: float, step: float, out: Array) -> int:
    """Write the rounded noisy sums; return whether a coordinate is not decided."""
    doubts = 0
    for index in range(len(total)):
        s = total[index] * scale
        whole = np.floor(s + 0.5)
        t = (s - whole) + noise[index]
        near = np.floor(t + 0.5)
        out[index] = (whole + near) * step
        doubts |= not (0.5 - abs(t - near) > errors[index])
    return doubts


@kernel
def _keep_decided(
    total: Array, noise: Array, errors: Array, scale: float, out: Array, open_: Array
) -> int:
    """Restore the sums that are not decided, and mark them; return their number."""
    count = 0
    for index in range(len(total)):
        s = total[index] * scale
        t = (s - np.floor(s + 0.5)) + noise[index]
        if not (0.5 - abs(t - np.floor(t + 0.5)) > errors[index]):
            out[index] = total[index]
            open_[index] = 1
            count += 1
    return count


@ordered
def _copy(source: Array, target: Array) -> None:
    """Copy; a slice assignment would look for overlaps and shapes first."""
    for index in range(len(target)):
        target[index] = source[index]


@kernel
def add_lattice_noise(source: Stream, total: Array, open_: Array, lattice: NoiseLattice) -> int:
    """Replace ``total`` by round((total + noise) / step)·step, except for open coordinates.

    Whole buffers are used; the unused words of the last one are discarded, so that no word is used
    twice. Return the number of open coordinates.
    """
    source.noise_state[:] = source.state
    source.noise_fast[:] = source.fast
    noise, errors, out = np.empty(WORDS), np.empty(_PAIRS), np.empty(_PAIRS)
    done, wanted, doubts = 0, len(total), 0
    while done < wanted:
        refill(source)
        pairs = min(_PAIRS, (wanted - done + 1) // 2)
        scaled_pairs(
            source.words[:pairs],
            source.words[_PAIRS : _PAIRS + pairs],
            lattice.deviation,
            noise[:pairs],
            noise[_PAIRS : _PAIRS + pairs],
            errors[:pairs],
        )
        for half in range(2):
            count = min(pairs, wanted - done)
            mine, drawn = total[done : done + count], noise[half * _PAIRS : half * _PAIRS + count]
            if _round(mine, drawn, errors[:count], lattice.scale, lattice.step, out[:count]):
                doubts += _keep_decided(
                    mine, drawn, errors[:count], lattice.scale, out, open_[done : done + count]
                )
            _copy(out[:count], mine)
            done += count
    source.used[0] = WORDS
    return doubts


@kernel
def _words_again(source: Stream, radii: Array, angles: Array) -> None:
    """Write the words of every coordinate's pair; ``source`` is at the beginning of the noise."""
    done, wanted = 0, len(radii)
    while done < wanted:
        refill(source)
        pairs = min(_PAIRS, (wanted - done + 1) // 2)
        for _ in range(2):
            count = min(pairs, wanted - done)
            radii[done : done + count] = source.words[:count]
            angles[done : done + count] = source.words[_PAIRS : _PAIRS + count]
            done += count


def settle(source: Stream, total: Array, open_: Array, lattice: NoiseLattice) -> None:
    """Decide the open coordinates of ``total`` exactly."""
    again = source._replace(
        words=np.zeros_like(source.words),
        used=np.full(1, WORDS, dtype=np.int64),
        state=source.noise_state.copy(),
        fast=source.noise_fast.copy(),
    )
    begun = int(again.state[12]) | int(again.state[13]) << 32
    radii, angles = np.empty(len(total), dtype=np.uint64), np.empty(len(total), dtype=np.uint64)
    _words_again(again, radii, angles)
    for index in np.flatnonzero(open_).tolist():
        buffer, inside = divmod(index, WORDS)
        pairs = min(_PAIRS, (len(total) - buffer * WORDS + 1) // 2)
        # a refill advances the counter by 16 blocks and holds 64 pairs
        number = 4 * begun + _PAIRS * buffer + inside % pairs

        def more(part: int, number: int = number) -> tuple[int, int]:
            return further_digits(source.state, number, part)

        words = int(radii[index]), int(angles[index])
        total[index] = decided_release(float(total[index]), lattice, words, inside >= pairs, more)
        open_[index] = 0


def make_steps(
    run: Callable[[int, int, bool], int], settle_now: Callable[[], None], done: int, steps: int
) -> None:
    """Call ``run(done, steps, resumed)`` until all steps are made; decide open ones in between."""
    end, resumed = done + steps, False
    while True:
        done = run(done, end - done, resumed)
        if done == end:
            return
        settle_now()
        resumed = True


class StepSettings(NamedTuple):
    """Numbers of a configuration and its plan."""

    rate: float
    expected: float
    bound: Bound
    lattice: NoiseLattice
    learning_rates: Array  # one per step, or a single one
    weight_decay: float
    momentum: float
    optimiser: int  # index in OPTIMISERS


class TrainingState(NamedTuple):
    """Parameters, the two moments of the optimiser, the sum, and its open coordinates; flat."""

    parameters: Array
    first: Array
    second: Array
    total: Array
    open: Array  # uint8: coordinates whose noise is not decided yet


def step_settings(
    configuration: Configuration, plan: TrainingPlan, width: int, rows: int
) -> StepSettings:
    """Return the numbers that a training of ``width`` parameters needs in every step."""
    return StepSettings(
        plan.sampling_rate,
        float(configuration.batch_size),
        clip_bound(float(configuration.clip), width, rows),
        lattice_of(float(configuration.clip), plan.noise_multiplier),
        configuration.learning_rates(plan.steps),
        float(configuration.weight_decay),
        float(configuration.momentum),
        OPTIMISERS.index(configuration.optimiser),
    )


def state_of(parameters: Array) -> TrainingState:
    """Return the initial state of a training that begins at ``parameters`` (copied)."""
    first, second, total = (np.zeros(len(parameters)) for _ in range(3))
    open_ = np.zeros(len(parameters), dtype=np.uint8)
    return TrainingState(parameters.astype(np.float64), first, second, total, open_)


@kernel
def noisy(state: TrainingState, settings: StepSettings, source: Stream) -> int:
    """Add noise to ``state.total``; return the number of coordinates that are left open."""
    if settings.lattice.noise == 0.0:
        return 0
    return add_lattice_noise(source, state.total, state.open, settings.lattice)


@kernel
def update(state: TrainingState, settings: StepSettings, step: int) -> None:
    """Average the noisy sum and update the parameters; ``step`` counts from 1."""
    parameters, first, second, total = (
        state.parameters,
        state.first,
        state.second,
        state.total,
    )
    rates = settings.learning_rates
    scale, rate = 1.0 / settings.expected, rates[min(step, len(rates)) - 1]
    if settings.weight_decay != 0.0:
        kept = 1.0 - rate * settings.weight_decay
        for index in range(len(parameters)):
            parameters[index] *= kept
    if settings.optimiser == 0:
        for index in range(len(total)):
            parameters[index] -= rate * scale * total[index]
    elif settings.optimiser == 1:
        for index in range(len(total)):
            first[index] = settings.momentum * first[index] + scale * total[index]
            parameters[index] -= rate * first[index]
    else:
        fade1, fade2 = 1.0 - BETA1**step, 1.0 - BETA2**step
        for index in range(len(total)):
            gradient = scale * total[index]
            first[index] = BETA1 * first[index] + (1.0 - BETA1) * gradient
            second[index] = BETA2 * second[index] + (1.0 - BETA2) * gradient * gradient
            parameters[index] -= (
                rate * (first[index] / fade1) / (math.sqrt(second[index] / fade2) + TINY)
            )


def settle_state(state: TrainingState, settings: StepSettings, source: Stream) -> None:
    """Decide the open coordinates of ``state.total`` exactly."""
    settle(source, state.total, state.open, settings.lattice)
