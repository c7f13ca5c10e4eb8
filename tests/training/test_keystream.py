"""The keystream's words, uniforms, Gaussians and Poisson samples: known vectors, laws,
independence.
"""

import numpy as np
import pytest
from scipy import stats

from expost.randomness.source import Randomness, SimulationRandomness
from expost.training._native import noise
from expost.training.exact_noise import lattice_of

SOURCES = [pytest.param(True, id="strong"), pytest.param(False, id="fast")]


def some_stream(strong: bool, number: int = 0, seed: int = 7) -> noise.Stream:
    key = np.frombuffer(SimulationRandomness(seed).bytes(32), dtype="<u4")
    return noise.stream(key, number, strong=strong)


def draw_gaussians(source: noise.Stream, out: np.ndarray) -> None:
    """Fill ``out`` with noise of standard deviation 1, on its lattice."""
    out[:] = 0
    assert (
        noise.add_lattice_noise(source, out, np.zeros(len(out), dtype=np.uint8), lattice_of(1, 1))
        == 0
    )


def test_chacha20_block_of_rfc_8439():
    """§2.3.2: key 00 … 1f, counter 1, nonce 000000090000004a00000000 (its first word is our
    counter's upper half).
    """
    state = noise.stream(np.arange(32, dtype=np.uint8).view("<u4"), 0, strong=True).state
    state[12:16] = np.frombuffer(bytes.fromhex("01000000000000090000004a00000000"), dtype="<u4")
    lanes = np.zeros((16, noise.LANES), dtype=np.uint32)
    noise.chacha20_blocks(state, lanes)
    expected = (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert lanes[:, 0].astype("<u4").tobytes().hex() == expected


def test_chacha20_zero_key_of_rfc_8439():
    """Appendix A.1, vectors 1 and 2: key and nonce 0, counters 0 and 1."""
    state = noise.stream(np.zeros(8, dtype=np.uint32), 0, strong=True).state
    lanes = np.zeros((16, noise.LANES), dtype=np.uint32)
    noise.chacha20_blocks(state, lanes)
    first, second = (lanes[:, lane].astype("<u4").tobytes().hex() for lane in (0, 1))
    assert first.startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert second.startswith("9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed")


def test_the_counter_carries_into_its_upper_half():
    state = some_stream(True).state
    state[12] = 0xFFFFFFFF
    lanes = np.zeros((16, noise.LANES), dtype=np.uint32)
    noise.chacha20_blocks(state, lanes)
    assert (state[12], state[13]) == (noise.LANES - 1, 1)
    alone = some_stream(True).state
    alone[13] = 1
    again = np.zeros_like(lanes)
    noise.chacha20_blocks(alone, again)
    assert (lanes[:, 1] == again[:, 0]).all()


def test_a_protected_source_gets_the_strong_stream_and_a_key_of_its_own():
    first, second = noise.streams([Randomness()])[0], noise.streams([Randomness()])[0]
    assert first.strong
    assert (first.state[4:12] != second.state[4:12]).any()
    assert not noise.streams([SimulationRandomness(1)])[0].strong


@pytest.mark.parametrize("strong", SOURCES)
def test_streams_of_two_models_share_nothing(strong):
    a, b = some_stream(strong, 0), some_stream(strong, 1)
    noise.refill(a)
    noise.refill(b)
    assert not set(a.words.tolist()) & set(b.words.tolist())


@pytest.mark.parametrize("strong", SOURCES)
def test_words_are_not_used_twice(strong):
    """Uniforms, then a sample, then Gaussians, then uniforms: the buffer is never read again."""
    source = some_stream(strong)
    seen = np.empty(1000)
    noise.uniforms(source, seen)
    draw_gaussians(source, np.empty(3))
    again = np.empty(1000)
    noise.uniforms(source, again)
    assert not set(seen.tolist()) & set(again.tolist())


@pytest.mark.parametrize("strong", SOURCES)
def test_uniforms_have_53_bits_and_the_right_law(strong):
    drawn = np.empty(200_000)
    noise.uniforms(some_stream(strong), drawn)
    assert drawn.min() > 0
    assert drawn.max() <= 1
    assert len(np.unique(drawn)) == len(drawn)  # 24-bit uniforms would repeat 1,200 times
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("strong", SOURCES)
@pytest.mark.parametrize("count", [1, 2, 3, 127, 128, 129, 50_001])
def test_gaussians_have_the_right_law(strong, count):
    """Blocks of every length, odd ones too, all filled; KS of what they make up together."""
    source, repeats = some_stream(strong, count), max(1, 60_000 // count)
    drawn = np.full((repeats, count), np.nan)
    for row in drawn:
        draw_gaussians(source, row)
    assert np.isfinite(drawn).all()
    assert stats.kstest(drawn.ravel(), "norm").pvalue > 1e-3
    if 1 < count < 1000:
        assert abs(np.corrcoef(drawn[:, 0], drawn[:, -1])[0, 1]) < 5 / np.sqrt(repeats)


@pytest.mark.parametrize("strong", SOURCES)
def test_gaussians_have_the_right_tails(strong):
    """Two-sided counts beyond 3, 4 and 5 deviations in 2·10^7 draws; together a false alarm at
    6e-4.
    """
    source, drawn = some_stream(strong, 3), np.empty(1_000_000)
    beyond = np.zeros(3)
    for _ in range(20):
        draw_gaussians(source, drawn)
        beyond += [(np.abs(drawn) > deviations).sum() for deviations in (3, 4, 5)]
    for deviations, count in zip((3, 4, 5), beyond, strict=True):
        expected = 2e7 * 2 * stats.norm.sf(deviations)
        assert stats.poisson.ppf(1e-4, expected) <= count <= stats.poisson.isf(1e-4, expected)


@pytest.mark.parametrize("strong", SOURCES)
@pytest.mark.parametrize("width", [1, 5, 127, 128, 129, 1000])
def test_no_word_of_the_noise_is_used_again_for_a_sample(strong, width):
    """After noise, the next words are those after all buffers that the noise took."""
    source, fresh, sample = some_stream(strong), some_stream(strong), np.empty(1)
    draw_gaussians(source, np.empty(width))
    taken = set()
    for _ in range(-(-width // noise.WORDS)):
        noise.refill(fresh)
        taken |= set(fresh.words.tolist())
    noise.refill(fresh)
    noise.uniforms(source, sample)
    assert sample[0] == noise.uniform(fresh.words[0])
    assert not set(source.words.tolist()) & taken


@pytest.mark.parametrize("strong", SOURCES)
def test_the_counter_tells_how_many_buffers_were_used(strong):
    """Both kinds of streams count alike: pairs of the noise are numbered by it."""
    source = some_stream(strong)
    source.state[12] = 2**32 - noise.LANES
    draw_gaussians(source, np.empty(3 * noise.WORDS))
    assert (source.state[12], source.state[13]) == (2 * noise.LANES, 1)


def inclusions(strong: bool, rate: float, rows: int, samples: int) -> np.ndarray:
    source, out = some_stream(strong), np.empty(rows, dtype=np.int64)
    taken = np.zeros((samples, rows), dtype=bool)
    for sample in taken:
        sample[out[: noise.poisson_sample(source, rate, rows, out)]] = True
    return taken


@pytest.mark.parametrize("strong", SOURCES)
@pytest.mark.parametrize("rate", [0.003, 0.1, 0.5, 0.97])
def test_each_row_is_taken_with_the_rate_independently(strong, rate):
    """χ² of the counts of rows, of the sample sizes against the binomial, of neighbouring rows."""
    check_inclusions(inclusions(strong, rate, 40, 20_000), rate)


def check_inclusions(taken: np.ndarray, rate: float) -> None:
    samples, rows = taken.shape
    counts = taken.sum(0)
    chi = ((counts - rate * samples) ** 2).sum() / (samples * rate * (1 - rate))
    assert 1e-3 < stats.chi2.sf(chi, rows) < 1 - 1e-3
    sizes = np.bincount(taken.sum(1), minlength=rows + 1)
    expected = samples * stats.binom.pmf(np.arange(rows + 1), rows, rate)
    common = expected > 5
    merged = (
        np.append(sizes[common], sizes[~common].sum()),
        np.append(expected[common], expected[~common].sum()),
    )
    assert stats.chisquare(merged[0], merged[1] * merged[0].sum() / merged[1].sum()).pvalue > 1e-3
    both = (taken[:, :-1] & taken[:, 1:]).mean()
    pairs = samples * (rows - 1)
    assert abs(both - rate**2) < 5 * np.sqrt(3 * rate**2 * (1 - rate**2) / pairs)


def test_rate_one_takes_every_row():
    out = np.empty(5, dtype=np.int64)
    assert noise.poisson_sample(some_stream(True), 1.0, 5, out) == 5
    assert out.tolist() == [0, 1, 2, 3, 4]
