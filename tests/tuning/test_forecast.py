"""The forecast: public numbers, from a job's own candidates, before a private row is used."""

from __future__ import annotations

from typing import Any

import pytest

import expost
from expost.errors import InvalidInput
from expost.tuning.forecast import comparison
from tests.tuning.jobs import clouds, job


class Stop(Exception):
    pass


def forecast_of(config: Any, X: Any, y: Any) -> Any:
    seen: list[Any] = []

    def stop(job: Any) -> None:
        seen.append(job)
        raise Stop

    with pytest.raises(Stop):
        expost.tune(config, X, y, before=stop)
    return seen[0]


def test_it_does_not_depend_on_the_values() -> None:
    X, y = clouds()
    first, other = forecast_of(job(), X, y), forecast_of(job(), 1 - X, 1 - y)
    facts, others = first.as_dict(), other.as_dict()
    facts.pop("seconds"), others.pop("seconds")
    assert facts == others
    assert facts["candidates"] == 4
    assert 1 <= facts["expected_runs"] <= facts["runs"]["max"] == 4


def test_the_overhead_is_a_fraction_of_the_first_drop_rate() -> None:
    half, whole = (
        forecast_of(job(privacy={"overhead": fraction}), *clouds()) for fraction in (0.5, 1.0)
    )
    assert 2 * half.selector.overhead == pytest.approx(whole.selector.overhead)
    assert half.counts.nothing > whole.counts.nothing
    automatic = forecast_of(job(privacy={"overhead": "auto"}), *clouds())
    assert automatic.recommended
    assert 0.01 <= automatic.overhead <= 2


def test_what_others_would_have_charged() -> None:
    made = forecast_of(job(search={"learning_rates": [1, 2, 4, 8]}), *clouds())
    cheap, dear = comparison(made, 0), comparison(made, len(made.candidates) - 1)
    assert (
        cheap["papernot_steinke_level"] < dear["papernot_steinke_level"] <= dear["papernot_steinke"]
    )
    assert cheap["papernot_steinke"] == dear["papernot_steinke"]
    assert cheap["naive_composition"] < dear["naive_composition"]


def test_batches_larger_than_the_training_rows_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"search\.batch_sizes.*240 training rows"):
        forecast_of(job(search={"batch_sizes": [250]}), *clouds())
