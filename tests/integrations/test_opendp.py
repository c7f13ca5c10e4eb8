"""OpenDP measurements as candidates: the privacy map gives the guarantee."""

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


def _rows(metric, **domain):
    """A measurement on rows: a sum of values between 0 and 100, with noise."""
    values = dp.vector_domain(dp.atom_domain(T=int), **domain)
    return (
        (values, metric) >> dp.t.then_clamp((0, 100)) >> dp.t.then_sum() >> dp.m.then_laplace(100.0)
    )


def _user(metric, loss):
    """A measurement of the user's own over any metric."""
    dp.enable_features("honest-but-curious")
    return dp.m.make_user_measurement(
        input_domain=dp.vector_domain(dp.atom_domain(T=int)),
        input_metric=metric,
        output_measure=dp.max_divergence(),
        function=lambda rows: len(rows),
        privacy_map=lambda d_in: loss * d_in,
    )


@pytest.mark.parametrize("metric", [dp.change_one_distance, dp.hamming_distance])
def test_replaced_rows_are_not_added_rows(metric):
    """Catches a loss stated for replaced rows that is claimed for added ones (1 instead of 101)."""
    measurement = _user(metric(), 1.0)
    with pytest.raises(InvalidInput, match="replace"):
        from_opendp(measurement)
    assert from_opendp(measurement, neighbours="replace").guarantee == PureDP(1, "replace")


@pytest.mark.parametrize("metric", [dp.symmetric_distance, dp.insert_delete_distance])
def test_rows_that_are_added_or_removed(metric):
    measurement = _rows(metric())
    assert from_opendp(measurement).guarantee == PureDP(measurement.map(1))
    with pytest.raises(InvalidInput, match="at least 2"):
        from_opendp(measurement, 1, "replace")
    assert from_opendp(measurement, 2, "replace").guarantee.epsilon == measurement.map(2)


def test_data_of_a_fixed_size_has_no_added_rows():
    """Catches a claim of 0: no data set of this size has a neighbour with one row more."""
    measurement = _rows(dp.symmetric_distance(), size=5)
    assert measurement.map(1) == 0
    with pytest.raises(InvalidInput, match="fixed size"):
        from_opendp(measurement)
    assert from_opendp(measurement, 2, "replace").guarantee.epsilon > 0


@pytest.mark.parametrize("d_in", [0, -1, float("nan"), None])
def test_a_distance_that_protects_nobody_is_refused(d_in):
    with pytest.raises(InvalidInput, match="d_in"):
        from_opendp(_rows(dp.symmetric_distance()), d_in)
    with pytest.raises(InvalidInput, match="d_in"):
        from_opendp(dp.m.make_laplace(*_space(), scale=2.0), d_in)


def test_an_unknown_metric_is_refused():
    measurement = _user(dp.user_distance("my own distance"), 1.0)
    for neighbours in ("add-remove", "replace"):
        with pytest.raises(InvalidInput, match="input_metric"):
            from_opendp(measurement, neighbours=neighbours)
