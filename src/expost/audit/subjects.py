"""What can be audited: a selector with its candidates, a mechanism, a request, or ``MODULE:NAME``.

A request is a function that returns a release. One observation consists of a *class* of outcomes
(which candidate won, and the charge that the release states), the released value, and whether it
passed. A mechanism that raises an error has the outcome FAILED, as in a selection. A request that
raises an error ends the audit. A subject given by name is imported again by every worker process;
the name may also refer to a function without arguments that returns a subject.

Tests: ``tests/audit/test_empirical.py``, ``tests/cli/test_audit_cli.py``.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from expost.errors import ExpostError, InvalidInput
from expost.execution.calls import Raised, Score, call_or_failure
from expost.mechanisms import FAILED, Call
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ApproxDP, Guarantee, PureDP
from expost.randomness.source import Randomness
from expost.selection.above_threshold import AboveThreshold
from expost.selection.baselines import Doubling
from expost.selection.candidate import Candidate
from expost.selection.random_dropping import RandomDropping
from expost.selection.release import Release
from expost.selection.selector import Selector

Claim = Guarantee | Charges | Mapping[int | None, Guarantee]
"""One guarantee for all outcomes, or one per index of the winner (None: nothing was released)."""


@dataclass(frozen=True)
class OutputKey:
    """A class of outcomes: the winner's index, and the stated charge where it may vary."""

    index: int | None
    spent: Guarantee | None = None


class Observation(NamedTuple):
    """One run as the auditor sees it."""

    key: OutputKey
    value: Any
    passed: bool | None = None


class Subject(ABC):
    """Something that can be run many times. Subjects are pickled for worker processes."""

    origin: tuple[Reference, Options] | None = None

    def __reduce__(self) -> Any:
        if self.origin is not None:
            return named_subject, self.origin
        return super().__reduce__()

    @abstractmethod
    def observe(self, data: Any, randomness: Randomness) -> Observation:
        """Run once."""

    @abstractmethod
    def known(self) -> dict[OutputKey, Guarantee] | None:
        """Return every class of outcomes with its guarantee, or None if not known in advance."""

    def claim_for(self, key: OutputKey) -> Guarantee | None:
        """Return the guarantee of a class that was seen."""
        return None if (table := self.known()) is None else table.get(key)


class Selection(Subject):
    """A selector over candidates. The guarantee of index i is the charge of candidate i."""

    def __init__(
        self,
        selector: Selector,
        candidates: Sequence[Candidate],
        score: Score | None = None,
        claim: Claim | None = None,
    ) -> None:
        self._selector, self._candidates = selector, candidates
        self._score, self._claim = score, claim
        charges = selector.charges(candidates)
        self._priced = copy.copy(selector)
        # Prices and drop laws use neither data nor randomness: compute them once.
        for name in ("_price", "drop_law"):
            if hasattr(selector, name):
                object.__setattr__(self._priced, name, _once(getattr(selector, name)))
        indices = [*range(len(candidates)), None]
        self._table = {
            OutputKey(index): _guarantee_for(charges if claim is None else claim, index)
            for index in indices
        }

    def __reduce__(self) -> Any:
        if self.origin is not None:
            return super().__reduce__()
        return Selection, (self._selector, self._candidates, self._score, self._claim)

    def observe(self, data: Any, randomness: Randomness) -> Observation:
        release = self._priced.select(
            self._candidates,
            data,
            score=self._score,
            randomness=randomness,
            simulation=randomness.simulated,
        )
        return Observation(OutputKey(release.index), release.value, release.passed)

    def known(self) -> dict[OutputKey, Guarantee]:
        return self._table


class AuditedFunction(Subject):
    """A function ``(data, randomness) → output``: a mechanism, or a request.

    A mechanism has one class of outcomes, with index 0. A request returns a Release.
    """

    def __init__(self, function: Call, claim: Claim | None = None) -> None:
        self._function, self._claim = function, claim

    def observe(self, data: Any, randomness: Randomness) -> Observation:
        output = call_or_failure(self._function, data, randomness)
        if isinstance(output, Raised):
            # Without a guarantee it may be a request: its error is not an outcome.
            if self._own_guarantee is None and not isinstance(self._claim, Guarantee):
                error = output.error
                raise InvalidInput(
                    "subject", type(error).__name__, f"a run raised this error: {error}"
                ) from error
            return Observation(OutputKey(0), FAILED)
        if isinstance(output, Release):
            spent = output.spent if self._claim is None else None
            return Observation(OutputKey(output.index, spent), output.value, output.passed)
        return Observation(OutputKey(0), output)

    def known(self) -> dict[OutputKey, Guarantee] | None:
        return None

    def claim_for(self, key: OutputKey) -> Guarantee | None:
        if self._claim is not None:
            return _guarantee_for(self._claim, key.index)
        return key.spent if key.spent is not None else self._own_guarantee

    @property
    def _own_guarantee(self) -> Guarantee | None:
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
            "pass a guarantee, Charges, or a mapping from index to guarantee",
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
    return AuditedFunction(subject, claim)


def _once(function: Callable[[Sequence[Candidate]], Any]) -> Callable[[Sequence[Candidate]], Any]:
    """Wrap a function so that it is called at most once; the candidates never change."""
    known: list[Any] = []

    def remembered(candidates: Sequence[Candidate]) -> Any:
        if not known:
            known.append(function(candidates))
        return known[0]

    return remembered


def _guarantee_for(claim: Claim, index: int | None) -> Guarantee:
    """Return what a claim guarantees for the winner ``index``."""
    if isinstance(claim, Guarantee):
        return claim
    if isinstance(claim, Charges):
        if index is not None and not 0 <= index < len(claim):
            raise InvalidInput(
                "claim", index, f"the charges are for candidates 0 to {len(claim) - 1}"
            )
        return claim.nothing if index is None else claim[index]
    guarantee = claim.get(index)
    if not isinstance(guarantee, Guarantee):
        raise InvalidInput(
            "claim", index, "pass a guarantee for every index (and for None: nothing released)"
        )
    return guarantee


SELECTORS = ("random-dropping", "above-threshold", "doubling")


@dataclass(frozen=True)
class Reference:
    """An object given by module (or file ending in .py) and name, relative to ``folder``."""

    module: str
    name: str
    folder: str

    @classmethod
    def parse(cls, text: str, field: str) -> Reference:
        """Parse ``MODULE:NAME``."""
        module, _, name = text.rpartition(":")
        if not module or not name or not all(part.isidentifier() for part in name.split(".")):
            raise InvalidInput(
                field,
                text,
                "pass MODULE:NAME, e.g. audit_me:candidates or examples/audit_me.py:candidates",
            )
        return cls(module, name, str(Path.cwd()))

    def load(self) -> Any:
        """Import the object; errors name what is missing."""
        value: Any = self._import()
        for part in self.name.split("."):
            if not hasattr(value, part):
                raise InvalidInput("name", self.name, f"{self.module} has nothing called {part!r}")
            value = getattr(value, part)
        return value

    def _import(self) -> ModuleType:
        """Import the module, from the folder or from a file."""
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        try:
            return (
                self._from_file()
                if self.module.endswith(".py")
                else importlib.import_module(self.module)
            )
        except ExpostError:
            raise
        except (Exception, SystemExit) as error:
            reason = f"importing it raised {type(error).__name__}: {error}"
            raise InvalidInput("module", self.module, reason) from error

    def _from_file(self) -> ModuleType:
        """Import the file as a module, once per process."""
        path = Path(self.folder, self.module).resolve()
        if not path.is_file():
            raise InvalidInput("module", self.module, "there is no such file")
        name = f"_audited_{path.stem}"
        known = sys.modules.get(name)
        if known is not None and getattr(known, "__file__", None) == str(path):
            return known
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look up their module while it is executed
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


class NamedFunction:
    """A function given by name: an event or a score. It is pickled as its name."""

    def __init__(self, reference: Reference, field: str) -> None:
        self._reference, self._field = reference, field
        self._function = reference.load()
        if not callable(self._function):
            raise InvalidInput(field, reference.name, "it must be a function of the released value")

    def __reduce__(self) -> tuple[Any, ...]:
        return (NamedFunction, (self._reference, self._field))

    def __call__(self, value: Any) -> Any:
        return self._function(value)


@dataclass(frozen=True)
class Options:
    """Settings that a bare list of candidates, or a bare function, does not contain."""

    selector: str = SELECTORS[0]
    overhead: float | None = None
    at_least: float | None = None
    delta: float | None = None
    epsilon: float | None = None
    score: Reference | None = None

    def make_selector(self) -> Selector:
        """Make the selector for a bare list of candidates."""
        if self.selector not in SELECTORS:
            raise InvalidInput("selector", self.selector, "choose from " + ", ".join(SELECTORS))
        if self.selector != "random-dropping" and self.at_least is None:
            raise InvalidInput(
                "at_least",
                None,
                f"{self.selector} releases the first score that reaches it: pass a number",
            )
        if self.selector == "doubling":
            return Doubling(float(self.at_least or 0))
        if self.overhead is None:
            raise InvalidInput(
                "overhead", None, f"{self.selector} needs its ε′: pass e.g. --overhead 0.1"
            )
        if self.selector == "above-threshold":
            return AboveThreshold(self.overhead, float(self.at_least or 0), delta=self.delta)
        return RandomDropping(self.overhead, self.at_least, delta=self.delta)

    def refuse_settings(self, *also: str | None) -> None:
        """Raise an error for selector settings that would be ignored."""
        given = [
            name
            for name in ("overhead", "at_least", *also)
            if name is not None and getattr(self, name) is not None
        ]
        given += ["selector"] if self.selector != SELECTORS[0] else []
        if given:
            raise InvalidInput(
                given[0],
                getattr(self, given[0]),
                "it applies to a bare list of candidates only; leave it out",
            )

    @property
    def claim(self) -> Guarantee | None:
        """The claim made by ``epsilon`` and ``delta``, if any."""
        if self.epsilon is None:
            return None
        return PureDP(self.epsilon) if self.delta is None else ApproxDP(self.epsilon, self.delta)


def named_subject(reference: Reference, options: Options) -> Subject:
    """Return the subject that a reference names. It is pickled as the reference."""
    subject = _resolve(reference.load(), options)
    subject.origin = (reference, options)
    return subject


def _resolve(value: Any, options: Options) -> Subject:
    """Turn the imported object into a subject."""
    if callable(value) and not isinstance(value, Candidate) and not _takes_arguments(value):
        value = _made(value)
    score = None if options.score is None else NamedFunction(options.score, "score")
    if isinstance(value, Candidate):
        value = [value]
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Selector):
        options.refuse_settings("delta" if options.epsilon is None else None)
        return Selection(value[0], value[1], score, options.claim)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return Selection(options.make_selector(), value, score, options.claim)
    if not callable(value):
        raise InvalidInput(
            "name",
            type(value).__name__,
            "the name must refer to a list of Candidate, a pair (selector, candidates), or a "
            "function (data, randomness) → output",
        )
    if score is not None:
        raise InvalidInput("score", "…", "a score belongs to a selection; leave it out")
    options.refuse_settings()
    return AuditedFunction(value, options.claim)


def _made(factory: Any) -> Any:
    """Call a function without arguments; report its errors as invalid input."""
    try:
        return factory()
    except ExpostError:
        raise
    except (Exception, SystemExit) as error:
        name = getattr(factory, "__name__", type(factory).__name__)
        raise InvalidInput(
            "name", name, f"calling it raised {type(error).__name__}: {error}"
        ) from error


def _takes_arguments(function: Any) -> bool:
    """Whether the function requires arguments: mechanisms do, factories do not."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # a builtin without a signature
        return True
    return False
