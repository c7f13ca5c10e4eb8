"""The fleet as a whole: repeatability, independence of its members, noise scale, mixed settings,
progress, limits.
"""

import threading

import numpy as np
import pytest
from scipy import stats

from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet, progress_bar

MIXED = [
    Configuration(0.1, epochs, batch, clip, noise_multiplier=noise, optimiser=optimiser)
    for epochs, batch, clip, noise, optimiser in [
        (1, 10, 1.0, 1.0, "sgd"),
        (3, 50, 0.1, 2.0, "momentum"),
        (2, 10, 1.0, 0.5, "adam"),
        (0.5, 200, 1.0, 1.0, "sgd"),
    ]
]


def data(rows=200, columns=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns)).astype(np.float32)
    return X, X @ np.arange(1.0, columns + 1) / columns


def train(configurations, seed=1, **options):
    return Fleet("linear", configurations).train(
        *data(), randomness=SimulationRandomness(seed), simulation=True, **options
    )


def weights(trained):
    return np.concatenate(
        [np.append(each.parameters["weight"].ravel(), each.parameters["bias"]) for each in trained]
    )


def test_same_seed_same_result_whatever_the_threads():
    first = weights(train(MIXED, threads=1))
    assert (first == weights(train(MIXED, threads=1))).all()
    assert (first == weights(train(MIXED, threads=4))).all()
    assert (first != weights(train(MIXED, seed=2))).any()


def test_os_entropy_differs_every_time():
    fleet = Fleet("linear", MIXED[:1])
    assert (weights(fleet.train(*data())) != weights(fleet.train(*data()))).all()


def test_mixed_settings_each_get_their_own_promise_and_parameters():
    trained = train(MIXED)
    assert [each.configuration for each in trained] == MIXED
    assert [each.guarantee for each in trained] == [each.guarantee(200) for each in MIXED]
    assert all(np.isfinite(weights([each])).all() for each in trained)


@pytest.mark.parametrize("strong", [True, False])
def test_the_noise_has_the_scale_of_clip_times_multiplier(strong):
    """Rows of zeros but for the bias and targets of zero: no gradient, so one step moves by the
    noise alone.
    """
    rate, clip, multiplier, batch = 0.5, 0.3, 1.7, 20
    settings = [Configuration(rate, batch / 100, batch, clip, noise_multiplier=multiplier)] * 2000
    source = {} if strong else {"randomness": SimulationRandomness(5), "simulation": True}
    trained = Fleet("linear", settings).train(np.zeros((100, 3)), np.zeros(100), **source)
    moved = weights(trained) * batch / (rate * clip * multiplier)
    assert stats.kstest(moved, "norm").pvalue > 1e-4
    assert abs(moved.reshape(2000, 4).std() - 1) < 0.04


def test_members_draw_samples_and_noise_of_their_own():
    """Without noise, models differ by their samples only; with it, their moves are uncorrelated."""
    silent = Configuration(0.1, 0.1, 20, 1.0, noise_multiplier=0)
    found = weights(train([silent] * 50)).reshape(50, -1)
    assert len(np.unique(found[:, 0])) == 50
    noisy = Configuration(0.1, 0.1, 20, 1e-6, noise_multiplier=1.0)
    one, other = (
        np.array([each.parameters["weight"][0] for each in train([noisy, noisy], seed=seed)])
        for seed in (10, 11)
    )
    assert len(np.unique(np.concatenate([one, other]))) == 20
    pairs = weights(train([noisy] * 2000)).reshape(1000, 2, -1)
    for column in range(pairs.shape[2]):
        assert abs(np.corrcoef(pairs[:, 0, column], pairs[:, 1, column])[0, 1]) < 5 / np.sqrt(1000)


def test_the_mean_step_is_the_full_gradient():
    """E[sum over a Poisson sample] / expected batch = mean gradient: the averages over many models
    meet it.
    """
    X, y = data()
    settings = Configuration(1.0, 0.1, 20, 1e9, noise_multiplier=0)
    found = weights(train([settings] * 4000)).reshape(4000, -1)
    extended = np.column_stack([X, np.ones(len(X))]).astype(float)
    expected = 2 * (extended * y[:, None]).mean(0)
    assert settings.plan(200).steps == 1
    assert np.abs(found.mean(0) - expected).max() < 5 * (found.std(0) / np.sqrt(4000)).max()


def test_progress_counts_every_expected_example_once():
    seen, lock = [], threading.Lock()

    def progress(done, total):
        assert lock.acquire(blocking=False)
        seen.append((done, total))
        lock.release()

    train(MIXED, progress=progress)
    total = sum(each.plan(200).steps * each.batch_size for each in MIXED)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_the_progress_bar_draws_on_standard_error_only(capsys):
    with progress_bar() as bar:
        train(MIXED, progress=bar)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "examples/s" in captured.err


def test_a_progress_function_that_raises_stops_the_fleet():
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(MIXED * 10, progress=stop)


def test_memory_limit():
    assert (weights(train(MIXED, memory_limit=10_000)) == weights(train(MIXED))).all()
    with pytest.raises(InvalidInput, match="memory_limit"):
        train(MIXED, memory_limit=100)


def test_a_trained_model_shows_no_data():
    (trained,) = train(MIXED[:1])
    assert "array" not in repr(trained)
    assert set(vars(trained)) == {"parameters", "configuration", "guarantee"}


def test_nothing_is_printed(capsys):
    train(MIXED)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
