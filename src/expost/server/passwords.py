"""Tokens: random secrets that are shown once and stored as a slow hash (scrypt).

A token reads ``expost_ID_SECRET``. The id finds the row; only the secret is hashed. Hashes are
compared in constant time. A process remembers which tokens it has checked as keyed digests in
memory, so that the slow hash is computed once per token and process; whether a token is revoked or
expired is read from the database every time. Tests: ``tests/server/test_people.py``.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading

_COST = {"n": 2**14, "r": 8, "p": 1, "maxmem": 64 * 2**20}
_TOKEN = re.compile(r"expost_([0-9a-f]{16})_([0-9A-Za-z_-]{43})")
_MOST_REMEMBERED = 10_000


def new_token() -> tuple[str, str, bytes, bytes]:
    """Draw a token; return it with its id, its salt and the hash of its secret."""
    identity, secret, salt = (
        secrets.token_hex(8),
        secrets.token_urlsafe(32),
        secrets.token_bytes(16),
    )
    return f"expost_{identity}_{secret}", identity, salt, slow_hash(secret, salt)


def parts_of(token: str) -> tuple[str, str] | None:
    """Return id and secret of a token; None if it cannot be one."""
    found = _TOKEN.fullmatch(token) if len(token) < 200 else None
    return None if found is None else (found[1], found[2])


def slow_hash(secret: str, salt: bytes) -> bytes:
    """Return the scrypt hash of a secret."""
    return hashlib.scrypt(secret.encode(), salt=salt, dklen=32, **_COST)


def quick_hash(secret: str) -> str:
    """Return the digest under which a random secret of 256 bits is stored (sessions, links)."""
    return hashlib.sha256(b"expost desk " + secret.encode()).hexdigest()


class Checked:
    """The tokens that this process has checked, as keyed digests."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, None] = {}
        self._lock = threading.Lock()

    def knows(self, secret: str, salt: bytes, stored: bytes) -> bool:
        """Return whether this process has checked the secret before."""
        return self._digest(secret, salt, stored) in self._known

    def _digest(self, secret: str, salt: bytes, stored: bytes) -> bytes:
        return hmac.digest(self._key, salt + stored + secret.encode(), "sha256")

    def matches(self, secret: str, salt: bytes, stored: bytes) -> bool:
        """Return whether the secret has the stored hash."""
        digest = self._digest(secret, salt, stored)
        if digest in self._known:
            return True
        if not hmac.compare_digest(slow_hash(secret, salt), stored):
            return False
        with self._lock:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[digest] = None
        return True
