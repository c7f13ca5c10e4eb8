"""Plans and promises."""

import math
from fractions import Fraction

import pytest

from expost.errors import InvalidInput
from expost.training import DPSGD, Configuration, candidates
from expost.training.configuration import guarantees_of, plans
from expost.training.exact_noise import rounding_slack


def configuration(**changes):
    return Configuration(
        **{
            "learning_rate": 0.1,
            "epochs": 3,
            "batch_size": 100,
            "clip": 1.0,
            "noise_multiplier": 1.1,
        }
        | changes
    )


@pytest.mark.parametrize(
    ("n", "epochs", "batch", "steps"),
    [
        (1000, 3, 100, 30),
        (1000, 1, 300, 4),
        (7, 1, 7, 1),
        (60_000, 10, 256, 2344),
        (1000, 0.3, 100, 3),
        (200, 0.1, 20, 1),
        (10, 1, 3, 4),
    ],
)
def test_steps(n, epochs, batch, steps):
    plan = configuration(epochs=epochs, batch_size=batch).plan(n)
    assert plan.steps == steps
    assert plan.sampling_rate == batch / n


@pytest.mark.parametrize(
    ("n", "batch", "noise", "epochs"),
    [(60_000, 256, 1.1, 5), (500, 50, 0.7, 2), (300, 300, 4.0, 7)],
)
def test_the_promise_is_dp_accountings_for_what_is_executed(n, batch, noise, epochs):
    pytest.importorskip(
        "dp_accounting", reason="compares with dp_accounting: pip install 'expost[accounting]'"
    )
    from expost.integrations.dp_accounting import dpsgd_guarantee

    settings = configuration(epochs=epochs, batch_size=batch, noise_multiplier=noise)
    promise, orders = settings.guarantee(n), (2, 3, 8, 16, 32, 64)
    theirs = dpsgd_guarantee(batch / n, noise, math.ceil(epochs * n / batch), orders)
    for order, epsilon in zip(theirs.orders, theirs.epsilons, strict=True):
        assert epsilon <= promise.at(order) <= epsilon * (1 + 1e-9) + 1e-9


def test_calibrated_noise_keeps_the_target_and_not_much_less():
    settings = configuration(noise_multiplier=None, epsilon=0.5, delta=1e-6)
    assert 0.4999 < settings.guarantee(10_000).to_approx(1e-6).epsilon <= 0.5


def test_a_grid_is_planned_as_each_alone_and_equal_plans_share_a_promise():
    grid = [
        configuration(learning_rate=rate, noise_multiplier=None, epsilon=epsilon, delta=delta)
        for rate in (0.1, 0.2)
        for epsilon in (0.5, 2.0)
        for delta in (1e-5, 1e-7)
    ] + [configuration()]
    planned = plans(grid, 5000)
    for together, alone in zip(planned, (each.plan(5000) for each in grid), strict=True):
        assert together[:2] == alone[:2]
        assert together.noise_multiplier == pytest.approx(alone.noise_multiplier, rel=1e-9)
    found = guarantees_of(planned)
    assert found[0] is found[4]
    assert found[-1] == grid[-1].guarantee(5000)
    for settings, promise in zip(grid[:-1], found, strict=False):
        assert (
            settings.epsilon * 0.9999
            < promise.to_approx(settings.delta).epsilon
            <= settings.epsilon
        )


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("learning_rate", {"learning_rate": 0}),
        ("learning_rate", {"learning_rate": math.nan}),
        ("epochs", {"epochs": -1}),
        ("batch_size", {"batch_size": 0}),
        ("clip", {"clip": math.inf}),
        ("clip", {"clip": "1"}),
        ("noise_multiplier", {"noise_multiplier": -0.1}),
        ("noise_multiplier", {"noise_multiplier": None}),
        ("noise_multiplier", {"noise_multiplier": None, "epsilon": 1.0}),
        ("noise_multiplier", {"epsilon": 1.0, "delta": 1e-5}),
        ("epsilon", {"noise_multiplier": None, "epsilon": 0, "delta": 1e-5}),
        ("delta", {"noise_multiplier": None, "epsilon": 1, "delta": 1}),
        ("optimiser", {"optimiser": "lbfgs"}),
        ("momentum", {"momentum": 1}),
        ("noise_multiplier", {"noise_multiplier": Fraction(1, 10**400)}),
        ("clip", {"clip": 10**400}),
        ("epsilon", {"noise_multiplier": None, "epsilon": 10**400, "delta": 1e-5}),
    ],
)
def test_bad_settings(field, changes):
    with pytest.raises(InvalidInput) as error:
        configuration(**changes)
    assert error.value.field == field


def test_a_rate_above_one_and_a_promise_without_noise_are_refused():
    with pytest.raises(InvalidInput, match="sampling rate > 1"):
        configuration().plan(99)
    with pytest.raises(InvalidInput, match="without noise"):
        configuration(noise_multiplier=0).guarantee(1000)


def test_the_rounding_of_sums_on_cuda_is_charged():
    """A larger sensitivity there: less privacy for the same noise, more noise for the same ε."""
    given = configuration(noise_multiplier=2.0)
    here, there = given.plan(60_000), given.plan(60_000, device="cuda:1")
    assert here.sensitivity == 1.0
    assert here.charged_noise == 2.0
    assert there.sensitivity == 1 + rounding_slack(60_000)
    assert there.noise_multiplier == 2.0
    assert there.charged_noise < 2.0 / (1 + rounding_slack(60_000) * (1 - 1e-9))
    weaker = given.guarantee(60_000, device="cuda")
    assert all(
        a < b for a, b in zip(given.guarantee(60_000).epsilons, weaker.epsilons, strict=True)
    )
    assert weaker == configuration(noise_multiplier=there.charged_noise).guarantee(60_000)


def test_noise_for_cuda_is_calibrated_with_the_rounding():
    given = configuration(noise_multiplier=None, epsilon=0.5, delta=1e-6)
    here, there = given.plan(60_000), given.plan(60_000, device="cuda")
    assert there.noise_multiplier > here.noise_multiplier * there.sensitivity
    assert there.charged_noise >= here.noise_multiplier
    assert given.guarantee(60_000, device="cuda").to_approx(1e-6).epsilon <= 0.5


def test_a_mechanism_on_cuda_promises_what_is_charged_there():
    given = configuration(noise_multiplier=2.0)
    found = DPSGD("linear", given, 60_000, device="cuda").guarantee
    assert found == given.guarantee(60_000, device="cuda", neighbours="add-remove")
    assert given.plan(60_000, device="cuda", neighbours="add-remove").sensitivity == (
        1 + rounding_slack(4 * 60_000)
    )
    (candidate,) = candidates("linear", [given], 60_000, device="cuda")
    assert candidate.mechanism.guarantee == found
