"""Subjects given by name, ``MODULE:NAME``; every worker process imports them again.

The module is looked up in a folder, or given as a file. The name may refer to a list of candidates
(the settings of a selector are then given separately), a pair (selector, candidates), a mechanism,
a request that returns a release, or a function without arguments that returns one of these.
Tests: ``tests/cli/test_audit_cli.py``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from expost.audit.empirical.subjects import Function, Observation, Selection, Subject
from expost.errors import ExpostError, InvalidInput
from expost.privacy.guarantees import ApproxDP, Guarantee, PureDP
from expost.randomness.source import Randomness
from expost.selection.above_threshold import AboveThreshold
from expost.selection.candidate import Candidate
from expost.selection.doubling import Doubling
from expost.selection.random_dropping import RandomDropping
from expost.selection.selector import Selector

SELECTORS = ("random-dropping", "above-threshold", "doubling")


@dataclass(frozen=True)
class Reference:
    """An object given by module (or file ending in .py) and name, relative to ``folder``."""

    module: str
    name: str
    folder: str

    @classmethod
    def parse(cls, text: str, field: str, folder: Path | None = None) -> Reference:
        """Parse ``MODULE:NAME``."""
        module, _, name = text.rpartition(":")
        if not module or not name or not all(part.isidentifier() for part in name.split(".")):
            raise InvalidInput(
                field,
                text,
                "pass MODULE:NAME, e.g. audit_me:candidates or examples/audit_me.py:candidates",
            )
        return cls(module, name, str((folder or Path.cwd()).resolve()))

    def load(self) -> Any:
        """Import the object; errors name what is missing."""
        found: Any = self._import()
        for part in self.name.split("."):
            if not hasattr(found, part):
                raise InvalidInput("name", self.name, f"{self.module} has nothing called {part!r}")
            found = getattr(found, part)
        return found

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
    target: float | None = None
    delta: float | None = None
    epsilon: float | None = None
    score: Reference | None = None

    def make_selector(self) -> Selector:
        """Make the selector for a bare list of candidates."""
        if self.selector not in SELECTORS:
            raise InvalidInput("selector", self.selector, "choose from " + ", ".join(SELECTORS))
        if self.selector != "random-dropping" and self.target is None:
            raise InvalidInput(
                "target",
                None,
                f"{self.selector} releases the first score that reaches it: pass a number",
            )
        if self.selector == "doubling":
            return Doubling(float(self.target or 0))
        if self.overhead is None:
            raise InvalidInput(
                "overhead", None, f"{self.selector} needs its ε′: pass e.g. --overhead 0.1"
            )
        if self.selector == "above-threshold":
            return AboveThreshold(self.overhead, float(self.target or 0), delta=self.delta)
        return RandomDropping(self.overhead, self.target, delta=self.delta)

    def refuse_settings(self, *also: str | None) -> None:
        """Raise an error for selector settings that would be ignored."""
        given = [
            name
            for name in ("overhead", "target", *also)
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


class NamedSubject(Subject):
    """The subject that a reference names. It is pickled as the reference."""

    def __init__(self, reference: Reference, options: Options) -> None:
        self._reference, self._options = reference, options
        self._subject = _resolve(reference.load(), options)

    def __reduce__(self) -> tuple[Any, ...]:
        return (NamedSubject, (self._reference, self._options))

    @property
    def is_selection(self) -> bool:
        """Whether the subject is a selector with its candidates."""
        return isinstance(self._subject, Selection)

    def observe(self, data: Any, randomness: Randomness) -> Observation:
        return self._subject.observe(data, randomness)

    def known(self) -> Any:
        return self._subject.known()

    def claim_for(self, key: Any) -> Guarantee | None:
        return self._subject.claim_for(key)


def _resolve(found: Any, options: Options) -> Subject:
    """Turn the imported object into a subject."""
    if callable(found) and not isinstance(found, Candidate) and not _takes_arguments(found):
        found = _made(found)
    score = None if options.score is None else NamedFunction(options.score, "score")
    if isinstance(found, Candidate):
        found = [found]
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Selector):
        options.refuse_settings("delta" if options.epsilon is None else None)
        return Selection(found[0], found[1], score, options.claim)
    if isinstance(found, Sequence) and not isinstance(found, str):
        return Selection(options.make_selector(), found, score, options.claim)
    if not callable(found):
        raise InvalidInput(
            "name",
            type(found).__name__,
            "the name must refer to a list of Candidate, a pair (selector, candidates), or a "
            "function (data, randomness) → output",
        )
    if score is not None:
        raise InvalidInput("score", "…", "a score belongs to a selection; leave it out")
    options.refuse_settings()
    return Function(found, options.claim)


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
