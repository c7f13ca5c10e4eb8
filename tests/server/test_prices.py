"""Prices: in processes with a deadline, once for equal questions, and for nobody who left."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from expost.analytics import refinement_noise
from expost.errors import InvalidInput
from expost.server.jobs import datasets, questions, sql_questions
from expost.server.jobs.prices import PoolOffer, PricePool, SharedPool, client_left
from expost.server.problems import Unavailable
from expost.tables.typed_columns import split_condition
from tests.server.running_server import QUESTION, open_server, visits


def note(path: str, text: str = "computed") -> None:
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(f"{text}\n")


def until_there(path: str, flag: str) -> str:
    """Runs in a worker: notes its process, then waits for a file."""
    note(path, str(os.getpid()))
    while not Path(flag).exists():
        time.sleep(0.01)
    return "done"


def spin() -> None:
    """Runs in a worker: computes for ever."""
    while True:
        pass


def refuse(path: str) -> None:
    note(path)
    raise InvalidInput("levels", 3, "give two")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1][:3]


@pytest.fixture
def pool() -> Iterator[PricePool]:
    pool = PricePool(2, seconds=60)
    yield pool
    pool.close()


def in_thread(outcomes: list[Any], call: Callable[[], Any]) -> threading.Thread:
    def work() -> None:
        try:
            outcomes.append(call())
        except Exception as error:
            outcomes.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_conditions_are_read_in_linear_time() -> None:
    """A cubic search would need 10¹⁸ steps."""
    blank = "\t" * 10**6
    with pytest.raises(InvalidInput):
        split_condition(blank)
    assert split_condition(f"age{blank}>={blank}18") == ("age", ">=", "18")


def test_equal_questions_are_computed_once(pool: PricePool, tmp_path: Path) -> None:
    runs, flag = str(tmp_path / "runs"), tmp_path / "flag"
    outcomes: list[Any] = []
    threads = [
        in_thread(outcomes, lambda: pool.compute("ann", until_there, runs, str(flag)))
        for _ in range(6)
    ]
    wait_for(Path(runs).exists)
    flag.touch()
    for thread in threads:
        thread.join()
    assert outcomes == ["done"] * 6
    assert pool.compute("bob", until_there, runs, str(flag)) == "done"  # kept
    assert len(Path(runs).read_text().splitlines()) == 1


def test_a_refusal_is_kept_too(pool: PricePool, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    for _ in range(2):
        with pytest.raises(InvalidInput, match="give two"):
            pool.compute("ann", refuse, runs)
    assert Path(runs).read_text() == "computed\n"


def test_a_price_that_takes_too_long_is_ended() -> None:
    pool = PricePool(1, seconds=0.2)
    try:
        with pytest.raises(Unavailable, match="too long"):
            pool.compute("ann", spin)
        assert pool.compute("ann", abs, -3) == 3  # another worker does the next
    finally:
        pool.close()


def test_nobody_computes_for_a_client_that_left(pool: PricePool, tmp_path: Path) -> None:
    runs, left = tmp_path / "runs", threading.Event()
    outcomes: list[Any] = []

    def ask() -> Any:
        client_left.set(left)
        return pool.compute("ann", until_there, str(runs), str(tmp_path / "never"))

    thread = in_thread(outcomes, ask)
    wait_for(lambda: runs.exists() and runs.read_text().endswith("\n"))
    left.set()
    thread.join()
    assert isinstance(outcomes[0], Unavailable)
    wait_for(lambda: not alive(runs.read_text().strip()))
    assert pool.compute("ann", abs, -3) == 3


def test_one_person_does_not_take_all_workers(pool: PricePool, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    outcomes: list[Any] = []
    threads = [
        in_thread(
            outcomes, lambda n=n: pool.compute("ann", until_there, f"{tmp_path}/{n}", str(flag))
        )
        for n in range(8)
    ]
    wait_for(lambda: len(pool._tasks) == 8)
    assert pool.compute("bob", abs, -3) == 3  # although eight of Ann's wait
    with pytest.raises(Unavailable):
        pool.compute("ann", abs, -4)
    flag.touch()
    for thread in threads:
        thread.join()
    assert outcomes == ["done"] * 8


def test_the_client_of_a_price_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call itself is told, through the whole application."""
    with open_server(tmp_path, threads=0) as server:
        left: list[bool] = []

        def wait(*_: Any, **options: Any) -> Any:
            event = client_left.get()
            assert event is not None
            left.append(event.wait(120))
            raise Unavailable("the client has left")

        monkeypatch.setattr(server.service.prices, "compute", wait)
        body = json.dumps(QUESTION).encode()
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            return next(messages, {"type": "http.disconnect"})

        async def send(_: Any) -> None:
            pass

        headers = {
            "host": "localhost",
            "content-type": "application/json",
            "authorization": f"Bearer {server.tokens['ann']}",
        }
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/price",
            "raw_path": b"/api/price",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "server": ("localhost", 80),
            "http_version": "1.1",
        }
        asyncio.run(server.app(scope, receive, send))
        assert left == [True]


@pytest.mark.parametrize("wanted", [{"within": 0.3}, {"within": 0.05}, {"plus_minus": 40.0}])
@pytest.mark.parametrize("delta", [None, 1e-6])
def test_the_price_is_the_smallest_step(wanted: dict[str, Any], delta: float | None) -> None:
    """The guided search finds what a search through every step below would find."""
    facts = visits(Path("x")) | {"kind": "table", "delta": delta}
    asked = {"dataset": "visits", "kind": "count", "by": ["city"], **wanted}
    question = questions.read_question(facts, asked, "pure" if delta is None else "zcdp")
    request = questions._plannable(facts, question)
    plan = partial(questions._plan, 4, (800,), request=request)
    steps = {sql_questions.epsilon_at(step): step for step in range(sql_questions.STEPS + 1)}
    step = steps[question["epsilon"]]

    def fits(at: int) -> bool:
        return sql_questions.look_at_step(at, lambda epsilon: plan(epsilon=epsilon))[0]

    assert fits(step)
    assert not any(fits(step - back) for back in (1, 2, 7))


def test_a_price_searches_for_few_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopping rule takes most of a price. Catches drafts that exclude nothing."""
    searches: list[int] = []
    for cache in (questions._cheapest, questions._plan, refinement_noise._make_rule):
        cache.cache_clear()  # other tests ask for the same prices
    original = refinement_noise._search
    monkeypatch.setattr(
        refinement_noise, "_search", lambda *given: searches.append(1) or original(*given)
    )
    facts = visits(Path("x")) | {"kind": "table", "delta": None}
    for percent in (2, 7, 13, 19):
        asked = {"dataset": "visits", "kind": "count", "by": ["city"], "within": percent / 100}
        questions.read_question(facts, asked, "pure")
    assert 4 <= len(searches) <= 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"within": -0.1},
        {"within": float("nan")},
        {"within": None, "plus_minus": -3.0},
        {"within": None, "plus_minus": float("inf")},
        {"confidence": 2.0},
    ],
)
def test_an_error_that_is_none_is_named(wrong: dict[str, Any]) -> None:
    """Also where the search for the smallest ε begins with it."""
    facts = visits(Path("x")) | {"kind": "table", "delta": None}
    asked = {"dataset": "visits", "kind": "count", "by": ["city"], "within": 0.1}
    with pytest.raises(InvalidInput) as refused:
        questions.read_question(facts, asked | wrong, "pure")
    assert refused.value.field == next(name for name, value in wrong.items() if value is not None)


def whisper(name: str) -> str:
    """Runs in a worker: a source with its secret."""
    return datasets.source_with_secrets(f"postgresql://x:${{{name}}}@localhost/x")


def test_workers_know_the_secrets_of_sources() -> None:
    known = {"PLACES": "hush"}, {"PLACES": ["localhost"]}
    pool = PricePool(1, begin=partial(datasets.keep_secrets, *known))
    try:
        assert pool.compute("ann", whisper, "PLACES") == "postgresql://x:hush@localhost/x"
    finally:
        pool.close()


def unavailable(path: str) -> None:
    note(path)
    raise Unavailable("a table is away")


@pytest.mark.parametrize("workers", [0, 1])
def test_what_may_change_is_not_remembered(tmp_path: Path, workers: int) -> None:
    pool, path = PricePool(workers), tmp_path / "calls"
    try:
        for function, refusal, calls in ((unavailable, Unavailable, 2), (refuse, InvalidInput, 3)):
            for _ in range(2):
                with pytest.raises(refusal):
                    pool.compute("ann", function, str(path))
            assert len(path.read_text().splitlines()) == calls
    finally:
        pool.close()


def test_processes_share_one_pool(tmp_path: Path) -> None:
    """Each asks the pool that one offers: equal questions are computed once, also refusals."""
    pool = PricePool(1, seconds=60)
    offer = PoolOffer(pool)
    notes = [str(tmp_path / name) for name in ("priced", "refused")]
    try:
        for _ in range(2):
            shared = SharedPool(offer.address)
            for _ in range(2):
                assert shared.compute("ann", noted, notes[0]) == {"epsilon": 0.5}
                with pytest.raises(InvalidInput, match="give two"):
                    shared.compute("ann", refuse, notes[1])
            shared.close()
        assert [Path(note).read_text().count("computed") for note in notes] == [1, 1]
    finally:
        offer.close()
        pool.close()


def test_a_shared_pool_ends_for_who_left_and_says_when_it_is_gone(tmp_path: Path) -> None:
    pool = PricePool(1, seconds=60)
    offer, runs, left = PoolOffer(pool), tmp_path / "runs", threading.Event()
    shared, outcomes = SharedPool(offer.address), []

    def ask() -> Any:
        client_left.set(left)
        return shared.compute("ann", until_there, str(runs), str(tmp_path / "never"))

    try:
        thread = in_thread(outcomes, ask)
        wait_for(lambda: runs.exists() and runs.read_text().endswith("\n"))
        left.set()
        thread.join()
        assert isinstance(outcomes[0], Unavailable)
        wait_for(lambda: not alive(runs.read_text().strip()))
    finally:
        offer.close()
        pool.close()
    with pytest.raises(Unavailable, match="no prices"):
        SharedPool(offer.address).compute("ann", abs, -3)


class LastOneTaken(deque[Any]):
    """Connections of which another thread takes the last one after a look at their number."""

    def __bool__(self) -> bool:
        return True


def test_threads_do_not_fight_for_a_connection() -> None:
    pool = PricePool(0)
    offer = PoolOffer(pool)
    shared = SharedPool(offer.address)
    shared._idle = LastOneTaken()
    try:
        assert shared.compute("ann", abs, -3) == 3
    finally:
        offer.close()


def noted(path: str) -> dict[str, float]:
    note(path)
    return {"epsilon": 0.5}
