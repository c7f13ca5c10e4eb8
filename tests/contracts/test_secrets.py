"""Secrets: a Release, a log, a stream or an error contains only the winner and its price.

Every losing output, every noisy number that lost and the number of runs is made recognisable (a
canary). The tests then search for it in the object graph of the Release, its repr, its JSON, its
pickle, all logs, warnings and streams. The last tests of each kind plant a leak on purpose, to show
that the search finds one.
"""

from __future__ import annotations

import gc
import json
import logging
import pickle
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from expost import (
    AboveThreshold,
    Candidate,
    DiscreteGaussian,
    DiscreteLaplace,
    Doubling,
    NoiseReduction,
    Poisson,
    PureDP,
    Query,
    RandomDropping,
    Randomness,
    Release,
    RepeatAndSelect,
    SimulationRandomness,
)
from expost.errors import ExpostError
from expost.execution.calls import Raised
from expost.execution.engine import Outcome, Run
from expost.execution.workers import Made, Task
from expost.randomness.source import RunKey
from expost.selection.release import grid_of
from expost.selection.selector import Selector
from tests.contracts.doors import never_dropped

RUNS = 4421  # a prime that appears nowhere else
CANARY = "canary-7f3a"
HUGE = 10**40


class Output:
    """What a candidate returns: a rank, and a text that must not get out unless it wins."""

    def __init__(self, rank: float, text: str) -> None:
        self.rank, self.text = rank, text

    def __repr__(self) -> str:
        return f"Output({self.rank}, {self.text!r})"


@dataclass
class Scene:
    """A selection whose losers are canaries, and what they were."""

    selector: Selector
    candidates: list[Candidate]
    score: Callable[[Any], float] | None = lambda output: output.rank
    losers: list[Any] = field(default_factory=list)

    def release(self, seed: int = 3) -> Release:
        return self.selector.select(
            self.candidates,
            [CANARY],
            score=self.score,
            randomness=SimulationRandomness(seed),
            simulation=True,
        )


def losing(scene: Scene, rank: float, repeats: int = 1, **settings: Any) -> Candidate:
    def make(data: Any, randomness: Randomness) -> Output:
        scene.losers.append(Output(rank, f"{CANARY}-{len(scene.losers)}"))
        return scene.losers[-1]

    return never_dropped(make, repeats=repeats, **settings)


def failing(**settings: Any) -> Candidate:
    def fail(data: Any, randomness: Randomness) -> Any:
        raise RuntimeError(f"{CANARY}: {data}")

    return never_dropped(fail, **settings)


def winning(**settings: Any) -> Candidate:
    return never_dropped(
        lambda data, randomness: Output(1.0, "winner"), params={"public": "winner"}, **settings
    )


def mechanisms(selector: Selector, *, prioritised: bool = False) -> Scene:
    scene = Scene(selector, [])
    order = [{"priority": -place} for place in range(3)] if prioritised else [{}, {}, {}]
    scene.candidates += [
        losing(scene, 0.0, RUNS, **order[0]),
        failing(**order[1]),
        winning(**order[2]),
    ]
    return scene


def watching(scene: Scene, passes: Callable[[Any], bool]) -> Scene:
    """Score that keeps every losing estimate for later."""

    def score(estimate: Any) -> float:
        if not passes(estimate):
            scene.losers.append(estimate)
        return float(passes(estimate))

    scene.score = score
    return scene


def noise(mechanism: Callable[..., Any], sizes: tuple[float, ...]) -> Scene:
    query = Query(lambda data: HUGE)
    levels = [mechanism(query, size) for size in sizes]
    scene = Scene(NoiseReduction(at_least=1), [Candidate(level) for level in levels])
    return watching(scene, lambda estimate: estimate.scale == levels[-1].output_scale)


def queries() -> Scene:
    given = [
        Candidate(Query(lambda data, n=n: n), guarantee=PureDP(1)) for n in (-HUGE, -HUGE - 1, 5000)
    ]
    return Scene(AboveThreshold(1, at_least=0), given, score=None)


SCENES: dict[str, Callable[[], Scene]] = {
    "random dropping": lambda: mechanisms(RandomDropping(1)),
    "random dropping, target": lambda: mechanisms(RandomDropping(1, at_least=1), prioritised=True),
    "above threshold": lambda: mechanisms(AboveThreshold(1, at_least=1)),
    "doubling": lambda: mechanisms(Doubling(1)),
    "poisson runs": lambda: mechanisms(RepeatAndSelect(Poisson(3 * RUNS))),
    "queries": queries,
    "laplace noise reduction": lambda: noise(DiscreteLaplace, (1e-3, 1e-2, 1.0)),
    "gaussian noise reduction": lambda: noise(DiscreteGaussian, (1e-6, 1e-4, 1.0)),
}
every_scene = pytest.mark.parametrize("name", SCENES)


# The search.


def reachable(root: Any) -> Iterator[Any]:
    """Return everything that can be reached from an object.

    Attributes, items, closures and defaults are followed; classes, modules and globals are not.
    """
    seen: set[int] = set()
    stack = [root]
    while stack:
        each = stack.pop()
        if id(each) in seen or isinstance(
            each, (type, types.ModuleType, types.BuiltinFunctionType)
        ):
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, types.FunctionType):
            stack += [each.__closure__, each.__defaults__, each.__kwdefaults__, each.__dict__]
        else:
            stack += gc.get_referents(each)


def texts_of(release: Release) -> list[str]:
    encoded = release.to_json(encode=repr)
    return [
        repr(release),
        str(release),
        encoded,
        str(release.as_dict(encode=repr)),
        f"{release.__dict__}",
    ]


SECRET_TYPES = (
    Candidate,
    Run,
    Outcome,
    Randomness,
    types.FrameType,
    types.TracebackType,
    BaseException,
)


def leaks(release: Release, losers: list[Any], *secrets: int) -> list[str]:
    """What is wrong with a release, in words; ``secrets`` are numbers that must not be in it.

    The grid holds the number of copies, which is public. That it holds nothing else is checked
    where it is compared with :func:`grid_of`.
    """
    object.__setattr__(release, "grid", None)
    numbers = {RUNS, RUNS + 1, RUNS + 2, *secrets} | (
        {len(losers)} if len(losers) > RUNS else set()
    )
    found = []
    for each in reachable(release):
        if any(each is loser for loser in losers):
            found.append(f"a losing output: {each!r}")
        if isinstance(each, str) and CANARY in each:
            found.append(f"text {each!r}")
        if (
            isinstance(each, int | float)
            and not isinstance(each, bool)
            and (each in numbers or each <= -HUGE)
        ):
            found.append(f"the number {each}")
        if isinstance(each, SECRET_TYPES):
            found.append(f"a {type(each).__name__}")
    texts = [*texts_of(release), *_pickled(release)]
    return found + [
        f"{word} in a text"
        for word in (CANARY, *map(str, numbers))
        if any(word in text for text in texts)
    ]


def _pickled(release: Release) -> list[str]:
    return [
        pickle.dumps(release, protocol).decode("latin-1")
        for protocol in (0, pickle.HIGHEST_PROTOCOL)
    ]


@every_scene
def test_nothing_but_the_winner_can_be_reached_from_a_release(name: str) -> None:
    scene = SCENES[name]()
    release = scene.release()
    assert release.index == len(scene.candidates) - 1  # the canaries lost
    # The grid is public: it follows from the selector and the candidates, before anything runs.
    assert release.grid == grid_of(scene.selector, scene.candidates)
    assert CANARY not in json.dumps(release.grid)
    assert leaks(release, scene.losers) == []


@pytest.mark.parametrize("name", [name for name in SCENES if name != "queries"])
def test_the_canaries_really_ran(name: str) -> None:
    """Test of the test: a scene without losers would prove nothing."""
    scene = SCENES[name]()
    scene.release()
    assert len(scene.losers) >= 2


def test_losing_levels_of_noise_reduction_are_gone() -> None:
    """The coarser estimates are losers too: their values are nowhere in the release."""
    scene = noise(DiscreteLaplace, (1e-3, 1e-2, 1.0))
    release = scene.release()
    lost = {loser.value for loser in scene.losers} - {release.value.value}
    assert len(lost) == 2
    assert not lost & {each for each in reachable(release) if isinstance(each, int)}
    assert not any(str(number) in text for number in lost for text in texts_of(release))


def test_refined_answers_hold_no_noise_of_other_levels() -> None:
    scene = noise(DiscreteLaplace, (1e-3, 1e-2, 1.0))
    releases = list(
        NoiseReduction().refine(
            scene.candidates, None, randomness=SimulationRandomness(1), simulation=True
        )
    )
    for release in releases:
        others = {other.value.value for other in releases} - {release.value.value}
        assert not others & {each for each in reachable(release) if isinstance(each, int)}


@pytest.mark.parametrize("selector", [RandomDropping(1), RepeatAndSelect(Poisson(30))])
def test_failures_leave_no_trace(selector: Selector) -> None:
    """All candidates raise errors with data in their messages: the release says FAILED only."""
    release = Scene(selector, [failing(), failing(repeats=RUNS)]).release()
    assert repr(release.value) == "FAILED"
    assert leaks(release, []) == []


@pytest.mark.parametrize("place", ["drop_law", "above_threshold"])
def test_the_drop_level_is_not_in_a_release(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The level is made recognisable: every geometric draw of the selector gives this number."""
    level = 987_654_321
    monkeypatch.setattr(f"expost.selection.{place}.geometric", lambda rate, randomness: level)
    scene = mechanisms(RandomDropping(1)) if place == "drop_law" else queries()
    release = scene.release()
    assert release.index is not None
    assert leaks(release, scene.losers, level) == []


def key_leaks(release: Release, keys: list[RunKey], runs: int = 3) -> list[str]:
    """Where the key of the runs' randomness, or the seed of a run, can be found."""
    secret = [key.key for key in keys] + [key.seed(run) for key in keys for run in range(runs)]
    found = [
        f"a {type(each).__name__}"
        for each in reachable(release)
        if isinstance(each, (RunKey, Task, Made, Raised))
    ]
    for each in reachable(release):
        if isinstance(each, bytes) and any(part in each for part in secret):
            found.append("bytes")
        if isinstance(each, str) and any(part.hex() in each for part in secret):
            found.append("text")
        if isinstance(each, int) and any(
            int.from_bytes(part, order) == each for part in secret for order in ("big", "little")
        ):
            found.append("a number")
    texts = [*texts_of(release), *_pickled(release)]
    return found + [
        "a text"
        for part in secret
        if any(part.hex() in text or repr(part)[2:-1] in text for text in texts)
    ]


def watch_keys(monkeypatch: pytest.MonkeyPatch) -> list[RunKey]:
    keys: list[RunKey] = []

    def note(key: bytes, simulated: bool) -> RunKey:
        keys.append(RunKey(key, simulated))
        return keys[-1]

    monkeypatch.setattr("expost.selection.selector.RunKey", note)
    return keys


@every_scene
@pytest.mark.parametrize("pool", [None, 2])
def test_the_key_of_the_runs_is_in_no_release(
    name: str, pool: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever knows the key knows the noise of every run, the winner's among them."""
    keys = watch_keys(monkeypatch)
    scene = SCENES[name]()
    options = {"randomness": SimulationRandomness(3), "simulation": True, "score": scene.score}
    if pool is None:
        release = scene.release()
    else:
        with ThreadPoolExecutor(pool) as executor:
            release = scene.selector.select(
                scene.candidates, [CANARY], executor=executor, **options
            )
    assert len(keys) == 1
    assert key_leaks(release, keys) == []
    assert leaks(release, scene.losers) == []


@pytest.mark.parametrize(
    "plant",
    [
        lambda release, key: replace(release, value=_closure_over(key)),
        lambda release, key: replace(release, value=key.key),
        lambda release, key: replace(release, params={"seed": key.seed(1).hex()}),
        lambda release, key: replace(release, value=int.from_bytes(key.key, "little")),
        lambda release, key: replace(release, value=[key.source(0)]),
    ],
)
def test_the_search_finds_a_planted_key(
    plant: Callable[[Release, RunKey], Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test of the test."""
    monkeypatch.setattr("tests.contracts.test_secrets._pickled", lambda release: [])
    keys = watch_keys(monkeypatch)
    release = SCENES["random dropping"]().release()
    planted = plant(release, keys[0])
    assert key_leaks(planted, keys) or leaks(planted, [])


def test_nothing_says_no_more_than_nothing() -> None:
    scene = Scene(Doubling(2), [])
    scene.candidates += [losing(scene, 0.0, RUNS), failing()]
    release = scene.release()
    assert release.index is None
    assert leaks(release, scene.losers) == []


def _closure_over(value: Any) -> Callable[[], Any]:
    return lambda: value


@pytest.mark.parametrize(
    "plant",
    [
        lambda release, loser: replace(release, value={"best so far": loser}),
        lambda release, loser: replace(release, params={"losers": [loser.text]}),
        lambda release, loser: replace(release, selector={**release.selector, "runs": RUNS}),
        lambda release, loser: replace(release, value=_closure_over(loser)),
        lambda release, loser: replace(release, theorem=f"theorem, having seen {loser}"),
        lambda release, loser: replace(release, score=float(RUNS)),
    ],
)
def test_the_search_finds_a_planted_leak(
    plant: Callable[[Release, Any], Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test of the test."""
    monkeypatch.setattr(
        "tests.contracts.test_secrets._pickled", lambda release: []
    )  # closures do not pickle
    scene = SCENES["random dropping"]()
    release = scene.release()
    assert leaks(plant(release, scene.losers[0]), scene.losers)


# Logs, streams, warnings.


@every_scene
def test_a_selection_says_nothing_while_it_runs(
    name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """No log record, output or warning: each could contain a run count or an output."""
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        SCENES[name]().release()
    assert caplog.records == []
    assert warned == []
    assert capfd.readouterr() == ("", "")


# Errors.


def everything_said(error: BaseException) -> str:
    """All texts of an error and of those it is chained to, the way a traceback prints them."""
    chain, texts = [error], []
    while chain:
        each = chain.pop()
        texts += [str(each), repr(each), repr(each.args), repr(vars(each))]
        chain += [linked for linked in (each.__cause__, each.__context__) if linked is not None]
    return "\n".join([*texts, *traceback.format_exception(error)])


@pytest.mark.parametrize("callback", ["progress", "on_failure"])
def test_an_error_of_a_callback_is_not_chained_to_a_candidates(callback: str) -> None:
    """The callbacks belong to the curator, but an error that leaves one may be shown to anyone."""

    def broken(*_: Any) -> None:
        raise KeyError("display gone")

    with pytest.raises(KeyError) as caught:
        RandomDropping(1).select(
            [failing(), winning()], [CANARY], score=lambda o: o.rank, **{callback: broken}
        )
    assert CANARY not in everything_said(caught.value)


DATA = [CANARY, HUGE]


@pytest.mark.parametrize(
    "call",
    [
        lambda: RandomDropping(1).select(DATA, [winning()]),  # arguments swapped
        lambda: RandomDropping(1).select([winning(), DATA], DATA),
        lambda: RandomDropping(1).select([winning()], DATA, score=DATA),
        lambda: RandomDropping(1).select([winning()], DATA, randomness=DATA),
        lambda: Candidate(DATA, guarantee=PureDP(1)),
        lambda: Query(DATA),
        lambda: DiscreteLaplace(DATA, 1),
        lambda: DiscreteLaplace(Query(lambda data: data), 1)(
            DATA, Randomness()
        ),  # two answers where one was promised
        lambda: DiscreteLaplace(Query(lambda data: data[0]), 1)(DATA, Randomness()),
        lambda: DiscreteLaplace(Query(lambda data: 0.5 * len(data[0])), 1)(DATA, Randomness()),
        lambda: RandomDropping(1).select(
            [winning()], DATA, score=lambda o: o.rank, randomness=SimulationRandomness(1)
        ),
        lambda: RandomDropping(1e-9).select([Candidate(lambda d, r: d, guarantee=PureDP(1))], DATA),
        lambda: (
            RandomDropping(1)
            .select([never_dropped(lambda d, r: {1j: d})], DATA, score=len)
            .to_json()
        ),
    ],
)
def test_refused_calls_do_not_repeat_data(call: Callable[[], Any]) -> None:
    with pytest.raises(ExpostError) as caught:
        call()
    said = everything_said(caught.value)
    assert CANARY not in said
    assert str(HUGE) not in said


def test_the_chain_of_errors_is_searched() -> None:
    """Test of the test: a canary in the context of an error is found."""
    error = KeyError("display gone")
    error.__context__ = RuntimeError(CANARY)
    assert CANARY in everything_said(error)
