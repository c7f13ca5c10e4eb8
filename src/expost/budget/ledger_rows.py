"""The tables of a ledger, its hash chain, and checks of what callers pass to it.

Each entry contains the hash of the entry before it, so an edited, removed or moved row breaks the
chain, and ``Ledger.verify`` reports it. A hash is not a signature: whoever can write the database
can write a consistent forgery. A signed head that is kept elsewhere (:mod:`expost.budget.signing`)
detects it. The checks are the same for every database. Nothing here knows privacy; transactions are
in :mod:`expost.budget.store`. Tests: ``tests/budget/test_ledger.py``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from expost.budget.limits import Budget
from expost.errors import ExpostError, InvalidInput, LedgerError
from expost.files import canonical
from expost.mechanisms import NOTHING
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee

GENESIS = "0" * 64

CREATE, CAP, RESERVE, SETTLE, ABANDON = "create", "cap", "reserve", "settle", "abandon"
CHANGE, RENEW, ALERT, UPGRADE = "change", "renew", "alert", "upgrade"


@dataclass(frozen=True)
class Entry:
    """One row of the ledger.

    Parameters
    ----------
    sequence : int
        The number of the entry, starting at 1.
    time : str
        The client's clock, as ISO 8601 text in UTC. Nothing depends on it.
    action : str
        ``"create"``, ``"cap"``, ``"reserve"``, ``"settle"``, ``"abandon"``, ``"change"``,
        ``"renew"``, ``"alert"`` or ``"upgrade"``.
    budget, analyst, reservation : str
        What the entry is about. An empty ``analyst`` means that none was named. ``reservation`` is
        empty for actions that are not about a request.
    detail : str
        JSON text that depends on the action: the terms of a budget; the amounts; the digests of
        charges, request, source and release.
    memo : str
        The note of the caller, or the reason of a change.
    previous : str
        The hash of the entry before this one.
    hash : str
        The hash of all other fields.
    """

    sequence: int
    time: str
    action: str
    budget: str
    analyst: str
    reservation: str
    detail: str
    memo: str
    previous: str
    hash: str = ""

    @classmethod
    def after(cls, head: tuple[int, str], **content: str) -> Entry:
        """Return the entry that follows the entry with this number and this hash."""
        whole: dict[str, Any] = {"sequence": head[0] + 1, "previous": head[1], **content}
        return cls(**whole, hash=digest(whole))

    def computed_hash(self) -> str:
        """Return the hash of the content of the entry."""
        return digest({name: getattr(self, name) for name in _CONTENT})

    @property
    def well_typed(self) -> bool:
        """Whether every column has its type, which SQLite does not enforce."""
        texts = (getattr(self, name) for name in (*_CONTENT[1:], "hash"))
        return type(self.sequence) is int and all(isinstance(text, str) for text in texts)

    @property
    def facts(self) -> dict[str, Any]:
        """The parsed ``detail``."""
        parsed: dict[str, Any] = json.loads(self.detail)
        return parsed


_CONTENT = tuple(column.name for column in fields(Entry) if column.name != "hash")


def digest(content: Any) -> str:
    """Return the SHA-256 of a JSON document in canonical form, in hexadecimal."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def broken_link(entry: Entry, last: int, previous: str) -> Iterator[str]:
    """Yield what is wrong between an entry and the entry before it, given by number and hash."""
    if entry.sequence > last + 1:
        missing = (
            f"row {last + 1}"
            if entry.sequence == last + 2
            else f"rows {last + 1}–{entry.sequence - 1}"
        )
        yield f"{missing}: removed"
    elif entry.sequence <= last:
        yield f"row {entry.sequence}: out of order"
    if entry.hash != entry.computed_hash():
        yield f"row {entry.sequence}: edited (its content does not match its hash)"
    if entry.sequence == last + 1 and entry.previous != previous:
        yield (
            f"row {entry.sequence}: does not follow the row before it "
            "(moved, replaced, or the row before was edited)"
        )


LONGEST_NAME, LONGEST_IDENTITY, LONGEST_MEMO = 200, 64, 10_000
_DIGEST = re.compile("[0-9a-f]{64}")


def outcome_text(outcome: Any) -> str:
    """Return an outcome (the index of a candidate, a Release, or NOTHING) as text."""
    index = outcome.index if _is_release(outcome) else outcome
    if index is None or index is NOTHING:
        return "nothing"
    if isinstance(index, int) and not isinstance(index, bool):
        return str(index)
    raise InvalidInput("outcome", outcome, "give the index of a candidate, a Release, or NOTHING")


def charge_of(charges: Charges, outcome: Any, text: str) -> Guarantee:
    """Return the recorded charge of an outcome; a Release must state the same charge.

    ``text`` is what :func:`outcome_text` returned; the outcome is read once, because the entry
    records the text.
    """
    if text != "nothing" and not 0 <= int(text) < len(charges):
        raise InvalidInput(
            "outcome", int(text), f"the reservation has outcomes 0 to {len(charges) - 1}"
        )
    charge = charges.nothing if text == "nothing" else charges[int(text)]
    if _is_release(outcome) and outcome.spent != charge:
        raise InvalidInput(
            "outcome",
            "a Release",
            "it states another charge than the reservation, so it belongs to another selection",
        )
    return charge


def _is_release(outcome: Any) -> bool:
    """Whether an outcome is a Release, which has its own index and charge."""
    return hasattr(outcome, "spent") and hasattr(outcome, "index")


def check_ledger_name(name: object, field: str, longest: int = LONGEST_NAME) -> None:
    """Refuse a name that some database cannot store."""
    if not _is_text(name, longest) or not name:
        raise InvalidInput(field, name, f"give a text of 1 to {longest} characters")


def check_memo(memo: object) -> None:
    """Refuse a memo that some database cannot store."""
    if not _is_text(memo, LONGEST_MEMO):
        raise InvalidInput("memo", memo, f"give a text of at most {LONGEST_MEMO} characters")


def check_cap(terms: Budget, analyst: str, cap: Budget) -> None:
    """Refuse a cap that does not measure charges as its budget does."""
    check_ledger_name(analyst, "analyst")
    alike = ("kind", "neighbours", "rule", "orders")
    if any(getattr(cap, name, None) != getattr(terms, name, None) for name in alike):
        raise InvalidInput(
            f"caps[{analyst!r}]",
            cap,
            "a cap must have the same kind, neighbouring relation, rule and orders as its budget",
        )


def document_digest(document: object, field: str) -> str | None:
    """Return the digest of a JSON document; a digest in hexadecimal is returned as it is.

    The key ``"signature"`` of a document is left out: a signature is made after the digest.
    """
    if document is None or (isinstance(document, str) and _DIGEST.fullmatch(document)):
        return document
    if isinstance(document, Mapping):
        document = {key: value for key, value in document.items() if key != "signature"}
    try:
        return digest(document)
    except (TypeError, ValueError):
        raise InvalidInput(
            field, type(document).__name__, "give a JSON document, or the SHA-256 digest of one"
        ) from None


def _is_text(value: object, longest: int) -> bool:
    if not isinstance(value, str) or len(value) > longest or "\x00" in value:
        return False
    # Databases reject lone surrogates.
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


SCHEMA_VERSION = 2

RESERVATIONS = (
    "CREATE TABLE expost_reservations (id VARCHAR(64) PRIMARY KEY, budget VARCHAR(200) NOT NULL, "
    "analyst VARCHAR(200) NOT NULL, status VARCHAR(20) NOT NULL, worst TEXT NOT NULL, "
    "charges TEXT NOT NULL, outcome TEXT, entry BIGINT NOT NULL, request VARCHAR(64) NOT NULL, "
    "secret VARCHAR(64) NOT NULL)"
)
TOTALS = (
    "CREATE TABLE expost_totals (budget VARCHAR(200) NOT NULL, analyst VARCHAR(200) NOT NULL, "
    "terms TEXT NOT NULL, settled TEXT NOT NULL, held TEXT NOT NULL, renews VARCHAR(20) NOT NULL, "
    "period VARCHAR(40) NOT NULL, past TEXT NOT NULL, PRIMARY KEY (budget, analyst))"
)
ALERTS = (
    "CREATE TABLE expost_alerts (budget VARCHAR(200) NOT NULL, share VARCHAR(40) NOT NULL, "
    "command TEXT NOT NULL, PRIMARY KEY (budget, share))"
)
OPEN_INDEX = "CREATE INDEX expost_open ON expost_reservations (budget) WHERE status = 'open'"

_TABLES = (
    "CREATE TABLE expost_meta (name VARCHAR(40) PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE expost_head (place INTEGER PRIMARY KEY, sequence BIGINT NOT NULL, "
    "hash CHAR(64) NOT NULL)",
    TOTALS,
    RESERVATIONS,
    "CREATE TABLE expost_entries (sequence BIGINT PRIMARY KEY, time VARCHAR(40) NOT NULL, "
    "action VARCHAR(20) NOT NULL, budget VARCHAR(200) NOT NULL, analyst VARCHAR(200) NOT NULL, "
    "reservation VARCHAR(64) NOT NULL, detail TEXT NOT NULL, memo TEXT NOT NULL, "
    "previous CHAR(64) NOT NULL, hash CHAR(64) NOT NULL)",
    ALERTS,
    OPEN_INDEX,
)
NAMES = tuple(field.name for field in fields(Entry))
_COLUMNS = ", ".join(NAMES)
_APPEND = (
    f"INSERT INTO expost_entries ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in NAMES)})"
)
_MARK = re.compile(r":(\w+)")
_READS = ("SELECT", "PRAGMA", "SHOW", "SET", "BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK")


class LedgerRows:
    """Read and write rows inside one transaction.

    Statements name their parameters as ``:name`` and go directly to the driver. ``before_change``
    is called once, before the first statement that changes the database.
    """

    def __init__(
        self, backend: str, connection: Any, before_change: Callable[[], None] | None = None
    ) -> None:
        self.backend = backend
        self.changed = False
        self.last: tuple[int, str] = (0, "")  # number and hash of the entry that was last written
        self._before_change = before_change
        self._cursor = connection.cursor()

    def run(self, statement: str, **values: Any) -> Any:
        """Execute a statement and return the cursor."""
        if not self.changed and not statement.startswith(_READS):
            self.changed = True
            if self._before_change is not None:
                self._before_change()
        self._cursor.execute(
            statement if self.backend == "sqlite" else _MARK.sub(r"%(\1)s", statement), values
        )
        return self._cursor

    def all(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        rows: list[tuple[Any, ...]] = self.run(statement, **values).fetchall()
        return rows

    def first(self, statement: str, **values: Any) -> tuple[Any, ...] | None:
        """Return the first row of a query, or None."""
        rows = self.all(statement, **values)
        return rows[0] if rows else None

    def one(self, statement: str, **values: Any) -> tuple[Any, ...]:
        """Return the first row of a query that must have one."""
        row = self.first(statement, **values)
        if row is None:
            raise LedgerError("the ledger is damaged: a row is missing; run: expost ledger verify")
        return row

    def change(self, statement: str, **values: Any) -> None:
        """Write exactly one row.

        A row that is not found, for example because of a damaged index, is an error: otherwise a
        charge would be lost silently.
        """
        if self.run(statement, **values).rowcount != 1:
            raise LedgerError(
                "the ledger is damaged: a row could not be written; run: expost ledger verify"
            )

    def create_tables(self) -> None:
        """Make the tables of an empty ledger."""
        for statement in _TABLES:
            self.run(self.typed(statement))
        self.change(
            "INSERT INTO expost_meta VALUES ('schema', :version)", version=str(SCHEMA_VERSION)
        )
        self.change("INSERT INTO expost_head VALUES (1, 0, :hash)", hash=GENESIS)

    def typed(self, statement: str) -> str:
        """Return a table definition with the key type of this database."""
        # In SQLite an INTEGER key is the row number itself and needs no second index.
        number = "INTEGER" if self.backend == "sqlite" else "BIGINT"
        return statement.replace("BIGINT PRIMARY", f"{number} PRIMARY")

    def has_tables(self) -> bool:
        """Return whether there is a ledger of any schema."""
        look = (
            "SELECT (SELECT name FROM sqlite_master WHERE name = 'expost_meta')"
            if self.backend == "sqlite"
            else "SELECT to_regclass('expost_meta')"
        )
        return self.one(look)[0] is not None

    def schema(self) -> int:
        """Return the number of the ledger's schema."""
        schema = str(self.one("SELECT value FROM expost_meta WHERE name = 'schema'")[0])
        if not schema.isdecimal():
            raise LedgerError(
                f"the ledger is damaged: its schema is {schema!r}, which is not a number"
            )
        return int(schema)

    def damage(self) -> Iterator[str]:
        """Yield what the database itself finds wrong with its file (SQLite: pages and indexes)."""
        if self.backend == "sqlite":
            lines = [str(row[0]) for row in self.all("PRAGMA integrity_check")]
            yield from (f"file: {problem}" for problem in lines if problem != "ok")

    def lock_head(self, *, read_only: bool = False) -> tuple[int, str]:
        """Return the number and hash of the last entry, and lock it against other writers."""
        lock = " FOR UPDATE" if self.backend == "postgresql" and not read_only else ""
        sequence, last = self.one(f"SELECT sequence, hash FROM expost_head WHERE place = 1{lock}")
        if type(sequence) is not int:
            raise LedgerError("the ledger is damaged at its head; run: expost ledger verify")
        return sequence, str(last)

    def read_last(self) -> tuple[int, str]:
        """Return the number and hash of the last entry; (0, "") where the head is damaged."""
        head = self.first("SELECT sequence, hash FROM expost_head WHERE place = 1")
        return (head[0], str(head[1])) if head and type(head[0]) is int else (0, "")

    def hash_of(self, sequence: int) -> str | None:
        """Return the hash of the entry with this number, or None."""
        row = self.first("SELECT hash FROM expost_entries WHERE sequence = :s", s=sequence)
        return None if row is None else str(row[0])

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of the transaction that is undone if it raises an error."""
        self.run("SAVEPOINT expost_request")
        try:
            yield
        except ExpostError:
            self.run("ROLLBACK TO SAVEPOINT expost_request")
            self.run("RELEASE SAVEPOINT expost_request")
            raise
        self.run("RELEASE SAVEPOINT expost_request")

    def append(self, entry: Entry) -> None:
        """Write an entry after the last one and make it the last one."""
        self.change(_APPEND, **vars(entry))
        self.change(
            "UPDATE expost_head SET sequence = :s, hash = :h WHERE place = 1",
            s=entry.sequence,
            h=entry.hash,
        )
        self.last = (entry.sequence, entry.hash)

    def entry(self, sequence: int) -> Entry | None:
        """Return the entry with this number, or None."""
        row = self.first(f"SELECT {_COLUMNS} FROM expost_entries WHERE sequence = :s", s=sequence)
        return None if row is None else Entry(*row)

    def entries(self, after: int | None = None, limit: int = 10_000) -> list[Entry]:
        """Return up to ``limit`` entries in order: those after number ``after``, or the first."""
        where, values = (
            ("", {}) if after is None else ("WHERE sequence > :after ", {"after": after})
        )
        statement = f"SELECT {_COLUMNS} FROM expost_entries {where}ORDER BY sequence LIMIT :limit"
        return [Entry(*row) for row in self.all(statement, limit=limit, **values)]
