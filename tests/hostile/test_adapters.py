"""The OpenDP adapter: neighbours in the relation that the guarantee names."""

from __future__ import annotations

from typing import Any

import pytest

from expost.errors import InvalidInput
from expost.integrations.opendp import from_opendp
from tests.hostile.judge import within_claim

dp = pytest.importorskip("opendp.prelude", reason="needs the opendp extra")

ROWS = [0, 50, 100, 3]
NEIGHBOURS = {
    "one row more": [*ROWS, 100],
    "row 0 removed": ROWS[1:],
    "a huge row": [*ROWS, 2**31 - 1],
    "a negative row": [*ROWS, -(2**31)],
}


def clamped_sum(**domain: Any) -> Any:
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int), **domain), dp.symmetric_distance()
    return space >> dp.t.then_clamp((0, 100)) >> dp.t.then_sum() >> dp.m.then_laplace(100.0)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_measurement_keeps_its_promise(name):
    within_claim(from_opendp(clamped_sum()), ROWS, NEIGHBOURS[name], runs=400, simulation_seed=None)


def test_a_promise_for_data_of_one_size_is_refused():
    """Its map says 0 for one row more, which is not true."""
    with pytest.raises(InvalidInput):
        from_opendp(clamped_sum(size=4))
