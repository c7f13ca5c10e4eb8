"""OpenDP measurements as candidates: the privacy map gives the promise."""

import pytest

from expost import ZCDP, ApproxDP, Candidate, PureDP, RandomDropping
from expost.errors import InvalidInput
from expost.integrations.opendp import from_opendp

dp = pytest.importorskip("opendp.prelude", reason="needs the opendp extra")


@pytest.fixture(autouse=True)
def _contrib():
    dp.enable_features("contrib")


SPACE = (lambda: dp.atom_domain(T=int), lambda: dp.absolute_distance(T=int))


def _space():
    return tuple(make() for make in SPACE)


def test_the_map_gives_the_promise():
    laplace, gaussian = (
        dp.m.make_laplace(*_space(), scale=2.0),
        dp.m.make_gaussian(*_space(), scale=2.0),
    )
    assert from_opendp(laplace).guarantee == PureDP(laplace.map(1))
    assert from_opendp(laplace, 3, "replace").guarantee == PureDP(laplace.map(3), "replace")
    assert from_opendp(gaussian).guarantee == ZCDP(gaussian.map(1))


def test_a_fixed_delta_is_approximate_dp_and_a_profile_is_refused():
    profile = dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*_space(), scale=2.0))
    fixed = dp.c.make_fix_delta(profile, 1e-6)
    assert from_opendp(fixed).guarantee == ApproxDP(*fixed.map(1))
    with pytest.raises(InvalidInput, match="make_fix_delta"):
        from_opendp(profile)


def test_measurements_are_candidates():
    candidates = [
        Candidate(from_opendp(dp.m.make_laplace(*_space(), scale=s)), {"scale": s})
        for s in (4.0, 2.0)
    ]
    release = RandomDropping(overhead=1).select(candidates, 1000)
    assert 900 < release.value < 1100
    assert release.spent == PureDP(2 * candidates[release.index].guarantee.epsilon + 1)


def test_anything_else_is_refused():
    with pytest.raises(InvalidInput, match="opendp Measurement"):
        from_opendp(lambda data: data)
