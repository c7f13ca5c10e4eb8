"""Integer noise on queries.

Rounding keeps the promised sensitivity, and the noise keeps the promised guarantee.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import exp, log, mpf

from expost.errors import InvalidInput
from expost.mechanisms import DiscreteGaussian, DiscreteLaplace, Estimate, Mechanism, Query
from expost.privacy import ZCDP, PureDP
from expost.randomness import coins, samplers
from expost.randomness.source import Randomness, SimulationRandomness
from tests.randomness.bit_tree import enumerate_law

grids = st.fractions(Fraction(1, 1000), 10, max_denominator=1000)
distances = st.fractions(Fraction(1, 1000), 20, max_denominator=1000)
values = st.fractions(-1000, 1000, max_denominator=10**6)
floats = st.floats(-1e9, 1e9)


def same(data: Any) -> Any:
    """The data is the answer."""
    return data


# Rounding to the grid


@given(values, st.fractions(-1, 1, max_denominator=100), distances, grids)
def test_rounding_keeps_the_sensitivity(
    a: Fraction, share: Fraction, distance: Fraction, grid: Fraction
) -> None:
    """Would catch rounding half to even, or a sensitivity that forgets the rounding.

    Checked on two scalars at distance at most Δ.
    """
    query = Query(same, sensitivity=distance, grid=grid)
    (first,), (second,) = query.evaluate(a), query.evaluate(a + share * distance)
    assert abs(first - second) <= query.steps() == math.ceil(distance / grid)


@pytest.mark.parametrize("grid", [Fraction(1), Fraction(1, 4), Fraction(3, 7)])
def test_halves_are_all_rounded_up(grid: Fraction) -> None:
    """Would catch rounding half to even, which moves ½ and 1½ two steps apart."""
    query = Query(same, sensitivity=grid, grid=grid)
    steps = [query.evaluate((place + Fraction(1, 2)) * grid)[0] for place in range(-4, 5)]
    assert steps == list(range(-3, 6))
    assert query.steps() == 1


@given(floats, floats, grids)
def test_rounding_of_floats_keeps_the_sensitivity(a: float, b: float, grid: Fraction) -> None:
    """Would catch a float division on the way to the grid: the distance of two floats is exact."""
    distance = abs(Fraction(a) - Fraction(b))
    if distance == 0:
        return
    query = Query(same, sensitivity=distance, grid=grid)
    (first,), (second,) = query.evaluate(a), query.evaluate(b)
    assert abs(first - second) <= query.steps()


@given(values, grids)
def test_rounding_is_to_nearest(a: Fraction, grid: Fraction) -> None:
    """Would catch truncation: a rounded value is within half a step."""
    (step,) = Query(same, grid=grid).evaluate(a)
    assert abs(step * grid - a) <= grid / 2


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), grids, st.data())
def test_rounding_of_vectors_keeps_the_sensitivity(
    dimension: int, grid: Fraction, data: st.DataObject
) -> None:
    """Would catch a rounding allowance that is too small in ℓ1 or ℓ2."""
    first = data.draw(st.lists(values, min_size=dimension, max_size=dimension))
    shift = data.draw(
        st.lists(st.fractions(-3, 3, max_denominator=100), min_size=dimension, max_size=dimension)
    )
    if not any(shift):
        return
    second = [a + b for a, b in zip(first, shift, strict=True)]
    norm1, squared2 = sum(abs(b) for b in shift), sum(b * b for b in shift)
    norm2 = Fraction(
        math.isqrt(math.floor(squared2 * 10**24)) + 1, 10**12
    )  # just above the ℓ2 norm
    steps = Query(same, sensitivity=norm1, grid=grid, dimension=dimension)
    moved = [a - b for a, b in zip(steps.evaluate(first), steps.evaluate(second), strict=True)]
    assert sum(abs(m) for m in moved) <= steps.steps()
    euclidean = Query(same, sensitivity=norm2, grid=grid, dimension=dimension)
    assert sum(m * m for m in moved) <= euclidean.steps(squared=True) ** 2


@pytest.mark.parametrize(
    ("dimension", "wanted", "squared"),
    [(1, Fraction(4), Fraction(4)), (4, Fraction(7), Fraction(5)), (5, Fraction(8), Fraction(6))],
)
def test_steps(dimension: int, wanted: Fraction, squared: Fraction) -> None:
    """Would catch a wrong allowance.

    ⌈Δ/grid⌉ for one number, Δ/grid + d in ℓ1, Δ/grid + ⌈√d⌉ in ℓ2 (here Δ/grid = 3).
    """
    grid = Fraction(1, 2) if dimension > 1 else Fraction(4, 10)
    query = Query(same, sensitivity=Fraction(3, 2), grid=grid, dimension=dimension)
    assert query.steps() == wanted
    assert query.steps(squared=True) == squared


def test_integers_need_no_allowance() -> None:
    """Would catch an allowance for rounding where nothing is rounded."""
    assert (
        Query(same, sensitivity=3, dimension=7).steps()
        == Query(same, sensitivity=3, dimension=7).steps(squared=True)
        == 3
    )


@pytest.mark.parametrize(
    "wrap",
    [int, np.int64, np.array, lambda v: Decimal(v), lambda v: Fraction(v)],
    ids=["int", "int64", "0-d", "decimal", "fraction"],
)
def test_large_numbers_are_not_moved(wrap: Any) -> None:
    """Would catch a detour through float, which moves neighbours 1 apart to 256 apart and breaks
    the sensitivity.
    """
    query = Query(same, sensitivity=1, grid=1)
    (first,), (second,) = query.evaluate(wrap(2**60 + 128)), query.evaluate(wrap(2**60 + 129))
    assert (first, second) == (2**60 + 128, 2**60 + 129)


@pytest.mark.parametrize("answer", [[2**60 + 129, 0.5], [2**63, -1], (2**60 + 129, 1), [2**70, 3]])
@pytest.mark.parametrize("grid", [None, 1])
def test_lists_are_not_moved(answer: Any, grid: int | None) -> None:
    """Would catch a list turned into a float array on its way to the grid."""
    if grid is None and 0.5 in answer:
        with pytest.raises(InvalidInput):
            Query(same, dimension=2).evaluate(answer)
    else:
        assert Query(same, grid=grid, dimension=2).evaluate(answer)[0] == answer[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble, np.uint8, np.int16])
def test_every_number_type_goes_to_the_grid(dtype: type) -> None:
    """Would catch a numpy type that is refused or misread."""
    assert Query(same, grid=Fraction(1, 4), dimension=2).evaluate(
        np.array([3, 5], dtype=dtype)
    ) == [12, 20]
    assert Query(same, grid=Fraction(1, 4)).evaluate(dtype(3)) == [12]


@pytest.mark.parametrize(
    "answer", [np.zeros((2, 3), dtype=int), [[0, 0, 0], [0, 0, 0]], np.zeros(6, dtype=int).tolist()]
)
def test_a_table_counts_as_its_entries(answer: Any) -> None:
    """Would catch a shape that loses entries."""
    assert Query(same, dimension=6).evaluate(answer) == [0] * 6


@pytest.mark.parametrize("answer", [[1, 2], [], np.zeros(4, dtype=int), 7])
def test_a_wrong_dimension_is_refused(answer: Any) -> None:
    """Would catch noise added to fewer or more numbers than promised."""
    with pytest.raises(InvalidInput, match="return 3"):
        Query(same, dimension=3).evaluate(answer)
    with pytest.raises(InvalidInput, match="return 1"):
        Query(same).evaluate([1, 2])


@pytest.mark.parametrize(
    "answer", [12345.5, 12345.0, True, np.True_, np.float64(12345), "12345", None, Fraction(12345)]
)
def test_other_than_whole_numbers_are_refused_without_a_grid(answer: Any) -> None:
    """Would catch a silent truncation; the message must not tell the value."""
    with pytest.raises(InvalidInput, match="whole numbers") as refusal:
        Query(same).evaluate(answer)
    assert "12345" not in str(refusal.value)


@pytest.mark.parametrize(
    "answer", [math.nan, math.inf, -math.inf, np.float32("nan"), Decimal("nan")]
)
def test_no_number_has_no_place_on_the_grid(answer: Any) -> None:
    """Would catch NaN or ∞ turned into some step."""
    with pytest.raises((ValueError, OverflowError)):
        Query(same, grid=1).evaluate(answer)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("function", {"function": 3}),
        ("sensitivity", {"sensitivity": 0}),
        ("sensitivity", {"sensitivity": -1.0}),
        ("sensitivity", {"sensitivity": math.nan}),
        ("sensitivity", {"sensitivity": math.inf}),
        ("sensitivity", {"sensitivity": True}),
        ("sensitivity", {"sensitivity": "1"}),
        ("grid", {"grid": 0}),
        ("grid", {"grid": -0.5}),
        ("grid", {"grid": math.nan}),
        ("dimension", {"dimension": 0}),
        ("dimension", {"dimension": 1.5}),
        ("dimension", {"dimension": True}),
    ],
)
def test_bad_queries_are_refused(field: str, wrong: dict[str, Any]) -> None:
    """Would catch a query that cannot be meant, and a message that does not name the field."""
    with pytest.raises(InvalidInput) as refusal:
        Query(**{"function": same, **wrong})
    assert refusal.value.field == field


@pytest.mark.parametrize("parameter", [0, -1, math.nan, math.inf, True, "1", None])
def test_bad_parameters_are_refused(parameter: Any) -> None:
    """Would catch noise of no, infinite or negative scale."""
    with pytest.raises(InvalidInput, match="epsilon"):
        DiscreteLaplace(Query(same), parameter)
    with pytest.raises(InvalidInput, match="rho"):
        DiscreteGaussian(Query(same), parameter)


def test_a_bare_function_is_refused() -> None:
    """Would catch a query without a sensitivity."""
    for kind in (DiscreteLaplace, DiscreteGaussian):
        with pytest.raises(InvalidInput, match="query"):
            kind(same, 1)  # type: ignore[arg-type]


# Scale and promise


def test_laplace_scale_and_guarantee() -> None:
    """Would catch ε and the scale out of step.

    The scale is sensitivity/ε in steps; for display it is in the unit of the query.
    """
    mechanism = DiscreteLaplace(Query(same, sensitivity=3, grid=Fraction(1, 2)), Fraction(1, 5))
    assert mechanism.spread == 30
    assert mechanism.output_scale == 15.0
    assert mechanism.guarantee == PureDP(Fraction(1, 5))
    assert Fraction(mechanism.guarantee.epsilon) >= Fraction(1, 5)
    assert isinstance(mechanism, Mechanism)


def test_gaussian_scale_and_guarantee() -> None:
    """Would catch ρ and the variance out of step: variance = sensitivity²/(2ρ) in steps."""
    mechanism = DiscreteGaussian(
        Query(same, sensitivity=3, grid=Fraction(1, 2)), 2, neighbours="replace"
    )
    assert mechanism.spread == 9
    assert mechanism.output_scale == 1.5
    assert mechanism.guarantee == ZCDP(2, "replace")
    assert isinstance(mechanism, Mechanism)


def test_the_promise_names_the_relation() -> None:
    """Would catch a guarantee for add-remove whatever was asked for."""
    assert DiscreteLaplace(Query(same), 1, "replace").guarantee == PureDP(1, "replace")
    assert DiscreteGaussian(Query(same), 1, "replace").guarantee == ZCDP(1, "replace")


def test_gaussian_noise_of_vectors_is_for_the_l2_sensitivity() -> None:
    """Would catch one step per coordinate where √d are enough: 1 + 2 steps for four values."""
    query = Query(same, sensitivity=1, grid=1, dimension=4)
    assert DiscreteGaussian(query, Fraction(1, 2)).spread == 9
    assert DiscreteLaplace(query, Fraction(1, 2)).spread == 10


@pytest.mark.parametrize("kind", [DiscreteLaplace, DiscreteGaussian])
def test_scalar_noise_is_asked_for_at_the_right_spread(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch a mechanism whose sampler gets another number than its guarantee rests on."""
    asked: list[Any] = []
    for module, many in ((coins, ""), (samplers, "s")):
        for name in ("discrete_laplace", "discrete_gaussian"):
            monkeypatch.setattr(
                module,
                name + many,
                lambda spread, *rest, n=name: (
                    asked.append((n, spread)) or (5 if len(rest) == 1 else [5] * rest[0])
                ),
            )
    one, three = (
        kind(Query(same, sensitivity=2), 0.5),
        kind(Query(same, sensitivity=2, dimension=3), 0.5),
    )
    assert one(10, Randomness()).value == 15
    assert [estimate.value for estimate in three([10, 20, 30], Randomness())] == [15, 25, 35]
    assert asked == [(f"discrete_{kind.law}", one.spread)] * 2


def test_answers_in_the_querys_own_unit() -> None:
    """Would catch steps released as if they were units, or a value that is not on the grid."""
    estimate = DiscreteLaplace(Query(same, grid=Fraction(1, 3)), 1).answer(Fraction(5, 2), [4])
    assert estimate == Estimate(Fraction(12, 3), 1.0, "laplace")
    assert isinstance(estimate.value, int)
    assert DiscreteGaussian(Query(same, grid=Fraction(1, 3)), 1).answer(0, [4]).value == Fraction(
        4, 3
    )


def test_vector_answers() -> None:
    """Would catch noise of the wrong length or shared between coordinates."""
    source = SimulationRandomness(1)
    for mechanism in (
        DiscreteLaplace(Query(same, dimension=50), 0.01),
        DiscreteGaussian(Query(same, dimension=50), 0.0001),
    ):
        estimates = mechanism([0] * 50, source)
        assert len(estimates) == 50
        assert all(isinstance(each, Estimate) and each.law == mechanism.law for each in estimates)
        assert len({each.value for each in estimates}) > 25
    with pytest.raises(ValueError, match="zip"):
        DiscreteLaplace(Query(same, dimension=2), 1).answer([1, 2], [0])


# The guarantee, exactly


@pytest.mark.parametrize(
    ("epsilon", "sensitivity"), [(Fraction(1), 1), (Fraction(1, 2), 1), (Fraction(4, 3), 2)]
)
def test_laplace_keeps_its_epsilon(epsilon: Fraction, sensitivity: int) -> None:
    """Would catch noise too small by any visible amount.

    Compares the exact laws of the outputs on data 0 and on its neighbours.
    """
    mechanism = DiscreteLaplace(Query(same, sensitivity=sensitivity), epsilon)
    masses, undecided = enumerate_law(lambda r: mechanism(0, r).value, 400, within=1e-9)
    limit = math.exp(epsilon)
    ratios = []
    for shift in range(-sensitivity, sensitivity + 1):
        for output, mass in masses.items():
            other = (
                masses.get(output - shift, Fraction(0)) + undecided
            )  # data ``shift`` gives ``output`` this often
            if mass > Fraction(1, 10**4):
                ratios.append(mass / other)
    assert max(ratios) <= limit * (1 + 1e-9)
    assert max(ratios) >= limit * (1 - 1e-4)  # and no more noise than needed


epsilons = st.fractions(Fraction(1, 100), 10, max_denominator=100)
shares = st.fractions(-1, 1, max_denominator=50)


@given(epsilons, grids, distances, st.integers(-50, 50), shares, st.integers(-200, 200))
def test_laplace_exponents(
    epsilon: Fraction,
    grid: Fraction,
    sensitivity: Fraction,
    value: int,
    share: Fraction,
    output: int,
) -> None:
    """The same for all parameters.

    Log of the ratio of e^{−|y−v|/scale} at neighbours is at most ε, in exact fractions.
    """
    mechanism = DiscreteLaplace(Query(same, sensitivity=sensitivity, grid=grid), epsilon)
    neighbour = value + share * sensitivity
    (first,), (second,) = mechanism.query.evaluate(value), mechanism.query.evaluate(neighbour)
    assert (abs(output - second) - abs(output - first)) / mechanism.spread <= epsilon


@pytest.mark.parametrize("order", [1.5, 2, 8, 64])
@pytest.mark.parametrize(
    ("rho", "sensitivity"), [(Fraction(1, 2), 1), (Fraction(2), 1), (Fraction(1, 8), 3)]
)
def test_gaussian_keeps_its_rho(rho: Fraction, sensitivity: int, order: float) -> None:
    """Would catch a variance too small.

    The exact Rényi divergence of neighbours is at most ρ·α, and near it.
    """
    variance = DiscreteGaussian(Query(same, sensitivity=sensitivity), rho).spread
    with mpmath.workdps(40):
        v = mpf(variance.numerator) / variance.denominator
        reach = range(-int(order * sensitivity) - 60, int(order * sensitivity) + 61)
        weight = {
            y: exp(-(mpf(y) ** 2) / (2 * v))
            for y in range(reach.start - sensitivity, reach.stop + sensitivity)
        }
        total = mpmath.fsum(exp(-(mpf(y) ** 2) / (2 * v)) for y in range(-200, 201))
        moment = (
            mpmath.fsum(weight[y] ** order * weight[y - sensitivity] ** (1 - order) for y in reach)
            / total
        )
        divergence = log(moment) / (order - 1)
        assert divergence <= order * mpf(float(rho)) * (1 + mpf(10) ** -25)
        assert divergence >= 0.5 * order * mpf(float(rho))


# Estimates


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_half_width(confidence: float) -> None:
    """Would catch a one-sided quantile or a scale taken for a deviation.

    Compares the share of the noise within the half width.
    """
    assert Estimate(0, 3.0, "laplace").half_width(confidence) == pytest.approx(
        -3 * math.log(1 - confidence)
    )
    width = Estimate(0, 2.0, "gaussian").half_width(confidence)
    assert math.erf(width / 2.0 / math.sqrt(2)) == pytest.approx(confidence)


def test_half_width_covers_the_noise() -> None:
    """The same on 100,000 real draws of each law."""
    for kind, parameter in (
        (DiscreteLaplace, Fraction(1, 40)),
        (DiscreteGaussian, Fraction(1, 3200)),
    ):
        mechanism = kind(Query(same, dimension=100_000), parameter)
        noise = np.abs(mechanism.noise(100_000, SimulationRandomness(2)))
        width = Estimate(0, mechanism.output_scale, mechanism.law).half_width(0.9)
        assert abs(np.mean(noise <= width) - 0.9) < 0.01 + 6 * (0.09 / 100_000) ** 0.5


@pytest.mark.parametrize("confidence", [0, 1, -0.1, 1.5, math.nan])
def test_half_width_refuses(confidence: float) -> None:
    """Would catch an interval of probability 1 or 0."""
    with pytest.raises(InvalidInput, match="confidence"):
        Estimate(0, 1.0, "laplace").half_width(confidence)


def test_estimate_forms() -> None:
    """Would catch a JSON form that loses the number."""
    assert Estimate(Fraction(7, 2), 1.0, "laplace").as_dict() == {
        "value": 3.5,
        "scale": 1.0,
        "law": "laplace",
    }
    assert Estimate(7, 1.0, "gaussian").as_dict()["value"] == 7
    assert float(Estimate(Fraction(1, 4), 1.0, "gaussian")) == 0.25
