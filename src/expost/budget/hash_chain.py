"""The hash chain of a ledger: each entry contains the hash of the entry before it.

An edited, removed or moved row therefore breaks the chain, and ``Ledger.verify`` reports it. A hash
is not a signature: whoever can write the database can write a consistent forgery. A signed head
that is kept elsewhere (:mod:`expost.budget.signing`) detects it.
Tests: ``tests/budget/test_ledger.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

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


_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)
_CONTENT = tuple(each.name for each in fields(Entry) if each.name != "hash")


def digest(content: Any) -> str:
    """Return the SHA-256 of a JSON document in canonical form, in hexadecimal."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def canonical(content: Any) -> str:
    """Return a JSON document as canonical text: sorted keys, no spaces, ASCII only."""
    return _ENCODER.encode(content)


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
