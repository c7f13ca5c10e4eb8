"""Runs queued requests and publishes their results at ticks.

Each request runs in a thread of some server process; training may use other executors. A worker
computes, records result and outcome in the server's database, and only then is the ledger settled
and the result shown. So after ``kill -9`` at any point

* before the record, nothing has left the server: the request runs again under the same reservation;
* after the record, the ledger is settled with the recorded outcome (which may be repeated).

A request that fails is tried again; after several tries its worst case stays charged, whatever the
cause, and people see "no answer". The death of a process is not a try: nobody saw the draws of a
run that ended with it, because a result leaves the server only after it was recorded, and only the
first record counts. A request whose workers died a hundred times ends as if it had failed.
A request whose reservation is closed never runs: a second draw would have no charge of its own.
A source that cannot be opened costs nothing if opening reads the header or the schema only; SQLite
files are copied when they are opened, and cost as if read.
Tests: ``tests/server/test_service.py``, ``tests/server/test_crashes.py``,
``tests/server/test_kills.py``, ``tests/server/test_attacks.py``.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from expost.budget.charging import Reserved
from expost.budget.ledger import OPEN
from expost.errors import BudgetRefused, CheckpointMismatch, LedgerError
from expost.files import lock_file
from expost.randomness.source import require_protection
from expost.server.jobs import questions, states, tuning_jobs
from expost.server.jobs.datasets import Datasets
from expost.server.jobs.error_questions import ERRORS
from expost.server.jobs.ledgers import Ledgers, find_reservation, nothing_of
from expost.server.jobs.states import Queue, last_tick, next_tick
from expost.server.server_settings import ServerSettings
from expost.tables.sources import opening_reads_rows

MOST_TRIES, MOST_DEATHS = 4, 100
_ANSWERED = "it was answered and charged before the server was restored"
_IDLE = 0.25
_RECORDED_SECONDS = 10.0
log = logging.getLogger("expost.server")


class Runner:
    """The workers and the publisher of one server process."""

    def __init__(
        self,
        settings: ServerSettings,
        queue: Queue,
        datasets: Datasets,
        ledgers: Ledgers,
        complete: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._settings, self._queue = settings, queue
        self._datasets, self._ledgers, self._complete = datasets, ledgers, complete
        self.name = secrets.token_hex(8)
        self._home, self._folder = settings.home_identity(), settings.alive
        self._wake, self._stop = threading.Condition(), threading.Event()
        self._pokes = 0
        self._alive: int | None = None
        self._threads: list[threading.Thread] = []
        self._running: set[str] = set()
        self._running_lock = threading.Lock()
        self._executor: Any = None
        self._pool: AbstractContextManager[Any] | None = None

    def start(self) -> None:
        """Start the threads."""
        draft = self._folder / f".{self.name}"
        self._alive = os.open(draft, os.O_CREAT | os.O_RDWR, 0o600)
        lock_file(self._alive)
        draft.rename(self._folder / self.name)  # seen by others when it is locked
        self.take_over()
        work = [self._work] * self._settings.threads
        for target in (*work, self._publish_forever, self._stay_alive):
            thread = threading.Thread(target=target, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop after the running requests; what has not begun, or takes longer, stays queued."""
        self._stop.set()
        with self._wake:
            self._wake.notify_all()
        deadline = time.monotonic() + self._settings.grace
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        self._queue.give_back(self.name)
        if self._pool is not None:
            self._pool.__exit__(None, None, None)
        if self._alive is not None:
            (self._folder / self.name).unlink(missing_ok=True)
            os.close(self._alive)
            self._alive = None

    def poke(self) -> None:
        """Tell the workers that there may be something to do."""
        with self._wake:
            self._pokes += 1
            self._wake.notify()

    def _sleep(self, seconds: float) -> None:
        with self._wake:
            if not self._pokes:
                self._wake.wait(seconds)
            self._pokes = max(0, self._pokes - 1)

    def _work(self) -> None:
        """Take requests and run them until the process stops."""
        while not self._stop.is_set():
            try:
                row = self._queue.claim(self.name, self._home, self._settings.lease)
                if row is None:
                    self._sleep(_IDLE)
                else:
                    self.run_one(row)
            except Exception as error:  # the message may quote what it stumbled over
                log.error("a worker could not go on: %s", type(error).__name__)
                self._stop.wait(1.0)

    def run_one(self, row: Mapping[str, Any]) -> None:
        """Run one request that this process has claimed.

        After a pause of the process its leases may have run out, and its own threads claim them: a
        request that another thread still runs is left to that thread.
        """
        with self._running_lock:
            if row["id"] in self._running:
                return
            self._running.add(row["id"])
        try:
            self._run(row)
        finally:
            self._running.discard(row["id"])

    def _run(self, row: Mapping[str, Any]) -> None:
        identity, tries = row["id"], row["tries"] + 1
        try:
            if row["deaths"] > MOST_DEATHS:
                self._abandoned(identity, "the processes that ran it died")
            elif row["kind"] == "tune":
                self._tune(row)
            else:
                self._count(row)
        except CheckpointMismatch:
            # Another process has the job's folder.
            self._queue.release(identity, self.name, 1.0, failed=False)
        except Exception as error:
            log.error("request %s: no answer (%s)", identity, type(error).__name__)
            if tries >= MOST_TRIES:
                self._abandoned(identity, f"running it failed ({type(error).__name__})")
            else:
                self._queue.release(identity, self.name, 0.1 * 4**tries)
        if self._settings.tick <= 0:
            self.publish()

    def _abandoned(self, identity: str, failure: str) -> None:
        """Record that a request has no answer; owners see why."""
        self._queue.record(identity, self.name, states.ABANDON, None, failure=failure)

    def _count(self, row: Mapping[str, Any]) -> None:
        """Run a question about a table, or errors of a model, under its reservation.

        Publishing settles it.
        """
        facts, ledger = self._facts(row), self._ledgers.ledger
        reservation = find_reservation(ledger, row["id"], row["secret"], row["reserved"])
        if reservation is None:
            raise LedgerError("the reservation of a queued request is missing")
        if ledger.status_of(row["id"]) != OPEN:  # older tables were put beside a newer ledger
            ended = {"state": states.FAILED, "published": last_tick(self._settings.tick)}
            self._queue.mark(row["id"], [states.RUNNING], failure=_ANSWERED, **ended)
            return
        try:
            question = json.loads(row["question"])
            model = self._queue.model(question["release"]) if row["kind"] == ERRORS else None
            request = questions.build_request(facts, question, open_source=True, model=model)
        except Exception as error:
            log.error(
                "request %s: the source cannot be opened (%s)", row["id"], type(error).__name__
            )
            if row["tries"] + 1 < MOST_TRIES:
                self._queue.release(row["id"], self.name, 0.1 * 4 ** (row["tries"] + 1))
                return
            # Then a row may be the cause. Of rows to tune on, a file, the header is read.
            seen = row["kind"] != ERRORS and opening_reads_rows(str(facts["source"]))
            outcome = states.ABANDON if seen else nothing_of(reservation.charges)
            failure = f"the source cannot be opened ({type(error).__name__})"
            self._queue.record(row["id"], self.name, outcome, None, failure=failure)
            return
        priced = questions.price_checked(request, ledger.kind_of(facts["budget"]))
        if priced.charges != reservation.charges:
            raise LedgerError("the request was reserved at other charges")
        randomness = require_protection(None, simulation=False)
        evidence = Reserved(ledger, reservation).evidence()
        result = questions.run_checked(request, priced, randomness, evidence)
        document = {"result": result.as_dict(), "certificate": result.certificate()}
        self._queue.record(row["id"], self.name, result.outcome, document)

    def _facts(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The facts of a data set as they were when the request was asked."""
        return self._datasets.get(row["dataset"], retired=True, version=row["version"])

    def _tune(self, row: Mapping[str, Any]) -> None:
        """Run a tuning job, or continue it in its folder."""
        facts = self._facts(row)
        try:
            document, model = tuning_jobs.run_job(
                facts,
                json.loads(row["question"]),
                folder=self._settings.jobs / row["id"],
                ledger=self._ledgers.ledger.calling(partial(self._begin_entry, row["id"])),
                budget=facts["budget"],
                analyst=row["person"],
                memo=row["memo"],
                executor=self._training_pool(),
            )
        except BudgetRefused as error:
            refusal = self._ledgers.refusal(error, facts["budget"], row["person"])
            self._queue.record(row["id"], self.name, states.TUNED, None, refusal)
            return
        self._queue.record(row["id"], self.name, states.TUNED, document, model=model)

    def _begin_entry(self, identity: str, reservation: str) -> None:
        """Wait for a tick, so that times of entries tell nothing; note whose attempt it is."""
        self._wait_for_tick()
        self._queue.note_attempt(identity, reservation)

    def _training_pool(self) -> Any:
        """The executor for training, started at its first use."""
        if self._pool is None:
            self._pool = make_pool(self._settings.workers)
            self._executor = self._pool.__enter__()
        return self._executor

    def _wait_for_tick(self) -> None:
        time.sleep(max(0.0, next_tick(self._settings.tick) - time.time()))

    def _publish_forever(self) -> None:
        """Publish at every tick, and complete what crashes left unreserved."""
        while not self._stop.is_set():
            try:
                self.publish()
                self._complete_all()
            except Exception as error:
                log.error("the publisher could not go on: %s", type(error).__name__)
            pause = next_tick(self._settings.tick, time.time() + 1e-3) - time.time()
            self._stop.wait(max(pause, 0.02) if self._settings.tick > 0 else 1.0)

    def _complete_all(self) -> None:
        """Reserve what crashes left unreserved; one that fails does not keep others waiting."""
        for row in self._queue.overdue():
            self._queue.decide(row, "the server", "nobody decided in time", states.EXPIRED)
        for row in self._queue.unreserved(time.time() - _RECORDED_SECONDS):
            try:
                self._complete(row)
            except Exception as error:
                log.error("request %s is not reserved yet: %s", row["id"], type(error).__name__)

    def publish(self) -> None:
        """Settle what is computed, and show it. Several processes may do so at once."""
        for row in self._queue.computed(last_tick(self._settings.tick)):
            try:
                self._publish_one(row)
            except Exception as error:
                log.error("request %s is not settled yet: %s", row["id"], type(error).__name__)

    def _publish_one(self, row: Mapping[str, Any]) -> None:
        outcome, ledger = json.loads(row["outcome"]), self._ledgers.ledger
        result = None if row["result"] is None else json.loads(row["result"])
        state = states.FAILED if result is None else states.DONE
        if outcome == states.TUNED:
            charge = None if result is None else result["result"]["spent"]
            if result is None:
                state = states.REFUSED
            elif not result["result"]["passed"]:
                state = states.MISSED
        elif outcome == states.ABANDON:
            charge = self._abandon(row)
        else:
            certificate = None if result is None else result["certificate"]
            charge = ledger.settle(
                row["id"], outcome, secret=row["secret"], release=certificate
            ).as_dict()
        self._queue.mark(
            row["id"],
            [states.COMPUTED],
            state=state,
            published=last_tick(self._settings.tick),
            charge=None if charge is None else json.dumps(charge),
        )

    def _abandon(self, row: Mapping[str, Any]) -> Any:
        """Leave the worst case charged; of a tuning job that of the attempt that did not end."""
        ledger = self._ledgers.ledger
        if row["kind"] != "tune":
            return ledger.abandon(row["id"]).as_dict()
        attempts = self._queue.attempts(row["id"])
        for identity in attempts:
            if ledger.reservation(identity) is not None and ledger.status_of(identity) == "open":
                ledger.abandon(identity)
        return self._ledgers.charged(self._facts(row), attempts)

    def _stay_alive(self) -> None:
        """Extend the leases of this process, and take over those of others that are gone."""
        due = 0.0
        while not self._stop.wait(min(1.0, self._settings.lease / 4)):
            try:
                self.take_over()
                self._queue.tidy()
                if time.monotonic() >= due:
                    self._queue.extend(self.name, self._settings.lease)
                    due = time.monotonic() + self._settings.lease / 4
            except Exception as error:
                log.error("leases were not extended: %s", type(error).__name__)

    def take_over(self) -> None:
        """End the leases of processes of this folder that are gone: nobody holds their lock."""
        for path in self._folder.glob("[0-9a-f]*"):
            try:
                descriptor = os.open(path, os.O_RDWR)
            except OSError:
                continue  # another process was faster
            try:
                lock_file(descriptor)
                self._queue.end_leases(path.name)
                path.unlink(missing_ok=True)
                self.poke()
            except OSError:
                pass  # it is alive
            finally:
                os.close(descriptor)


def make_pool(workers: str) -> AbstractContextManager[Any]:
    """Return the executor that trains models, as a context manager."""
    if workers == "processes":
        from expost.execution.workers import Processes

        return Processes()
    if workers == "ray":
        from expost.integrations.ray import RayExecutor

        return RayExecutor()
    if workers == "dask":
        from expost.integrations.dask import DaskExecutor

        return DaskExecutor()
    return nullcontext()
