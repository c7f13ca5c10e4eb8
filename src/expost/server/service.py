"""The server: every action of owners, analysts and auditors, for the API and the pages alike.

Each action takes the acting person first and checks the role (:func:`.accounts.action`).
Actions return plain dicts. Errors are :class:`expost.server.problems.ServerProblem` or
:class:`expost.errors.InvalidInput`; none quotes data, SQL or paths to an analyst.
Tests: ``tests/server/test_service.py``.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy.exc import IntegrityError

from expost.analytics.pricing import CountPrice
from expost.budget.ledger import Ledger
from expost.budget.ledger_rows import check_memo
from expost.budget.limits import Budget
from expost.certificates import officer_report as release_report
from expost.certificates.verify import run_checks, verdict_of
from expost.errors import BudgetRefused, InvalidInput, LedgerError
from expost.files import canonical, spreadsheet_cell
from expost.privacy.charges import Charges
from expost.server.administration import Administration
from expost.server.database import ServerDatabase
from expost.server.database import facts as stored_facts
from expost.server.jobs import questions, states, tuning_jobs
from expost.server.jobs.datasets import Datasets, keep_secrets, public_facts
from expost.server.jobs.error_questions import ERRORS, check_model, open_model, subgroups
from expost.server.jobs.ledgers import Ledgers, nothing_of
from expost.server.jobs.prices import (
    PricedQuestion,
    PricePool,
    price_asked,
    price_pool,
    price_recorded,
    price_shown,
)
from expost.server.jobs.runner import Runner
from expost.server.jobs.states import Queue, request_view, stored_question
from expost.server.notices import Notices
from expost.server.people.accounts import ALLOWED, ANALYST, DAY, OWNER, People, Person, action
from expost.server.people.signin import OpenID, SignIn
from expost.server.problems import Conflict, Denied, NotFound, OverBudget, Unavailable
from expost.server.server_settings import OutsideSettings, ServerSettings

_LONGEST_KEY = 128
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")  # a workbook cannot hold them
_MANY_KEYS, _MOST_EXPORTED = 1000, 100_000
_MOST_WAITING = 50  # questions of one person that wait for approval: owners get a mail for each
_READY_SECONDS = 1.0
LEAST_FREE = 64 * 2**20
CHECK_SECONDS = 300.0  # how often the whole ledger is verified
DISK, DATABASE, LEDGER = (
    "the disk is full",
    "the database cannot be written",
    "the ledger is damaged or cannot be read",
)


def releases_table(views: Sequence[Mapping[str, Any]], form: str) -> bytes:
    """Return requests as a table (csv or xlsx), one line each; no cell is a formula."""
    names = ("id", "person", "dataset", "kind", "memo", "created", "published", "status")
    lines: list[list[Any]] = [[*names, "charge_epsilon", "charge_rho", "charge_delta"]]
    for view in views:
        charge = view["charge"] or {}
        amounts = [charge.get(name, "") for name in ("epsilon", "rho", "delta")]
        cells = [spreadsheet_cell(view[name]) for name in names]
        lines.append([*cells, *amounts])
    if form == "csv":
        stream = io.StringIO()
        csv.writer(stream).writerows(lines)
        return stream.getvalue().encode()
    try:
        from openpyxl import Workbook
    except ImportError:
        raise Unavailable("xlsx needs openpyxl here", "format", "take csv") from None
    book, content = Workbook(write_only=True), io.BytesIO()
    sheet = book.create_sheet("Releases")
    for line in lines:
        sheet.append([_UNPRINTABLE.sub(" ", c) if isinstance(c, str) else c for c in line])
    book.save(content)
    return content.getvalue()


def _needs_approval(facts: Mapping[str, Any], price: Mapping[str, Any]) -> bool:
    """Whether an owner approves a question first: from its price and public facts alone."""
    above = facts.get("approval_above")
    return above is not None and price["epsilon"] > above


def _refused(refusal: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a request that the budget refuses."""
    now = time.time()
    return {"state": states.REFUSED, "refusal": json.dumps(refusal), "published": now}


def ready_problems(home: Path, store: ServerDatabase, pool: PricePool, ledger: str) -> list[str]:
    """Return why a server cannot work; empty if it can.

    The ledger is verified in a process of the pool, at most every five minutes.
    """
    problems = []
    if shutil.disk_usage(home).free < LEAST_FREE:
        problems.append(DISK)
    try:
        store.write(_touch)
    except IntegrityError:
        pass  # another process wrote the first row at the same time
    except Exception:  # whatever the driver raises
        problems.append(DATABASE)
    period = int(time.time() // CHECK_SECONDS)
    try:
        if not pool.compute("readiness", ledger_is_sound, ledger, period):
            problems.append(LEDGER)
    except Unavailable:
        pass  # it is too long to be verified here; GET /api/verify does
    return problems


def ledger_is_sound(url: str, period: int) -> bool:
    """Verify a ledger, in a worker; ``period`` makes the result of another time another one."""
    try:
        return not Ledger.open(url).verify()
    except LedgerError as error:
        return "there is no ledger" in str(error)  # no budget was opened yet
    except Exception:
        return False


def _touch(connection: Any) -> None:
    """Write one row; processes that do so at once wait for each other."""
    values = {"name": "ready", "value": str(int(time.time()))}
    same = stored_facts.update().where(stored_facts.c.name == values["name"])
    if not connection.execute(same.values(**values)).rowcount:
        connection.execute(stored_facts.insert().values(**values))


class Service(Administration):
    """A server."""

    def __init__(self, settings: ServerSettings) -> None:
        settings.prepare()
        self.settings = settings
        self.store = ServerDatabase(settings.database_url)
        self._people = People(self.store)
        self.by_token = self._people.by_token
        self.outside = OutsideSettings.read(settings.home)
        keep_secrets(self.outside.sources, self.outside.source_hosts)
        self.openid = OpenID(self.outside, self.store) if self.outside.oidc else None
        self.notices = Notices(self.outside, self.store, self._people)
        self.signin = SignIn(self.store, self._people, settings.signing_key())
        self._datasets = Datasets(self.store)
        self._queue = Queue(self.store)
        self._ledgers = Ledgers(settings, self._queue.running_attempts)
        self._ledgers.require_reserved(self._queue.reserved(1))
        self.runner = Runner(settings, self._queue, self._datasets, self._ledgers, self._complete)
        self.prices = price_pool(settings, self.outside)
        self._ready: tuple[float, list[str]] = (-math.inf, [])
        self._terms_of = lru_cache(maxsize=1000)(self._find_terms)

    def _find_terms(self, budget: str) -> Budget:
        """The terms of a budget: its kind, orders and relation never change; limits may."""
        return self._ledgers.ledger.standing(self._ledgers.check(budget)).filter.budget

    def close(self) -> None:
        """Stop the workers and close the connections."""
        self.notices.stop()
        self.prices.close()
        self.runner.stop()
        self.store.close()

    def not_ready(self) -> list[str]:
        """Return why the server cannot work; anybody may know, and ask as often as they like."""
        when, problems = self._ready
        if time.monotonic() > when + _READY_SECONDS:
            home, ledger = self.settings.home, self.settings.ledger_url
            problems = ready_problems(home, self.store, self.prices, ledger)
            self._ready = time.monotonic(), problems
        return problems

    # What may be asked

    @action
    def datasets(self, person: Person) -> list[dict[str, Any]]:
        """Return the data sets, each with what is left for the person; owners see sources.

        Analysts see those that they may ask about.
        """
        mine = self._people.asks(person)
        return [self._shown(person, facts) for facts in self._datasets.listed() if mine(facts)]

    @action
    def dataset(self, person: Person, name: str) -> dict[str, Any]:
        """Return one data set."""
        return self._shown(person, self._open_to(person, name))

    def _open_to(self, person: Person, name: str, version: int | None = None) -> dict[str, Any]:
        """A data set that a person may ask about or administer; others do not exist for them."""
        mine = self._people.asks(person)  # before it is known whether there is such a data set
        facts = self._datasets.get(name)
        if not mine(facts):
            raise NotFound("there is no such data set", "dataset")
        same = version in (None, facts["version"])
        return facts if same else self._datasets.get(name, version=version)

    def _shown(self, person: Person, facts: Mapping[str, Any]) -> dict[str, Any]:
        shown = dict(facts) if person.role == OWNER else public_facts(facts)
        if person.role != ANALYST:
            shown["askers"] = facts.get("askers")
        name = facts["budget"]
        known = name in self._ledgers.names()
        standing = self._ledgers.own_standing(name, person.name) if known else None
        return shown | {"standing": standing}

    @action
    def price(self, person: Person, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a question would cost, from public facts alone."""
        facts = self._open_to(person, str(asked.get("dataset")))
        self._check_release(person, facts, asked)
        terms = self._terms_of(facts["budget"])
        priced = self.prices.compute(person.name, price_shown, facts, asked, terms)
        question: dict[str, Any] = priced["question"]
        price: dict[str, Any] = priced["price"]
        shown = {name: value for name, value in question.items() if name != "keys"}
        keys = question.get("keys")
        groups = None if keys is None else len(keys)
        charges = Charges.from_dict(priced["charges"])
        state = self._ledgers.worst(facts["budget"], person.name, charges)
        told = {"question": shown | {"groups": groups}, "plan": priced["plan"]}
        before = self._queue.answered(person.name, facts, question)
        again = None if before is None else self._answer(before)
        kept = again and {name: again[name] for name in ("id", "published", "charge")}
        waits = _needs_approval(facts, price)
        return price | state | told | {"asked_before": kept, "needs_approval": waits}

    @action
    def plan(self, person: Person, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan of a tuning job from its levels: chance of passing, price, runs."""
        epsilons = [float(level) for level in asked["epsilons"]]
        numbers = int(asked["configurations"]), float(asked.get("delta") or 1e-6)
        repeats, attempts = int(asked.get("repeats") or 1), asked.get("attempts")
        planned: dict[str, Any] = self.prices.compute(
            person.name,
            tuning_jobs.plan_document,
            epsilons,
            *numbers,
            repeats,
            attempts,
        )
        return planned

    def _check_release(
        self, person: Person, facts: Mapping[str, Any], asked: Mapping[str, Any]
    ) -> None:
        """Refuse errors of what is no model of this data set that the person may see."""
        if asked.get("kind") != ERRORS:
            return
        row = self._visible(person, str(asked.get("release")))
        model = self._queue.model(row["id"]) if row["dataset"] == facts["name"] else None
        if model is None or row["state"] not in (states.DONE, states.MISSED):
            valid = "give the id of a release of this data set that has a model"
            raise InvalidInput("release", row["id"], valid)
        for column in asked.get("by") or ():
            if column in subgroups(facts):  # others are refused with the price
                check_model(open_model(model), facts, column)

    def _priced(
        self, person: Person, facts: Mapping[str, Any], asked: Mapping[str, Any]
    ) -> PricedQuestion:
        """The checked question, its price and plan, and the charges behind them."""
        terms = self._terms_of(facts["budget"])
        priced: PricedQuestion = self.prices.compute(person.name, price_asked, facts, asked, terms)
        return priced

    # Asking

    @action
    def ask(
        self, person: Person, asked: Mapping[str, Any], key: str, memo: str = ""
    ) -> dict[str, Any]:
        """Record, price and reserve a question; it runs afterwards.

        The same person, key and question return the same request and charge nothing more.
        """
        if not key or len(key) > _LONGEST_KEY or not key.isprintable():
            raise InvalidInput("key", None, f"give a text of 1 to {_LONGEST_KEY} characters")
        check_memo(memo)
        digest = hashlib.sha256(canonical({"asked": asked, "memo": memo}).encode()).hexdigest()
        known = self._queue.by_key(person.name, key)
        if known is not None:
            return self._again(known, digest)
        facts = self._open_to(person, str(asked.get("dataset")))
        self._check_release(person, facts, asked)
        priced = self._priced(person, facts, asked)
        question = priced.question
        waits = _needs_approval(facts, priced.price)
        refused = self._refused_now(facts, person, priced, always=waits)
        if waits and not refused and self._queue.waiting(person.name) >= _MOST_WAITING:
            words = f"{_MOST_WAITING} of your questions wait for approval already"
            raise Conflict(words, None, "ask again when they are decided")
        now = time.time()
        expires = now + DAY * facts["approval_days"] if waits and not refused else None
        row = self._queue.insert(
            {
                "id": secrets.token_hex(16),
                "person": person.name,
                "dataset": facts["name"],
                "version": facts["version"],
                "kind": question["kind"],
                "key": key,
                "digest": digest,
                "question": stored_question(question, small=bool(refused)),
                "price": json.dumps(priced.price),
                "memo": memo,
                "secret": secrets.token_hex(16),
                "state": states.RECORDED if expires is None else states.WAITING,
                "created": now,
            }
            | refused,
            expires,
        )
        if row["state"] != states.RECORDED or row["digest"] != digest:
            return self._again(row, digest)
        # A tuning job reserves its attempts one by one, when they begin.
        return self._answer(self._reserve(row, facts, priced.reserved))

    @action
    def approve(self, person: Person, identity: str, reason: str) -> dict[str, Any]:
        """Let a question run that waits for approval, at the price that was shown.

        Nothing was reserved while it waited: the budget admits it now, or refuses it.
        """
        row = self._waiting(person, identity, reason)
        words, valid = "this question cannot be approved any more", "decline it"
        try:
            asker = self._people.active(row["person"])
            if asker.role not in ALLOWED["ask"]:
                raise Denied("they do not ask any more")
            facts = self._open_to(asker, row["dataset"], row["version"])
        except (NotFound, Denied):
            raise Conflict(words, "id", valid) from None
        terms, question = self._terms_of(facts["budget"]), json.loads(row["question"])
        priced = self.prices.compute(person.name, price_recorded, facts, question, terms)
        if priced.price != json.loads(row["price"]):
            raise Conflict("the price has changed since it was asked", "id", valid)
        self._decide(row, person, reason, states.RECORDED)
        refused = self._refused_now(facts, asker, priced)
        if refused:
            self._queue.mark(identity, [states.RECORDED], **refused)
        else:
            self._reserve(row, facts, priced.reserved)
        return self.request(person, identity)

    @action
    def decline(self, person: Person, identity: str, reason: str) -> dict[str, Any]:
        """Decline a question that waits for approval; nothing was reserved."""
        row = self._waiting(person, identity, reason)
        self._decide(row, person, reason, states.DECLINED)
        return self.request(person, identity)

    def _waiting(self, person: Person, identity: str, reason: str) -> dict[str, Any]:
        """A question that waits, for somebody else than the person who asked it."""
        row = self._visible(person, identity)
        if row["person"] == person.name:
            raise Denied("nobody decides about their own question", "id", "ask another owner")
        if not reason.strip():
            raise InvalidInput("reason", None, "say why; it is kept, and the asker sees it")
        return row

    def _decide(self, row: Mapping[str, Any], person: Person, reason: str, state: str) -> None:
        """Record a decision; refuse one that comes too late."""
        if not self._queue.decide(row, person.name, reason, state):
            raise Conflict("this question does not wait for approval", "id", "look at its status")

    def _refused_now(
        self,
        facts: Mapping[str, Any],
        person: Person,
        priced: PricedQuestion,
        *,
        always: bool = False,
    ) -> dict[str, Any]:
        """What is recorded of a job or a long question that the budget cannot pay; else nothing.

        ``always`` is for a question that is to wait: no owner looks at what cannot be paid.
        """
        few = priced.reserved is not None and len(priced.question["keys"] or ()) <= _MANY_KEYS
        if few and not always:
            return {}  # the ledger decides
        refusal = self._ledgers.refuses(facts["budget"], person.name, priced.charges)
        return {} if refusal is None else _refused(refusal)

    def _again(self, row: Mapping[str, Any], digest: str) -> dict[str, Any]:
        """The request that a key belongs to."""
        if row["digest"] != digest:
            raise Conflict("this key belongs to another question", "key", "use a new key")
        if row["state"] == states.RECORDED:
            self._complete(row)
            row = self._queue.get(row["id"]) or row
        return self._answer(row)

    def _answer(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return request_view(row, self.settings.tick)

    def _reserve(
        self,
        row: Mapping[str, Any],
        facts: Mapping[str, Any],
        priced: CountPrice | None,
    ) -> Mapping[str, Any]:
        """Reserve the worst case of a recorded request and queue it, or record the refusal."""
        changes: dict[str, Any] = {"state": states.QUEUED}
        if priced is not None:
            try:
                held = self._ledgers.ledger.reserve(
                    priced.charges,
                    row["memo"],
                    budget=facts["budget"],
                    analyst=row["person"],
                    reservation_id=row["id"],
                    secret=row["secret"],
                    request=priced.request,
                    source=priced.source,
                )
                changes["reserved"] = held.time
            except BudgetRefused as error:
                refusal = self._ledgers.refusal(error, facts["budget"], row["person"])
                question = json.loads(row["question"])
                changes = _refused(refusal) | {"question": stored_question(question, small=True)}
            except LedgerError:
                raise Unavailable(
                    "the ledger cannot be used now", None, "ask again with the same key"
                ) from None
        if not self._queue.mark(row["id"], [states.RECORDED], **changes):
            return self._settle_race(row, priced, changes)
        if changes["state"] == states.QUEUED:
            self.runner.poke()
        return {**row, **changes}

    def _settle_race(
        self, row: Mapping[str, Any], priced: CountPrice | None, changes: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Another process completed this request; a reservation that it refused is given back."""
        present = self._queue.get(row["id"]) or row
        reserved = changes["state"] == states.QUEUED
        if reserved and priced is not None and present["state"] == states.REFUSED:
            outcome = nothing_of(priced.charges)
            self._ledgers.ledger.settle(row["id"], outcome, secret=row["secret"])
        return present

    def _complete(self, row: Mapping[str, Any]) -> None:
        """Reserve a request that a crash left between its record and its reservation.

        One that can never be reserved ends without an answer; nothing is charged.
        """
        try:
            facts = self._datasets.get(row["dataset"], retired=True, version=row["version"])
            priced = None
            if row["kind"] != "tune":
                kind = self._terms_of(facts["budget"]).kind
                priced = questions.price_question(facts, json.loads(row["question"]), kind)
            self._reserve(row, facts, priced)
        except InvalidInput:
            ended = {"state": states.FAILED, "published": time.time()}
            self._queue.mark(row["id"], [states.RECORDED], **ended)

    # Requests and releases

    @action
    def requests(
        self,
        person: Person,
        limit: int = 100,
        before: str | None = None,
        wanted: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Return requests, newest first; analysts see their own. ``before`` is the last id seen.

        ``wanted`` may have ``dataset``, ``status`` and ``text``.
        """
        mine = person.name if person.role == ANALYST else None
        last = None if before is None else self._visible(person, before)
        rows = self._queue.listed(mine, max(1, min(limit, 500)), last, wanted)
        return [request_view(row, self.settings.tick) for row in rows]

    @action
    def request(self, person: Person, identity: str) -> dict[str, Any]:
        """Return one request; owners, who have the data, also see why it has no answer."""
        row = self._visible(person, identity)
        view = request_view(row, self.settings.tick)
        if person.role == OWNER and row["state"] == states.FAILED:
            view["failure"] = row["failure"]
        return view

    def _visible(self, person: Person, identity: str) -> dict[str, Any]:
        """A request that the person may see; others do not exist for them."""
        row = self._queue.get(identity)
        if row is None or (person.role == ANALYST and row["person"] != person.name):
            raise NotFound("there is no such request", "id")
        return row

    @action
    def releases(self, person: Person, limit: int = 100) -> list[dict[str, Any]]:
        """Return the requests that were answered."""
        return [view for view in self.requests(person, limit) if view["release"]]

    @action
    def export(self, person: Person, period: str, form: str = "csv") -> bytes:
        """Return the releases of a year, a month or a day as CSV or XLSX, for a yearly report."""
        mine = person.name if person.role == ANALYST else None
        rows = self._queue.listed(mine, _MOST_EXPORTED, None, {"published": period})
        views = [request_view(row, self.settings.tick) for row in reversed(rows)]
        return releases_table(views, form)

    @action
    def release(self, person: Person, identity: str) -> dict[str, Any]:
        """Return an answer: the request, the result and the certificate."""
        row = self._visible(person, identity)
        if row["state"] == states.REFUSED:
            raise OverBudget("the budget refused this request; nothing was charged", "budget")
        if row["state"] not in (states.DONE, states.MISSED):
            raise NotFound("there is no answer", "id", "look at the status of the request")
        view = request_view(row, self.settings.tick)
        if row["kind"] == "tune":  # where its errors by subgroup are, if they were asked for
            asker = person.name if person.role == ANALYST else None
            view["errors"] = self._queue.errors_of(identity, asker)
        return {"request": view, **json.loads(row["result"])}

    @action
    def certificate(self, person: Person, identity: str) -> dict[str, Any]:
        """Return the certificate of a release."""
        document: dict[str, Any] = self.release(person, identity)["certificate"]
        return document

    @action
    def report(self, person: Person, identity: str) -> dict[str, Any]:
        """Return a release in words, for officers."""
        release = self.release(person, identity)
        row = self._visible(person, identity)
        facts = self._datasets.get(row["dataset"], retired=True, version=row["version"])
        terms = self._ledgers.standing(facts["budget"])
        return release_report.report(release, public_facts(facts), terms)

    @action
    def answers(self, person: Person, identity: str) -> str:
        """Return the answers of a question as CSV."""
        release = self.release(person, identity)
        if release["request"]["kind"] == "tune":
            raise NotFound("a search has no table of answers", "id")
        return release_report.answers_csv(release)

    @action
    def registry(self, person: Person, identity: str) -> str:
        """Return a release in the fields of a public registry of deployments, as YAML."""
        return release_report.registry(self.report(person, identity))

    @action
    def model(self, person: Person, identity: str) -> bytes:
        """Return the released model of a tuning job (an .npz file)."""
        self.release(person, identity)
        content = self._queue.model(identity)
        if content is None:
            raise NotFound("no model was released", "id")
        return content

    @action
    def verify_release(self, person: Person, identity: str) -> dict[str, Any]:
        """Price a certificate again, and compare it with the entries of the ledger."""
        certificate = self.release(person, identity)["certificate"]
        return verdict_of(certificate, run_checks(certificate, ledger=self._ledgers.ledger))
