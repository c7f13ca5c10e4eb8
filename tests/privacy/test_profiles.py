"""Privacy profiles: never below the truth, never rising, readable from JSON, never added up."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from expost.errors import InvalidGuarantee
from expost.privacy.charges import Charges
from expost.privacy.dpsgd import dpsgd_curve
from expost.privacy.guarantees import ZCDP, ApproxDP, PureDP, RenyiDP, guarantee_from_dict
from expost.privacy.profiles import (
    DPSGDProfile,
    GaussianProfile,
    LargestProfile,
    Profile,
    PureProfile,
    RenyiProfile,
    ZCDPProfile,
    profile_epsilon,
    profile_from_dict,
)
from expost.selection.baselines import Poisson, TruncatedNegativeBinomial

CURVE = RenyiDP((1.5, 2.0, 8.0), (0.1, 0.2, 1.0))
PROFILES: list[Profile] = [
    PureProfile(0.7),
    PureProfile(0.7, 1e-3),
    GaussianProfile(0.4),
    RenyiProfile(CURVE.orders, CURVE.epsilons),
    ZCDPProfile(0.08),
    DPSGDProfile(0.1, 1.0, 5),
    LargestProfile((PureProfile(0.2), GaussianProfile(0.4))),
]


@pytest.mark.parametrize("profile", PROFILES, ids=repr)
def test_a_profile_never_rises_and_lies_between_0_and_1(profile: Profile) -> None:
    deltas = profile.delta([*np.linspace(0, 5, 501), 1e3, 1e300, math.inf])
    assert np.all(np.diff(deltas) <= 0)
    assert 0 <= deltas[-1] <= deltas[0] <= 1
    assert profile.delta(0.5).shape == ()
    assert profile.delta([[0.5, 1.0]]).shape == (1, 2)


@pytest.mark.parametrize("profile", PROFILES, ids=repr)
def test_a_profile_survives_json(profile: Profile) -> None:
    assert isinstance(profile, Profile)
    assert profile_from_dict(json.loads(json.dumps(profile.as_dict()))) == profile
    assert hash(profile) == hash(profile_from_dict(profile.as_dict()))
    guarantee = replace(CURVE, profile=profile)
    assert guarantee_from_dict(json.loads(json.dumps(guarantee.as_dict()))) == guarantee
    assert guarantee.as_profile() is profile


def test_randomised_response_is_the_pure_profile() -> None:
    epsilons = np.array([0.0, 0.3, 0.7, 0.9])
    yes = math.exp(0.7) / (1 + math.exp(0.7))
    exact = np.maximum(yes - np.exp(epsilons) * (1 - yes), 0)
    assert PureDP(0.7).as_profile().delta(epsilons) == pytest.approx(exact, abs=1e-13)
    assert np.all(PureProfile(0.7).delta(epsilons) >= exact - 2.3e-16)
    leaky = ApproxDP(0.7, 1e-3).as_profile().delta(epsilons)
    assert leaky == pytest.approx(1e-3 + (1 - 1e-3) * exact, abs=1e-13)


def test_a_curve_implies_the_profile_of_its_conversion() -> None:
    curve = dpsgd_curve(sampling_rate=0.01, noise_multiplier=1.0, steps=100)
    for delta in (1e-3, 1e-6, 1e-12):
        epsilon = curve.to_approx(delta).epsilon
        assert curve.as_profile().delta(epsilon) == pytest.approx(delta, rel=1e-9)
    rho = ZCDP(0.08)
    exact = GaussianProfile(0.4).delta([0.5, 1.0, 2.0])
    assert np.all(rho.as_profile().delta([0.5, 1.0, 2.0]) >= exact)


@pytest.mark.parametrize("profile", PROFILES, ids=repr)
@pytest.mark.parametrize("delta", [1e-9, 2e-3, 0.05])
def test_the_least_epsilon_of_a_profile_is_certified(profile: Profile, delta: float) -> None:
    """Catches an ε at which δ is larger, and a search that loses the interval in one of its rounds.

    ``most`` is known from elsewhere: it is returned if the profile itself never reaches δ.
    """
    most = 40.0
    epsilon = profile_epsilon(profile, delta, most)
    if epsilon == most:
        assert profile.delta(most) > delta
        return
    assert profile.delta(epsilon) <= delta
    assert epsilon == 0 or profile.delta(epsilon * (1 - 1e-9)) > delta
    # a limit whose end lies in any part of the interval leads to the same ε
    for further in (1.0 + 2.0**-30, 1.03, 1.5, 7.0):
        assert profile_epsilon(profile, delta, epsilon * further) == pytest.approx(
            epsilon, rel=1e-9
        )


def test_profiles_are_never_added_or_compared() -> None:
    """What a ledger adds up are Rényi orders; a sum, a multiple or a share has no profile."""
    guarantee = replace(CURVE, profile=GaussianProfile(0.4))
    for combined in (
        guarantee + guarantee,
        guarantee + CURVE,
        CURVE + guarantee,
        guarantee * 1,
        guarantee.at_worst(guarantee),
        Charges.shares(guarantee)[1],
    ):
        assert isinstance(combined, RenyiDP)
        assert combined.profile is None
    assert guarantee <= CURVE <= guarantee
    assert guarantee.as_zero_out().profile == guarantee.profile
    assert "profile" not in CURVE.as_dict()  # ledger files keep their form


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "unheard"},
        {"mu": 1.0},
        {"kind": "gaussian", "sigma": 1.0},
        {"kind": "gaussian", "mu": -1.0},
        {"kind": "gaussian", "mu": 0.0},
        {"kind": "renyi", "orders": [2.0], "epsilons": [1.0, 2.0]},
        {"kind": "zcdp", "rho": -1.0},
        {"kind": "dp-sgd", "sampling_rate": 2.0, "noise_multiplier": 1.0, "steps": 1},
        {"kind": "dp-sgd", "sampling_rate": 0.1, "noise_multiplier": 1e-9, "steps": 1},
        {"kind": "dp-sgd", "sampling_rate": 0.1, "noise_multiplier": 1.0, "steps": 1.5},
        {"kind": "largest", "parts": []},
        {"kind": "largest", "parts": ["x"]},
    ],
)
def test_broken_records_are_refused(record: dict[str, object]) -> None:
    with pytest.raises(InvalidGuarantee):
        profile_from_dict(record)
    with pytest.raises(InvalidGuarantee):
        guarantee_from_dict({**CURVE.as_dict(), "profile": record})


def test_other_things_are_no_profiles() -> None:
    with pytest.raises(InvalidGuarantee, match="profile"):
        RenyiDP((2.0,), (1.0,), profile="pld")  # type: ignore[arg-type]
    with pytest.raises(InvalidGuarantee, match="epsilons"):
        PureProfile(1.0).delta([-0.1])
    with pytest.raises(InvalidGuarantee, match="epsilons"):
        PureProfile(1.0).delta([math.nan])


def test_the_charge_of_a_selection_has_no_profile_of_one_candidate() -> None:
    """Catches a price of many runs that converts by the profile of a single one."""
    promise = dpsgd_curve(sampling_rate=0.01, noise_multiplier=1.0, steps=100)
    bare = replace(promise, profile=None)
    assert promise.profile is not None
    charges = Charges((promise, promise * 2), (0, 1), promise)
    for level in (*charges.levels, charges.nothing):
        assert isinstance(level, RenyiDP)
        assert level.profile is None
    for law in (Poisson(20), TruncatedNegativeBinomial(1, 0.05)):
        assert law.renyi_charge(promise) == law.renyi_charge(bare)
        assert law.renyi_charge(promise).to_approx(1e-6) == law.renyi_charge(bare).to_approx(1e-6)
