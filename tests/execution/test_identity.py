"""What a checkpoint knows of mechanisms, queries and scores: a change is seen, nothing else is."""

from __future__ import annotations

import copy
import functools
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from expost import Candidate, DiscreteLaplace, PureDP, Query, RandomDropping
from expost.errors import CheckpointMismatch
from expost.execution import checkpoint as module
from expost.execution.checkpoint import Checkpoint, identity_of
from tests.execution.slow_runs import Slow
from tests.execution.test_checkpoint import Crash, crashing

FACTOR = 2


def helper(value: int) -> int:
    return value + 1


def calls_helper(data: Any) -> int:
    return helper(len(data)) * FACTOR


def closure(number: Any) -> Callable[[Any], Any]:
    return lambda data: number


@dataclass(frozen=True)
class Part:
    number: int
    many: Any = field(default_factory=list)

    def __call__(self, data: Any, randomness: Any) -> int:
        return self.number

    @functools.cached_property
    def square(self) -> int:
        return self.number**2


class OtherPart(Part):
    def __call__(self, data: Any, randomness: Any) -> int:
        return self.number + 1


class Slotted:
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Named:
    """Says itself what it is."""

    def __init__(self, name: str, runs: int) -> None:
        self.name, self.runs = name, runs

    def checkpoint_identity(self) -> str:
        return self.name


def changed_code(function: Any, **changes: Any) -> Any:
    """The same function, by name, with other code."""
    code = function.__code__.replace(**changes)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    made.__qualname__ = function.__qualname__
    return made


PAIRS = {
    "a number": (1, 2),
    "a number's type": (1, 1.0),
    "a nested number": ({"a": [1, (2,)]}, {"a": [1, (3,)]}),
    "a fraction": (Fraction(1, 3), Fraction(1, 2)),
    "a field": (Part(1), Part(2)),
    "a slot": (Slotted(1), Slotted(2)),
    "a class": (Part(1), OtherPart(1)),
    "an array": (np.arange(3), np.arange(3) + 1),
    "an array's type": (np.arange(3), np.arange(3.0)),
    "a shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "objects in an array": (np.array([1, "a"], object), np.array([1, "b"], object)),
    "an array in a field": (Part(1, np.zeros(2)), Part(1, np.ones(2))),
    "a closure": (closure(1), closure(2)),
    "a partial argument": (functools.partial(helper, 1), functools.partial(helper, 2)),
    "a partial keyword": (functools.partial(helper, value=1), functools.partial(helper, value=2)),
    "a partial function": (functools.partial(helper), functools.partial(calls_helper)),
    "a bound method's object": (Part(1).__call__, Part(2).__call__),
    "a constant in the code": (
        helper,
        changed_code(
            helper, co_consts=tuple(9 if c == 1 else c for c in helper.__code__.co_consts)
        ),
    ),
    "a default": (lambda data, scale=1: scale, lambda data, scale=2: scale),
    "code": (lambda data: len(data) + 1, lambda data: len(data) - 1),
    "an inner function": (
        lambda data: sorted(data, key=lambda each: each),
        lambda data: sorted(data, key=lambda each: -each),
    ),
    "a query's sensitivity": (Query(len), Query(len, 1000)),
    "a query's grid": (Query(len), Query(len, grid=0.5)),
    "a query's function": (Query(len), Query(sum)),
    "a noise's epsilon": (DiscreteLaplace(Query(len), 1), DiscreteLaplace(Query(len), 2)),
    "a set": ({1, 2}, {1, 3}),
    "a module": (pickle, copy),
    "an own name": (Named("a", 0), Named("b", 0)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_change_is_seen(name):
    first, second = PAIRS[name]
    assert identity_of(first) != identity_of(second)
    for each in (first, second):
        assert identity_of(each) == identity_of(each)


def test_what_a_function_calls_and_reads_is_part_of_it(monkeypatch):
    """Catches a changed helper function, or a changed constant, next to the mechanism."""
    before = identity_of(calls_helper)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "FACTOR", 3)
        assert identity_of(calls_helper) != before
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "helper", changed_code(helper, co_consts=(None, 7)))
        assert identity_of(calls_helper) != before
    assert identity_of(calls_helper) == before


def test_a_changed_method_is_seen(monkeypatch):
    before = identity_of(Part(1))
    monkeypatch.setattr(Part, "__call__", lambda self, data, randomness: 0)
    assert identity_of(Part(1)) != before


def test_copies_and_caches_change_nothing():
    """Catches an identity that depends on object addresses, pickling or cached properties."""
    part = Part(1, [1, 2])
    before = identity_of([part, part])
    assert identity_of([copy.deepcopy(part), replace(part)]) == before
    assert identity_of(pickle.loads(pickle.dumps([part, part]))) == before
    assert part.square == 1
    assert identity_of([part, part]) == before
    assert identity_of({"b", "a"}) == identity_of({"a", "b"})
    assert identity_of(Named("a", 0)) == identity_of(Named("a", 7))


def test_cycles_end():
    loop: list[Any] = [1]
    loop.append(loop)
    other: list[Any] = [2]
    other.append(other)
    assert identity_of(loop) != identity_of(other)


def test_tensors_are_seen():
    torch = pytest.importorskip("torch")
    assert identity_of(torch.zeros(3)) != identity_of(torch.ones(3))
    half = torch.zeros(3, dtype=torch.bfloat16)
    assert identity_of(half) == identity_of(half.clone())
    layer = torch.nn.Linear(2, 1)
    before = identity_of(layer)
    assert identity_of(copy.deepcopy(layer)) == before
    with torch.no_grad():
        layer.bias += 1
    assert identity_of(layer) != before


def test_the_identity_is_the_same_in_another_process():
    """Catches a resume that is refused after every real crash."""
    script = (
        "from tests.execution.slow_runs import Slow\n"
        "from expost.execution.checkpoint import identity_of\n"
        "print(identity_of(Slow('x', 3)))"
    )
    folder = Path(__file__).parent.parent.parent
    seen = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    }
    assert seen == {identity_of(Slow("x", 3))}


def noisy(epsilon: float = 1.0, query: Query | None = None) -> list[Candidate]:
    return [Candidate(DiscreteLaplace(query or Query(len), epsilon), repeats=3)]


def with_partial(scale: int) -> list[Candidate]:
    def mechanism(scale: int, data: Any, randomness: Any) -> int:
        return scale * len(data)

    return [Candidate(functools.partial(mechanism, scale), guarantee=PureDP(1))]


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sensitivity": (
        {"candidates": noisy()},
        {"candidates": noisy(query=Query(len, sensitivity=1000))},
    ),
    "query": ({"candidates": noisy()}, {"candidates": noisy(query=Query(sum))}),
    "partial": ({"candidates": with_partial(1)}, {"candidates": with_partial(2)}),
    "score": ({"score": lambda value: float(value)}, {"score": lambda value: -float(value)}),
    "no score": ({"score": lambda value: float(value)}, {"score": None}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_mechanism_does_not_resume(tmp_path, change):
    """Catches a checkpoint that knows a mechanism by its name only.

    The noise key would be reused.
    """
    first, second = CHANGES[change]
    settings = {"candidates": noisy(), "checkpoint": tmp_path / "checkpoint"}

    def select(**options: Any) -> Any:
        arguments = {**settings, **options}
        return RandomDropping(50.0).select(arguments.pop("candidates"), [1, 2, 3], **arguments)

    with crashing(Checkpoint, "erase", after=False), pytest.raises(Crash):
        select(**first)
    with pytest.raises(CheckpointMismatch, match="another selection"):
        select(**second)
    select(**first)


def test_another_version_of_the_package_does_not_resume(tmp_path, monkeypatch):
    """Catches outputs of two versions of a mechanism in one selection."""
    path = tmp_path / "checkpoint"
    with crashing(Checkpoint, "erase", after=False), pytest.raises(Crash):
        RandomDropping(50.0).select(noisy(), [1], checkpoint=path)
    with monkeypatch.context() as patch:
        patch.setattr("expost.selection.selector.__version__", "0.0.0")
        with pytest.raises(CheckpointMismatch, match="another selection"):
            RandomDropping(50.0).select(noisy(), [1], checkpoint=path)
    RandomDropping(50.0).select(noisy(), [1], checkpoint=path)


def test_the_documentation_lists_what_is_not_covered():
    assert "What is not covered" in str(module.__doc__)
