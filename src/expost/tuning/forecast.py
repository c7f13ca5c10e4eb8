"""Before anything runs: the selector, what each outcome would cost, how many runs to expect, how long they take. No private row is read.

Charges are the selector's; the number of runs and the time are for orientation. The time comes from training on random rows of the same
shape.
Tests: ``tests/tuning/test_forecast.py``.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ApproxDP, Guarantee, RenyiDP
from expost.randomness.source import SimulationRandomness
from expost.rationals import exact_positive
from expost.selection.candidate import Candidate
from expost.selection.plan import plan
from expost.selection.random_dropping import RandomDropping
from expost.selection.repeat_and_select import TruncatedNegativeBinomial
from expost.selection.run_counts import RunCounts, run_counts
from expost.training.configuration import Configuration
from expost.tuning.candidates import TrainAndScore, fleet
from expost.tuning.model import Recipe
from expost.tuning.settings import Settings

_SHAPES = (-0.5, 0.0, 0.5, 1.0)
_TIMED_VALUES = 1 << 22
_TIMED_SECONDS = 0.1


@dataclass(frozen=True, eq=False)
class Forecast:
    """What a job would cost and do; all of it public."""

    selector: RandomDropping
    candidates: tuple[Candidate, ...]
    charges: Charges
    counts: RunCounts
    overhead: float
    recommended: bool
    seconds: float
    delta: float
    attempts: int

    @property
    def worst_case(self) -> ApproxDP:
        """What all attempts together could cost at most."""
        return self.in_epsilon_delta(
            composed([self.charges.worst_case] * self.attempts, self.attempts)
        )

    @property
    def order(self) -> float | None:
        """The Rényi order at which charges are converted, None if they are (ε, δ) already: where the first level costs least. It is fixed
        by public numbers; the order that suits an outcome best would depend on the outcome, and the conversion would not hold."""
        first = self.charges[0]
        if not isinstance(first, RenyiDP):
            return None
        return min(first.orders, key=lambda order: first.on([order]).to_approx(self.delta).epsilon)

    def in_epsilon_delta(self, charge: Guarantee) -> ApproxDP:
        """A charge as (ε, δ): itself, or a Rényi charge by the tight conversion at the job's order."""
        if isinstance(charge, ApproxDP):
            return charge
        assert isinstance(charge, RenyiDP)
        assert self.order is not None
        return charge.on([self.order]).to_approx(self.delta)

    def as_dict(self) -> dict[str, Any]:
        return {
            "candidates": len(self.candidates),
            "overhead": self.overhead,
            "overhead_recommended": self.recommended,
            "expected_runs": self.counts.mean,
            "runs": {
                "p50": self.counts.quantile(0.5),
                "p90": self.counts.quantile(0.9),
                "max": self.counts.copies,
            },
            "seconds": self.seconds,
            "attempts": self.attempts,
            "worst_case": {"epsilon": self.worst_case.epsilon, "delta": self.worst_case.delta},
            "cheapest": self.in_epsilon_delta(self.charges[0]).epsilon,
        }


def forecast(
    settings: Settings,
    recipe: Recipe,
    candidates: Sequence[Candidate],
    n: int,
    columns: int,
    order: tuple[float, ...] | None,
) -> Forecast:
    """Plan the job: the overhead (recommended unless given), the charges, the runs, the time."""
    fraction = settings.privacy.overhead
    if fraction is None:
        first = settings.search.settings[0]
        fraction = plan(
            settings.search.epsilons,
            len(settings.search.settings),
            delta=settings.privacy.delta,
            repeats=settings.privacy.repeats,
            sampling_rate=first.batch_size / n,
            epochs=first.epochs,
        ).overhead
    claim: dict[str, Any] = {"delta": settings.privacy.delta} if order is None else {"order": order}
    selector = dropping(candidates, fraction, settings.goal.target, **claim)
    counts = run_counts(selector.drop_law(candidates))
    return Forecast(
        selector,
        tuple(candidates),
        selector.charges(candidates),
        counts,
        fraction,
        settings.privacy.overhead is None,
        _seconds(recipe, candidates, counts.mean, n, columns),
        settings.privacy.delta,
        settings.privacy.attempts,
    )


def dropping(
    candidates: Sequence[Candidate], fraction: float, target: float | None, **claim: Any
) -> RandomDropping:
    """Random dropping whose overhead is this fraction of the first candidate's drop rate; ``claim`` is ``delta``, ``order`` or nothing."""
    law = RandomDropping(overhead=1, **claim).drop_law(
        candidates
    )  # overhead 1: its step is the lattice step
    first = next(
        rate for each, rate in zip(law.groups, law.rates, strict=True) if 0 in each.members
    )
    return RandomDropping(
        overhead=float(first / law.overhead) * float(exact_positive(fraction, "overhead")),
        target=target,
        **claim,
    )


def composed(charges: Sequence[Guarantee], allowed: int) -> Guarantee:
    """The charge of several attempts, of at most ``allowed``.

    Rényi charges at fixed orders add up. Of ex-post (ε̃, δ) charges the ε̃ add up over the attempts made; whether another is made depends on
    outcomes, so δ counts for all that were allowed. Sums are exact and rounded up. Test: ``tests/tuning/test_attempts.py``.
    """
    total = charges[0]
    for charge in charges[1:]:
        total = total + charge
    if isinstance(total, ApproxDP):
        first = charges[0]
        assert isinstance(first, ApproxDP)
        total = replace(total, delta=(first * allowed).delta)
    return total


def comparison(job: Forecast, index: int) -> dict[str, float]:
    """What others would have charged (ε at the δ of one attempt), for orientation.

    ``papernot_steinke``        their tuning over the whole grid with as many expected runs, at the best of four shapes: every winner pays
                                for the largest level
    ``papernot_steinke_level``  the same over the winner's level alone, as if that had been known beforehand
    ``naive_composition``       running every setting of the winner's level and of those below it
    """
    winner = job.candidates[index]
    below = [each for each in job.candidates if each.params["epsilon"] <= winner.params["epsilon"]]
    total = _curve(below[0]) * 0
    for each in below:
        total = total + _curve(each) * each.repeats
    highest = reduce(
        lambda a, b: a.at_worst(b),
        {id(each.guarantee): _curve(each) for each in job.candidates}.values(),
    )
    return {
        "papernot_steinke": _repeat_and_select(highest, job),
        "papernot_steinke_level": _repeat_and_select(_curve(winner), job),
        "naive_composition": total.to_approx(job.delta).epsilon,
    }


def _curve(candidate: Candidate) -> RenyiDP:
    assert isinstance(candidate.guarantee, RenyiDP)
    return candidate.guarantee


def _repeat_and_select(promise: RenyiDP, job: Forecast) -> float:
    laws = [
        TruncatedNegativeBinomial.with_mean(shape, max(job.counts.mean, 1.01)) for shape in _SHAPES
    ]
    return min(law.renyi_charge(promise).to_approx(job.delta).epsilon for law in laws)


def _seconds(
    recipe: Recipe, candidates: Sequence[Candidate], runs: float, n: int, columns: int
) -> float:
    """Expected training time, from a short training on random rows of the same shape; a model that does not fit them is refused here."""
    mechanisms = [each.mechanism for each in candidates]
    configurations = [each.configuration for each in mechanisms if isinstance(each, TrainAndScore)]
    examples = float(np.mean([float(each.epochs) for each in configurations])) * n
    batch = float(configurations[0].batch_size)
    size = min(n, max(math.ceil(batch), _TIMED_VALUES // columns))
    generator = np.random.default_rng(0)
    X = recipe.shaped(generator.random((size, columns)))
    y = np.arange(size) % (recipe.class_count or 2)
    if size < 2:
        raise InvalidInput("data", f"{n} rows", "give at least two training rows")

    def train(epochs: float) -> float:
        probe = Configuration(0.1, epochs, batch, 1.0, noise_multiplier=1.0)
        started = time.perf_counter()
        fleet(recipe, [probe]).train(X, y, randomness=SimulationRandomness(0), simulation=True)
        return time.perf_counter() - started

    step = batch / size
    train(step)  # compiles
    fixed, steps = train(step), 32
    while (longer := train((1 + steps) * step)) < fixed + _TIMED_SECONDS and steps < 1 << 16:
        steps *= 4
    each = max(longer - fixed, longer / 100) / (steps * batch)
    return each * examples * runs / min(os.cpu_count() or 1, max(1.0, runs))
