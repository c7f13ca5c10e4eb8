"""Ed25519 signatures of JSON documents: heads of ledgers, and certificates.

A signature covers the canonical form of a document without its key ``signature``
(:func:`expost.budget.ledger_rows.canonical`), so that reordering keys or changing white space does
not break it, and every other change does.

A hash chain shows that a ledger is consistent, not that it is the one of yesterday: whoever can
write the database can write another consistent chain. A signed head that is kept elsewhere shows
that today's ledger continues it. The private key is as sensitive as the ledger: whoever has it can
sign anything. Tests: ``tests/budget/test_signing.py``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expost.errors import InvalidInput, import_extra
from expost.files import canonical, read_small, require_private

if TYPE_CHECKING:
    from expost.budget.ledger import Ledger

ALGORITHM = "ed25519"
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64


def _ed25519() -> Any:
    """The Ed25519 module of the cryptography package, imported at first use."""
    return import_extra("cryptography.hazmat.primitives.asymmetric.ed25519", "cryptography", "sign")


class SigningKey:
    """A private Ed25519 key; ``seed``: the 32 bytes of the private key."""

    def __init__(self, seed: bytes) -> None:
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(seed)

    def __repr__(self) -> str:
        return f"SigningKey({self.fingerprint})"

    @classmethod
    def create(cls, path: str | Path) -> SigningKey:
        """Make a new key in a file that only its owner can read; the public key goes to .pub."""
        _ed25519()
        seed, file = os.urandom(_KEY_BYTES), Path(path)
        key = cls(seed)
        _write_new(file, f"{ALGORITHM} private {seed.hex()}\n", 0o600)
        _write_new(public_name(file), f"{ALGORITHM} public {key.public}\n", 0o644)
        return key

    @classmethod
    def load(cls, path: str | Path) -> SigningKey:
        """Read a private key; a file that others than its owner can read or write is refused."""
        return cls(_read_key(Path(path), "private"))

    @property
    def public(self) -> str:
        """The public key in hexadecimal."""
        return str(self._key.public_key().public_bytes_raw().hex())

    @property
    def fingerprint(self) -> str:
        """A short name of the public key."""
        return key_fingerprint(self.public)

    def sign_bytes(self, content: bytes) -> bytes:
        """Return the Ed25519 signature of bytes, which must say what they are."""
        return bytes(self._key.sign(content))

    def sign(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document with a signature under the key ``signature``, replacing an old one."""
        content = _unsigned(document)
        value = self._key.sign(_signed_bytes(content))
        signature = {
            "algorithm": ALGORITHM,
            "public_key": self.public,
            "value": base64.b64encode(value).decode("ascii"),
        }
        return {**content, "signature": signature}


def public_name(path: Path) -> Path:
    """Return the name of the file of the public key that belongs to a private one."""
    return path.with_name(path.name + ".pub")


def load_public(path: str | Path) -> str:
    """Return the public key in a file that :meth:`SigningKey.create` wrote, in hexadecimal."""
    return _read_key(Path(path), "public").hex()


def key_fingerprint(public: str) -> str:
    """Return a short name of a public key: 16 digits of its hash; "unreadable" if it is none."""
    try:
        return hashlib.sha256(bytes.fromhex(public)).hexdigest()[:16]
    except ValueError:
        return "unreadable"


def signature_problem(document: Mapping[str, Any], public: str | None = None) -> str | None:
    """Say what is wrong with the signature of a document; None if it is valid.

    ``public``: the public key that must have signed it. Without it, the key inside the document is
    used, which shows only that the document was not changed since it was signed by somebody.
    """
    signature = document.get("signature")
    if not isinstance(signature, Mapping):
        return "it is not signed"
    try:
        named = str(signature["public_key"])
        value = base64.b64decode(str(signature["value"]), validate=True)
        algorithm, key = str(signature["algorithm"]), bytes.fromhex(public or named)
    except (KeyError, ValueError):
        return "its signature cannot be read"
    if algorithm != ALGORITHM or len(key) != _KEY_BYTES or len(value) != _SIGNATURE_BYTES:
        return "its signature cannot be read"
    if public is not None and named != public:
        return f"it was signed with another key ({key_fingerprint(named)})"
    from cryptography.exceptions import InvalidSignature

    try:
        _ed25519().Ed25519PublicKey.from_public_bytes(key).verify(
            value, _signed_bytes(_unsigned(document))
        )
    except (InvalidSignature, ValueError, TypeError):
        return "it was changed after it was signed"
    return None


def signed_head(ledger: Ledger, key: SigningKey, time: str) -> dict[str, Any]:
    """Return the signed head of a ledger at a time (ISO 8601), to be kept elsewhere."""
    sequence, last = ledger.head()
    return key.sign(
        {
            "kind": "ledger head",
            "ledger": ledger.identity,
            "sequence": sequence,
            "hash": last,
            "time": time,
        }
    )


def head_problems(
    ledger: Ledger, document: Mapping[str, Any], public: str | None = None
) -> list[str]:
    """Say why a ledger does not continue a signed head, one line per problem.

    :meth:`Ledger.verify` checks the chain itself.
    """
    wrong = signature_problem(document, public)
    if wrong is not None:
        return [f"head: {wrong}"]
    if document.get("kind") != "ledger head" or type(document.get("sequence")) is not int:
        return ["head: the file is not the head of a ledger"]
    if document.get("ledger") != ledger.identity:
        return ["head: it belongs to another ledger"]
    sequence = int(document["sequence"])
    entry = ledger.entry(sequence)
    if entry is None:
        return [f"head: the ledger had {sequence} rows, and has fewer now (rolled back)"]
    if entry.hash != document.get("hash"):
        return [f"head: row {sequence} is not the one that was signed (replaced)"]
    return []


def load_document(path: str | Path, field: str) -> dict[str, Any]:
    """Return the JSON object in a file; refuse anything else.

    A key that is there twice is refused: programs differ in which of the two they read, so that one
    could show another number than the one that was checked.
    """
    text = read_small(path, field)
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InvalidInput(
            field, str(path), "the file is not JSON, or has a key twice in one object"
        ) from None
    if not isinstance(document, dict):
        raise InvalidInput(field, str(path), "the file does not hold a JSON object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; refused if it has a key twice."""
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError
    return document


def _no_constant(name: str) -> Any:
    """Refuse NaN and Infinity, which are not JSON."""
    raise ValueError(name)


def _unsigned(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "signature"}


def _signed_bytes(content: Mapping[str, Any]) -> bytes:
    # The prefix keeps signatures of this kind apart from those that a key makes elsewhere.
    return b"expost signed document\n" + canonical(content).encode()


def _write_new(path: Path, text: str, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        raise InvalidInput("key", str(path), f"cannot be written: {error.strerror}") from None


def _read_key(path: Path, kind: str) -> bytes:
    try:
        if kind == "private":
            require_private(path, "key")
        words = read_small(path, "key", "ascii").split()
    except OSError as error:
        raise InvalidInput("key", str(path), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        words = []
    valid = f"give a file with an {ALGORITHM} {kind} key, made by: expost ledger keys"
    if words[:2] != [ALGORITHM, kind] or len(words) != 3:
        raise InvalidInput("key", str(path), valid)
    try:
        key = bytes.fromhex(words[2])
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise InvalidInput("key", str(path), valid)
    return key
