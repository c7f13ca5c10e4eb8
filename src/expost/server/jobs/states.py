"""The table of requests: recorded, claimed, finished, published.

States::

    recorded ── reserved in the ledger ──► queued ──► running ──► computed ──► done, missed, failed
     ▲  └────── refused by the budget ──► refused
  approved
     └── waiting ──► declined, expired

A question that waits for approval has reserved nothing, and nothing has been read for it: that it
waits depends on its price alone, which is public. So it holds no budget that others need.

``computed`` means that the result and the outcome are on the disk, but the ledger is not settled
and nobody sees them yet. A worker holds a request by a lease; another process takes over a request
whose worker ended or whose lease ran out, and the update by which a result is recorded names the
worker, so that one request has one result whoever computed it.

What people see of a request says nothing about the data beyond the release: no progress, no
duration, no cause of a failure. Changes become visible at ticks.
Tests: ``tests/server/test_service.py``, ``tests/server/test_crashes.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sql

from expost.analytics.sql_parser import normal_form, parse_question
from expost.errors import InvalidInput
from expost.files import canonical
from expost.server import audit_log
from expost.server.database import ServerDatabase, approvals, attempts, models, requests

RECORDED, QUEUED, RUNNING, COMPUTED = "recorded", "queued", "running", "computed"
DONE, MISSED, FAILED, REFUSED = "done", "missed", "failed", "refused"
WAITING, DECLINED, EXPIRED = "waiting", "declined", "expired"
FINAL = (DONE, MISSED, FAILED, REFUSED, DECLINED, EXPIRED)
ABANDON, TUNED = "abandon", "tuned"
"""Outcomes that are not settled: the worst case stays charged; tuning has settled itself."""


_NEW: dict[str, Any] = dict.fromkeys(column.name for column in requests.c)
_NEW |= {"lease": 0.0, "tries": 0, "deaths": 0, "reserved": ""}
_DECISION = ("expires", "approved", "by", "reason", "decided")
_WHOLE = [*requests.c, *(approvals.c[name].label(f"approval_{name}") for name in _DECISION)]
_NEW |= dict.fromkeys(f"approval_{name}" for name in _DECISION)
_JOINED = requests.outerjoin(approvals, approvals.c.request == requests.c.id)
_MOST_COMPARED = 50  # newest queries of a person that may be the same in another spelling
# Queries of every call, built once.
_EACH = sql.select(*_WHOLE).select_from(_JOINED)
_BY_ID = _EACH.where(requests.c.id == sql.bindparam("identity"))
_BY_KEY = _EACH.where(*(requests.c[name] == sql.bindparam(name) for name in ("person", "key")))
_OWN_ANSWERS = (
    sql.select(requests)
    .where(
        *(requests.c[name] == sql.bindparam(name) for name in ("person", "dataset", "version")),
        requests.c.state.in_((DONE, MISSED)),
    )
    .order_by(requests.c.created.desc())
)
_ANSWERED = _OWN_ANSWERS.where(requests.c.question == sql.bindparam("question")).limit(1)
_ANSWERED_QUERIES = (
    _OWN_ANSWERS.where(requests.c.kind == "query")
    .with_only_columns(requests.c.id, requests.c.question)
    .limit(_MOST_COMPARED)
)
_QUESTION = sql.select(requests.c.question).where(requests.c.id == sql.bindparam("identity"))
_LONG_QUESTION, _MOST_SMALL = 4000, 10_000  # characters; questions
_RUNNING = (
    sql.select(attempts.c.reservation)
    .join(requests, requests.c.id == attempts.c.request)
    .where(requests.c.state.not_in(FINAL))
    .order_by(attempts.c.reservation)
)
_FUTURE = 60.0  # seconds: a time that is later than any that was set here means another clock
_UNLUCKY = 3  # deaths of workers after which a request waits until others have run


def _reached(column: Any, now: float, longest: float = 0.0) -> Any:
    """Whether a time has come; one too far ahead was written before the clock was set back."""
    return sql.or_(column <= now, column > now + longest + _FUTURE)


class Queue:
    """The requests of a server."""

    def __init__(self, store: ServerDatabase) -> None:
        self._store = store
        self._small: dict[str, str] = {}

    def tidy(self) -> None:
        """Let the database do what needs no request to wait for it."""
        self._store.tidy()

    def get(self, identity: str) -> dict[str, Any] | None:
        """Return a request, or None."""
        return self._store.row(_BY_ID, identity=identity)

    def by_key(self, person: str, key: str) -> dict[str, Any] | None:
        """Return the request that a person asked under a key, or None."""
        return self._store.row(_BY_KEY, person=person, key=key)

    def insert(self, row: Mapping[str, Any], expires: float | None = None) -> dict[str, Any]:
        """Record a request; a second one with the same person and key returns the first.

        With a time until which it may be approved, the request waits.
        """

        def work(connection: sql.Connection) -> None:
            connection.execute(requests.insert().values(**row))
            if expires is not None:
                values = {"request": row["id"], "expires": expires}
                connection.execute(approvals.insert().values(**values))

        try:
            self._store.write(work)
        except sql.exc.IntegrityError:
            first = self.by_key(row["person"], row["key"])
            assert first is not None
            return first
        return {**_NEW, **row, "approval_expires": expires}

    def decide(self, row: Mapping[str, Any], by: str, reason: str, state: str) -> bool:
        """Approve, decline or let expire a request that waits; return whether it still waited.

        The decision, its reason and its act are recorded together.
        """
        now, approved = time.time(), state == RECORDED
        words = {RECORDED: "approve question", DECLINED: "decline question"}
        known = {name: row[name] for name in ("person", "dataset")}
        price = json.loads(row["price"])
        detail = {"request": row["id"], **known, "epsilon": price["epsilon"], "reason": reason}

        def work(connection: sql.Connection) -> bool:
            mine = approvals.c.request == row["id"]
            if state != EXPIRED:
                mine = sql.and_(mine, approvals.c.expires > now)
            waiting = sql.exists().where(mine, approvals.c.decided.is_(None))
            changed = connection.execute(
                requests.update()
                .where(requests.c.id == row["id"], requests.c.state == WAITING, waiting)
                .values(state=state, published=None if approved else now)
            )
            if not changed.rowcount:
                return False
            decision = {"approved": approved, "by": by, "reason": reason, "decided": now}
            connection.execute(approvals.update().where(mine).values(**decision))
            audit_log.record(connection, by, words.get(state, "approval expired"), detail)
            return True

        return self._store.write(work)

    def overdue(self) -> list[dict[str, Any]]:
        """Return requests that nobody approved or declined in time."""
        query = sql.select(*_WHOLE).select_from(_JOINED)
        late = approvals.c.expires <= time.time()
        return self._store.rows(query.where(requests.c.state == WAITING, late))

    def waiting(self, person: str) -> int:
        """Return how many questions of a person wait for approval."""
        mine = (requests.c.person == person, requests.c.state == WAITING)
        return len(self._store.rows(sql.select(requests.c.id).where(*mine)))

    def answered(
        self, person: str, facts: Mapping[str, Any], question: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return a person's newest answer to this question about the same facts, or None.

        A query is the same in another spelling.
        """
        named = {"dataset": facts["name"], "version": facts["version"]}
        text = stored_question(question)
        row = self._store.row(_ANSWERED, person=person, question=text, **named)
        if row is not None or question["kind"] != "query":
            return row
        texts = self._store.rows(_ANSWERED_QUERIES, person=person, **named)
        wanted = _meaning(text)
        same = (one["id"] for one in texts if _meaning(one["question"]) == wanted)
        identity = next(same, None)
        return None if identity is None else self.get(identity)

    def mark(self, identity: str, before: Sequence[str], **values: Any) -> bool:
        """Change a request if it is in one of the states ``before``; return whether it was."""
        statement = (
            requests.update()
            .where(requests.c.id == identity, requests.c.state.in_(before))
            .values(**values)
        )
        return self._store.change(statement) == 1

    def claim(self, worker: str, home: str, lease: float) -> dict[str, Any] | None:
        """Take the oldest request that waits, or whose worker ended; None if there is none.

        The end of a worker is no failure of the request; ``deaths`` counts it.
        """
        now = time.time()
        free = sql.and_(
            requests.c.state.in_((QUEUED, RUNNING)), _reached(requests.c.lease, now, lease)
        )
        # The files of a tuning job are in the folder where it began.
        here = sql.or_(
            requests.c.home.is_(None), requests.c.home == home, requests.c.kind != "tune"
        )
        deaths = requests.c.deaths
        unlucky = sql.case((deaths > _UNLUCKY, deaths), else_=0)  # perhaps it ends its workers
        names = ("id", "state", "tries", "deaths", "lease", "started")
        candidate = (
            sql.select(*(requests.c[name] for name in names))
            .where(free, here)
            .order_by(unlucky, requests.c.created)
            .limit(8)
        )
        for row in self._store.rows(candidate):
            taken = self._store.change(
                requests.update()
                .where(
                    requests.c.id == row["id"],
                    requests.c.state == row["state"],
                    requests.c.tries == row["tries"],
                    requests.c.deaths == row["deaths"],
                    requests.c.lease == row["lease"],
                )
                .values(
                    state=RUNNING,
                    worker=worker,
                    home=home,
                    lease=now + lease,
                    deaths=row["deaths"] + (row["state"] == RUNNING),
                    started=row["started"] or now,
                )
            )
            if taken:
                return self.get(row["id"])
        return None

    def _set_running(self, worker: str, /, **values: Any) -> None:
        """Change all that a worker runs."""
        mine = (requests.c.worker == worker, requests.c.state == RUNNING)
        self._store.change(requests.update().where(*mine).values(**values))

    def extend(self, worker: str, lease: float) -> None:
        """Extend the leases of a worker that is alive."""
        self._set_running(worker, lease=time.time() + lease)

    def end_leases(self, worker: str) -> None:
        """End the leases of a worker that is gone."""
        self._set_running(worker, lease=0.0)

    def give_back(self, worker: str) -> None:
        """Queue what a worker runs again; results that it still computes are not taken."""
        self._set_running(worker, state=QUEUED, worker=None, lease=0.0)

    def release(self, identity: str, worker: str, pause: float, *, failed: bool = True) -> None:
        """Give a request back, to be taken again after a pause; a failure is one try."""
        self._store.change(
            requests.update()
            .where(
                requests.c.id == identity,
                requests.c.worker == worker,
                requests.c.state == RUNNING,
            )
            .values(
                state=QUEUED,
                worker=None,
                lease=time.time() + pause,
                tries=requests.c.tries + int(failed),
            )
        )

    def record(
        self,
        identity: str,
        worker: str,
        outcome: Any,
        result: Mapping[str, Any] | None,
        refusal: Mapping[str, Any] | None = None,
        model: bytes | None = None,
        failure: str | None = None,
    ) -> bool:
        """Record a result durably, unless another worker holds the request by now."""

        def work(connection: sql.Connection) -> bool:
            changed = connection.execute(
                requests.update()
                .where(
                    requests.c.id == identity,
                    requests.c.worker == worker,
                    requests.c.state == RUNNING,
                )
                .values(
                    state=COMPUTED,
                    finished=time.time(),
                    outcome=json.dumps(outcome),
                    result=None if result is None else json.dumps(result, allow_nan=False),
                    refusal=None if refusal is None else json.dumps(refusal),
                    failure=failure,
                )
            )
            if changed.rowcount and model is not None:
                connection.execute(models.insert().values(request=identity, content=model))
            return bool(changed.rowcount)

        return self._store.write(work)

    def computed(self, until: float) -> list[dict[str, Any]]:
        """Return requests whose result waits to be published.

        One that ended after the present moment did so before the clock was set back.
        """
        now = time.time() + _FUTURE
        query = (
            sql.select(requests)
            .where(
                requests.c.state == COMPUTED,
                sql.or_(requests.c.finished <= until, requests.c.finished > now),
            )
            .order_by(requests.c.created, requests.c.id)  # not in the order in which they ended
            .limit(200)
        )
        return self._store.rows(query)

    def unreserved(self, before: float) -> list[dict[str, Any]]:
        """Return requests that a crash left between the record and the reservation."""
        query = sql.select(requests).where(
            requests.c.state == RECORDED, _reached(requests.c.created, before)
        )
        return self._store.rows(query)

    def reserved(self, most: int | None = None) -> list[str]:
        """Return the requests that have a reservation in the ledger, the newest one first."""
        query = sql.select(requests.c.id).where(requests.c.reserved != "")
        rows = self._store.rows(query.order_by(requests.c.reserved.desc()).limit(most))
        return [row["id"] for row in rows]

    def listed(
        self,
        person: str | None,
        limit: int,
        before: Mapping[str, Any] | None = None,
        wanted: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Return requests, newest first, without results; ``before`` is the last one seen.

        ``wanted`` has parts of what is shown: ``dataset``, ``status`` or ``text`` (in the purpose,
        the data set or the name of the person). Unfinished requests have no status to search for.
        """
        shown = [column for column in _WHOLE if column.name not in ("result", "secret", "question")]
        short = sql.func.length(requests.c.question) <= _LONG_QUESTION
        shown.append(sql.case((short, requests.c.question), else_=None).label("question"))
        newest = (requests.c.created.desc(), requests.c.id)
        query = sql.select(*shown).select_from(_JOINED).order_by(*newest).limit(limit)
        if person is not None:
            query = query.where(requests.c.person == person)
        for name, value in (wanted or {}).items():
            query = query.where(_matches(name, value))
        if before is not None:
            moment, identity = before["created"], before["id"]
            same = sql.and_(requests.c.created == moment, requests.c.id > identity)
            query = query.where(sql.or_(requests.c.created < moment, same))
        rows = self._store.rows(query)
        for row in rows:
            row["question"] = row["question"] or self._without_keys(row["id"])
        return rows

    def _without_keys(self, identity: str) -> str:
        """A long question without its keys. It never changes: it is read once."""
        text = self._small.get(identity)
        if text is None:
            row = self._store.row(_QUESTION, identity=identity)
            text = "{}" if row is None else stored_question(json.loads(row["question"]), small=True)
            if len(self._small) >= _MOST_SMALL:
                self._small.clear()
            self._small[identity] = text
        return text

    def note_attempt(self, identity: str, reservation: str) -> None:
        """Record that an attempt of a tuning job has this reservation."""

        def work(connection: sql.Connection) -> None:
            same = sql.select(attempts).where(attempts.c.reservation == reservation)
            if connection.execute(same).first() is None:
                values = {"reservation": reservation, "request": identity}
                connection.execute(attempts.insert().values(**values))

        self._store.write(work)

    def attempts(self, identity: str) -> list[str]:
        """Return the reservations of a tuning job."""
        query = sql.select(attempts.c.reservation).where(attempts.c.request == identity)
        return [row["reservation"] for row in self._store.rows(query)]

    def running_attempts(self) -> list[str]:
        """Return the reservations of tuning jobs whose end nobody has seen yet, sorted."""
        return [row["reservation"] for row in self._store.rows(_RUNNING)]

    def errors_of(self, identity: str, person: str | None) -> list[str]:
        """Return the answered questions for the errors of a released model, newest first."""
        named = requests.c.question.contains(f'"release": "{identity}"', autoescape=True)
        query = sql.select(requests.c.id).where(
            requests.c.kind == "errors", requests.c.state == DONE, named
        )
        if person is not None:
            query = query.where(requests.c.person == person)
        rows = self._store.rows(query.order_by(requests.c.created.desc(), requests.c.id))
        return [row["id"] for row in rows]

    def model(self, identity: str) -> bytes | None:
        """Return the released model of a tuning job."""
        row = self._store.row(sql.select(models).where(models.c.request == identity))
        return None if row is None else bytes(row["content"])


def _matches(name: str, value: str) -> Any:
    """A condition on requests, from public columns alone."""
    if name == "dataset":
        return requests.c.dataset == value
    if name == "status":
        known = (*FINAL, WAITING)
        return requests.c.state.in_([state for state in known if _STATUS[state] == value])
    if name == "published":
        begin, end = period_of(value)
        answered = requests.c.state.in_((DONE, MISSED))
        return sql.and_(answered, requests.c.published >= begin, requests.c.published < end)
    texts = (requests.c.memo, requests.c.dataset, requests.c.person)
    return sql.or_(*(column.icontains(value, autoescape=True) for column in texts))


APPROVAL = "waiting for approval"
STATUSES = (
    *("queued", "running", APPROVAL, "done", "missed", "no answer", "refused"),
    *("declined", "expired"),
)
_STATUS = {
    WAITING: APPROVAL,
    DECLINED: "declined",
    EXPIRED: "expired",
    RECORDED: "queued",
    QUEUED: "queued",
    RUNNING: "running",
    COMPUTED: "running",
    DONE: "done",
    MISSED: "missed",
    FAILED: "no answer",
    REFUSED: "refused",
}


def period_of(text: str) -> tuple[float, float]:
    """Return the first moment of a year, a month or a day, and the first one after it (UTC)."""
    parts = [int(part) for part in text.split("-")]
    year, month, day = (*parts, 1, 1)[:3]
    try:
        begin = datetime(year, month, day, tzinfo=UTC)
        following = {1: (year + 1, 1), 2: (year + month // 12, month % 12 + 1)}
        if len(parts) == 3:
            end = begin + timedelta(days=1)
        else:
            end = datetime(*following[len(parts)], 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidInput("period", text, "give 2026, 2026-03 or 2026-03-31") from None
    return begin.timestamp(), end.timestamp()


def next_tick(tick: float, now: float | None = None) -> float:
    """Return the first multiple of ``tick`` that is not before ``now``."""
    moment = time.time() if now is None else now
    return moment if tick <= 0 else -(-moment // tick) * tick


def last_tick(tick: float, now: float | None = None) -> float:
    """Return the last multiple of ``tick`` that is not after ``now``."""
    moment = time.time() if now is None else now
    return moment if tick <= 0 else moment // tick * tick


def iso_time(seconds: float | None) -> str | None:
    """Return a time as ISO 8601 text in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def status_of(row: Mapping[str, Any], tick: float) -> str:
    """Return the status that is visible at the last tick.

    A request that failed and waits to be tried again is still running: a failure may be due to
    rows, and is told at the end only.
    """
    status = _STATUS[row["state"]]
    if status in ("queued", "running"):
        started, shown = row["started"], last_tick(tick)
        begun = started is not None and not shown < started <= time.time() + _FUTURE
        return "running" if begun else "queued"
    return status


def _meaning(stored: str) -> dict[str, Any]:
    """A query with what its SELECT means in place of its text."""
    question: dict[str, Any] = json.loads(stored)
    return question | {"sql": _normal_text(question["sql"])}


@lru_cache(maxsize=4096)
def _normal_text(text: str) -> str:
    """What a SELECT means, as a text; itself if this version does not answer it any more."""
    try:
        return canonical(normal_form(parse_question(text)))
    except InvalidInput:
        return text


def stored_question(question: Mapping[str, Any], *, small: bool = False) -> str:
    """Return a question as it is stored; a small one has the number of its keys, not the keys."""
    kept = dict(question)
    if small and kept.get("keys") is not None:
        kept |= {"keys": None, "groups": len(kept["keys"])}
    return json.dumps(kept, ensure_ascii=False)


def request_view(row: Mapping[str, Any], tick: float) -> dict[str, Any]:
    """Return a request as people see it."""
    question = json.loads(row["question"])
    keys = question.pop("keys", None)
    groups = question.pop("groups", None) if keys is None else len(keys)
    final = row["state"] in FINAL
    return {
        "id": row["id"],
        "person": row["person"],
        "dataset": row["dataset"],
        "kind": row["kind"],
        "status": status_of(row, tick),
        "created": iso_time(row["created"]),
        "published": iso_time(row["published"]) if final else None,
        "memo": row["memo"],
        "question": question | {"groups": groups},
        "price": json.loads(row["price"]),
        "charge": json.loads(row["charge"]) if final and row["charge"] else None,
        "refusal": json.loads(row["refusal"]) if final and row["refusal"] else None,
        "release": row["state"] in (DONE, MISSED),
        "approval": _approval(row),
    }


def _approval(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Until when a request may be approved, and who decided what and why; None if it needs none."""
    if row.get("approval_expires") is None:
        return None
    told = {name: row[f"approval_{name}"] for name in _DECISION}
    return told | {name: iso_time(told[name]) for name in ("expires", "decided")}
