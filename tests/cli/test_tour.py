"""``expost tour`` runs by itself, writes to a new folder, and names what is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from expost.cli import tour
from expost.cli.main import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["expost", "tour", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_tour_shows_a_model_a_count_and_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model that misses its goal is certified, too, so the tour never stops half way."""
    pytest.importorskip("ibis")
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "--yes") == 0
    shown = capfd.readouterr().out
    for words in ("The goal ", " of 5 groups", "charge: correct", "That was the tour"):
        assert words in shown, shown
    assert shown.count("% certain afterwards") == 2
    files = {path.name for path in (tmp_path / "expost-tour").rglob("*")}
    assert {"customers.csv", "regions.txt", "release.json"} <= files
    assert Path.cwd() == tmp_path
    assert run(monkeypatch, "--yes", "--out", "expost-tour") == 2  # nothing is overwritten


def test_a_missing_package_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tour, "find_spec", lambda name: None if name == "duckdb" else name)
    assert run(monkeypatch, "--yes") == 2
    assert "pip install 'expost[analytics]'" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_data_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tour.write_customers(tmp_path / f"{name}.csv", tmp_path / f"{name}.txt")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    rows = (tmp_path / "a.csv").read_text("utf-8").splitlines()
    assert len(rows) == tour.PEOPLE + 1
