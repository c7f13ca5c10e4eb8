"""Owners, analysts and auditors: who may do what, their tokens, and limits on wrong ones.

One table says which role may do what; it is checked before every action. A method of the service
that is an action carries the decorator :func:`action`, and its name must be in the table.

A token is shown once and stored as a salted hash. It reads ``expost_ID_SECRET``: the id finds the
row, and the secret has 256 random bits, so that nobody guesses it however fast the hash is. Hashes
are compared in constant time. Failed attempts are counted in the database per address.
Tests: ``tests/server/test_security.py``, ``tests/server/test_roles.py`` (every action and every
endpoint, every role).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sql

from expost.errors import InvalidInput
from expost.server import audit_log
from expost.server.database import ServerDatabase, failures, people, profiles, sessions, tokens
from expost.server.problems import Conflict, Denied, NotFound, NotSignedIn, TooMany

OWNER, ANALYST, AUDITOR = "owner", "analyst", "auditor"
ROLES = (OWNER, ANALYST, AUDITOR)
DAY = 86_400.0
LONGEST_DAYS = 366
_TOKEN = re.compile(r"expost_([0-9a-f]{16})_([0-9A-Za-z_-]{43})")
WINDOW = 300.0
MOST_PER_ADDRESS = 50
MAIL = re.compile(r"[^\s@,;<>()\"]{1,64}@[A-Za-z0-9.-]{1,189}")
_NAME = re.compile(r"[^\W_][\w.@+-]{0,63}")


@dataclass(frozen=True)
class Person:
    """Who acts."""

    name: str
    role: str
    token: str | None = None
    csrf: str | None = None


EVERYBODY = frozenset(ROLES)
OWNERS = frozenset({OWNER})
ASKERS = frozenset({OWNER, ANALYST})
READERS = frozenset({OWNER, AUDITOR})

ALLOWED: dict[str, frozenset[str]] = {
    # what may be asked, and what it costs
    "datasets": EVERYBODY,
    "dataset": EVERYBODY,
    "price": ASKERS,
    "plan": ASKERS,
    "ask": frozenset({ANALYST}),
    # the owner answers for the data and decides; the auditor, who checks the acts, does not
    "approve": OWNERS,
    "decline": OWNERS,
    # requests and releases: analysts see their own
    "requests": EVERYBODY,
    "request": EVERYBODY,
    "releases": EVERYBODY,
    "export": EVERYBODY,
    "release": EVERYBODY,
    "certificate": EVERYBODY,
    "report": EVERYBODY,
    "registry": EVERYBODY,
    "answers": EVERYBODY,
    "model": EVERYBODY,
    "verify_release": EVERYBODY,
    # budgets: analysts see what is left, and their own cap and entries
    "budgets": EVERYBODY,
    "budget": EVERYBODY,
    "history": EVERYBODY,
    "entries": READERS,
    "verify": READERS,
    "acts": READERS,
    # administration
    "register": OWNERS,
    "preview": OWNERS,
    "change_dataset": OWNERS,
    "retire": OWNERS,
    "open_budget": OWNERS,
    "change_budget": OWNERS,
    "people": READERS,
    "add_person": OWNERS,
    "disable_person": OWNERS,
    "enable_person": OWNERS,
    "change_person": OWNERS,
    "tokens": EVERYBODY,
    "new_token": OWNERS,
    "revoke_token": EVERYBODY,
}

# Queries of every call, built once.
_TOKEN_OF = (
    sql.select(tokens, people.c.role, people.c.disabled)
    .join(people, people.c.name == tokens.c.person)
    .where(tokens.c.id == sql.bindparam("identity"))
)
_GROUPS_OF = sql.select(profiles.c.groups).where(profiles.c.person == sql.bindparam("name"))

P = ParamSpec("P")
Result = TypeVar("Result")
Self = TypeVar("Self")


def action(
    method: Callable[Concatenate[Self, Person, P], Result],
) -> Callable[Concatenate[Self, Person, P], Result]:
    """Check the role of the acting person before a method of the service runs."""
    allowed = ALLOWED[method.__name__]

    @wraps(method)
    def checked(self: Self, person: Person, *args: P.args, **kwargs: P.kwargs) -> Result:
        if person.role not in allowed:
            raise Denied(
                "this is not part of your role",
                "role",
                "sign in as " + " or ".join(sorted(allowed)),
            )
        return method(self, person, *args, **kwargs)

    return checked  # type: ignore[return-value]


def check_name(name: str, field: str = "name") -> str:
    """Return a name of a person, a data set or a budget, or refuse it."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            field,
            name,
            "give 1 to 64 letters, digits and . _ @ + -, beginning with a letter or digit",
        )
    return name


def check_group(name: str, field: str = "groups") -> str:
    """Return the name of a group of people, or refuse it."""
    if not 0 < len(name) <= 200 or not name.isprintable() or "," in name or name != name.strip():
        raise InvalidInput(field, name[:40], "give a group in 1 to 200 characters, without commas")
    return name


def _draw_token() -> tuple[str, str, bytes, bytes]:
    """Draw a token; return it with its id, its salt and the hash of its secret."""
    identity, secret, salt = (
        secrets.token_hex(8),
        secrets.token_urlsafe(32),
        secrets.token_bytes(16),
    )
    return f"expost_{identity}_{secret}", identity, salt, token_hash(secret, salt)


def parts_of(token: str) -> tuple[str, str] | None:
    """Return id and secret of a token; None if it cannot be one."""
    match = _TOKEN.fullmatch(token) if len(token) < 200 else None
    return None if match is None else (match[1], match[2])


def token_hash(secret: str, salt: bytes) -> bytes:
    """Return the hash under which the secret of a token is stored."""
    return hmac.digest(salt, b"expost token " + secret.encode(), "sha256")


def quick_hash(secret: str) -> str:
    """Return the digest under which a random secret of 256 bits is stored (sessions, links)."""
    return hashlib.sha256(b"expost server " + secret.encode()).hexdigest()


def write_profile(connection: sql.Connection, name: str, values: dict[str, Any]) -> None:
    """Change the profile of a person, or make one, inside a transaction."""
    same = profiles.c.person == name
    if not connection.execute(profiles.update().where(same).values(**values)).rowcount:
        connection.execute(profiles.insert().values(person=name, **values))


class People:
    """The people of a server."""

    def __init__(self, store: ServerDatabase) -> None:
        self._store = store

    def listed(self) -> list[dict[str, Any]]:
        """Return everybody, by name, with their groups and their address for mail."""
        query = sql.select(people, profiles.c.mail, profiles.c.groups).order_by(people.c.name)
        joined = people.outerjoin(profiles, profiles.c.person == people.c.name)
        rows = self._store.rows(query.select_from(joined))
        return [
            row | {"mail": row["mail"] or "", "groups": json.loads(row["groups"] or "[]")}
            for row in rows
        ]

    def active(self, name: str) -> Person:
        """Return a person who has access; others are refused."""
        row = self._store.row(sql.select(people).where(people.c.name == name))
        if row is None or row["disabled"]:
            raise NotFound("there is no such person", "name")
        return Person(name, row["role"])

    def groups_of(self, name: str) -> set[str]:
        """Return the groups of a person."""
        row = self._store.row(_GROUPS_OF, name=name)
        return set() if row is None else set(json.loads(row["groups"]))

    def asks(self, person: Person) -> Callable[[Mapping[str, Any]], bool]:
        """Return which data sets exist for a person: owners and auditors see all of them."""
        if person.role != ANALYST:
            return lambda _: True
        mine = {person.name, *(f"@{group}" for group in self.groups_of(person.name))}
        return lambda facts: facts.get("askers") is None or not mine.isdisjoint(facts["askers"])

    def set_profile(self, name: str, groups: Iterable[str], mail: str, by: str) -> None:
        """Set the groups and the address of a person."""
        listed = sorted({check_group(group) for group in groups})
        if mail and not MAIL.fullmatch(mail):
            raise InvalidInput("mail", mail[:40], "give an address such as ann@example.org")
        values = {"groups": json.dumps(listed, ensure_ascii=False), "mail": mail}

        def work(connection: sql.Connection) -> None:
            if not connection.execute(sql.select(people).where(people.c.name == name)).first():
                raise NotFound("there is no such person", "name")
            write_profile(connection, name, values)
            detail = {"name": name, "groups": listed, "mail": mail}
            audit_log.record(connection, by, "change person", detail)

        self._store.write(work)

    def add(self, name: str, role: str, by: str) -> None:
        """Add a person."""
        check_name(name)
        if role not in ROLES:
            raise InvalidInput("role", role, "give " + ", ".join(ROLES))

        def work(connection: sql.Connection) -> None:
            if connection.execute(sql.select(people).where(people.c.name == name)).first():
                raise Conflict("there is a person with this name already", "name", "another name")
            connection.execute(
                people.insert().values(name=name, role=role, created=time.time(), disabled=False)
            )
            audit_log.record(connection, by, "add person", {"name": name, "role": role})

        self._store.write(work)

    def disable(self, name: str, by: str) -> None:
        """Take away a person's access; their tokens and sessions end. Their entries stay."""

        def work(connection: sql.Connection) -> None:
            if name == by:
                raise Conflict("owners cannot disable themselves", "name", "ask another owner")
            changed = connection.execute(
                people.update()
                .where(people.c.name == name, people.c.disabled.is_(False))
                .values(disabled=True)
            )
            if not changed.rowcount:
                raise NotFound("there is no such person", "name")
            connection.execute(tokens.update().where(tokens.c.person == name).values(revoked=True))
            connection.execute(sessions.delete().where(sessions.c.person == name))
            audit_log.record(connection, by, "disable person", {"name": name})

        self._store.write(work)

    def enable(self, name: str, by: str) -> None:
        """Give a person access again. Their old tokens stay revoked."""

        def work(connection: sql.Connection) -> None:
            changed = connection.execute(
                people.update()
                .where(people.c.name == name, people.c.disabled.is_(True))
                .values(disabled=False)
            )
            if not changed.rowcount:
                raise NotFound("there is no such person without access", "name")
            audit_log.record(connection, by, "enable person", {"name": name})

        self._store.write(work)

    def new_token(self, person: str, by: str, days: float = 90, note: str = "") -> dict[str, Any]:
        """Make a token. Its text is returned here and never again."""
        if not 0 < days <= LONGEST_DAYS:
            raise InvalidInput("days", days, f"give more than 0 and at most {LONGEST_DAYS} days")
        text, identity, salt, hashed = _draw_token()
        now = time.time()

        def work(connection: sql.Connection) -> None:
            member = connection.execute(
                sql.select(people).where(people.c.name == person, people.c.disabled.is_(False))
            ).first()
            if member is None:
                raise NotFound("there is no such person", "person")
            connection.execute(
                tokens.insert().values(
                    id=identity,
                    person=person,
                    made_by=by,
                    salt=salt,
                    hash=hashed,
                    note=note,
                    created=now,
                    expires=now + days * DAY,
                    revoked=False,
                )
            )
            act = "new token" if by == person else "new token for somebody else"
            audit_log.record(connection, by, act, {"person": person, "id": identity})

        self._store.write(work)
        return {"token": text, "id": identity, "person": person, "expires": now + days * DAY}

    def tokens_of(self, person: str | None) -> list[dict[str, Any]]:
        """Return the tokens of a person, or of everybody, without anything secret."""
        shown = (
            tokens.c.id,
            tokens.c.person,
            tokens.c.made_by,
            tokens.c.note,
            tokens.c.created,
            tokens.c.expires,
            tokens.c.revoked,
        )
        query = sql.select(*shown).order_by(tokens.c.created.desc())
        return self._store.rows(query if person is None else query.where(tokens.c.person == person))

    def revoke(self, identity: str, by: str, person: str | None = None) -> None:
        """Revoke a token, and end the sessions that it began; ``person`` limits whose it may be."""

        def work(connection: sql.Connection) -> None:
            mine = [tokens.c.id == identity, tokens.c.revoked.is_(False)]
            if person is not None:
                mine.append(tokens.c.person == person)
            changed = connection.execute(tokens.update().where(*mine).values(revoked=True))
            if not changed.rowcount:
                raise NotFound("there is no such token", "id")
            connection.execute(sessions.delete().where(sessions.c.token == identity))
            audit_log.record(connection, by, "revoke token", {"id": identity})

        self._store.write(work)

    def by_token(self, text: str, address: str) -> Person:
        """Return the person of a valid token; every other text is refused in the same words.

        Wrong ones are counted. After too many from one address, texts that are no token of this
        server are refused without looking further. A token that exists is always compared: nobody
        locks anybody else out.
        """
        try:
            return self._by_token(text, address)
        except NotSignedIn as error:
            if error.wrong:
                self.failed(address)
            raise

    def _by_token(self, text: str, address: str) -> Person:
        parts = parts_of(text)
        if parts is None:
            self.check_limit(address)
            raise NotSignedIn
        identity, secret = parts
        row = self._store.row(_TOKEN_OF, identity=identity)
        if row is None:
            self.check_limit(address)
            raise NotSignedIn
        if not hmac.compare_digest(token_hash(secret, row["salt"]), row["hash"]):
            raise NotSignedIn
        if row["revoked"] or row["disabled"] or row["expires"] <= time.time():
            raise NotSignedIn(wrong=False)
        return Person(row["person"], row["role"], identity)

    def check_limit(self, address: str) -> None:
        """Refuse further attempts after too many failures."""
        now = time.time()
        query = sql.select(sql.func.count().label("count")).where(
            failures.c.place == address[:200],
            failures.c.time > now - WINDOW,
            failures.c.time <= now + 1,  # later ones were written before the clock was set back
        )
        row = self._store.row(query)
        if row is not None and row["count"] >= MOST_PER_ADDRESS:
            raise TooMany

    def failed(self, address: str) -> None:
        """Count a failed attempt, and forget old ones."""
        now = time.time()

        def work(connection: sql.Connection) -> None:
            connection.execute(failures.delete().where(failures.c.time <= now - WINDOW))
            connection.execute(failures.insert().values(place=address[:200], time=now))

        self._store.write(work)
