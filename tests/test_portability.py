"""The package without ``fcntl`` and other names of POSIX; encodings that are always stated."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "expost"

IMPORTS = """
import importlib, pkgutil
import expost
from expost.errors import MissingExtra
names = [info.name for info in pkgutil.walk_packages(expost.__path__, "expost.")]
assert len(names) > 150
for name in names:
    if name.startswith(("expost.training._", "expost.integrations.transf", "expost.__main__")):
        continue  # compiled kernels and torch: nothing of a platform's files
    try:
        importlib.import_module(name)
    except MissingExtra:
        pass
"""

FILES = """
import os
from expost import Candidate, Ledger, PureDP, RandomDropping
from expost.errors import LedgerError
from expost.files import lock_file, unlock_file
from expost.budget import store

ledger = Ledger.create("ledger.db", PureDP(10))
job = ledger.reserve(PureDP(0.25), "first")
ledger.settle(job, 0)
store.BUSY_SECONDS = 0.2
os.rename("ledger.db", "moved.db")
moved = Ledger.open("moved.db")
assert moved.verify() == [] and moved.remaining() == 9.75
os.link("moved.db", "second.db")
try:
    moved.reserve(PureDP(0.1))
except LedgerError as error:
    assert "hard links" in str(error)
else:
    raise AssertionError
os.unlink("second.db")

first, second = (os.open("moved.db", os.O_RDWR) for _ in range(2))
lock_file(first)
for shared in (True, False):
    try:
        lock_file(second, alone=not shared)
    except BlockingIOError:
        continue
    raise AssertionError
try:
    Ledger.open("moved.db").reserve(PureDP(0.1))
except LedgerError as error:
    assert "another process has held it" in str(error)
else:
    raise AssertionError
unlock_file(first)
lock_file(second, wait=True)
os.close(second)
moved.reserve(PureDP(0.1))

class Answer:
    guarantee = PureDP(0.1)
    def __call__(self, data, randomness):
        if os.path.exists("interrupt"):
            raise KeyboardInterrupt
        return 1.0

def select():
    return RandomDropping(0.5).select(
        [Candidate(Answer(), repeats=40)], None, checkpoint="run.ckpt", ledger=moved
    )

open("interrupt", "x").close()
before = moved.remaining()
try:
    select()
except KeyboardInterrupt:
    held = moved.remaining()
    assert held < before
    os.unlink("interrupt")
    select()
    assert moved.remaining() >= held  # the same reservation was settled
assert not os.path.exists("run.ckpt") and moved.verify() == []
"""


@pytest.mark.parametrize("script", [IMPORTS, FILES], ids=["imports", "files"])
def test_without_posix(script: str, tmp_path: Path) -> None:
    """Hides what Windows lacks, in a process of its own."""
    code = f"from tests.without_posix import hide\nhide()\n{script}"
    environment = {"PYTHONPATH": f"{SOURCE.parent}:{SOURCE.parent.parent}", "PATH": ""}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr


def unstated_encodings(source: str) -> list[int]:
    """Lines that open a text file, or read or write its text, in the platform's own encoding."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or any(word.arg == "encoding" for word in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else None
        texts = [getattr(part, "value", "") for part in node.args]
        if name in ("read_text", "write_text") and len(node.args) < 1 + (name == "write_text"):
            lines.append(node.lineno)
        binary = any(isinstance(text, str) and "b" in text for text in texts[1:2])
        if isinstance(node.func, ast.Name) and node.func.id == "open" and not binary:
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=str)
def test_encodings_are_stated(path: Path) -> None:
    assert unstated_encodings(path.read_text(encoding="utf-8")) == []


def test_an_encoding_that_is_not_stated_is_found() -> None:
    """Test of the test."""
    for source in ("open('a')", "open('a', 'w')", "path.read_text()", "path.write_text('x')"):
        assert unstated_encodings(source) == [1]
    for source in ("open('a', 'rb')", "open('a', encoding='utf-8')", "path.read_text('utf-8')"):
        assert unstated_encodings(source) == []
