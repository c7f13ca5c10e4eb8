"""What every engine executes, against the law that the guarantee is computed for.

Independent references: gradients and clipping in NumPy, the Gaussian, the binomial law. A
comparison of two engines would not see a mistake that both share. Noise that is halved, a sampling
rate that is doubled, division by the actual batch size, or gradients slightly above the clipping
norm that are not clipped are all far outside these bounds.
"""

import numpy as np
import pytest
from scipy import stats
from torch import nn

from expost.randomness.source import SimulationRandomness
from expost.training import Configuration, Fleet
from expost.training._torch.clipped_sums import LinearSums
from expost.training._torch.device_keystream import DeviceStream
from expost.training._torch.layer_chain import ChainSums
from expost.training._torch.model_group import train_batched
from expost.training.configuration import plans
from expost.training.engines import Meter
from tests.training.peers import exact_norm_square

ENGINES = ["linear", "network", "module", "group", "chain"]


def zeros(columns: int, outputs: int = 1) -> nn.Linear:
    layer = nn.Linear(columns, outputs).double()
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class Opaque(nn.Module):
    """A linear model where only torch.func can see it."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.inner = zeros(columns)

    def forward(self, x):
        return self.inner(x)


def train(engine, settings, X, y, seeds, loss="squared"):
    """Flat parameters (weights, bias) of every model; each has a source of its own."""
    sources = [SimulationRandomness(seed) for seed in seeds]
    columns = X.shape[1]
    if engine in ("group", "chain"):
        chain = lambda: nn.Sequential(zeros(columns))  # noqa: E731
        sums = (
            LinearSums(X, y, loss, 1, "cpu")
            if engine == "group"
            else ChainSums(chain(), chain, X, y, loss, "cpu")
        )
        stream, planned = DeviceStream(sources, "cpu"), plans(settings, len(X))
        return np.array(
            train_batched(sums, settings, planned, stream, seeds, None, None, Meter(None))
        )
    if engine == "linear":
        fleet = Fleet({"squared": "linear"}.get(loss, loss), settings)
    else:
        made = {
            "network": lambda: nn.Sequential(zeros(columns)),
            "module": lambda: Opaque(columns),
        }[engine]
        fleet = Fleet(made, settings, loss=loss)
    found = fleet.train(X, y, randomness=sources, simulation=True)
    return np.array(
        [np.concatenate([value.ravel() for value in each.parameters.values()]) for each in found]
    )


def count_of(engine: str, many: int) -> int:
    """General modules train one after another; fewer of them keep the test short."""
    return many // 10 if engine == "module" else many


@pytest.mark.parametrize("engine", ENGINES)
def test_the_noise_has_the_moments_that_the_plan_says(engine):
    """Rows without a gradient: a step moves by the noise alone. Mean, variance and fourth moment
    are within 4.5 standard errors (a false alarm at 2e-5 per engine).
    """
    rate, clip, multiplier, batch, columns = 0.5, 0.3, 1.7, 20, 99
    settings = [Configuration(rate, 0.2, batch, clip, noise_multiplier=multiplier)]
    models = count_of(engine, 400)
    moved = train(engine, settings * models, np.zeros((100, columns)), np.zeros(100), range(models))
    z = moved.ravel() * batch / (rate * settings[0].plan(100).noise_multiplier * clip)
    for power, mean, deviation in ((1, 0, 1), (2, 1, np.sqrt(2)), (4, 3, np.sqrt(96))):
        assert abs((z**power).mean() - mean) < 4.5 * deviation / np.sqrt(len(z))


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_are_taken_with_the_rate_of_the_plan_and_sums_divided_by_the_expected_batch(engine):
    """Each row has a coordinate of its own, so one step without noise shows who was taken. The
    number of all takings is binomial (a false alarm at 2e-6), so is that of each row (at 1e-6 each)
    and the sizes of the samples vary as they must (χ² at 1e-6). A row that was taken moves its
    coordinate by rate·contribution / *expected* batch, to 1e-9.
    """
    rows, batch, rate, clip = 40, 6, 0.5, 0.1
    models = count_of(engine, 3000)
    settings = Configuration(rate, batch / rows, batch, clip, noise_multiplier=0)
    q = settings.plan(rows).sampling_rate
    assert (settings.plan(rows).steps, q) == (1, batch / rows)
    moved = train(engine, [settings] * models, np.eye(rows), -np.ones(rows), range(models))
    taken = moved[:, :rows] != 0
    # the gradient is 2·(0 + 1)·(x, 1), of norm 2√2, clipped to 0.1
    assert np.abs(np.abs(moved[:, :rows][taken]) - rate * clip / np.sqrt(2) / batch).max() < 1e-9
    assert np.allclose(moved[:, rows], -rate * taken.sum(1) * clip / np.sqrt(2) / batch)
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], taken.size, q)
    assert low <= taken.sum() <= high
    low, high = stats.binom.ppf([5e-7, 1 - 5e-7], models, q)
    assert low <= taken.sum(0).min() <= taken.sum(0).max() <= high
    spread = ((taken.sum(1) - q * rows) ** 2).sum() / (rows * q * (1 - q))
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], models)
    assert low * 0.9 <= spread <= high * 1.1  # a binomial has slightly other fourth moments


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("excess", [-0.5, -0.005, 1e-6, 0.001, 0.005, 0.0099, 1.0, 1e6])
def test_one_row_is_clipped_as_numpy_clips_it(engine, loss, excess):
    """Gradients of norm clip·(1 + excess), also barely above the clipping norm, against NumPy. The
    step is exactly within clip, not only up to rounding.
    """
    rng, columns, clip = np.random.default_rng(0), 5, 0.7
    row = rng.standard_normal(columns)
    extended = np.append(row, 1.0)
    wanted = clip * (1 + excess)
    if loss == "squared":  # residual 2·(0 − y)
        target = -wanted / (2 * np.linalg.norm(extended))
        gradient = -2 * target * extended
    else:  # residual ½ − y; the row is scaled
        target, length = 0.0, np.sqrt(max((2 * wanted) ** 2 - 1, 1e-9))
        row *= length / np.linalg.norm(row)
        gradient = 0.5 * np.append(row, 1.0)
    reference = gradient * min(1.0, clip / np.linalg.norm(gradient))
    settings = Configuration(1.0, 1, 1, clip, noise_multiplier=0)
    (moved,) = train(engine, [settings], row[None], np.array([target]), [1], loss)
    assert np.abs(-moved - reference).max() < 1e-9 * clip
    assert exact_norm_square(moved) <= clip**2


@pytest.mark.parametrize("loss", ["squared", "softmax"])
def test_many_rows_are_summed_as_numpy_sums_them(loss):
    """Rows of every length, half of them within 1 % of the clipping norm; linear models with one
    output and with three, native.
    """
    rng, columns, clip, classes = np.random.default_rng(1), 6, 0.4, 3
    X = rng.standard_normal((50, columns))
    extended = np.column_stack([X, np.ones(50)])
    if loss == "squared":
        lengths = clip * np.where(np.arange(50) % 2, 1 + 0.01 * rng.random(50), 3 * rng.random(50))
        y = lengths / (2 * np.linalg.norm(extended, axis=1))
        residuals = -2 * y[:, None]
        fleet = Fleet("linear", [Configuration(1.0, 1, 50, clip, noise_multiplier=0)])
    else:
        y = rng.integers(0, classes, 50).astype(float)
        residuals = 1 / classes - np.eye(classes)[y.astype(int)]
        # all gradients have the norm of the clip times 1 … 1.01
        norm = np.linalg.norm(residuals[0])
        goal = clip * (1 + 0.01 * rng.random(50)) / norm
        X *= (np.sqrt(np.maximum(goal**2 - 1, 0)) / np.linalg.norm(X, axis=1))[:, None]
        clip = float(norm * np.linalg.norm(np.append(X[0], 1.0)) * 0.995)
        extended = np.column_stack([X, np.ones(50)])
        settings = Configuration(1.0, 1, 50, clip, noise_multiplier=0)
        fleet = Fleet("softmax", [settings], classes=classes)
    gradients = residuals[:, :, None] * extended[:, None, :]
    norms = np.linalg.norm(gradients.reshape(50, -1), axis=1)
    assert (norms > clip).sum() >= 20
    reference = -(gradients * np.minimum(1, clip / norms)[:, None, None]).sum(0) / 50
    (found,) = fleet.train(X, y, randomness=SimulationRandomness(0), simulation=True)
    table = np.column_stack([found.parameters["weight"], found.parameters["bias"]])
    assert np.abs(table - reference).max() < 1e-10


@pytest.mark.parametrize("engine", ENGINES)
def test_every_model_reads_its_own_source(engine):
    """Among others, a model is that of its source alone; with another source it is another."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 4)), rng.standard_normal(30)
    settings = [Configuration(0.1, 1, 10, 1.0, noise_multiplier=1.0)]
    together = train(engine, settings * 3, X, y, [5, 6, 7])
    for place, seed in enumerate((5, 6, 7)):
        (alone,) = train(engine, settings, X, y, [seed])
        assert np.allclose(together[place], alone, rtol=1e-12)
    assert len({each.tobytes() for each in together}) == 3
    noise = train(engine, settings * 3, np.zeros((30, 4)), np.zeros(30), [5, 6, 7])
    assert len(np.unique(noise)) == noise.size


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_sample_is_a_step_of_noise_only(engine):
    """At a rate of 1/1000 nearly all samples of 8 rows are empty; the moves are still Gaussian."""
    settings = [Configuration(1.0, 0.02, 0.008, 1.0, noise_multiplier=1.0)]
    assert settings[0].plan(8).steps == 20
    models = count_of(engine, 200)
    X, y = np.ones((8, 7)), np.ones(8)
    moved = train(engine, settings * models, X, y, range(models)) * 0.008 / np.sqrt(20)
    assert np.isfinite(moved).all()
    assert stats.kstest(moved.ravel(), "norm").pvalue > 1e-4


class Convolving(nn.Module):
    """A module that only torch.func can train, and whose layers refuse empty batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 3, 2), nn.Linear(9, 2)

    def forward(self, x):
        hidden = self.first(x[:, None]).tanh().flatten(1)
        return self.last(hidden).view(len(x), 2)


def test_empty_samples_of_a_general_module():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 4)), rng.integers(0, 2, 40)
    settings = [Configuration(0.1, 1, 2, 1.0, noise_multiplier=1.0, optimiser="adam")] * 3
    found = Fleet(Convolving, settings).train(
        X, y, randomness=SimulationRandomness(3), simulation=True
    )
    assert all(np.isfinite(value).all() for each in found for value in each.parameters.values())
