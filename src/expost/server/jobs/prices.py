"""What a question would cost, and its plan: for counts and for tuning, by the same functions.

They depend on public facts alone and read no ledger. Prices are computed in processes of their own,
which end when nobody waits for them any more.

A price depends on public facts alone, but may take seconds. The pool computes equal questions
once, keeps results, gives no person more than a part of its workers, and kills a worker whose
question takes longer than the deadline or whose askers have all left. Workers are forks of one
process that has imported everything (:mod:`.warm`). The processes of a server that listens in
several share the pool of the first one (:class:`PoolOffer`, :class:`SharedPool`), over a local
connection that only they can open.
Tests: ``tests/server/test_prices.py``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import pickle
import signal
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Client, Listener
from typing import Any

from expost._version import __version__
from expost.analytics.pricing import CountPrice
from expost.budget.limits import Budget
from expost.errors import ExpostError, InvalidInput
from expost.execution.workers import forks_of, prepare_worker
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE, ZCDP, PureDP
from expost.server.jobs import WARM, questions, tuning_jobs
from expost.server.jobs.datasets import ROWS, keep_secrets
from expost.server.problems import Unavailable
from expost.server.server_settings import OutsideSettings, ServerSettings
from expost.tuning.request.settings import DataSettings

client_left: ContextVar[threading.Event | _Ended | None] = ContextVar("client_left", default=None)
"""Set when the client of this call has gone away."""

SECONDS = 20.0
_PATIENCE = 4  # times as long on the clock as in the processor: the machine may be busy
_MOST_WAITING = 8  # questions of one person
_MOST_KEPT, _LARGEST_KEPT = 4096, 2**16
_LOOK = 0.1
_FLEETING = b"!"  # before an outcome that may be another one soon; no pickle begins so
log = logging.getLogger("expost.server")


@dataclass(frozen=True)
class PricedQuestion:
    """A checked question, what it may cost, and the plan behind that.

    ``reserved`` is what a count reserves; a tuning job reserves its attempts when they begin.
    """

    question: dict[str, Any]
    price: dict[str, Any]
    plan: dict[str, Any]
    charges: Charges
    reserved: CountPrice | None


def price_asked(
    facts: Mapping[str, Any], asked: Mapping[str, Any], terms: Budget
) -> PricedQuestion:
    """Check a question against public facts and price it in a budget with these terms."""
    read = tuning_jobs.read_job if asked.get("kind") == "tune" else questions.read_question
    return price_recorded(facts, read(facts, asked, terms.kind), terms)


def price_shown(
    facts: Mapping[str, Any], asked: Mapping[str, Any], terms: Budget
) -> dict[str, Any]:
    """Return what somebody is shown before they ask: a JSON form of :func:`price_asked`."""
    priced = price_asked(facts, asked, terms)
    told = {"question": priced.question, "price": priced.price, "plan": priced.plan}
    return told | {"charges": priced.charges.as_dict()}


def price_recorded(
    facts: Mapping[str, Any], question: dict[str, Any], terms: Budget
) -> PricedQuestion:
    """Price a question that was checked before."""
    if question["kind"] == "tune":
        priced = tuning_jobs.price_tuning(facts, question, terms)
        plan = dict(priced.plan)
        price = {"epsilon": plan["worst_case"], "delta": plan["delta"], "unit": "epsilon"}
        return PricedQuestion(question, _of(facts, price), plan, priced.charges, None)
    count = questions.price_question(facts, question, terms.kind)
    price = {
        "epsilon": question["epsilon"],
        "delta": question["delta"],
        "unit": "epsilon" if question["delta"] is None else "rho",
    }
    plan = questions.plan_question(facts, question)
    return PricedQuestion(question, _of(facts, price), plan, count.charges, count)


def check_budget(facts: Mapping[str, Any], terms: Budget) -> None:
    """Refuse a budget that could pay for no question about a data set."""
    kind, zero = terms.kind, ZCDP if terms.kind == "zcdp" else PureDP
    if facts["kind"] == ROWS:
        if kind == "pure":
            raise InvalidInput("budget", "pure", "tuning needs an approx, a zcdp or a renyi budget")
        relation = DataSettings(rows=facts["data"].get("rows")).relation
    else:
        relation = ADD_REMOVE
        if kind in ("zcdp", "renyi") and facts["delta"] is None:
            raise InvalidInput("delta", None, f"questions to a {kind} budget need a δ: state one")
    terms.coordinates(zero(0.0, relation))  # refuses another relation


def _of(facts: Mapping[str, Any], price: dict[str, Any]) -> dict[str, Any]:
    return price | {"budget": facts["budget"]}


@dataclass(eq=False)
class _Task:
    """One question that is priced, and how many callers wait for it."""

    key: str
    person: str
    content: bytes
    waiters: int = 0
    running: bool = False
    outcome: bytes | None = None
    done: threading.Event = field(default_factory=threading.Event)


class PricePool:
    """The processes that compute prices.

    Parameters
    ----------
    workers : int
        Number of processes; 0 computes in the calling thread, without deadlines.
    seconds : float
        How much time of a processor one price may take.
    begin : callable
        What each process calls first; it is pickled.
    """

    def __init__(
        self, workers: int, seconds: float = SECONDS, begin: Callable[[], Any] = tuple
    ) -> None:
        self._workers, self._seconds, self._begin = workers, seconds, begin
        self._tasks: dict[str, _Task] = {}
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._starting = 0  # workers that cannot compute yet
        self._closed = False

    def compute(self, person: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``function(*arguments)``, which must depend on public facts alone.

        The function is one of a module; arguments are JSON or have ``as_dict``.
        """
        named = [__version__, function.__module__, function.__qualname__, *arguments]
        text = json.dumps(named, sort_keys=True, default=lambda value: value.as_dict())
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        content = pickle.dumps((function, arguments, self._seconds))
        return _value(self.outcome(key, person, content))

    def outcome(self, key: str, person: str, content: bytes) -> bytes:
        """Return the pickled result of a pickled call: the kept one, or a new one."""
        with self._changed:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        outcome = self._new_outcome(key, person, content)
        if len(outcome) <= _LARGEST_KEPT and not outcome.startswith(_FLEETING):
            with self._changed:  # long lists of keys are not worth it
                self._kept[key] = outcome
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        return outcome

    def _new_outcome(self, key: str, person: str, content: bytes) -> bytes:
        if not self._workers:
            return _outcome(content)
        return self._wait(self._join(_Task(key, person, content)))

    def warm(self) -> None:
        """Start the workers, and wait until they can compute."""
        with self._changed:
            self._start()
            while self._starting and not self._closed:
                self._changed.wait()

    def close(self) -> None:
        """End the workers at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=5)

    def _join(self, asked: _Task) -> _Task:
        """The task of a question: the one that runs already, or this new one."""
        with self._changed:
            task = self._tasks.get(asked.key)
            if task is None:
                mine = sum(other.person == asked.person for other in self._tasks.values())
                if mine >= _MOST_WAITING or self._closed:
                    raise Unavailable("other prices are computed for you", None, "try again soon")
                task = self._tasks[asked.key] = asked
            task.waiters += 1
            self._start()
            self._changed.notify_all()
            return task

    def _start(self) -> None:
        """Start a thread for each worker, if there are none yet."""
        while len(self._threads) < self._workers:
            thread = threading.Thread(target=self._serve, daemon=True)
            self._threads.append(thread)
            self._starting += 1
            thread.start()

    def _wait(self, task: _Task) -> bytes:
        """The outcome of a task, unless the client leaves or the deadline passes first."""
        left, deadline = client_left.get(), time.monotonic() + 2 * _PATIENCE * self._seconds
        try:
            while not task.done.wait(_LOOK):
                if left is not None and left.is_set():
                    raise Unavailable("the client has left")
                if time.monotonic() > deadline or self._closed:
                    raise Unavailable("the server computes other prices", None, "try again soon")
        finally:
            with self._changed:
                task.waiters -= 1
                if not task.waiters and not task.running:
                    self._tasks.pop(task.key, None)
        if task.outcome is None:
            raise Unavailable(
                "this price takes too long to compute",
                None,
                "ask with fewer levels, settings or groups",
            )
        return task.outcome

    def _next(self) -> _Task | None:
        """The oldest task that waits, of the person with the fewest that run; None to end."""
        with self._changed:
            while not self._closed:
                running = [task.person for task in self._tasks.values() if task.running]
                waiting = [task for task in self._tasks.values() if not task.running]
                allowed = max(1, self._workers - 1)
                free = [task for task in waiting if running.count(task.person) < allowed]
                if free:
                    task = min(free, key=lambda task: running.count(task.person))
                    task.running = True
                    return task
                self._changed.wait()
        return None

    def _serve(self) -> None:
        """Give tasks to one worker process; start another one when it was ended."""
        worker = self._new_worker()
        with self._changed:
            self._starting -= 1
            self._changed.notify_all()
        while (task := self._next()) is not None:
            try:
                worker = worker if worker is not None and worker.is_alive() else self._new_worker()
                if worker is not None:
                    gone = partial(self._unwanted, task)
                    task.outcome = worker.ask(task.content, self._seconds, gone)
            except Exception as error:  # it died
                log.error("a price was not computed: %s", type(error).__name__)
                worker = None
            finally:
                with self._changed:
                    self._tasks.pop(task.key, None)
                    self._changed.notify_all()
                task.done.set()
        if worker is not None:
            worker.end()

    def _new_worker(self) -> _Worker | None:
        try:
            return _Worker(self._begin)
        except Exception as error:
            log.error("no process for prices was started: %s", type(error).__name__)
            return None

    def _unwanted(self, task: _Task) -> bool:
        return self._closed or task.waiters == 0


class _Ended:
    """Whether the other end of a connection is closed; it says nothing while it waits."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def is_set(self) -> bool:
        return bool(self._connection.poll())


class PoolOffer:
    """Lets the other processes of a server use a pool; ``address`` is where they ask."""

    def __init__(self, pool: PricePool) -> None:
        self._pool = pool
        self._listener = Listener(
            backlog=128, authkey=bytes(multiprocessing.current_process().authkey)
        )
        self.address: Any = self._listener.address
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        """Answer each connection in a thread of its own."""
        while True:
            try:
                connection = self._listener.accept()
            except (multiprocessing.AuthenticationError, EOFError, ConnectionError):
                continue
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Any) -> None:
        client_left.set(_Ended(connection))
        with connection:
            try:
                while True:
                    key, person, content = pickle.loads(connection.recv_bytes())  # noqa: S301 - ours
                    try:
                        outcome = self._pool.outcome(key, person, content)
                    except Unavailable as error:
                        outcome = _FLEETING + pickle.dumps((None, error))
                    connection.send_bytes(outcome)
            except (EOFError, OSError):
                return

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()


class SharedPool(PricePool):
    """The pool that another process offers, with the results that this one has seen."""

    def __init__(self, address: Any) -> None:
        super().__init__(0)
        self._address = address
        self._idle: deque[Any] = deque()  # connections

    def _new_outcome(self, key: str, person: str, content: bytes) -> bytes:
        left = client_left.get()
        try:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread may have taken the last one
                connection = self._connect()
            connection.send_bytes(pickle.dumps((key, person, content)))
            while not connection.poll(_LOOK):
                if self._closed or (left is not None and left.is_set()):
                    connection.close()
                    raise Unavailable("the client has left")
            outcome: bytes = connection.recv_bytes()
        except (EOFError, OSError):
            raise Unavailable("no prices can be computed now", None, "try again soon") from None
        self._idle.append(connection)
        return outcome

    def _connect(self) -> Any:
        return Client(self._address, authkey=bytes(multiprocessing.current_process().authkey))


def price_pool(settings: ServerSettings, outside: OutsideSettings) -> PricePool:
    """Return the pool of a process: its own, or that of the process that started it."""
    if settings.pool is not None:
        return SharedPool(settings.pool)
    begin = partial(keep_secrets, outside.sources, outside.source_hosts)
    return PricePool(settings.pricers, begin=begin)


class _Worker:
    """One process that prices, and the pipe to it."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        context = forks_of(WARM)
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, begin), daemon=True)
        self._process.start()
        other.close()

    def is_alive(self) -> bool:
        """Whether the process can be asked."""
        return bool(self._process.is_alive())

    def ask(self, content: bytes, seconds: float, unwanted: Callable[[], bool]) -> bytes | None:
        """Return the outcome; None after the deadline or when nobody wants it, with the end."""
        self._connection.send_bytes(content)
        deadline = time.monotonic() + _PATIENCE * seconds
        while not self._connection.poll(_LOOK):
            if time.monotonic() > deadline or unwanted():
                self.end()
                return None
        try:
            outcome: bytes = self._connection.recv_bytes()
        except EOFError:  # its timer ended it, or it died
            self.end()
            return None
        return outcome

    def end(self) -> None:
        """Kill the process; it holds nothing that must be saved."""
        self._process.kill()
        self._process.join()
        self._connection.close()


def _work(connection: Any, begin: Callable[[], Any]) -> None:
    """In a worker: compute one price after the other, until the server ends."""
    prepare_worker()
    begin()
    while True:
        try:
            content = connection.recv_bytes()
            with _timed(content):
                outcome = _outcome(content)
            connection.send_bytes(outcome)
        except (EOFError, OSError):
            return


@contextmanager
def _timed(content: bytes) -> Iterator[None]:
    """End this process when it has computed for too long: SIGPROF is not caught."""
    timer = getattr(signal, "setitimer", lambda *_: None)
    kind, seconds = getattr(signal, "ITIMER_PROF", 0), pickle.loads(content)[2]  # noqa: S301
    timer(kind, seconds)
    try:
        yield
    finally:
        timer(kind, 0)


def _outcome(content: bytes) -> bytes:
    """The pickled result of a call, or its error."""
    # Written by the server for its own worker, so it is safe to unpickle.
    function, arguments, _ = pickle.loads(content)  # noqa: S301
    try:
        return pickle.dumps((function(*arguments), None))
    except ExpostError as error:
        told: ExpostError = error
    except Exception as error:
        told = Unavailable(f"no price ({type(error).__name__})")
    return (_FLEETING if isinstance(told, Unavailable) else b"") + pickle.dumps((None, told))


def _value(outcome: bytes) -> Any:
    """The result of an outcome; its error is raised."""
    result, error = pickle.loads(outcome.removeprefix(_FLEETING))  # noqa: S301 - as above
    if error is not None:
        raise error
    return result
