"""The exact rounded Gaussian: brackets against decimal arithmetic, the fallback, and the law."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from expost.errors import InvalidInput
from expost.randomness import samplers
from expost.randomness.samplers import NoiseLattice, decided_release, gaussian_bracket
from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training._native import noise
from expost.training._torch import model_group
from expost.training._torch.clipped_sums import LinearSums
from expost.training._torch.device_keystream import (
    DeviceStream,
    _scaled_pairs,
    chacha20_block,
    lattices_of,
)
from expost.training.configuration import plans
from expost.training.engines import Meter
from expost.training.exact_noise import clip_bound, lattice_of, rounding_slack
from tests.training.test_keystream import some_stream

SOURCES = [pytest.param(True, id="strong"), pytest.param(False, id="fast")]
ENGINES = ["native", "torch"]


def words_to_try(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random words, and the worst: no leading digits, all of them, next to quarters and powers."""
    rng = np.random.default_rng(0)
    ends = [0, 1, 2, 3, 2**64 - 1, 2**64 - 2, 2**63, 2**63 - 1, 2**62, 2**61, 2**61 - 1]
    ends += [2**k + d for k in range(3, 63) for d in (-1, 0, 1)]
    ends += [2**64 - 2**k for k in range(1, 60)]
    ends += [int(math.sqrt(0.5) * 2.0**64) + d for d in (-2048, 0, 2048)]
    ends += [
        quarter * 2**62 + d for quarter in range(4) for d in (0, 1, 12345, -1) if quarter or d > 0
    ]
    ends += [quarter * 2**61 + d for quarter in (1, 3, 5, 7) for d in (-1, 0, 1)]
    special = np.array(ends, dtype=np.uint64)
    random = rng.integers(0, 2**64, (2, count), dtype=np.uint64)
    shrunk = random[0] >> rng.integers(0, 63, count).astype(np.uint64)
    radii = np.concatenate([special, random[0], shrunk, ~shrunk])
    angles = np.concatenate([rng.permutation(special), random[1], random[0], ~shrunk[::-1]])
    return radii, angles


def fast_pairs(engine: str, radii: np.ndarray, angles: np.ndarray, deviation: float):
    if engine == "native":
        first, second, errors = (np.empty(len(radii)) for _ in range(3))
        noise.scaled_pairs(radii, angles, deviation, first, second, errors)
        return first, second, errors
    found, errors = _scaled_pairs(
        torch.from_numpy(radii.view(np.int64))[None],
        torch.from_numpy(angles.view(np.int64))[None],
        torch.tensor(deviation, dtype=torch.float64),
    )
    return (*found.numpy(), errors[0].numpy())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("deviation", [65536.0, 65536.0 * 1.7])
def test_every_bracket_contains_the_gaussian(engine, deviation):
    """The interval of z that 64 digits leave open, from decimal arithmetic, lies in the bracket."""
    radii, angles = words_to_try(1500)
    first, second, errors = fast_pairs(engine, radii, angles, deviation)
    finite = 0
    for sine, values in ((False, first), (True, second)):
        for radius, angle, value, error in zip(radii, angles, values, errors, strict=True):
            if math.isinf(error):
                continue
            low, high = gaussian_bracket(int(radius), int(angle), 64, sine)
            scale, reach = Fraction(deviation), Fraction(float(error))
            if low is None:  # U may be 1, where the length is 0: only the upper end of r is known
                assert radius == 2**64 - 1
                continue
            assert Fraction(float(value)) - reach <= Fraction(low) * scale
            assert Fraction(float(value)) + reach >= Fraction(high) * scale
            finite += 1
    assert finite > 0.9 * 2 * len(radii)


@pytest.mark.parametrize("engine", ENGINES)
def test_words_without_leading_digits_are_left_to_the_fallback(engine):
    """63 zeros leave the length of the Gaussian open; so do 54 ones, where the double is 1."""
    radii = np.array([0, 1, 2, 3, 2**64 - 1, 2**64 - 2**9], dtype=np.uint64)
    *_, errors = fast_pairs(engine, radii, np.arange(6, dtype=np.uint64) << np.uint64(60), 65536.0)
    assert np.isinf(errors).all()


def test_the_error_is_small_enough():
    """On average 2·E, the chance that the fast path does not decide, is about 2^−32."""
    rng = np.random.default_rng(1)
    radii, angles = rng.integers(0, 2**64, (2, 100_000), dtype=np.uint64)
    *_, errors = fast_pairs("native", radii, angles, 2.0**16.5)
    assert 2.0**-34 < 2 * errors.mean() < 2.0**-30


def test_series_of_the_logarithm_have_the_stated_error():
    """Against decimal arithmetic, at the ends of (0, 1], at powers of 2, around the cut at √½."""
    rng = np.random.default_rng(0)
    powers, near = 2.0 ** -np.arange(64.0), np.nextafter(np.sqrt(0.5), [0.0, 1.0])
    points = np.concatenate([powers, 1 - powers[1:54], near, rng.random(1000)])
    points = np.concatenate([points, np.exp(-43 * rng.random(1000))])
    from decimal import Context, Decimal, localcontext

    with localcontext(Context(prec=50)):
        for u in points.tolist():
            true = Decimal(u).ln()
            assert abs(Decimal(noise.logarithm(u)) - true) <= 4 * abs(true) / 2**53
    assert noise.logarithm(1.0) == 0


def test_series_of_the_direction_have_the_stated_error():
    from decimal import Context, Decimal, localcontext

    _, words = words_to_try(500)
    with localcontext(Context(prec=60)):
        for word in words:
            found = noise.turn(word)
            for value, shift in zip(found, (0, 2**62), strict=True):
                true = samplers._cosine(int(word) - shift, 64, 50)
                assert abs(Decimal(value) - true) <= Decimal("3.2") / 2**53


def reference(total, lattice, radii, angles, sines, more):
    return [
        decided_release(float(s), lattice, (int(r), int(a)), bool(sine), more)
        for s, r, a, sine in zip(total, radii, angles, sines, strict=True)
    ]


@pytest.mark.parametrize("strong", SOURCES)
@pytest.mark.parametrize("width", [1, 2, 3, 127, 128, 129, 300])
def test_the_kernel_releases_what_exact_arithmetic_releases(strong, width):
    """Every coordinate, from the words of the keystream, for sums of any size."""
    rng = np.random.default_rng(width)
    total = rng.standard_normal(width) * 10.0 ** rng.integers(-12, 12, width)
    lattice, source = lattice_of(0.3, 1.7), some_stream(strong, seed=width)
    found, open_ = total.copy(), np.zeros(width, dtype=np.uint8)
    assert noise.add_lattice_noise(source, found, open_, lattice) == open_.sum()
    noise.settle(source, found, open_, lattice)
    assert not open_.any()
    fresh = some_stream(strong, seed=width)
    wanted = np.empty(width)
    for first in range(0, width, noise.WORDS):
        noise.refill(fresh)
        left = min(noise.WORDS, width - first)
        pairs = (left + 1) // 2
        half = noise.WORDS // 2
        words = [
            (fresh.words[k % pairs], fresh.words[half + k % pairs], k >= pairs) for k in range(left)
        ]
        wanted[first : first + left] = reference(
            total[first : first + left], lattice, *zip(*words, strict=True), lambda part: (1, 1)
        )
    assert (found == wanted).all()
    steps = found / lattice.step
    assert (steps[np.abs(steps) < 2**50] == np.rint(steps[np.abs(steps) < 2**50])).all()


def fine(lattice: NoiseLattice, bits: int) -> NoiseLattice:
    """A lattice that is finer by so many bits, where the fast path rarely decides."""
    factor = 2.0**bits
    return NoiseLattice(
        lattice.noise, lattice.step / factor, lattice.scale * factor, lattice.deviation * factor
    )


@pytest.mark.parametrize("strong", SOURCES)
def test_a_fine_lattice_leaves_many_to_the_fallback_and_the_law_stays(strong):
    """At 2^−47 of the deviation a good part is open. Both parts together have the normal law; a
    false alarm at 1e-3.
    """
    lattice, drawn = fine(lattice_of(1.0, 1.0), 31), np.zeros(4000)
    open_, source = np.zeros(4000, dtype=np.uint8), some_stream(strong, seed=3)
    count = noise.add_lattice_noise(source, drawn, open_, lattice)
    assert count == open_.sum()
    assert 0.05 < count / 4000 < 0.95
    assert (drawn[open_ == 1] == 0).all()  # the sum is left as it was
    noise.settle(source, drawn, open_, lattice)
    assert stats.kstest(drawn, "norm").pvalue > 1e-3


def test_what_the_fallback_decides_does_not_depend_on_the_lattice():
    """A finer lattice rounds the same Gaussian: both releases are within half a step of it."""
    coarse, widths = lattice_of(1.0, 1.0), 500
    found = []
    for lattice in (coarse, fine(coarse, 33)):
        total, open_ = np.zeros(widths), np.zeros(widths, dtype=np.uint8)
        source = some_stream(True, seed=9)
        noise.add_lattice_noise(source, total, open_, lattice)
        noise.settle(source, total, open_, lattice)
        found.append(total)
    assert np.abs(found[0] - found[1]).max() <= coarse.step / 2 + 1e-12


def test_both_coordinates_of_a_pair_take_the_same_further_digits():
    """On a lattice so fine that everything is open, cos² + sin² of a pair is still r²."""
    lattice, total = fine(lattice_of(1.0, 1.0), 60), np.zeros(2)
    open_, source = np.zeros(2, dtype=np.uint8), some_stream(True, seed=4)
    assert noise.add_lattice_noise(source, total, open_, lattice) == 2
    asked = []
    original = noise.further_digits
    try:
        noise.further_digits = lambda state, pair, part: (
            asked.append((pair, part)) or original(state, pair, part)
        )
        noise.settle(source, total, open_, lattice)
    finally:
        noise.further_digits = original
    assert asked == [(0, 0), (0, 0)]


def test_further_digits_are_no_words_of_the_keystream():
    source = some_stream(True, seed=5)
    seen = set()
    for _ in range(20):
        noise.refill(source)
        seen |= set(source.words.tolist())
    for pair in range(50):
        for digits in noise.further_digits(source.state, pair, 0):
            parts = {(digits >> (64 * k)) & (2**64 - 1) for k in range(4)}
            assert not parts & seen
            seen |= parts


def test_pairs_of_all_steps_have_digits_of_their_own(monkeypatch):
    """Two steps of 300 coordinates: no pair is asked for twice (but by its two coordinates)."""
    lattice, source, asked = fine(lattice_of(1.0, 1.0), 60), some_stream(True), []
    monkeypatch.setattr(
        noise, "further_digits", lambda state, pair, part: asked.append(pair) or (pair, 1)
    )
    for _ in range(2):
        total, open_ = np.zeros(300), np.zeros(300, dtype=np.uint8)
        assert noise.add_lattice_noise(source, total, open_, lattice) == 300
        noise.settle(source, total, open_, lattice)
    assert len(asked) == 600
    assert sorted(set(asked)) == [k for s in (0, 192) for k in range(s, s + 150)]


def test_the_fallback_reads_on_until_it_can_decide():
    """A sum chosen next to the border between two lattice points, given 320 digits: the next 256
    decide.
    """
    lattice, words = lattice_of(1.0, 1.0), (2**62 + 12345, 2**60 + 999)
    digits = [(2**255 + 17, 2**254 + 3), (0, 0), (2**256 - 1, 2**256 - 1)]
    radius, angle = ((words[k] << 256) | digits[0][k] for k in (0, 1))
    low, high = gaussian_bracket(radius, angle, 320, sine=False)
    asked = []

    def more(part):
        asked.append(part)
        return digits[part] if part < 3 else (part, part)

    total = 0.0
    # a step so fine that the bracket of 320 digits (about 1e-95) is wider than it
    tiny = NoiseLattice(lattice.noise, 2.0**-320, 2.0**320, 0.0)
    assert high - low > 2.0**-320
    value = decided_release(total, tiny, words, False, more)
    assert asked == [0, 1]
    assert abs(Fraction(value) - Fraction(low) * Fraction(lattice.noise)) < Fraction(1, 10**15)


@pytest.mark.parametrize("bits", [0, 31])
def test_on_a_torch_device_exact_arithmetic_releases_the_same(bits):
    rng = np.random.default_rng(0)
    stream = DeviceStream([SimulationRandomness(1), SimulationRandomness(2)], "cpu")
    made = [fine(lattice_of(1.0, 0.7), bits), fine(lattice_of(3.0, 2.0), bits)]
    lattices, step = lattices_of(made, "cpu"), torch.tensor([6])
    total = torch.from_numpy(rng.standard_normal((2, 203)))
    found, doubt = stream.noisy(total, lattices, step)
    assert bool(doubt.any()) == (bits > 0)
    stream.settle(total, found, doubt, lattices, 6)
    everywhere = torch.full_like(found, torch.nan)
    stream.settle(total, everywhere, torch.ones_like(doubt), lattices, 6)
    assert torch.equal(found, everywhere)


def test_the_host_block_is_the_block_of_the_device():
    stream = DeviceStream([SimulationRandomness(1)], "cpu")
    words = stream.blocks(1, 5, torch.tensor([7]), 1, 1, 3)[:, 0, 0, 4].tolist()
    key = stream.keys[0].tolist()
    assert chacha20_block(key, (4, 7, 1, 3)) == [word & 0xFFFFFFFF for word in words]


def test_a_model_without_noise_keeps_its_sum_beside_noisy_ones():
    stream = DeviceStream([SimulationRandomness(1)] * 2, "cpu")
    lattices = lattices_of([lattice_of(1.0, 1.0), lattice_of(1.0, 0.0)], "cpu")
    total = torch.randn(2, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found, doubt = stream.noisy(total, lattices, torch.tensor([1]))
    assert torch.equal(found[1], total[1])
    assert not bool((found[0] == total[0]).any())
    assert not bool(doubt.any())


@pytest.mark.parametrize("engine", ENGINES)
def test_moments_of_the_noise_are_those_of_the_promised_gaussian(engine):
    """Mean, variance and fourth moment of 400,000 draws at σ = 0.51, each within ±4.5 of its
    standard errors: a false alarm at 2e-5. Half the noise, or noise of σ² = 2σ², is far outside.
    """
    lattice, count = lattice_of(0.3, 1.7), 400_000
    if engine == "native":
        drawn, open_ = np.zeros(count), np.zeros(count, dtype=np.uint8)
        noise.add_lattice_noise(some_stream(True, seed=11), drawn, open_, lattice)
    else:
        stream = DeviceStream([SimulationRandomness(11)], "cpu")
        zero = torch.zeros(1, count, dtype=torch.float64)
        drawn = stream.noisy(zero, lattices_of([lattice], "cpu"), torch.tensor([1]))[0][0].numpy()
    z = drawn / (0.3 * 1.7)
    for power, mean, deviation in ((1, 0, 1), (2, 1, np.sqrt(2)), (4, 3, np.sqrt(96))):
        assert abs((z**power).mean() - mean) < 4.5 * deviation / np.sqrt(count)


@pytest.mark.parametrize("clip", [1e-100, 0.3, 1.0, 1e100])
@pytest.mark.parametrize("multiplier", [1e-100, 0.5, 1.0, 1e100])
def test_lattices_are_powers_of_two_and_never_lose_noise(clip, multiplier):
    lattice = lattice_of(clip, multiplier)
    assert Fraction(lattice.noise) >= Fraction(clip) * Fraction(multiplier)
    assert math.frexp(lattice.step)[0] == 0.5
    assert lattice.step * lattice.scale == 1
    assert Fraction(lattice.deviation) == Fraction(lattice.noise) / Fraction(lattice.step)
    assert 2**16 <= lattice.deviation < 2**17


def test_bounds_leave_room_for_the_rounding():
    for clip in (1e-100, 0.3, 1.0, 7.5, 1e100):
        for width, rows in ((1, 1), (78, 100_000), (26_010, 60_000), (10**7, 10**8)):
            bound = clip_bound(clip, width, rows)
            assert bound.clip + math.sqrt(width) * bound.grid / 2 < clip
            assert rows * clip <= 2.0**53 * bound.grid
            assert clip < 2.0**51 * bound.grid
            assert bound.anchor == 1.5 * 2.0**52 * bound.grid
            assert bound.clip > 0.999 * clip
    with pytest.raises(InvalidInput, match="fewer rows"):
        clip_bound(1.0, 10**6, 2**52)


def test_the_slack_of_matrix_products_is_small_and_grows():
    slacks = [rounding_slack(rows) for rows in (1, 100, 10_000, 10**6)]
    assert slacks == sorted(slacks)
    assert slacks[2] < 1e-4
    assert slacks[3] < 0.01


def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 6))
    return X, X @ rng.standard_normal(6)


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("kind", ["linear", "network"])
def test_training_goes_on_after_open_coordinates(monkeypatch, kind, optimiser):
    """On a lattice where most steps have open coordinates, training is interrupted and resumed all
    the time; the model is that of the coarse lattice up to its rounding, whatever the threads.
    """
    X, y = problem()
    settings = [Configuration(0.05, 4, 10, 1.0, noise_multiplier=1.0, optimiser=optimiser)] * 2

    def run(**options):
        model = "linear" if kind == "linear" else lambda: nn.Sequential(nn.Linear(6, 1)).double()
        fleet = Fleet(model, settings, loss=None if kind == "linear" else "squared")
        found = fleet.train(X, y, randomness=SimulationRandomness(2), simulation=True, **options)
        return np.array([np.append(*each.parameters.values()) for each in found])

    coarse, settled = run(), []
    monkeypatch.setattr(noise, "lattice_of", lambda *given: fine(lattice_of(*given), 31))
    settle = noise.settle
    monkeypatch.setattr(
        noise, "settle", lambda *given: settled.append(given[2].sum()) or settle(*given)
    )
    close = run()
    assert len(settled) > 20
    assert np.abs(close - coarse).max() < (1e-2 if optimiser == "adam" else 1e-4)
    assert (close == run(threads=1)).all()


@pytest.mark.parametrize("bits", [0, 27, 31])
def test_a_group_that_asks_the_host_afterwards_trains_the_same_model(monkeypatch, bits):
    """As on CUDA: steps are made without the host, and repeated from the first that needs it.

    40 steps, in stretches of 16, 16 and 8.
    """
    X, y = problem()
    settings = [Configuration(0.05, 10, 10, 1.0, noise_multiplier=1.0, optimiser="momentum")] * 3
    monkeypatch.setattr(model_group, "_STRETCH", 16)
    monkeypatch.setattr(model_group, "lattice_of", lambda *given: fine(lattice_of(*given), bits))
    planned, ends, asked = plans(settings, 40), [], []
    settle = DeviceStream.settle
    monkeypatch.setattr(
        DeviceStream, "settle", lambda self, *given: asked.append(given[4]) or settle(self, *given)
    )
    for exact in (True, False):
        asked.clear()
        stream = DeviceStream([SimulationRandomness(seed) for seed in (1, 2, 3)], "cpu")
        sums = LinearSums(X, y, "squared", 1, "cpu")
        group = model_group.ModelGroup(settings, planned, [1, 2, 3], sums, stream, 1 << 30)
        group.exact = exact
        ends.append(group.train(Meter(None)))
        assert asked == sorted(set(asked))  # every step is settled once
        assert bool(asked) == (bits > 0)
    assert (ends[0] == ends[1]).all()
