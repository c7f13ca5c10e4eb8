"""Telling people by webhook and mail that a question waits for approval, or has ended.

What is to be told follows from the states of requests: a request whose state is told and that has
no notice yet gets one per channel, so that nothing is lost when a process dies. Notices are sent
after results were published, at ticks, and tried again with growing pauses. They hold the id, the
status and a link, and for owners the price and the purpose: nothing that depends on rows.
The link leads to a page, where one signs in: nobody approves by opening a mail.
Tests: ``tests/server/test_notices.py``.
"""

from __future__ import annotations

import hmac
import json
import logging
import smtplib
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any

import sqlalchemy as sql

from expost.server.client import NoRedirects
from expost.server.database import ServerDatabase, approvals, facts, notices, requests
from expost.server.jobs import states
from expost.server.jobs.states import iso_time
from expost.server.people.accounts import OWNER, People
from expost.server.server_settings import OutsideSettings

MAIL, WEBHOOK, WANTED = "mail", "webhook", "approval wanted"
MOST_TRIES = 10
_PAUSE, _LEASE, _TIMEOUT, _LOOK = 2.0, 60.0, 10.0, 5.0
_SINCE = "notices since"
_EVENTS = {
    states.WAITING: WANTED,
    states.DECLINED: "declined",
    states.EXPIRED: "expired",
    states.REFUSED: "refused",
    states.DONE: "answered",
    states.MISSED: "answered",
    states.FAILED: "answered",
}
_WORDS = {
    WANTED: "A question waits for approval",
    "declined": "Your question was declined",
    "expired": "Your question expired",
    "refused": "The budget refused your question",
    "answered": "Your question has ended",
}
log = logging.getLogger("expost.server")


class Notices:
    """What a server tells, and to whom."""

    def __init__(self, settings: OutsideSettings, store: ServerDatabase, members: People) -> None:
        self._settings, self._store, self._people = settings, store, members
        named = ((MAIL, settings.mail), (WEBHOOK, settings.webhook))
        self._channels = [channel for channel, given in named if given]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to send, if there is anybody to tell."""
        if self._channels:
            self._first()
            self._thread = threading.Thread(target=self._send_forever, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Send no more; what waits is sent after the next start."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def _send_forever(self) -> None:
        while not self._stop.wait(_LOOK):
            try:
                self.send()
            except Exception as error:
                log.error("notices could not be sent: %s", type(error).__name__)

    def send(self) -> None:
        """Note what is to be told, and send what is due."""
        for channel in self._channels:
            self._note(channel)
        query = sql.select(notices).where(notices.c.sent.is_(False), notices.c.due <= time.time())
        for notice in self._store.rows(query.order_by(notices.c.due).limit(50)):
            if not self._stop.is_set() and notice["channel"] in self._channels:
                self._send(notice)

    def _note(self, channel: str) -> None:
        """Record a notice for every request whose state nobody was told."""
        event = sql.case(_EVENTS, value=requests.c.state)
        same = sql.and_(
            notices.c.request == requests.c.id,
            notices.c.event == event,
            notices.c.channel == channel,
        )
        waited = approvals.c.request == requests.c.id
        at_once = sql.and_(requests.c.state == states.REFUSED, approvals.c.request.is_(None))
        query = (
            sql.select(requests.c.id, event.label("event"))
            .select_from(requests.outerjoin(notices, same).outerjoin(approvals, waited))
            .where(requests.c.state.in_(_EVENTS), notices.c.request.is_(None), ~at_once)
            .where(requests.c.created >= self._first())
            .order_by(requests.c.created)
            .limit(200)
        )
        for row in self._store.rows(query):
            values = {"request": row["id"], "event": row["event"], "channel": channel}
            values |= {"due": 0.0, "tries": 0, "sent": False}
            try:
                self._store.change(notices.insert().values(**values))
            except sql.exc.IntegrityError:
                continue  # another process was faster

    def _first(self) -> float:
        """Requests from this time on are told: from the first start with these settings."""
        query = sql.select(facts.c.value).where(facts.c.name == _SINCE)
        row = self._store.row(query)
        if row is None:
            try:
                since = {"name": _SINCE, "value": str(time.time())}
                self._store.change(facts.insert().values(**since))
            except sql.exc.IntegrityError:
                pass  # another process was faster
            row = self._store.row(query)
        assert row is not None
        return float(row["value"])

    def _send(self, notice: Mapping[str, Any]) -> None:
        """Send one notice, which no other process sends meanwhile."""
        names = ("request", "event", "channel")
        mine = [notices.c[name] == notice[name] for name in names]
        mine += [notices.c.due == notice["due"], notices.c.sent.is_(False)]
        if not self._store.change(notices.update().where(*mine).values(due=time.time() + _LEASE)):
            return
        mine = mine[:3]
        query = sql.select(requests, approvals.c.expires.label("approval_expires"))
        joined = requests.outerjoin(approvals, approvals.c.request == requests.c.id)
        row = self._store.row(query.select_from(joined).where(requests.c.id == notice["request"]))
        try:
            assert row is not None
            body = notice_body(notice["event"], row, self._settings.address)
            (self._mail if notice["channel"] == MAIL else self._post)(body, row["person"])
            changes: dict[str, Any] = {"sent": True}
        except Exception as error:
            tries = notice["tries"] + 1
            log.error("a notice was not sent (%s)", type(error).__name__)
            due = time.time() + _PAUSE * 2**tries
            changes = {"tries": tries, "due": due, "sent": tries >= MOST_TRIES}
        self._store.change(notices.update().where(*mine).values(**changes))

    def _post(self, body: Mapping[str, Any], _: str) -> None:
        """Send a notice to the webhook, with its time and a signature of both."""
        content, moment = json.dumps(body, ensure_ascii=False).encode(), str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "X-Expost-Time": moment,
            "X-Expost-Signature": notice_signature(self._settings.webhook_key, moment, content),
        }
        url = self._settings.webhook["url"]  # checked when the settings were read
        call = urllib.request.Request(url, content, headers, method="POST")  # noqa: S310
        with urllib.request.build_opener(NoRedirects).open(call, timeout=_TIMEOUT):
            pass

    def _mail(self, body: Mapping[str, Any], asker: str) -> None:
        """Send a notice by mail: to the owners if they are to decide, else to the asker."""
        owners = body["event"] == WANTED
        addresses = [
            member["mail"]
            for member in self._people.listed()
            if member["mail"] and not member["disabled"]
            if (member["role"] == OWNER if owners else member["name"] == asker)
        ]
        if not addresses:
            return
        given = self._settings.mail
        secure, server = ssl.create_default_context(), (given["host"], given["port"])
        with (
            smtplib.SMTP_SSL(*server, timeout=_TIMEOUT, context=secure)
            if given["security"] == "tls"
            else smtplib.SMTP(*server, timeout=_TIMEOUT)
        ) as post:
            if given["security"] == "starttls":
                post.starttls(context=secure)
            if given["user"]:
                post.login(given["user"], self._settings.smtp_password)
            for address in addresses:
                post.send_message(_message(body, given["sender"], address))


def notice_body(event: str, row: Mapping[str, Any], address: str) -> dict[str, Any]:
    """Return what a notice says: no answer, no charge, nothing that depends on rows."""
    told = {
        "event": event,
        "request": row["id"],
        "person": row["person"],
        "dataset": row["dataset"],
        "kind": row["kind"],
        # Of the event: a late notice must not tell between ticks that the request runs by now.
        "status": states.APPROVAL if event == WANTED else states.status_of(row, 0.0),
        "link": f"{address}/requests/{row['id']}",
    }
    if event != WANTED:
        return told
    price = json.loads(row["price"])
    amounts = {"epsilon": price["epsilon"], "delta": price["delta"]}
    more = {"purpose": row["memo"], "price": amounts, "budget": price["budget"]}
    return told | more | {"expires": iso_time(row["approval_expires"])}


def notice_signature(key: str, moment: str, content: bytes) -> str:
    """Return the signature in ``X-Expost-Signature``: HMAC-SHA256 of time, line feed and body."""
    return hmac.digest(key.encode(), moment.encode() + b"\n" + content, "sha256").hex()


def _message(body: Mapping[str, Any], sender: str, address: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"] = sender, address
    message["Subject"] = f"{_WORDS[body['event']]} ({body['dataset']})"
    lines = [f"{_WORDS[body['event']]}: {body['kind']} from {body['dataset']}, {body['person']}."]
    if "price" in body:
        purpose = " ".join(body["purpose"].split())  # one line, which imitates no other
        lines += [f"Purpose: {purpose}", f"It may cost ε {body['price']['epsilon']:g}."]
        lines += [f"It expires on {body['expires']}."]
    lines += ["", f"Status: {body['status']}. Sign in to read more: {body['link']}"]
    message.set_content("\n".join(lines) + "\n")
    return message
