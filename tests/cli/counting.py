"""What the tests of ``expost count`` share: the command in this process, and a small table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from expost.cli import main as command

SIZES = {"large": 3000, "middle": 900, "[red]small": 300, "tiny": 3}


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict:
        return json.loads(self.out)


@pytest.fixture
def expost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """The command, in this process: starting an interpreter for each would take a second."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["expost", *map(str, arguments)])
        capsys.readouterr()
        try:
            command.main()
            code = 0
        except SystemExit as end:
            code = 0 if end.code is None else int(end.code)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A table and its keys."""
    table, keys = tmp_path / "pairs.csv", tmp_path / "keys.txt"
    rows = [f"{user},{group}" for group, size in SIZES.items() for user in range(size)]
    table.write_text("u,g\n" + "\n".join(rows) + "\n")
    keys.write_text("\n".join([*SIZES, "absent"]) + "\n")
    return table, keys


@pytest.fixture
def count(expost: Callable[..., Done], files: tuple[Path, Path]) -> Callable[..., Done]:
    """``expost count`` on the table; ε = 20 unless told otherwise."""
    table, keys = files

    def run(*arguments: object, keys: Path | None = keys, epsilon: float = 20) -> Done:
        listed = [] if keys is None else ["--keys", keys]
        return expost(
            "count", table, "--by", "g", "--user", "u", "--epsilon", epsilon, *listed, *arguments
        )

    return run
