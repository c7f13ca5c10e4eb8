"""The hash chain: every entry holds the hash of the one before, so no row can be edited, removed or moved unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
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

    def computed_hash(self) -> str:
        """The hash that the entry's own content calls for."""
        content = {key: value for key, value in asdict(self).items() if key != "hash"}
        return digest(content)

    @property
    def facts(self) -> dict[str, Any]:
        """The detail, parsed."""
        parsed: dict[str, Any] = json.loads(self.detail)
        return parsed


def digest(content: Any) -> str:
    """SHA-256 of a JSON document in canonical form."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def canonical(content: Any) -> str:
    """The one way a JSON document is written here."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def broken_links(entries: Iterable[Entry]) -> Iterator[str]:
    """What is wrong with the chain itself, row by row."""
    expected, previous = 1, GENESIS
    for entry in entries:
        if entry.sequence != expected:
            missing = f"row {expected}" if entry.sequence == expected + 1 else f"rows {expected}–{entry.sequence - 1}"
            yield f"{missing}: removed"
        if entry.hash != entry.computed_hash():
            yield f"row {entry.sequence}: edited (its content does not match its hash)"
        if entry.sequence == expected and entry.previous != previous:
            yield f"row {entry.sequence}: does not follow the row before it (moved, replaced, or the row before was edited)"
        expected, previous = entry.sequence + 1, entry.hash
