"""The steps that all selectors share: describe, price, reserve, run, release, settle.

A selector adds three things in its own file: what each outcome costs, which secrets it draws
without looking at data, and which runs follow from them. The rest is here: checking the request,
reserving the worst case in a ledger, making the runs, choosing among the outputs, and building
the release. The theorem of each selector is stated in its own file.

Tests: ``tests/contracts`` (the same tests for every selector).
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from expost._version import __version__
from expost.budget.charging import Account, LedgerOrPlace
from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.calls import OnFailure, Score
from expost.execution.checkpoint import Codec, JsonCodec, fingerprint, identity_of
from expost.execution.engine import (
    Listeners,
    Outcome,
    OutcomeRule,
    ReleaseRule,
    Run,
    RunProgress,
    SelectionState,
    execute,
)
from expost.execution.workers import Executor, check_executor
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import SEED_BYTES, Randomness, RunKey, require_protection
from expost.rationals import exact
from expost.selection.candidate import (
    Candidate,
    all_copies,
    check_callbacks,
    check_candidates,
    check_flag,
)
from expost.selection.release import Release, data_description, grid_of, plain_json

Candidates = Sequence[Candidate]
Draws = dict[str, Any]
"""The secrets of one selection in plain JSON types: its coins and, under "key", the key of its
runs' randomness."""


class Selector(ABC):
    """Base class of the private selection algorithms.

    A subclass is a frozen dataclass of public settings with the methods ``_price``, ``_theorem``
    and ``_draw``, a ``rule`` (or ``_rule``), and often ``_runs``. ``name`` stands in certificates;
    ``takes_queries``: candidates may be bare ``Query`` objects; ``runs_here``: runs are made in
    this process, also with an executor; ``at_least``: the score that a run must reach to pass.
    """

    name: ClassVar[str]
    takes_queries: ClassVar[bool] = False
    runs_here: ClassVar[bool] = False
    at_least: float | None = None
    rule: ClassVar[ReleaseRule]

    def charges(self, candidates: Candidates) -> Charges:
        """Return what each outcome would cost. No data is read and nothing is charged.

        Parameters
        ----------
        candidates : sequence of Candidate
            What may run. All guarantees must be of one kind and one neighbouring relation.

        Returns
        -------
        Charges
            ``charges[i]`` is the charge if candidate i is released, ``charges.nothing`` the charge
            if nothing is released, ``charges.worst_case`` the largest charge.

        Raises
        ------
        InvalidInput
            The selector's theorem does not cover these candidates or settings.
        """
        return self._price(self._check(candidates))

    def select(
        self,
        candidates: Candidates,
        data: Any,
        *,
        score: Score | None = None,
        randomness: Randomness | None = None,
        simulation: bool = False,
        progress: RunProgress | None = None,
        on_failure: OnFailure | None = None,
        ledger: LedgerOrPlace = None,
        budget: str | None = None,
        analyst: str = "",
        memo: str = "",
        checkpoint: str | Path | None = None,
        codec: Codec | None = None,
        data_fingerprint: str | None = None,
        executor: Executor | None = None,
        stop_early: bool = True,
        on_start: Callable[[], None] | None = None,
        on_release: Callable[[Release], None] | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> Release:
        """Run the selection and release the winner together with what it cost.

        Parameters
        ----------
        candidates : sequence of Candidate
            What may run.
        data : object
            Passed to the candidates as is.
        score : callable, optional
            Function of an output that returns a number; higher is better. It must depend on the
            output alone, never on the data. By default the output itself is the number.
        randomness : Randomness, optional
            Source of the coins and of the noise; by default the entropy of the operating system. A
            seeded source is refused unless ``simulation=True``.
        simulation : bool
            True allows seeded randomness. The release is then marked as simulated and protects
            nobody.
        progress : callable, optional
            Called with (outputs made, runs drawn). Both numbers are secret: for the curator only.
        on_failure : callable, optional
            Called with (candidate index, exception) when a candidate raises, for the curator only.
            The run still counts, with the lowest rank.
        ledger : Ledger, str or Path, optional
            The ledger that pays, or its file name or URL. The worst case is reserved before any
            run reads data, and settled at the charge of the outcome. After a crash in between, the
            worst case stays charged.
        budget : str, optional
            Name of the budget in the ledger; may be left out if the ledger has only one.
        analyst : str
            The person on whose behalf the selection is made, for the ledger.
        memo : str
            A note for the readers of the ledger.
        checkpoint : path, optional
            File from which the same call, made again after a crash, finishes the same selection:
            the draws and the finished outputs are kept, and it is charged once. The call is
            recognised by what :mod:`expost.execution.checkpoint` lists.
        codec : Codec, optional
            How the checkpoint stores outputs; plain JSON by default. An output that it cannot
            store is a failure of its run; ``on_failure`` is told.
        data_fingerprint : str, optional
            A name for this version of the data, for data of which no fingerprint can be computed.
            Without it a salted hash of the data is written to the checkpoint, and nowhere else.
        executor : concurrent.futures.Executor, optional
            Makes the runs (docs/cluster.md); by default this process does. The release is the
            same.
        stop_early : bool
            False makes every run that was drawn, even after one that passes. The release is the
            same, but the duration, and the number of waves that a cluster sees, then depend on the
            draws alone and not on the data.
        on_start : callable, optional
            Called without arguments after the budget is reserved and before any run reads data.
        on_release : callable, optional
            Called with the release after it was settled and before the checkpoint is erased, so
            that a caller can store it and no crash loses it.
        source : mapping, optional
            A public description of the data for the ledger; by default its type and columns.

        Returns
        -------
        Release
            The winner, its settings, its score and its charge.

        Raises
        ------
        InvalidInput
            An argument is not valid, or the theorem does not cover the candidates.
        BudgetRefused
            The budget cannot pay the worst case. Nothing ran and nothing was charged.
        CheckpointMismatch
            The checkpoint belongs to another selection or is in use.
        WorkersLost
            The executor's workers failed repeatedly. Nothing was released.

        Notes
        -----
        Which candidates ran, how often, and every losing output are secret. Publish the returned
        ``Release`` and nothing else.
        """
        # Describe: check everything that can be checked without data.
        checked = self._check(candidates)
        self._check_score(score, checked)
        check_callbacks(progress=progress, on_failure=on_failure, on_start=on_start)
        check_callbacks(on_release=on_release)
        check_flag(stop_early, "stop_early")
        # Nothing so far has looked at data, drawn a coin or touched the ledger.
        coins = require_protection(randomness, simulation=simulation)
        account = Account(ledger, budget, analyst, memo)
        account.check_simulation(coins.simulated)
        described = data_description(data) if source is None else dict(source)

        # Price: the charge of every outcome, and the rule that chooses one.
        charges = self._price(checked)
        rule = self._rule(checked)
        if executor is not None:
            check_executor(executor, self._sent(checked))
            executor = None if self.runs_here else executor

        # Draw the secrets before any run reads data, or take them from the checkpoint.
        stored = codec or JsonCodec()
        named = data_fingerprint or data
        with SelectionState.open(
            checkpoint,
            stored,
            lambda salt: self._identity(checked, account, score, stored, coins, named, salt),
            lambda: self._secrets(checked, coins),
        ) as state:
            # Reserve: from here until it is settled, the worst case is charged.
            with account.reserve(
                charges,
                reservation_id=state.reservation_id,
                secret=state.reservation_secret,
                request=self._request(checked),
                source=described,
                on_refusal=state.finish,
            ) as reserved:
                if on_start is not None:
                    on_start()

                # Run: make the runs that were drawn, and choose among their outputs.
                outcome = execute(
                    self._runs(checked, charges, state.draws),
                    data,
                    RunKey(bytes.fromhex(state.draws["key"]), coins.simulated),
                    OutcomeRule(
                        rule,
                        score,
                        None if self.at_least is None else exact(self.at_least, "at_least"),
                        stop_early,
                    ),
                    Listeners(progress, on_failure),
                    state.checkpoint,
                    settled=state.checkpoint is not None and reserved.already_settled,
                    executor=executor,
                )

                # Release: the winner with its charge; everything else stays secret.
                release = self._release(checked, charges, outcome, coins)
                evidence = reserved.evidence()
                if evidence is not None:
                    release = replace(release, ledger={**evidence, "source": described})

                # Settle: the ledger entry drops from the worst case to the actual charge.
                reserved.settle(release.index, None if evidence is None else release.record())
            if on_release is not None:
                on_release(release)
            state.finish()
        return release

    def _identity(
        self,
        candidates: Candidates,
        account: Account,
        score: Score | None,
        codec: Codec,
        source: Randomness,
        data: Any,
        salt: bytes,
    ) -> str:
        """Return the salted fingerprint by which a checkpoint recognises its selection.

        What it covers, and what it cannot see, is stated in :mod:`expost.execution.checkpoint`.
        """
        public = [__version__, self.settings(), account.identity, source.simulated]
        described = [
            *public,
            # Everything that defines a candidate.
            [[one.mechanism, dict(one.params), *_public(one), one.priority] for one in candidates],
            score,
            codec,
        ]
        return fingerprint([identity_of(described), data], salt)

    def _request(self, candidates: Candidates) -> str:
        """Return the digest of the public description of a selection, for the ledger.

        It must be the same in every process, so it holds plain values only: no mechanism.
        """
        listed = [[dict(one.params), *_public(one)] for one in candidates]
        text = json.dumps([self.settings(), listed], default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def _secrets(self, candidates: Candidates, source: Randomness) -> Draws:
        """Draw everything that is secret, without looking at data: the coins and the runs' key."""
        return {**self._draw(candidates, source), "key": source.bytes(SEED_BYTES).hex()}

    def _release(
        self, candidates: Candidates, charges: Charges, outcome: Outcome, randomness: Randomness
    ) -> Release:
        """Return the certificate of an outcome."""
        return Release(
            value=outcome.value,
            params={} if outcome.index is None else dict(candidates[outcome.index].params),
            index=outcome.index,
            score=_float(outcome.score),
            passed=outcome.passed,
            spent=charges.nothing if outcome.index is None else charges[outcome.index],
            worst_case=charges.worst_case,
            theorem=self._theorem(candidates),
            selector=self.settings(),
            simulated=randomness.simulated,
            grid=grid_of(self, candidates),
        )

    def settings(self) -> dict[str, Any]:
        """Return the selector's name and public settings in plain JSON types."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"name": self.name} | {
            key: plain_json(_number(value), key) for key, value in values.items()
        }

    def verify(self, release: Release, candidates: Candidates) -> bool:
        """Return whether a certificate matches this selector and these candidates.

        Parameters
        ----------
        release : Release
            The certificate.
        candidates : sequence of Candidate
            The candidates of the selection, in the same order.

        Returns
        -------
        bool
            True if charges, theorem, settings and parameters are those of this selector over these
            candidates.

        Notes
        -----
        The value and its score cannot be checked. ``release.simulated`` says whether seeded
        randomness was used.
        """
        checked = self._check(candidates)
        charges = self._price(checked)
        if release.index is not None and not 0 <= release.index < len(checked):
            return False
        spent = charges.nothing if release.index is None else charges[release.index]
        params = {} if release.index is None else dict(checked[release.index].params)
        stated = (release.spent, release.worst_case, release.theorem, dict(release.selector))
        priced = (spent, charges.worst_case, self._theorem(checked), self.settings())
        return stated == priced and (
            plain_json(dict(release.params), "params") == plain_json(params, "params")
        )

    def _check(self, candidates: Candidates) -> Candidates:
        """Return the candidates if they form a valid list."""
        return check_candidates(candidates, queries=self.takes_queries)

    def _check_score(self, score: Score | None, candidates: Candidates) -> None:
        """Refuse a score that cannot be called, or that the theorem does not allow."""
        if score is None:
            return
        if not callable(score):
            raise InvalidInput(
                "score", type(score).__name__, "give a function of a candidate's output"
            )
        if reason := self._refuses_score(candidates):
            raise InvalidInput("score", "a function", reason)

    def _refuses_score(self, candidates: Candidates) -> str | None:
        """Return why a score may not be given, or None; most theorems allow any score."""
        return None

    def _sent(self, candidates: Candidates) -> Sequence[Any]:
        """Return what workers must be able to load."""
        return [candidate.mechanism for candidate in candidates]

    @abstractmethod
    def _price(self, candidates: Candidates) -> Charges:
        """Return the charge of every outcome; refuse candidates that no theorem covers."""

    @abstractmethod
    def _theorem(self, candidates: Candidates) -> str:
        """Return the name of the result that the claim rests on."""

    @abstractmethod
    def _draw(self, candidates: Candidates, randomness: Randomness) -> Draws:
        """Draw the coins; they must not depend on data."""

    def _runs(self, candidates: Candidates, charges: Charges, draws: Draws) -> Sequence[Run]:
        """Return the runs that follow from the draws, in the order in which they are made.

        By default these are the candidates that were drawn, or else every copy, in the order of
        the list.
        """
        drawn = draws["kept"] if "kept" in draws else all_copies(candidates)
        return [Run(index, candidates[index].call) for index in drawn]

    def _rule(self, candidates: Candidates) -> ReleaseRule:
        """Return the rule that chooses the released run."""
        return self.rule


def _public(candidate: Candidate) -> list[Any]:
    """Return what the charge of a candidate depends on."""
    return [candidate.guarantee.as_dict(), candidate.repeats, candidate.drop_rate]


def _float(score: int | float | None) -> float | None:
    """Return a score as a float; a whole number beyond the floats is infinite."""
    if score is None:
        return None
    try:
        return float(score)
    except OverflowError:
        return math.inf if score > 0 else -math.inf


def _number(value: Any) -> Any:
    """Return a rational as the nearest float, for display; return other values unchanged."""
    return float(value) if isinstance(value, (Fraction, Decimal)) else value


def require_kind(candidates: Candidates, selector: str, *kinds: type[Guarantee]) -> None:
    """Refuse guarantees that the selector's theorem does not cover.

    The first candidate stands for all: :func:`check_candidates` refuses lists of mixed kinds.
    """
    guarantee = candidates[0].guarantee
    if guarantee.kind not in {kind.kind for kind in kinds}:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidCandidate(
            "guarantee", guarantee, f"{selector} needs candidates with a guarantee of kind {names}"
        )
