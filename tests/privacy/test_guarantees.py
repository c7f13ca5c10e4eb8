"""Guarantees.

Every operation rounds towards more loss, kinds and relations never mix, and invalid fields are
refused by name.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from itertools import permutations
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mpf
from scipy import optimize, stats

from expost.errors import ExpostError, InvalidGuarantee, InvalidInput
from expost.privacy import ZCDP, ApproxDP, Charges, Guarantee, PureDP, RenyiDP
from expost.privacy.guarantees import (
    ADD_REMOVE,
    RELATIONS,
    REPLACE,
    ZERO_OUT,
    guarantee_from_dict,
    tight_epsilon,
    zero_like,
)

ORDERS = (1.25, 2.0, 7.5, 64.0)

losses = st.floats(0, 1e6)
small = st.floats(0, 1e-3)
relations = st.sampled_from(list(RELATIONS))

Make = Callable[[float], Guarantee]
KINDS: dict[str, Make] = {  # promises that grow with one number
    "pure": PureDP,
    "approx": lambda x: ApproxDP(x, min(x, 1e3) / 1e6),
    "zcdp": ZCDP,
    "renyi": lambda x: RenyiDP(ORDERS, [x, 2 * x, 3 * x, 4 * x]),
}
kinds = st.sampled_from(sorted(KINDS))


def numbers(guarantee: Guarantee) -> list[Fraction]:
    """All numbers of a guarantee that grow with the loss."""
    return [Fraction(mine) for mine, _ in guarantee._numbers(guarantee)]


# Sums and products


@given(kinds, losses, losses)
def test_sums_round_up(kind: str, x: float, y: float) -> None:
    """Would catch a float addition: the sum is the exact one or the next float above."""
    a, b = KINDS[kind](x), KINDS[kind](y)
    for total, first, second in zip(numbers(a + b), numbers(a), numbers(b), strict=True):
        assert total >= first + second
        assert float(total) <= math.nextafter(float(first + second), math.inf)


@given(kinds, losses, losses)
def test_sums_commute(kind: str, x: float, y: float) -> None:
    """Would catch an order that matters."""
    a, b = KINDS[kind](x), KINDS[kind](y)
    assert a + b == b + a


@given(kinds, losses, losses, losses)
def test_sums_associate_up_to_rounding(kind: str, x: float, y: float, z: float) -> None:
    """Would catch rounding that accumulates by more than the last bit of each sum."""
    a, b, c = (KINDS[kind](value) for value in (x, y, z))
    for left, right, exact in zip(
        numbers((a + b) + c),
        numbers(a + (b + c)),
        [sum(parts) for parts in zip(numbers(a), numbers(b), numbers(c), strict=True)],
        strict=True,
    ):
        assert min(left, right) >= exact
        assert max(left, right) - exact <= 2 * Fraction(math.ulp(float(max(left, right))))


@given(kinds, st.floats(0, 1e3), st.integers(0, 40))
def test_products_are_repeated_sums(kind: str, x: float, count: int) -> None:
    """Would catch a product below the exact one, or far from adding up: n·g against g + … + g."""
    one = KINDS[kind](x)
    product = count * one
    assert product == one * count
    repeated = zero_like(one)
    for _ in range(count):
        repeated = repeated + one
    for many, summed, single in zip(numbers(product), numbers(repeated), numbers(one), strict=True):
        assert single * count <= many <= summed
        assert summed - many <= count * Fraction(math.ulp(float(summed)))


def test_many_tenths() -> None:
    """Would catch the float sum: ten times the float 0.1, exactly, is just above 1."""
    assert PureDP(0.1) * 10 == PureDP(math.nextafter(1.0, 2.0))
    added = reduce(operator.add, [0.1] * 10)  # sum() compensates since Python 3.12
    assert added < 1 < (PureDP(0.1) * 10).epsilon


@pytest.mark.parametrize("count", [-1, 1.5, True, "2", None, math.nan])
def test_bad_counts_are_refused(count: Any) -> None:
    """Would catch a guarantee of half a run."""
    with pytest.raises(InvalidGuarantee, match="count"):
        PureDP(1) * count


@pytest.mark.parametrize(
    "overflow",
    [
        lambda: PureDP(1.7e308) * 2,
        lambda: ZCDP(1.7e308) + ZCDP(1.7e308),
        lambda: ApproxDP(1, 0.6) * 2,
    ],
)
def test_sums_that_promise_nothing_are_refused(overflow: Callable[[], Guarantee]) -> None:
    """Would catch ε = ∞ or δ ≥ 1 passing for a guarantee."""
    with pytest.raises(InvalidGuarantee):
        overflow()


def test_zero_like() -> None:
    """Would catch a zero on other terms."""
    curve = RenyiDP(ORDERS, (1, 2, 3, 4), REPLACE)
    assert zero_like(curve) == RenyiDP(ORDERS, (0, 0, 0, 0), REPLACE)
    assert zero_like(curve) + curve == curve


# Comparison


@given(kinds, losses, losses)
def test_comparison_follows_the_numbers(kind: str, x: float, y: float) -> None:
    """Would catch a comparison turned round; a guarantee implies itself and every larger one."""
    a, b = KINDS[kind](x), KINDS[kind](y)
    assert (a <= b) == all(
        mine <= theirs for mine, theirs in zip(numbers(a), numbers(b), strict=True)
    )
    assert (a >= b) == (b <= a)
    assert a <= a
    assert a <= a.at_worst(b)
    assert b <= a.at_worst(b)
    assert a.at_worst(b) in (a, b)


def test_comparison_looks_at_every_number() -> None:
    """Would catch a comparison by ε alone: neither of these implies the other."""
    for a, b in (
        (ApproxDP(1, 1e-5), ApproxDP(2, 1e-6)),
        (RenyiDP((2, 3), (1, 4)), RenyiDP((2, 3), (2, 3))),
    ):
        assert not a <= b
        assert not b <= a
        assert a <= a.at_worst(b)
        assert b <= a.at_worst(b)
    assert ApproxDP(1, 1e-5).at_worst(ApproxDP(2, 1e-6)) == ApproxDP(2, 1e-5)
    assert RenyiDP((2, 3), (1, 4)).at_worst(RenyiDP((2, 3), (2, 3))) == RenyiDP((2, 3), (2, 4))


@pytest.mark.parametrize(
    ("promise", "size"),
    [(PureDP(2), 2), (ApproxDP(2, 0.5), 2), (ZCDP(3), 3), (RenyiDP(ORDERS, (1, 2, 3, 4)), 4)],
)
def test_size(promise: Guarantee, size: int) -> None:
    """Would catch promises sorted by δ or by the first order."""
    assert promise.size == size


# Terms


OPERATIONS: list[Callable[[Any, Any], object]] = [
    lambda a, b: a + b,
    lambda a, b: a <= b,
    lambda a, b: a >= b,
    lambda a, b: a.at_worst(b),
    lambda a, b: a.require_same_terms(b),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_kinds_never_mix(operation: Callable[[Any, Any], object]) -> None:
    """Would catch ε added to ρ."""
    promises: list[Any] = [make(0.5) for make in KINDS.values()]
    for a in promises:
        for b in [*promises, 0.5, None]:
            if a is not b:
                with pytest.raises((InvalidGuarantee, TypeError)):
                    operation(a, b)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "make",
    [
        lambda r: PureDP(1, r),
        lambda r: ApproxDP(1, 0, r),
        lambda r: ZCDP(1, r),
        lambda r: RenyiDP([2], [1], r),
    ],
)
def test_relations_never_mix(
    make: Callable[[str], Guarantee], operation: Callable[[Any, Any], object]
) -> None:
    """Would catch a sum over two notions of neighbour."""
    for one, other in permutations(RELATIONS, 2):
        with pytest.raises(InvalidGuarantee) as refusal:
            operation(make(one), make(other))
        assert refusal.value.field == "neighbours"


@pytest.mark.parametrize(
    "make",
    [
        lambda r: PureDP(1, r),
        lambda r: ApproxDP(1, 1e-6, r),
        lambda r: ZCDP(1, r),
        lambda r: RenyiDP(ORDERS, (1, 2, 3, 4), r),
    ],
)
def test_only_presence_implies_an_empty_place(make: Callable[[str], Guarantee]) -> None:
    """Would catch a conversion that changes a number, or one from values or back to presence."""
    assert make(ADD_REMOVE).as_zero_out() == make(ZERO_OUT)
    assert make(ZERO_OUT).as_zero_out() == make(ZERO_OUT)
    with pytest.raises(InvalidGuarantee, match="add-remove"):
        make(REPLACE).as_zero_out()
    assert not [name for name in dir(make(ZERO_OUT)) if "add_remove" in name]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_orders_never_mix(operation: Callable[[Any, Any], object]) -> None:
    """Would catch curves added order by order although the orders differ."""
    with pytest.raises(InvalidGuarantee) as refusal:
        operation(RenyiDP((2, 3), (1, 1)), RenyiDP((2, 4), (1, 1)))
    assert refusal.value.field == "orders"


@given(relations, st.floats(0.01, 5))
def test_conversions_keep_the_relation(relation: str, x: float) -> None:
    """Would catch a conversion that falls back to the default relation."""
    pure = PureDP(x, relation)
    for promise in (
        pure,
        ApproxDP(x, 0, relation),
        pure.to_zcdp(),
        pure.to_renyi(ORDERS),
        ZCDP(x, relation),
    ):
        assert promise.to_renyi(ORDERS).neighbours == relation
        assert promise.to_approx(1e-6).neighbours == relation
        assert (promise + promise).neighbours == relation


# Conversion


log_deltas = st.one_of(st.floats(-700, -1e-3), st.floats(-16, 0).map(lambda e: -(10.0**e)))
divergences = st.floats(0, 1e4)
excesses = st.floats(-12, 8).map(lambda e: 10.0**e)


@settings(max_examples=400)
@given(excesses, divergences, log_deltas)
@example(
    7.5e-9, 1e-9, -2e-9
)  # δ near 1 and an order near 1: nothing but the logarithm's own error is left
@example(4.483447505920779e-06, 2.2151483010464953e-05, -3.646903866850852e-16)
@example(1e-12, 0.0, -1e-14)
def test_tight_conversion_is_an_upper_bound(
    excess: float, divergence: float, log_delta: float
) -> None:
    """Would catch a rounding error larger than the padding, at orders near 1 in particular."""
    order = 1 + excess
    got = tight_epsilon(order, divergence, log_delta)
    with mpmath.workdps(60):
        a = mpf(order)
        parts = [
            mpf(divergence),
            mpmath.log((a - 1) / a),
            -(mpf(log_delta) + mpmath.log(a)) / (a - 1),
        ]
        truth = mpmath.fsum(parts)
        assert got >= truth
        assert (
            got
            <= truth + mpmath.fsum(abs(part) for part in parts) * mpf(10) ** -11 + mpf(10) ** -300
        )


@pytest.mark.parametrize("sigma", [0.7, 2.0, 10.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_conversion_covers_the_gaussian(sigma: float, delta: float) -> None:
    """Would catch an invalid conversion.

    The Gaussian's true δ at the converted ε is at most δ, and ε is no looser than the textbook's
    ρ + 2√(ρ·ln(1/δ)).
    """
    rho = 1 / (2 * sigma**2)
    for converted in (
        ZCDP(rho).to_approx(delta),
        ZCDP(rho).to_renyi(np.linspace(1.1, 200, 400)).to_approx(delta),
    ):
        epsilon = converted.epsilon
        true = stats.norm.cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * stats.norm.cdf(
            -0.5 / sigma - epsilon * sigma
        )
        assert true <= delta
        assert converted.delta == delta
    assert ZCDP(rho).to_approx(delta).epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))


@pytest.mark.parametrize("rho", [1e-4, 0.05, 1.353, 20.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-10])
def test_zcdp_conversion_finds_the_best_order(rho: float, delta: float) -> None:
    """Would catch a search that stops early: against scipy's minimiser on the same formula."""

    def formula(log_excess: float) -> float:
        a = 1 + math.exp(log_excess)
        return a * rho + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1)

    starts = np.linspace(-8, 12, 81)
    best = min(optimize.minimize_scalar(formula, bracket=(s, s + 0.25)).fun for s in starts)
    assert ZCDP(rho).to_approx(delta).epsilon == pytest.approx(max(0.0, best), rel=1e-8, abs=1e-12)
    assert ZCDP(rho).to_approx(delta).epsilon >= max(0.0, best)


@pytest.mark.parametrize("sigma", [0.8, 1.5, 6.0])
@pytest.mark.parametrize("steps", [1, 30])
def test_conversion_agrees_with_dp_accounting(sigma: float, steps: int) -> None:
    """Would catch a composition or conversion that differs from Google's accountant on the same
    orders.
    """
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    orders = [1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128]
    accountant = RdpAccountant(orders).compose(dp_accounting.GaussianDpEvent(sigma), steps)
    mine = ZCDP(1 / (2 * sigma**2)).to_renyi(orders) * steps
    for delta in (1e-4, 1e-8):
        assert mine.to_approx(delta).epsilon == pytest.approx(
            accountant.get_epsilon(delta), rel=1e-9
        )


@settings(max_examples=60)
@given(st.floats(1e-6, 8))
def test_pure_to_renyi_covers_randomised_response(epsilon: float) -> None:
    """Would catch ρ = ε²/2 misremembered.

    The worst ε-DP mechanism has at most the promised divergence at every order.
    """
    promised = PureDP(epsilon).to_renyi(ORDERS)
    with mpmath.workdps(50):
        p = 1 / (1 + mpmath.exp(-mpf(epsilon)))
        for order, claim in zip(ORDERS, promised.epsilons, strict=True):
            a = mpf(order)
            true = mpmath.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)
            assert true <= claim <= epsilon
            assert Fraction(claim) >= min(
                Fraction(epsilon), Fraction(order) * Fraction(epsilon) ** 2 / 2
            )


@given(losses)
def test_pure_to_zcdp_to_renyi_rounds_up(epsilon: float) -> None:
    """Would catch a rounding to nearest along the chain."""
    zcdp = PureDP(epsilon).to_zcdp()
    assert Fraction(zcdp.rho) >= Fraction(epsilon) ** 2 / 2
    for order, value in zip(ORDERS, zcdp.to_renyi(ORDERS).epsilons, strict=True):
        assert Fraction(value) >= Fraction(order) * Fraction(zcdp.rho)


@given(st.floats(-300, 300).map(lambda e: 10.0**e), st.floats(-300, -0.01).map(lambda e: 10.0**e))
def test_every_zcdp_promise_converts(rho: float, delta: float) -> None:
    """Would catch a search that leaves the range of floats at extreme ρ or δ.

    ε ≥ 0, and no looser than the textbook.
    """
    epsilon = ZCDP(rho).to_approx(delta).epsilon
    assert 0 <= epsilon <= (rho + 2 * math.sqrt(rho * -math.log(delta))) * (1 + 1e-9)


def test_conversions_of_nothing() -> None:
    """Would catch a logarithm of 0."""
    assert ZCDP(0).to_approx(1e-6) == ApproxDP(0, 1e-6)
    assert PureDP(0).to_renyi(ORDERS) == RenyiDP(ORDERS, (0, 0, 0, 0))
    assert RenyiDP(ORDERS, (0, 0, 0, 0)).to_approx(1e-6).epsilon >= 0


def test_pure_and_approximate_conversions() -> None:
    """Would catch a guarantee sharpened on the way."""
    assert PureDP(2).to_approx() == ApproxDP(2, 0)
    assert PureDP(2).to_approx(1e-3) == ApproxDP(2, 1e-3)
    assert ApproxDP(2, 1e-3).to_approx(1e-2) == ApproxDP(2, 1e-2)
    with pytest.raises(InvalidGuarantee, match="sharpened"):
        ApproxDP(2, 1e-3).to_approx(1e-4)
    with pytest.raises(InvalidGuarantee, match="no Rényi"):
        ApproxDP(2, 1e-3).to_renyi(ORDERS)
    assert ApproxDP(2, 0).to_renyi(ORDERS) == PureDP(2).to_renyi(ORDERS)


@pytest.mark.parametrize("promise", [ZCDP(1), RenyiDP([2], [1])])
@pytest.mark.parametrize("delta", [0, 1, -1e-6, 2, math.nan, True, "1e-6"])
def test_conversion_refuses_bad_deltas(promise: Guarantee, delta: Any) -> None:
    """Would catch a Rényi guarantee turned into a pure one."""
    with pytest.raises(InvalidGuarantee) as refusal:
        promise.to_approx(delta)
    assert refusal.value.field == "delta"


def test_conversion_to_a_delta_below_all_floats() -> None:
    """Would catch log(0), or a guarantee for a larger δ than the caller asked for."""
    with pytest.raises(InvalidGuarantee, match="smallest float"):
        ZCDP(1).to_approx(Fraction(1, 10**400))
    assert ZCDP(1).to_approx(math.ulp(0.0)).delta == math.ulp(0.0)


def test_a_curve_between_its_orders() -> None:
    """Would catch interpolation.

    Between two orders only the larger one's value is known to hold.
    """
    curve = RenyiDP((2, 4, 8), (1, 2, 3))
    assert [curve.at(order) for order in (1.5, 2, 2.1, 4, 7.9, 8)] == [1, 1, 2, 2, 3, 3]
    assert curve.on((3, 8)) == RenyiDP((3, 8), (2, 3))
    assert curve.on(curve.orders) is curve
    assert curve.to_renyi((2, 3)) == RenyiDP((2, 3), (1, 2))
    for order in (1, 0.5, 8.01, math.nan):
        with pytest.raises(InvalidGuarantee, match="order"):
            curve.at(order)


# Values


@given(st.fractions(0, 1000))
def test_values_round_up(value: Fraction) -> None:
    """Would catch a rational stored as the float below it."""
    assert Fraction(PureDP(value).epsilon) >= value
    assert Fraction(ZCDP(value).rho) >= value
    assert Fraction(RenyiDP([2], [value]).epsilons[0]) >= value
    assert Fraction(ApproxDP(1, value / 1001).delta) >= value / 1001


def test_orders_round_down() -> None:
    """Would catch a curve that claims its value at a larger order than was given."""
    third = Fraction(4, 3)
    assert Fraction(RenyiDP([third], [1]).orders[0]) <= third
    assert Fraction(ZCDP(1).to_renyi([third]).epsilons[0]) <= third


@pytest.mark.parametrize(
    "value", [1, 1.0, Fraction(1), Decimal(1), np.float64(1), np.float32(1), np.int64(1)]
)
def test_every_number_type_is_taken(value: Any) -> None:
    """Would catch a numpy or decimal number that is refused or kept as such."""
    for promise in (PureDP(value), ZCDP(value), RenyiDP([2], [value])):
        assert type(next(iter(promise._numbers(promise)))[0]) is float
    assert PureDP(value) == PureDP(1)


WRONG = [
    -1,
    -1e-300,
    math.nan,
    math.inf,
    -math.inf,
    True,
    "1",
    None,
    1j,
    [1],
    Fraction(-1, 3),
    Decimal("nan"),
    np.float64("inf"),
    np.True_,
]


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("epsilon", PureDP),
        ("epsilon", lambda v: ApproxDP(v, 0.1)),
        ("delta", lambda v: ApproxDP(1, v)),
        ("rho", ZCDP),
        ("epsilons", lambda v: RenyiDP([2, 3], [1, v])),
        ("orders", lambda v: RenyiDP([v, 3], [1, 1])),
        ("orders", lambda v: ZCDP(1).to_renyi([v])),
        ("neighbours", lambda v: PureDP(1, v)),
    ],
)
def test_bad_values_are_refused_by_name(
    field: str, make: Callable[[Any], Guarantee], value: Any
) -> None:
    """Would catch nonsense that becomes a guarantee, or a refusal that does not say which field."""
    with pytest.raises(InvalidGuarantee, match=field) as refusal:
        make(value)
    assert refusal.value.field == field
    assert isinstance(refusal.value, InvalidInput)
    assert isinstance(refusal.value, ExpostError)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("delta", lambda: ApproxDP(1, 1)),
        ("delta", lambda: ApproxDP(1, Fraction(10**30 - 1, 10**30))),
        ("orders", lambda: RenyiDP([1], [1])),
        ("orders", lambda: RenyiDP([0.5, 2], [1, 1])),
        ("orders", lambda: RenyiDP([1 + Fraction(1, 10**30)], [1])),
        ("orders", lambda: RenyiDP([3, 2], [1, 1])),
        ("orders", lambda: RenyiDP([2, 2], [1, 1])),
        ("orders", lambda: RenyiDP([], [])),
        ("orders", lambda: RenyiDP(2, [1])),
        ("orders", lambda: RenyiDP("23", [1, 1])),
        ("epsilons", lambda: RenyiDP([2], [])),
        ("epsilons", lambda: RenyiDP([2, 3], [1])),
        ("epsilons", lambda: RenyiDP([2], [1, 2])),
        ("epsilons", lambda: RenyiDP([2], 1)),
        ("neighbours", lambda: PureDP(1, "add_remove")),
    ],
)
def test_bad_shapes_are_refused_by_name(field: str, make: Callable[[], Guarantee]) -> None:
    """Would catch curves that do not fit their orders, orders up to 1 or out of order, δ of 1."""
    with pytest.raises(InvalidGuarantee) as refusal:
        make()
    assert refusal.value.field == field


def test_promises_are_frozen_and_hashable() -> None:
    """Would catch a guarantee changed after it was given."""
    for make in KINDS.values():
        promise = make(1.0)
        assert hash(promise) == hash(make(1.0))
        with pytest.raises(AttributeError):
            promise.neighbours = REPLACE


# Records


@given(kinds, losses)
def test_records_round_trip(kind: str, x: float) -> None:
    """Would catch a number that changes on its way through JSON."""
    promise = KINDS[kind](x)
    record = json.loads(json.dumps(promise.as_dict()))
    assert record["kind"] == kind
    assert guarantee_from_dict(record) == promise


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": "other", "epsilon": 1},
        {"kind": "pure"},
        {"kind": "pure", "rho": 1},
        {"kind": "pure", "epsilon": 1, "delta": 0.1},
        {"kind": "pure", "epsilon": "1"},
        {"kind": "pure", "epsilon": -1},
        {"kind": "renyi", "orders": [3, 2], "epsilons": [1, 1]},
        {"kind": None, "epsilon": 1},
    ],
)
def test_bad_records_are_refused(record: dict[str, Any]) -> None:
    """Would catch a damaged record read as a smaller promise."""
    with pytest.raises(InvalidGuarantee):
        guarantee_from_dict(record)


# Charges


def table() -> Charges:
    return Charges.from_list([PureDP(1), PureDP(2), PureDP(1), PureDP(1)], PureDP(0.5))


def test_charges_store_equal_ones_once() -> None:
    """Would catch a candidate charged with another's price."""
    charges = table()
    assert charges.levels == (PureDP(1), PureDP(2))
    assert [charges[i] for i in range(len(charges))] == [PureDP(1), PureDP(2), PureDP(1), PureDP(1)]
    assert charges.nothing == PureDP(0.5)


def test_worst_case_covers_every_outcome() -> None:
    """Would catch a worst case that forgets "nothing", or takes the last level."""
    assert table().worst_case == PureDP(2)
    assert Charges.from_list([PureDP(1)], PureDP(3)).worst_case == PureDP(3)
    crossing = Charges.from_list(
        [RenyiDP((2, 3), (1, 4)), RenyiDP((2, 3), (2, 3))], RenyiDP((2, 3), (0, 5))
    )
    assert crossing.worst_case == RenyiDP((2, 3), (2, 5))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), kinds)
def test_charges_round_trip(levels: list[int], kind: str) -> None:
    """Would catch runs of equal levels written or read wrongly."""
    charges = Charges.from_list([KINDS[kind](1.0 + level) for level in levels], KINDS[kind](0.0))
    assert Charges.from_dict(json.loads(json.dumps(charges.as_dict()))) == charges
    assert charges.worst_case == KINDS[kind](1.0 + max(levels))


@pytest.mark.parametrize(
    ("charges", "nothing"),
    [
        ([PureDP(1), ZCDP(1)], PureDP(0)),
        ([PureDP(1)], ApproxDP(0, 0)),
        ([PureDP(1), PureDP(1, REPLACE)], PureDP(0)),
        ([PureDP(1)], PureDP(0, REPLACE)),
        ([RenyiDP([2], [1]), RenyiDP([3], [1])], RenyiDP([2], [0])),
    ],
)
def test_charges_on_mixed_terms_are_refused(charges: list[Guarantee], nothing: Guarantee) -> None:
    """Would catch a table whose worst case has no meaning."""
    with pytest.raises(InvalidGuarantee):
        Charges.from_list(charges, nothing)


def test_bad_tables_are_refused() -> None:
    """Would catch an empty table, or a candidate without a price."""
    with pytest.raises(InvalidInput, match="charges"):
        Charges.from_list([], PureDP(0))
    with pytest.raises(InvalidInput, match="charges"):
        Charges((PureDP(1),), (), PureDP(0))
    for place in (1, -1):
        with pytest.raises(InvalidInput, match="level_of"):
            Charges((PureDP(1),), (0, place), PureDP(0))


def test_charges_repr_is_short() -> None:
    """Would catch a repr that lists a million candidates."""
    assert len(repr(Charges((PureDP(1),), (0,) * 10**6, PureDP(0)))) < 200
