"""The log of administrative acts: append-only, each with the hash of the one before it.

Tests: ``tests/server/test_service.py``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sql

from expost.budget.ledger_rows import GENESIS
from expost.server.database import ServerDatabase, acts


def record(connection: sql.Connection, person: str, act: str, detail: Mapping[str, Any]) -> None:
    """Append an act inside the transaction that performs it."""
    if connection.dialect.name == "postgresql":
        connection.execute(sql.text("LOCK TABLE server_acts IN EXCLUSIVE MODE"))
    last = connection.execute(
        sql.select(acts.c.number, acts.c.hash).order_by(acts.c.number.desc()).limit(1)
    ).first()
    row = {
        "number": 1 if last is None else last.number + 1,
        "time": time.time(),
        "person": person,
        "act": act,
        "detail": json.dumps(detail, sort_keys=True, ensure_ascii=False),
        "previous": GENESIS if last is None else last.hash,
    }
    connection.execute(acts.insert().values(**row, hash=_hash(row)))


def list_acts(store: ServerDatabase, after: int = 0, limit: int = 500) -> list[dict[str, Any]]:
    """Return acts with a larger number than ``after``, oldest first."""
    query = sql.select(acts).where(acts.c.number > after).order_by(acts.c.number).limit(limit)
    return [row | {"detail": json.loads(row["detail"])} for row in store.rows(query)]


def count_acts(store: ServerDatabase) -> int:
    """Return how many acts there are."""
    return int(
        store.rows(sql.select(sql.func.count().label("count")).select_from(acts))[0]["count"]
    )


def problems(store: ServerDatabase) -> list[str]:
    """Return what is wrong with the chain of acts, one line per problem."""
    return list(breaks(store.rows(sql.select(acts).order_by(acts.c.number))))


def breaks(rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Return where a list of acts is not a chain."""
    problems, previous = [], GENESIS
    for number, row in enumerate(rows, start=1):
        facts = {key: value for key, value in row.items() if key != "hash"}
        if row["number"] != number or row["previous"] != previous or row["hash"] != _hash(facts):
            problems.append(f"act {row['number']} was changed, moved or removed")
        previous = row["hash"]
    return problems


def _hash(row: Mapping[str, Any]) -> str:
    """The hash of all fields but the hash itself."""
    text = json.dumps({key: row[key] for key in sorted(row)}, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
