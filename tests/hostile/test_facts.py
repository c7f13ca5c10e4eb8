"""No row makes ``describe`` fail, warn, or show other columns; nobody's own name is shown."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ibis", reason="Ibis is not installed")

import expost
from expost.cli.main import main
from expost.randomness.source import SimulationRandomness

SECRET = "Zaphod"
ROWS: list[tuple[str, str, str]] = [
    ("", "", ""),
    ("1e999", "-1e308", SECRET),
    ("nan", "inf", SECRET * 50),
    ("forty", "9999-99-99", "\x00"),
    ("٣", "1_000", "=1+1"),
    ("99999999999999999999999999", "0x1F", "\ufeff"),
    ('"', "'", "a,b"),
]


def lines(row: tuple[str, str, str] | None, count: int = 60) -> str:
    """A text file with numbers, days and a category, and one more row."""
    plain = [(str(n % 40), f"2024-01-{n % 28 + 1:02d}", "red") for n in range(count)]
    rows = [*plain, *([] if row is None else [row])]
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in cells) for cells in rows]
    return "\n".join(["age,day,colour", *quoted]) + "\n"


def released(path: Path) -> expost.Facts:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        source: Any = {"randomness": SimulationRandomness(2), "simulation": True}
        return expost.describe(path, epsilon=1.0, delta=1e-6, **source)


@pytest.mark.parametrize("count", [0, 1, 60])
@pytest.mark.parametrize("row", ROWS)
def test_no_row_makes_it_fail(row: tuple[str, str, str], count: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    shown = []
    for some in (None, row):
        path.write_text(lines(some, count), encoding="utf-8")
        facts = released(path)
        document = json.dumps(facts.certificate())
        assert SECRET not in document + facts.to_toml()
        shown.append((list(facts), facts.epsilon, facts.delta, sorted(json.loads(document))))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("row", [None, *ROWS])
def test_the_command_ends_alike(
    row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(lines(row), encoding="utf-8")
    words = ["describe", str(path), "--epsilon", "1", "--delta", "1e-6", "--json"]
    monkeypatch.setattr(sys, "argv", ["expost", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    assert not ended.value.code
    assert not err
    assert SECRET not in out
