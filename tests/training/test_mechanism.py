"""A training as a candidate."""

import numpy as np
import pytest

from expost import RandomDropping
from expost.errors import InvalidInput
from expost.mechanisms import Mechanism
from expost.randomness.source import Randomness, SimulationRandomness
from expost.training import DPSGD, Configuration, Trained, candidates


def data(rows=100):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 3))
    return X, (X[:, 0] > 0).astype(float)


GRID = [
    Configuration(rate, 1, 20, 1.0, epsilon=epsilon, delta=1e-5)
    for rate in (0.1, 1.0)
    for epsilon in (0.5, 2.0)
]


def test_a_mechanism_promises_what_it_executes():
    mechanism = DPSGD("logistic", GRID[0], 100)
    assert isinstance(mechanism, Mechanism)
    trained = mechanism(data(), Randomness())
    assert isinstance(trained, Trained)
    assert trained.guarantee == mechanism.guarantee
    assert mechanism.guarantee.to_approx(1e-5).epsilon <= 0.5
    assert mechanism.configuration.noise_multiplier == pytest.approx(
        GRID[0].plan(100).noise_multiplier, rel=1e-9
    )


@pytest.mark.parametrize("rows", [0, 1, 99, 101, 1000])
def test_another_number_of_rows_changes_no_promise(rows):
    """The guarantee is for add-remove neighbours, so no number of rows may be refused."""
    mechanism = DPSGD("logistic", GRID[0], 100)
    X, y = data()
    trained = mechanism((np.resize(X, (rows, 3)), np.resize(y, rows)), Randomness())
    assert trained.guarantee == mechanism.guarantee
    assert mechanism.guarantee.neighbours == "add-remove"


def test_bad_models_and_no_noise_are_refused_at_once():
    with pytest.raises(InvalidInput):
        DPSGD("softmax", GRID[0], 100)
    with pytest.raises(InvalidInput, match="without noise"):
        DPSGD("logistic", Configuration(0.1, 1, 20, 1.0, noise_multiplier=0), 100)


def test_candidates_share_promises_and_show_their_settings():
    listed = candidates("logistic", GRID, 100, repeats=3)
    assert [each.params["learning_rate"] for each in listed] == [0.1, 0.1, 1.0, 1.0]
    assert all(each.params["noise_multiplier"] > 0 and each.repeats == 3 for each in listed)
    assert listed[0].guarantee is listed[2].guarantee


def test_a_selector_tunes_trainings():
    X, y = data()
    rows, labels = data(50)

    def accuracy(trained):
        return float(
            (
                (rows @ trained.parameters["weight"][0] + trained.parameters["bias"][0] > 0)
                == labels
            ).mean()
        )

    release = RandomDropping(overhead=0.5, delta=1e-5).select(
        candidates("logistic", GRID, 100, repeats=2),
        (X, y),
        score=accuracy,
        randomness=SimulationRandomness(3),
        simulation=True,
    )
    assert isinstance(release.value, Trained) or release.index is None
