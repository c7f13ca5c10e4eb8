"""The shape all selectors share: describe → price → run → release."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Protocol

from expost.errors import BudgetRefused, InvalidCandidate, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.randomness.keyed import SEED_BYTES, RunKey
from expost.randomness.source import Randomness, require_protection
from expost.rationals import exact, round_up
from expost.selection.candidate import Candidate, check_candidates
from expost.selection.checkpoint import Checkpoint
from expost.selection.codec import Codec, JsonCodec, name_of
from expost.selection.dealing import Executor, check_executor
from expost.selection.fingerprint import fingerprint
from expost.selection.release import Release, plain
from expost.selection.running import Listeners, OnFailure, Outcome, Progress, Rule, Run, Score, execute

_MOST_COPIES = 1_000_000

Draws = dict[str, Any]
"""The secrets of one selection, in plain JSON types: its coins, and under "key" the seed material of its runs."""


class Selector(ABC):
    """A private selection algorithm. Subclasses are frozen dataclasses of public settings.

    A subclass says what each outcome costs (``_price``), draws its coins without looking at data (``_draw``), and turns the
    draws into runs (``_runs``). Everything else (checking, running, ranking, releasing) is here, once.
    """

    name: ClassVar[str]
    takes_queries: ClassVar[bool] = False
    target: float | None = None

    def charges(self, candidates: Sequence[Candidate]) -> Charges:
        """What each outcome would cost; no data is touched."""
        return self._price(self._check(candidates))

    def select(
        self,
        candidates: Sequence[Candidate],
        data: Any,
        *,
        score: Score | None = None,
        randomness: Randomness | None = None,
        simulation: bool = False,
        progress: Progress | None = None,
        on_failure: OnFailure | None = None,
        ledger: Account | None = None,
        budget: str | None = None,
        analyst: str = "",
        memo: str = "",
        checkpoint: str | Path | None = None,
        codec: Codec | None = None,
        data_fingerprint: str | None = None,
        executor: Executor | None = None,
        stop_early: bool = True,
        on_start: Callable[[], None] | None = None,
    ) -> Release:
        """Run the selection and release the winner with what it cost.

        ``score``       ranks outputs; it sees the output only, never the data (default: the output, as a number)
        ``randomness``  OS entropy by default; a seeded source is refused unless ``simulation=True``
        ``progress``    called with (outputs made, runs drawn); for the curator's own eyes, like ``on_failure``
        ``on_failure``  called with (candidate, exception) for a candidate that raises; the run still counts as lowest
        ``on_start``    called once the budget is reserved, before data is read
        ``executor``    any ``concurrent.futures.Executor`` to make the runs (docs/cluster.md), by default this process; same release
        ``stop_early``  False: make every run that was drawn, even after one that passes. Same release; but how long it takes, and how many
                        waves a cluster sees, then depends on the draws alone, not on the data

        With a ``ledger`` the worst case is reserved in ``budget`` (for ``analyst``, with ``memo``) before data is read, and settled at
        what the outcome cost; a crash in between leaves the worst case charged. With a ``checkpoint`` file the same call, made
        again after a crash, finishes the same selection: same draws, finished outputs kept, one charge. ``codec`` stores the
        outputs (plain JSON by default); ``data_fingerprint`` names data that has no fingerprint of its own (without it a salted
        hash of the data is taken, into the checkpoint only).

        What runs, how often, and every losing output are secret: publish the returned Release, nothing else.
        """
        if score is not None and not callable(score):
            raise InvalidInput("score", type(score).__name__, "give a function of a candidate's output")
        checked = self._check(candidates)
        if score is not None and (reason := self._refuses_score(checked)):
            raise InvalidInput("score", "a function", reason)
        source = require_protection(randomness, simulation=simulation)
        for name, function in (("progress", progress), ("on_failure", on_failure), ("on_start", on_start)):
            if function is not None and not callable(function):
                raise InvalidInput(name, type(function).__name__, "give a function, or leave it out")
        if ledger is not None and source.simulated:
            raise InvalidInput("ledger", ledger, "a simulation is not charged; leave the ledger out")
        check_flag(stop_early, "stop_early")
        charges = self._price(checked)
        rule = self._rule(checked)
        if executor is not None:
            check_executor(executor, [candidate.mechanism for candidate in checked])
        account = None if ledger is None else [ledger.identity, budget, analyst]
        chosen = codec or JsonCodec()

        def identify(salt: bytes) -> str:
            described = [self.settings(), [describe(each) for each in checked], account, name_of(chosen), source.simulated]
            return fingerprint([json.dumps(described, default=repr), data_fingerprint or data], salt)

        kept = (
            None
            if checkpoint is None
            else Checkpoint.open(checkpoint, chosen, identify, lambda: self._secrets(checked, source))
        )
        try:
            draws = self._secrets(checked, source) if kept is None else kept.draws
            reservation = None
            if ledger is not None:
                identity = None if kept is None else kept.reservation_id
                try:
                    reservation = ledger.reserve(charges, memo, budget=budget, analyst=analyst, reservation_id=identity)
                except (BudgetRefused, InvalidInput):
                    if kept is not None:  # certainly not recorded; other errors leave the checkpoint for another try
                        kept.erase()
                        kept = None
                    raise
            if on_start is not None:
                on_start()
            outcome = execute(
                self._runs(checked, charges, draws),
                data,
                RunKey(bytes.fromhex(draws["key"]), source.simulated),
                rule=rule,
                score=score,
                target=None if self.target is None else float(self.target),
                listeners=Listeners(progress, on_failure),
                checkpoint=kept,
                settled=kept is not None and ledger is not None and ledger.status_of(reservation) == "settled",
                executor=executor,
                stop_early=stop_early,
            )
            release = self._release(checked, charges, outcome, source)
            if ledger is not None:
                ledger.settle(reservation, outcome.index)
            if kept is not None:
                kept.erase()
                kept = None
            return release
        finally:
            if kept is not None:
                kept.close()

    def _secrets(self, candidates: Sequence[Candidate], source: Randomness) -> Draws:
        """All that is drawn before data is read: the selector's coins, and the key of the runs' own randomness."""
        return {**self._draw(candidates, source), "key": source.bytes(SEED_BYTES).hex()}

    def _release(self, candidates: Sequence[Candidate], charges: Charges, outcome: Outcome, randomness: Randomness) -> Release:
        return Release(
            value=outcome.value,
            params={} if outcome.index is None else dict(candidates[outcome.index].params),
            index=outcome.index,
            score=outcome.score,
            passed=outcome.passed,
            spent=charges.nothing if outcome.index is None else charges[outcome.index],
            worst_case=charges.worst_case,
            theorem=self._theorem(candidates),
            selector=self.settings(),
            simulated=randomness.simulated,
        )

    def settings(self) -> dict[str, Any]:
        """The selector's name and public settings, in plain JSON types."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"name": self.name} | {key: plain(_number(value), key) for key, value in values.items()}

    def verify(self, release: Release, candidates: Sequence[Candidate]) -> bool:
        """Whether a certificate's charges and settings are those of this selector over these candidates.

        The value and its score cannot be checked; whether randomness was real stands in ``release.simulated``.
        """
        checked = self._check(candidates)
        charges = self._price(checked)
        if release.index is not None and not 0 <= release.index < len(checked):
            return False
        spent = charges.nothing if release.index is None else charges[release.index]
        params = {} if release.index is None else dict(checked[release.index].params)
        return (
            release.spent,
            release.worst_case,
            release.theorem,
            dict(release.selector),
            plain(dict(release.params), "params"),
        ) == (spent, charges.worst_case, self._theorem(checked), self.settings(), plain(params, "params"))

    def _check(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return check_candidates(candidates, queries=self.takes_queries)

    def _refuses_score(self, candidates: Sequence[Candidate]) -> str | None:
        """Why a score may not be given, if so; most theorems cover any function of the output."""
        return None

    @abstractmethod
    def _price(self, candidates: Sequence[Candidate]) -> Charges: ...

    @abstractmethod
    def _theorem(self, candidates: Sequence[Candidate]) -> str: ...

    @abstractmethod
    def _draw(self, candidates: Sequence[Candidate], randomness: Randomness) -> Draws: ...

    @abstractmethod
    def _runs(self, candidates: Sequence[Candidate], charges: Charges, draws: Draws) -> Sequence[Run]: ...

    @abstractmethod
    def _rule(self, candidates: Sequence[Candidate]) -> Rule: ...


class Account(Protocol):
    """What a selector needs of a ledger (``expost.budget.ledger.Ledger``)."""

    @property
    def identity(self) -> str: ...

    def reserve(
        self,
        charges: Charges,
        memo: str = ...,
        *,
        budget: str | None = ...,
        analyst: str = ...,
        reservation_id: str | None = ...,
    ) -> Any: ...

    def settle(self, reservation: Any, outcome: object) -> Guarantee: ...

    def status_of(self, reservation: Any) -> str: ...

    def kind_of(self, budget: str | None = ...) -> str: ...


def describe(candidate: Candidate) -> list[Any]:
    """What tells a candidate from another in a checkpoint: everything public about it."""
    mechanism = candidate.mechanism
    name = getattr(mechanism, "__qualname__", type(mechanism).__qualname__)
    public = [candidate.repeats, candidate.drop_rate, candidate.priority]
    return [name, dict(candidate.params), candidate.guarantee.as_dict(), *public]


def _number(value: Any) -> Any:
    """Rationals as the nearest float, for display; floats and everything else as they are."""
    return float(value) if isinstance(value, (Fraction, Decimal)) else value


def require_kind(candidates: Sequence[Candidate], selector: str, *kinds: type[Guarantee]) -> None:
    """Refuse promises that the selector's theorem does not cover."""
    promise = candidates[0].guarantee
    if not isinstance(promise, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidCandidate("guarantee", promise, f"{selector} needs candidates that promise {names}")


def check_flag(value: object, field: str) -> None:
    """Refuse anything but True and False: a text such as 'no' would count as true."""
    if not isinstance(value, bool):
        raise InvalidInput(field, value, "give True or False")


def all_copies(candidates: Sequence[Candidate]) -> list[int]:
    """Every copy as its candidate's index, for selectors that look at each in turn."""
    copies = sum(candidate.repeats for candidate in candidates)
    if copies > _MOST_COPIES:
        raise InvalidCandidate("repeats", copies, f"every copy is run in turn here: give at most {_MOST_COPIES} in all")
    return [index for index, candidate in enumerate(candidates) for _ in range(candidate.repeats)]


def check_target(target: object) -> None:
    """Refuse a target that no score can be compared with."""
    if target is not None and round_up(abs(exact(target, "target"))) == math.inf:  # type: ignore[arg-type]
        raise InvalidInput("target", type(target).__name__, "give a number that a float can hold")
