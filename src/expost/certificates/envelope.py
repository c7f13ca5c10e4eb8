"""Documents that others can verify without expost: canonical JSON (RFC 8785) in a DSSE envelope.

The payload is an in-toto statement: which files it is about (their SHA-256), and the document. What
is signed with Ed25519 is the pre-authentication encoding of DSSE, which names the type and both
lengths. Tests: ``tests/certificates/test_envelope.py``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from expost.budget.signing import SigningKey
from expost.errors import InvalidInput

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_LARGEST = 2**53


def canonical_json(value: Any) -> bytes:
    """Return a JSON document in the form of RFC 8785: one text for each document.

    Numbers are written as ECMAScript writes them, keys are sorted by UTF-16 code units. Whole
    numbers beyond 2⁵³ are refused, because other readers would round them.
    """
    return _text(value).encode("utf-8")


def _text(value: Any) -> str:
    """A value as canonical text."""
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        if abs(value) > _LARGEST:
            raise InvalidInput("document", "a whole number", "RFC 8785 has numbers up to 2^53")
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        members = sorted(value.items(), key=lambda item: str(item[0]).encode("utf-16-be"))
        return "{" + ",".join(f"{_text(str(key))}:{_text(member)}" for key, member in members) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_text, value)) + "]"
    raise InvalidInput("document", type(value).__name__, "give a JSON document")


def _number(value: float) -> str:
    """A float as ECMAScript's Number.toString writes it: the shortest digits that mean it."""
    if not math.isfinite(value):
        raise InvalidInput("document", "NaN or infinity", "give finite numbers")
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text, point = "".join(map(str, digits)), len(digits) + int(exponent)  # 0.text × 10^point
    if 0 < point <= 21:
        shown = text.ljust(point, "0") if len(text) <= point else f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        shown = "0." + "0" * -point + text
    else:
        head = text if len(text) == 1 else f"{text[0]}.{text[1:]}"
        shown = f"{head}e{point - 1:+d}"
    return "-" * sign + shown


def signed_bytes(payload: bytes, kind: str = PAYLOAD_TYPE) -> bytes:
    """Return what a DSSE signature covers."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def envelope(
    predicate: Mapping[str, Any], kind: str, files: Mapping[str, bytes], key: SigningKey
) -> dict[str, Any]:
    """Return a signed in-toto statement about files.

    ``kind`` is the URI of the predicate's type; ``files`` are the subjects by name.
    """
    subjects = [
        {"name": name, "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
        for name, content in sorted(files.items())
    ]
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": subjects,
        "predicateType": kind,
        "predicate": predicate,
    }
    payload = canonical_json(statement)
    signature = key.sign_bytes(signed_bytes(payload))
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode("ascii"),
        "signatures": [
            {"keyid": key.fingerprint, "sig": base64.b64encode(signature).decode("ascii")}
        ],
    }
