"""The shape all selectors share: describe → price → run → release."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

from expost.errors import InvalidCandidate, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness, require_protection
from expost.rationals import exact, round_up
from expost.selection.candidate import Candidate, check_candidates
from expost.selection.release import Release, plain
from expost.selection.running import OnFailure, Outcome, Progress, Rule, Run, Score, execute

Draws = dict[str, Any]
"""The secret coins of one selection, as plain integers."""


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
    ) -> Release:
        """Run the selection and release the winner with what it cost.

        ``score``       ranks outputs; it sees the output only, never the data (default: the output, as a number)
        ``randomness``  OS entropy by default; a seeded source is refused unless ``simulation=True``
        ``progress``    called with (runs done, runs drawn); for the curator's own eyes, like ``on_failure``
        ``on_failure``  called with (candidate, exception) for a candidate that raises; the run still counts as lowest

        What runs, how often, and every losing output are secret: publish the returned Release, nothing else.
        """
        if score is not None and not callable(score):
            raise InvalidInput("score", type(score).__name__, "give a function of a candidate's output")
        checked = self._check(candidates)
        if score is not None and (reason := self._refuses_score(checked)):
            raise InvalidInput("score", "a function", reason)
        source = require_protection(randomness, simulation=simulation)
        charges = self._price(checked)
        rule = self._rule(checked)
        outcome = execute(
            self._runs(checked, charges, self._draw(checked, source)),
            data,
            source,
            rule=rule,
            score=score,
            target=None if self.target is None else float(self.target),
            progress=progress,
            on_failure=on_failure,
        )
        return self._release(checked, charges, outcome, source)

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
        """Whether a certificate's charges are those of this selector over these candidates."""
        checked = self._check(candidates)
        charges = self._price(checked)
        if release.index is not None and not 0 <= release.index < len(checked):
            return False
        spent = charges.nothing if release.index is None else charges[release.index]
        return (release.spent, release.worst_case, release.theorem, dict(release.selector)) == (
            spent,
            charges.worst_case,
            self._theorem(checked),
            self.settings(),
        )

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


def _number(value: Any) -> Any:
    """Rationals as the nearest float, for display; floats and everything else as they are."""
    return float(value) if isinstance(value, (Fraction, Decimal)) else value


def require_kind(candidates: Sequence[Candidate], selector: str, *kinds: type[Guarantee]) -> None:
    """Refuse promises that the selector's theorem does not cover."""
    promise = candidates[0].guarantee
    if not isinstance(promise, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidCandidate("guarantee", promise, f"{selector} needs candidates that promise {names}")


def check_target(target: object) -> None:
    """Refuse a target that no score can be compared with."""
    if target is not None and round_up(abs(exact(target, "target"))) == math.inf:  # type: ignore[arg-type]
        raise InvalidInput("target", type(target).__name__, "give a number that a float can hold")
