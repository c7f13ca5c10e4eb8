"""The hash chain: every entry holds the hash of the one before, so no row can be edited, removed or moved unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

GENESIS = "0" * 64

CREATE, CAP, RESERVE, SETTLE, ABANDON = "create", "cap", "reserve", "settle", "abandon"


@dataclass(frozen=True)
class Entry:
    """One line of the ledger. ``detail`` is JSON text: terms, amounts, or the charges' digest, by action."""

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
        """The entry that follows the one with this number and hash."""
        whole: dict[str, Any] = {"sequence": head[0] + 1, "previous": head[1], **content}
        return cls(**whole, hash=digest(whole))

    def computed_hash(self) -> str:
        """The hash that the entry's own content calls for."""
        return digest({name: getattr(self, name) for name in _CONTENT})

    @property
    def well_typed(self) -> bool:
        """Whether every column holds what it should (SQLite does not insist)."""
        texts = (getattr(self, name) for name in (*_CONTENT[1:], "hash"))
        return type(self.sequence) is int and all(isinstance(text, str) for text in texts)

    @property
    def facts(self) -> dict[str, Any]:
        """The detail, parsed."""
        parsed: dict[str, Any] = json.loads(self.detail)
        return parsed


_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)
_CONTENT = tuple(each.name for each in fields(Entry) if each.name != "hash")


def digest(content: Any) -> str:
    """SHA-256 of a JSON document in canonical form."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def canonical(content: Any) -> str:
    """The one way a JSON document is written here."""
    return _ENCODER.encode(content)


def broken_link(entry: Entry, last: int, previous: str) -> Iterator[str]:
    """What is wrong between an entry and the one before it, whose number and hash are given."""
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
        yield f"row {entry.sequence}: does not follow the row before it (moved, replaced, or the row before was edited)"
