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
from typing import Any, ClassVar

from expost.budget.charging import Account, LedgerLike
from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.checkpoint import SelectionState
from expost.execution.codec import Codec, JsonCodec, name_of
from expost.execution.dispatch import Executor, check_executor
from expost.execution.engine import Listeners, Outcome, ReleaseRule, Run, RunProgress, execute
from expost.execution.failure import OnFailure, Score
from expost.execution.fingerprint import fingerprint
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.randomness.keyed import SEED_BYTES, RunKey
from expost.randomness.source import Randomness, require_protection
from expost.rationals import exact, round_up
from expost.selection.candidate import Candidate, check_candidates
from expost.selection.release import Release, plain

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
        progress: RunProgress | None = None,
        on_failure: OnFailure | None = None,
        ledger: LedgerLike | None = None,
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
        # Describe
        checked = self._check(candidates)
        self._check_score(score, checked)
        check_callbacks(progress=progress, on_failure=on_failure, on_start=on_start)
        check_flag(stop_early, "stop_early")
        source = require_protection(randomness, simulation=simulation)
        account = Account(ledger, budget, analyst, memo)
        account.check_simulation(source.simulated)
        # Price
        charges = self._price(checked)
        rule = self._rule(checked)
        if executor is not None:
            check_executor(executor, [candidate.mechanism for candidate in checked])
        stored = codec or JsonCodec()

        def identify(salt: bytes) -> str:
            public = [self.settings(), [describe(each) for each in checked], account.identity]
            described = [*public, name_of(stored), source.simulated]
            return fingerprint(
                [json.dumps(described, default=repr), data_fingerprint or data], salt
            )

        def draw() -> Draws:
            return self._secrets(checked, source)

        with SelectionState.open(checkpoint, stored, identify, draw) as state:
            # Reserve
            with account.reserve(
                charges, reservation_id=state.reservation_id, on_refusal=state.finish
            ) as reserved:
                if on_start is not None:
                    on_start()
                # Run
                outcome = execute(
                    self._runs(checked, charges, state.draws),
                    data,
                    RunKey(bytes.fromhex(state.draws["key"]), source.simulated),
                    rule=rule,
                    score=score,
                    target=None if self.target is None else float(self.target),
                    listeners=Listeners(progress, on_failure),
                    checkpoint=state.checkpoint,
                    settled=state.checkpoint is not None and reserved.already_settled,
                    executor=executor,
                    stop_early=stop_early,
                )
                # Release
                release = self._release(checked, charges, outcome, source)
                # Settle
                reserved.settle(outcome.index)
            state.finish()
        return release

    def _secrets(self, candidates: Sequence[Candidate], source: Randomness) -> Draws:
        """Draw everything secret before data is read: the coins, and the key of the runs."""
        return {**self._draw(candidates, source), "key": source.bytes(SEED_BYTES).hex()}

    def _release(
        self,
        candidates: Sequence[Candidate],
        charges: Charges,
        outcome: Outcome,
        randomness: Randomness,
    ) -> Release:
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
        return {"name": self.name} | {
            key: plain(_number(value), key) for key, value in values.items()
        }

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
        ) == (
            spent,
            charges.worst_case,
            self._theorem(checked),
            self.settings(),
            plain(params, "params"),
        )

    def _check(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return check_candidates(candidates, queries=self.takes_queries)

    def _check_score(self, score: Score | None, candidates: Sequence[Candidate]) -> None:
        if score is None:
            return
        if not callable(score):
            raise InvalidInput(
                "score", type(score).__name__, "give a function of a candidate's output"
            )
        if reason := self._refuses_score(candidates):
            raise InvalidInput("score", "a function", reason)

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
    def _runs(
        self, candidates: Sequence[Candidate], charges: Charges, draws: Draws
    ) -> Sequence[Run]: ...

    @abstractmethod
    def _rule(self, candidates: Sequence[Candidate]) -> ReleaseRule: ...


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
        raise InvalidCandidate(
            "guarantee", promise, f"{selector} needs candidates that promise {names}"
        )


def check_callbacks(**callbacks: object) -> None:
    """Refuse callbacks that cannot be called."""
    for name, function in callbacks.items():
        if function is not None and not callable(function):
            raise InvalidInput(name, type(function).__name__, "give a function, or leave it out")


def check_flag(value: object, field: str) -> None:
    """Refuse anything but True and False: a text such as 'no' would count as true."""
    if not isinstance(value, bool):
        raise InvalidInput(field, value, "give True or False")


def all_copies(candidates: Sequence[Candidate]) -> list[int]:
    """Every copy as its candidate's index, for selectors that look at each in turn."""
    copies = sum(candidate.repeats for candidate in candidates)
    if copies > _MOST_COPIES:
        raise InvalidCandidate(
            "repeats", copies, f"every copy is run in turn here: give at most {_MOST_COPIES} in all"
        )
    return [index for index, candidate in enumerate(candidates) for _ in range(candidate.repeats)]


def check_target(target: object) -> None:
    """Refuse a target that no score can be compared with."""
    if target is not None and round_up(abs(exact(target, "target"))) == math.inf:  # type: ignore[arg-type]
        raise InvalidInput("target", type(target).__name__, "give a number that a float can hold")
