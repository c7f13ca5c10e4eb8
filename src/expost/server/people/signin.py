"""Signing in: sessions, the headers of a trusted proxy, the first owner.

A session is a random value in an HttpOnly, SameSite=Strict cookie; the database holds its digest.
The CSRF value of a session is derived from it, so that it needs no table. A proxy signs
``user\\nrole\\ntime`` with HMAC-SHA256; its headers are accepted for one minute, and only to begin
a session. The first owner is made through a link that works once.
Tests: ``tests/server/test_security.py``.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Mapping

import sqlalchemy as sql

from expost.errors import InvalidInput
from expost.server import audit_log
from expost.server.database import ServerDatabase, links, people, sessions, tokens
from expost.server.people.accounts import (
    OWNER,
    ROLES,
    People,
    Person,
    check_name,
    quick_hash,
)
from expost.server.problems import Conflict, NotSignedIn

COOKIE = "expost_session"
SESSION_SECONDS = 12 * 3600.0
LINK_SECONDS = 24 * 3600.0
PROXY_SECONDS = 60.0
_VALUE = re.compile(r"[0-9A-Za-z_-]{43}")


class SignIn:
    """Who a caller is."""

    def __init__(
        self, store: ServerDatabase, members: People, proxy_key: bytes | None = None
    ) -> None:
        self._store, self._people, self._proxy_key = store, members, proxy_key

    def begin(self, person: Person) -> str:
        """Begin a session and return the value of its cookie."""
        value, now = secrets.token_urlsafe(32), time.time()

        def work(connection: sql.Connection) -> None:
            connection.execute(sessions.delete().where(sessions.c.expires <= now))
            connection.execute(
                sessions.insert().values(
                    hash=quick_hash(value),
                    person=person.name,
                    token=person.token,
                    created=now,
                    expires=now + SESSION_SECONDS,
                )
            )

        self._store.write(work)
        return value

    def by_cookie(self, value: str) -> Person:
        """Return the person of a session."""
        if not _VALUE.fullmatch(value):
            raise NotSignedIn
        row = self._store.row(
            sql.select(
                sessions,
                people.c.role,
                people.c.disabled,
                tokens.c.revoked,
                tokens.c.expires.label("token_expires"),
            )
            .join(people, people.c.name == sessions.c.person)
            .outerjoin(tokens, tokens.c.id == sessions.c.token)
            .where(sessions.c.hash == quick_hash(value))
        )
        if row is None or row["disabled"] or row["revoked"]:
            raise NotSignedIn
        if min(row["expires"], row["token_expires"] or row["expires"]) <= time.time():
            raise NotSignedIn
        return Person(row["person"], row["role"], row["token"], csrf_of(value))

    def end(self, value: str) -> None:
        """End a session."""
        self._store.change(sessions.delete().where(sessions.c.hash == quick_hash(value)))

    def by_proxy(self, headers: Mapping[str, str], address: str) -> Person:
        """Return the person whom a trusted proxy vouches for; a new name becomes a person."""
        name, role = headers.get("x-expost-user", ""), headers.get("x-expost-role", "")
        moment, given = headers.get("x-expost-time", ""), headers.get("x-expost-signature", "")
        if self._proxy_key is None or not self._proxy_signed(name, role, moment, given):
            self._people.check_limit(address)
            self._people.failed(address)
            raise NotSignedIn
        row = self._store.row(sql.select(people).where(people.c.name == name))
        if row is None:
            self._people.add(name, role, "the proxy")
        elif row["disabled"] or row["role"] != role:
            raise NotSignedIn
        return Person(name, role)

    def _proxy_signed(self, name: str, role: str, moment: str, given: str) -> bool:
        """Whether the headers are signed, fresh and well formed."""
        assert self._proxy_key is not None
        wanted = proxy_signature(self._proxy_key, name, role, moment)
        if not hmac.compare_digest(wanted.encode(), given.encode("utf-8", "replace")):
            return False
        fresh = moment.isascii() and moment.isdigit() and len(moment) < 12
        if not fresh or abs(time.time() - int(moment)) > PROXY_SECONDS or role not in ROLES:
            return False
        try:
            check_name(name)
        except InvalidInput:
            return False
        return True

    def first_link(self, *, again: bool = False) -> str | None:
        """Return a new secret for the first owner; None if there is an owner, unless ``again``."""
        value, now = secrets.token_urlsafe(32), time.time()

        def work(connection: sql.Connection) -> bool:
            owner = sql.select(people).where(people.c.role == OWNER, people.c.disabled.is_(False))
            if connection.execute(owner).first() is not None and not again:
                return False
            connection.execute(links.delete())  # an older link stops working
            connection.execute(
                links.insert().values(
                    hash=quick_hash(value), expires=now + LINK_SECONDS, used=False
                )
            )
            return True

        return value if self._store.write(work) else None

    def use_link(self, value: str, name: str, address: str) -> Person:
        """Make the first owner; a link works once."""
        check_name(name)

        def work(connection: sql.Connection) -> bool:
            changed = connection.execute(
                links.update()
                .where(
                    links.c.hash == quick_hash(value),
                    links.c.used.is_(False),
                    links.c.expires > time.time(),
                )
                .values(used=True)
            )
            if not changed.rowcount:
                return False
            taken = sql.select(people).where(people.c.name == name)
            if connection.execute(taken).first() is not None:
                raise Conflict("there is a person with this name already", "name", "another name")
            connection.execute(
                people.insert().values(name=name, role=OWNER, created=time.time(), disabled=False)
            )
            audit_log.record(connection, name, "first owner", {"name": name})
            return True

        if not self._store.write(work):
            self._people.check_limit(address)
            self._people.failed(address)
            raise NotSignedIn
        return Person(name, OWNER)


def csrf_of(cookie: str) -> str:
    """Return the CSRF value of a session."""
    return hmac.digest(cookie.encode(), b"expost csrf", "sha256").hex()


def proxy_signature(key: bytes, name: str, role: str, moment: str) -> str:
    """Return the signature that a proxy puts into ``X-Expost-Signature``."""
    text = f"{name}\n{role}\n{moment}".encode("utf-8", "replace")
    return hmac.digest(key, text, "sha256").hex()
