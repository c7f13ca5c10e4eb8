"""Canonical JSON and DSSE: the same bytes as ECMAScript, and signatures that Node.js verifies."""

from __future__ import annotations

import base64
import json
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from expost.budget.signing import SigningKey
from expost.certificates.self_assessment import canonical_json, envelope, signed_bytes
from expost.errors import InvalidInput

NODE = shutil.which("node")
PAGE = Path(__file__).parents[2] / "docs" / "evidence.md"
pytest.importorskip("cryptography")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (123456.789, "123456.789"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (-1.5e-9, "-1.5e-9"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (2**53, "9007199254740992"),
        ({"b": [True, None], "a": "é\n\u2028"}, '{"a":"é\\n\u2028","b":[true,null]}'),
        ({"\U0001f600": 1, "\ufb33": 2}, '{"\U0001f600":1,"\ufb33":2}'),  # UTF-16, not code points
    ],
)
def test_canonical_json(value: Any, text: str) -> None:
    assert canonical_json(value).decode() == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53 + 1, {1, 2}])
def test_what_is_not_json(value: Any) -> None:
    with pytest.raises(InvalidInput):
        canonical_json(value)


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
def test_numbers_are_those_of_ecmascript() -> None:
    draw = random.Random(1)
    bits = [struct.unpack("d", struct.pack("Q", draw.getrandbits(64)))[0] for _ in range(2000)]
    numbers = [value for value in bits if abs(value) < float("inf")]
    numbers += [draw.uniform(-1, 1) * 10.0 ** draw.randint(-12, 25) for _ in range(2000)]
    script = "process.stdout.write(JSON.stringify(JSON.parse(require('fs').readFileSync(0))))"
    written = subprocess.run(
        [str(NODE), "-e", script],
        input=json.dumps(numbers),
        capture_output=True,
        text=True,
        check=True,
    )
    assert canonical_json(numbers).decode() == written.stdout


def test_what_is_signed() -> None:
    assert signed_bytes(b"hello", "http://example") == b"DSSEv1 14 http://example 5 hello"


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
def test_the_ten_lines_of_the_page(tmp_path: Path) -> None:
    (script,) = re.findall(r"```js\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(script.splitlines()) == 10
    (tmp_path / "verify.js").write_text(script, encoding="utf-8")
    key = SigningKey.create(tmp_path / "office.key")
    SigningKey.create(tmp_path / "other.key")
    content = b'{"epsilon": 0.1, "name": "B\xc3\xa9la"}\n'
    (tmp_path / "c.json").write_bytes(content)
    (tmp_path / "changed.json").write_bytes(content.replace(b"0.1", b"0.2"))
    signed = envelope(json.loads(content), "urn:test", {"c.json": content}, key)
    payload = json.loads(base64.b64decode(signed["payload"]))
    payload["predicate"]["epsilon"] = 0.05
    forged = signed | {"payload": base64.b64encode(canonical_json(payload)).decode()}
    for name, document in (("signed", signed), ("forged", forged)):
        (tmp_path / f"{name}.json").write_bytes(canonical_json(document))

    def run(envelope_name: str, key_name: str, certificate: str) -> str:
        files = [f"{envelope_name}.json", f"{key_name}.key.pub", f"{certificate}.json"]
        command = [str(NODE), "verify.js", *files]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert run("signed", "office", "c") == "valid"
    assert run("forged", "office", "c") == "NOT VALID"
    assert run("signed", "other", "c") == "NOT VALID"
    assert run("signed", "office", "changed") == "NOT VALID"
