"""Attacks on a theorem: mechanisms that keep a promise by construction, and the loss they force.

A *family* maps any vector of numbers to a pair of distributions that keeps the promise: P =
softmax(a) and its tilt P′ ∝ P·e^{t·v}, with the largest t that the promise allows in both
directions (at every listed order, or at every output for pure DP). Every pair of distributions with
the same support has this form. Candidates come in groups of equal copies, so two thousand
candidates cost no more time than two.

A *game* is a selector over such groups with the charges that the library claims. The value of an
instance is the smallest common factor on those charges that is still valid
(:mod:`tests.oracle.smallest_charges`): above 1, the theorem is violated. Many instances are
evaluated at once, on a coarse lattice; the final result is checked again by the exact audit
(:mod:`tests.oracle.audit`).
Tests: ``tests/reproduction/test_counterexamples.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from tests.oracle import dropping_laws, laws_without_dropping
from tests.oracle.audit import ClaimAudit, audit_claim, require_promises
from tests.oracle.dropping_laws import DropLevels, OutputLaw, rates_of
from tests.oracle.finite_mechanism import FiniteMechanism, log_moment
from tests.oracle.selector_laws import exact_laws
from tests.oracle.smallest_charges import TINY, ApproxMeasure, PureMeasure, RenyiMeasure

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness
from expost.selection.above_threshold import AboveThreshold
from expost.selection.baselines import Doubling, RepeatAndSelect
from expost.selection.candidate import Candidate
from expost.selection.random_dropping import DroppingSelector, RandomDropping
from expost.selection.selector import Selector

_STEEPEST = 60.0  # the largest tilt tried
_HALVINGS = 32
_RESOLUTION = 0.15  # of the coarse lattice, in nats of the probability to be kept
_GRID = 160  # values of ε at which a profile is compared
_SAFETY = 1e-12  # relative distance that pairs keep from the limit of their promise


@dataclass(frozen=True)
class MechanismFamily:
    """Pairs of distributions over ``outputs`` outputs that keep a pure or Rényi promise.

    A Rényi promise with a privacy profile keeps both.
    """

    promise: Guarantee
    outputs: int = 3

    def __post_init__(self) -> None:
        if self.promise.as_pure() is None and self.promise.as_renyi() is None:
            raise InvalidInput("promise", self.promise, "pass PureDP or RenyiDP")

    @property
    def dimension(self) -> int:
        """The count of numbers that describe a pair: a logit and a direction per output."""
        return 2 * self.outputs

    def pairs(self, points: Floats) -> tuple[Floats, Floats]:
        """Return distributions and tilted ones (…, output) for points (…, 2·outputs).

        A point holds the logits, then the directions.
        """
        logits, direction = points[..., : self.outputs], points[..., self.outputs :]
        direction = direction / np.maximum(np.abs(direction).max(-1, keepdims=True), 1e-12)
        low, high = np.zeros(points.shape[:-1]), np.full(points.shape[:-1], _STEEPEST)
        first = _log_softmax(logits)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            kept = self._keeps(first, _log_softmax(logits + middle[..., None] * direction))
            low, high = np.where(kept, middle, low), np.where(kept, high, middle)
        return np.exp(first), np.exp(_log_softmax(logits + low[..., None] * direction))

    def _keeps(self, first: Floats, second: Floats) -> npt.NDArray[np.bool_]:
        """Whether pairs of log-probabilities keep the promise."""
        if (pure := self.promise.as_pure()) is not None:
            return np.asarray(np.abs(first - second).max(-1) <= pure.epsilon * (1 - _SAFETY))
        curve = self.promise.as_renyi()
        assert curve is not None
        orders = np.array(curve.orders)[:, None]
        allowed = (orders[:, 0] - 1) * np.array(curve.epsilons) * (1 - _SAFETY)
        kept = np.ones(first.shape[:-1], dtype=np.bool_)
        for a, b in ((first, second), (second, first)):
            terms = b[..., None, :] + orders * (a - b)[..., None, :]
            peak = terms.max(-1)
            kept &= (np.log(np.exp(terms - peak[..., None]).sum(-1)) + peak <= allowed).all(-1)
        return kept if curve.profile is None else kept & self._keeps_profile(first, second)

    def _keeps_profile(self, first: Floats, second: Floats) -> npt.NDArray[np.bool_]:
        """Whether pairs of log-probabilities keep the profile of the promise, on a grid of ε."""
        curve = self.promise.as_renyi()
        assert curve is not None
        assert curve.profile is not None
        epsilons = np.append(0.0, np.geomspace(1e-3, 30.0, _GRID))
        allowed = curve.profile.delta(epsilons) * (1 - _SAFETY)
        factors = np.exp(epsilons)[:, None]
        kept = np.ones(first.shape[:-1], dtype=np.bool_)
        for a, b in ((np.exp(first), np.exp(second)), (np.exp(second), np.exp(first))):
            sticks = np.maximum(a[..., None, :] - factors * b[..., None, :], 0.0).sum(-1)
            kept &= (sticks <= allowed).all(-1)
        return kept


def _log_softmax(logits: Floats) -> Floats:
    """Return the logarithm of the softmax along the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _never(data: object, randomness: Randomness) -> object:
    """Stand in for a mechanism that is priced but never run."""
    raise AssertionError("pricing never runs a candidate")


@dataclass(frozen=True, eq=False)
class Game:
    """A selector over groups of equal candidates, ``copies`` of each, with the family's promise.

    Outputs have the scores 0, 1, …; the target of a selector refers to them. ``charges`` replaces
    the library's claim by another claim to attack (one number per group, "nothing" last).
    """

    selector: Selector
    family: MechanismFamily
    copies: tuple[int, ...]
    charges: Floats | None = None
    claimed: Floats = field(init=False)
    order: float | None = field(init=False)  # of a Rényi claim
    delta: float | None = field(init=False)  # of a stand-alone claim

    def __post_init__(self) -> None:
        if type(self.selector) not in (RandomDropping, AboveThreshold, Doubling, RepeatAndSelect):
            raise InvalidInput(
                "selector",
                type(self.selector).__name__,
                "attacks are implemented for selectors over mechanisms only",
            )
        if isinstance(self.selector, RandomDropping) and self.selector.at_least is not None:
            raise InvalidInput(
                "target",
                self.selector.at_least,
                "attacks on random dropping are implemented for the best score only",
            )
        table = self.selector.charges(self._unrun)
        curve = table.nothing.as_renyi()
        if curve is not None and len(curve.orders) > 1:
            raise InvalidInput(
                "order",
                curve.orders,
                "a game has a claim at one order: pass order=… to the selector",
            )
        listed = [*(table[place] for place in range(len(table))), table.nothing]
        claimed = (
            np.array([_number(charge) for charge in listed])
            if self.charges is None
            else self.charges
        )
        object.__setattr__(self, "claimed", claimed)
        object.__setattr__(self, "order", None if curve is None else curve.orders[0])
        object.__setattr__(self, "delta", table.nothing.shared_delta)

    @property
    def _unrun(self) -> list[Candidate]:
        """Candidates that are priced but never run."""
        return self.candidates([_never] * len(self.copies))

    def candidates(self, mechanisms: Sequence[object]) -> list[Candidate]:
        """Return one candidate per group."""
        return [
            Candidate(mechanism, repeats=count, guarantee=self.family.promise)  # type: ignore[arg-type]
            for mechanism, count in zip(mechanisms, self.copies, strict=True)
        ]

    @cached_property
    def levels(self) -> DropLevels | None:
        """The drop level on a coarse lattice; None for selectors without one."""
        if not isinstance(self.selector, DroppingSelector):
            return None
        law, counts = self.selector.drop_law(self._unrun), np.array(self.copies, dtype=float)
        return DropLevels.coarse(
            float(law.overhead), rates_of(law, len(counts)), counts, law.minimum, _RESOLUTION
        )

    def law(self, q: Floats) -> tuple[Floats, Floats]:
        """Return probabilities of outcomes (…, group, output) and of nothing (…).

        They are the middles of the brackets.
        """
        counts, selector = np.array(self.copies, dtype=float), self.selector
        if isinstance(selector, RandomDropping):
            assert self.levels is not None
            found = dropping_laws.random_dropping(
                q, self.levels, conditioned=not selector.allow_nothing
            )
        elif isinstance(selector, AboveThreshold):
            assert self.levels is not None
            found = dropping_laws.above_threshold(q, self.levels, math.ceil(selector.at_least))
        elif isinstance(selector, Doubling):
            found = laws_without_dropping.doubling(q, counts, math.ceil(selector.at_least))
        else:
            assert isinstance(selector, RepeatAndSelect)
            found = laws_without_dropping.repeat_and_select(q, counts, selector.runs)
        return _middle(found)

    def values(self, here: Floats, there: Floats) -> Floats:
        """Return the factor on the claimed charges that each instance forces, approximately."""
        (outcomes, nothing), (other, other_nothing) = self.law(here), self.law(there)
        factors = [
            _forced(*each, self.claimed, self.order, self.delta)
            for each in (
                (outcomes, nothing, other, other_nothing),
                (other, other_nothing, outcomes, nothing),
            )
        ]
        return np.asarray(np.maximum(*factors))

    def tables(self, here: Floats, there: Floats) -> list[FiniteMechanism]:
        """Return one instance (group, output) as finite mechanisms."""
        return [FiniteMechanism(a.tolist(), b.tolist()) for a, b in zip(here, there, strict=True)]

    def certify(self, here: Floats, there: Floats) -> ClaimAudit:
        """Audit one instance exactly against the claimed charges.

        Raises an error if a table breaks its promise.
        """
        candidates = self.candidates(self.tables(here, there))
        require_promises(candidates)
        pair = exact_laws(self.selector, candidates, None, None)
        if self.order is not None:
            return audit_claim(RenyiMeasure(pair, self.order), self.claimed, pair)
        return audit_claim(
            PureMeasure(pair) if self.delta is None else ApproxMeasure(pair, self.delta),
            self.claimed,
            pair,
        )


def _number(charge: Guarantee) -> float:
    """Return the ε of a charge; for a Rényi charge, at its first order."""
    if (pair := charge.as_approx()) is not None:
        return pair.epsilon
    curve = charge.as_renyi()
    assert curve is not None
    return curve.epsilons[0]


def _middle(law: OutputLaw) -> tuple[Floats, Floats]:
    """Return the middles of the brackets."""
    return (law.low + law.high) / 2, (law.nothing_low + law.nothing_high) / 2


def _forced(
    here: Floats,
    nothing: Floats,
    there: Floats,
    other: Floats,
    claimed: Floats,
    order: float | None,
    delta: float | None,
) -> Floats:
    """Return the smallest factor on all charges that is valid in one direction, per instance.

    Probabilities below TINY are replaced, because floats end there.
    """
    here, nothing = (np.where(each >= TINY, each, 0.0) for each in (here, nothing))
    there, other = (np.maximum(each, TINY) for each in (there, other))
    if order is None and delta is None:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(here > 0, np.log(here) - np.log(there), -np.inf).max(-1)
            lost = np.concatenate([ratios, (np.log(nothing) - np.log(other))[..., None]], axis=-1)
            return np.asarray(np.where(claimed > 0, lost / claimed, -np.inf).max(-1))
    if order is not None:
        moments = np.concatenate(
            [
                log_moment(here, there, order),
                log_moment(nothing[..., None], other[..., None], order)[..., None],
            ],
            -1,
        )
        return _solve(
            lambda t: np.exp(np.minimum(moments - (order - 1) * t[..., None] * claimed, 700.0)).sum(
                -1
            ),
            1.0,
            here.shape[:-2],
        )
    assert delta is not None

    def used(t: Floats) -> Floats:
        growth = np.exp(np.minimum(t[..., None] * claimed, 700.0))
        outcomes = np.maximum(here - growth[..., :-1, None] * there, 0.0).sum((-1, -2))
        return np.asarray(outcomes + np.maximum(nothing - growth[..., -1] * other, 0.0))

    return _solve(used, delta, here.shape[:-2])


def _solve(used: Callable[[Floats], Floats], allowed: float, shape: tuple[int, ...]) -> Floats:
    """Return the factor in [0, 4] at which a decreasing function reaches the allowed value."""
    low, high = np.zeros(shape), np.full(shape, 4.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = used(middle) <= allowed
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high
