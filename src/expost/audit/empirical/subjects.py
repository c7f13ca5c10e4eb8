"""What can be audited: a selector with its candidates, a mechanism, or a request.

A request is a function that returns a release. One observation consists of a *class* of outcomes
(which candidate won, and the charge that the release states), the released value, and whether it
passed. A mechanism that raises an error has the outcome FAILED, as in a selection. A request that
raises an error ends the audit. Tests: ``tests/audit/test_empirical.py``.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from expost.errors import InvalidInput
from expost.execution.failure import Raised, Score, attempt
from expost.mechanisms.outcome import FAILED
from expost.mechanisms.protocol import Call
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.selection.release import Release
from expost.selection.selector import Selector

Claim = Guarantee | Charges | Mapping[int | None, Guarantee]
"""One promise for all outcomes, or one per index of the winner (None: nothing was released)."""


@dataclass(frozen=True)
class Key:
    """A class of outcomes: the winner's index, and the stated charge where it may vary."""

    index: int | None
    spent: Guarantee | None = None


class Observation(NamedTuple):
    """One run as the auditor sees it."""

    key: Key
    value: Any
    passed: bool | None = None


class Subject(ABC):
    """Something that can be run many times. Subjects are pickled for worker processes."""

    @abstractmethod
    def observe(self, data: Any, randomness: Randomness) -> Observation:
        """Run once."""

    @abstractmethod
    def known(self) -> dict[Key, Guarantee] | None:
        """Return every class of outcomes with its promise, or None if not known in advance."""

    def claim_for(self, key: Key) -> Guarantee | None:
        """Return the promise of a class that was seen."""
        return None if (table := self.known()) is None else table.get(key)


class Selection(Subject):
    """A selector over candidates. The promise of index i is the charge of candidate i."""

    def __init__(
        self,
        selector: Selector,
        candidates: Sequence[Candidate],
        score: Score | None = None,
        claim: Claim | None = None,
    ) -> None:
        self._selector, self._candidates, self._score, self._claim = (
            selector,
            candidates,
            score,
            claim,
        )
        charges = selector.charges(candidates)
        self._priced = copy.copy(selector)
        # Prices and drop laws use neither data nor randomness: compute them once.
        for name in ("_price", "drop_law"):
            if hasattr(selector, name):
                object.__setattr__(self._priced, name, _once(getattr(selector, name)))
        places = [*range(len(candidates)), None]
        self._table = {
            Key(place): _promise(charges if claim is None else claim, place) for place in places
        }

    def __reduce__(self) -> tuple[Any, ...]:
        parts = [_parts(candidate) for candidate in self._candidates]
        return (_selection, (self._selector, parts, self._score, self._claim))

    def observe(self, data: Any, randomness: Randomness) -> Observation:
        release = self._priced.select(
            self._candidates,
            data,
            score=self._score,
            randomness=randomness,
            simulation=randomness.simulated,
        )
        return Observation(Key(release.index), release.value, release.passed)

    def known(self) -> dict[Key, Guarantee]:
        return self._table


class Function(Subject):
    """A function ``(data, randomness) → output``: a mechanism, or a request.

    A mechanism has one class of outcomes, with index 0. A request returns a Release.
    """

    def __init__(self, function: Call, claim: Claim | None = None) -> None:
        self._function, self._claim = function, claim

    def observe(self, data: Any, randomness: Randomness) -> Observation:
        output = attempt(self._function, data, randomness)
        if isinstance(output, Raised):
            # Without a promise it may be a request: its error is not an outcome.
            if self._promise is None and not isinstance(self._claim, Guarantee):
                error = output.error
                raise InvalidInput(
                    "subject", type(error).__name__, f"a run raised this error: {error}"
                ) from error
            return Observation(Key(0), FAILED)
        if isinstance(output, Release):
            spent = output.spent if self._claim is None else None
            return Observation(Key(output.index, spent), output.value, output.passed)
        return Observation(Key(0), output)

    def known(self) -> dict[Key, Guarantee] | None:
        return None

    def claim_for(self, key: Key) -> Guarantee | None:
        if self._claim is not None:
            return _promise(self._claim, key.index)
        return key.spent if key.spent is not None else self._promise

    @property
    def _promise(self) -> Guarantee | None:
        """The function's own guarantee, if it has one."""
        own = getattr(self._function, "guarantee", None)
        return own if isinstance(own, Guarantee) else None


def as_subject(
    subject: object,
    candidates: Sequence[Candidate] | None,
    score: Score | None,
    claim: Claim | None,
) -> Subject:
    """Turn what the caller passed into a Subject."""
    if claim is not None and not isinstance(claim, (Guarantee, Charges, Mapping)):
        raise InvalidInput(
            "claim",
            type(claim).__name__,
            "pass a promise, Charges, or a mapping from index to promise",
        )
    if isinstance(subject, Subject):
        return subject
    if isinstance(subject, Selector):
        if candidates is None:
            raise InvalidInput(
                "candidates", None, "a selector is audited over candidates: pass them too"
            )
        return Selection(subject, candidates, score, claim)
    for field, value in (("candidates", candidates), ("score", score)):
        if value is not None:
            raise InvalidInput(field, "…", "only a selector takes it; leave it out")
    if not callable(subject):
        raise InvalidInput(
            "subject",
            type(subject).__name__,
            "pass a Selector, or a function (data, randomness) → output",
        )
    return Function(subject, claim)


def _once(function: Callable[[Sequence[Candidate]], Any]) -> Callable[[Sequence[Candidate]], Any]:
    """Wrap a function so that it is called at most once; the candidates never change."""
    known: list[Any] = []

    def remembered(candidates: Sequence[Candidate]) -> Any:
        if not known:
            known.append(function(candidates))
        return known[0]

    return remembered


def _promise(claim: Claim, index: int | None) -> Guarantee:
    """Return what a claim promises for the winner ``index``."""
    if isinstance(claim, Guarantee):
        return claim
    if isinstance(claim, Charges):
        if index is not None and not 0 <= index < len(claim):
            raise InvalidInput(
                "claim", index, f"the charges are for candidates 0 to {len(claim) - 1}"
            )
        return claim.nothing if index is None else claim[index]
    promise = claim.get(index)
    if not isinstance(promise, Guarantee):
        raise InvalidInput(
            "claim", index, "pass a promise for every index (and for None: nothing released)"
        )
    return promise


def _parts(candidate: Candidate) -> tuple[Any, ...]:
    """Return the fields of a candidate in a form that can be pickled."""
    own = getattr(candidate.mechanism, "guarantee", None) is not None
    promise = None if own else candidate.guarantee
    return (
        candidate.mechanism,
        dict(candidate.params),
        candidate.repeats,
        promise,
        candidate.drop_rate,
        candidate.priority,
    )


def _selection(
    selector: Selector, parts: Sequence[tuple[Any, ...]], score: Score | None, claim: Claim | None
) -> Selection:
    """Rebuild a pickled Selection."""
    return Selection(selector, [Candidate(*each) for each in parts], score, claim)
