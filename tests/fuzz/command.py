"""Run the real command in this process, with its outermost error handler, and read its ledger."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from unittest import mock

from expost.budget.ledger import Ledger
from expost.cli.main import main

LONGEST = 60  # seconds; a plan takes up to ten, and more on a busy machine
FORESEEN = (0, 1, 2, 3)
SETTINGS = {"COLUMNS": "400", "EXPOST_TRACEBACK": "1"}


class Hangs(BaseException):
    """A command that does not end; no handler of the command catches it."""


@dataclass(frozen=True)
class Done:
    """How a command ended and all it wrote."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def expost(*arguments: str) -> Done:
    """Run ``expost ARGUMENTS``; raise what a user would see as a traceback or a warning.

    Streams are as a terminal's: stdout refuses what is no UTF-8, stderr escapes it.
    """
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(
        io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True
    )
    words = mock.patch.object(sys, "argv", ["expost", *arguments])
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        mock.patch.dict(os.environ, SETTINGS),
        words,
        _limited(),
        _strict(),
    ):
        code = _exit_code()
    return Done(code, *(stream.buffer.getvalue().decode("utf-8") for stream in (out, err)))  # type: ignore[attr-defined]


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


@contextmanager
def _strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@contextmanager
def _limited() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"no end after {LONGEST} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def assert_refused(done: Done) -> None:
    """Bad input: exit code 2, no result on stdout, a reason on stderr, no traceback."""
    assert done.code == 2, done
    if done.out:  # with --json
        assert list(json.loads(done.out)) == ["error"], done
    assert done.err.strip(), done
    assert "Traceback" not in done.err, done


@dataclass(frozen=True)
class Books:
    """The entries of one budget: amounts and numbers of reserved, settled and open jobs."""

    settled: object
    held: object
    reserved: int
    finished: int

    @classmethod
    def of(cls, path: Path) -> Books:
        ledger = Ledger.open(path)
        assert ledger.verify() == []
        facts = ledger.standing().as_dict()
        actions = [entry.action for entry in ledger.entries()]
        ledger._store.close()
        return cls(
            facts["settled"],
            facts["held"],
            actions.count("reserve"),
            actions.count("settle") + actions.count("abandon"),
        )
