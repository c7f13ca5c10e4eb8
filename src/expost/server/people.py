"""Owners, analysts and auditors, and their tokens. Tests: ``tests/server/test_people.py``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from expost.errors import InvalidInput
from expost.server import acts
from expost.server.passwords import Checked, new_token, parts_of, slow_hash
from expost.server.problems import Conflict, Missing, NotSignedIn
from expost.server.store import DeskStore
from expost.server.tables import people, sessions, tokens

OWNER, ANALYST, AUDITOR = "owner", "analyst", "auditor"
ROLES = (OWNER, ANALYST, AUDITOR)
DAY = 86_400.0
LONGEST_DAYS = 366
_NAME = re.compile(r"[^\W_][\w.@+-]{0,63}")


@dataclass(frozen=True)
class Person:
    """Who acts.

    Parameters
    ----------
    name, role : str
        The person, and what they may do: ``"owner"``, ``"analyst"`` or ``"auditor"``.
    token : str, optional
        The id of the token with which they signed in.
    csrf : str, optional
        What forms and unsafe calls must repeat if the person is known by a cookie.
    """

    name: str
    role: str
    token: str | None = None
    csrf: str | None = None


def check_name(name: str, field: str = "name") -> str:
    """Return a name of a person, a data set or a budget, or refuse it."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            field,
            name,
            "give 1 to 64 letters, digits and . _ @ + -, beginning with a letter or digit",
        )
    return name


class People:
    """The people of a desk.

    Parameters
    ----------
    store : DeskStore
        The database.
    """

    def __init__(self, store: DeskStore) -> None:
        self._store = store
        self._checked = Checked()

    def listed(self) -> list[dict[str, Any]]:
        """Return everybody, by name."""
        return self._store.rows(sql.select(people).order_by(people.c.name))

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
            acts.record(connection, by, "add person", {"name": name, "role": role})

        self._store.write(work)

    def disable(self, name: str, by: str) -> None:
        """Take away a person's access; their tokens and sessions end. Their entries stay."""

        def work(connection: sql.Connection) -> None:
            if name == by:
                raise Conflict("owners cannot disable themselves", "name", "ask another owner")
            found = connection.execute(
                people.update()
                .where(people.c.name == name, people.c.disabled.is_(False))
                .values(disabled=True)
            )
            if not found.rowcount:
                raise Missing("there is no such person", "name")
            connection.execute(tokens.update().where(tokens.c.person == name).values(revoked=True))
            connection.execute(sessions.delete().where(sessions.c.person == name))
            acts.record(connection, by, "disable person", {"name": name})

        self._store.write(work)

    def new_token(self, person: str, by: str, days: float = 90, note: str = "") -> dict[str, Any]:
        """Make a token. Its text is returned here and never again."""
        if not 0 < days <= LONGEST_DAYS:
            raise InvalidInput("days", days, f"give more than 0 and at most {LONGEST_DAYS} days")
        text, identity, salt, hashed = new_token()
        now = time.time()

        def work(connection: sql.Connection) -> None:
            found = connection.execute(
                sql.select(people).where(people.c.name == person, people.c.disabled.is_(False))
            ).first()
            if found is None:
                raise Missing("there is no such person", "person")
            connection.execute(
                tokens.insert().values(
                    id=identity,
                    person=person,
                    salt=salt,
                    hash=hashed,
                    note=note,
                    created=now,
                    expires=now + days * DAY,
                    revoked=False,
                )
            )
            acts.record(connection, by, "new token", {"person": person, "id": identity})

        self._store.write(work)
        return {"token": text, "id": identity, "person": person, "expires": now + days * DAY}

    def tokens_of(self, person: str | None) -> list[dict[str, Any]]:
        """Return the tokens of a person, or of everybody, without anything secret."""
        shown = (
            tokens.c.id,
            tokens.c.person,
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
            found = connection.execute(tokens.update().where(*mine).values(revoked=True))
            if not found.rowcount:
                raise Missing("there is no such token", "id")
            connection.execute(sessions.delete().where(sessions.c.token == identity))
            acts.record(connection, by, "revoke token", {"id": identity})

        self._store.write(work)

    def by_token(self, text: str, before_hash: Callable[[], None] = lambda: None) -> Person:
        """Return the person of a valid token; every other text is refused in the same words.

        ``before_hash`` is called before a secret is hashed, which this process does once per token.
        """
        found = parts_of(text)
        if found is None:
            raise NotSignedIn
        identity, secret = found
        row = self._store.row(
            sql.select(tokens, people.c.role, people.c.disabled)
            .join(people, people.c.name == tokens.c.person)
            .where(tokens.c.id == identity)
        )
        if row is None:
            before_hash()
            slow_hash(secret, b"no such token...")  # as slow as a known id
            raise NotSignedIn
        if not self._checked.knows(secret, row["salt"], row["hash"]):
            before_hash()
        same = self._checked.matches(secret, row["salt"], row["hash"])
        if not same or row["revoked"] or row["disabled"] or row["expires"] <= time.time():
            raise NotSignedIn
        return Person(row["person"], row["role"], identity)
