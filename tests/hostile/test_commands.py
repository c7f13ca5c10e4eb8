"""Commands on hostile neighbours: a row changes nothing that leaves but noisy numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ibis", reason="needs the analytics extra")
pytest.importorskip("duckdb", reason="needs the analytics extra")

from expost import Ledger, PureDP
from tests.cli.counting import expost as command
from tests.hostile.acts import SECRET
from tests.hostile.test_analytics import GROUPS, LINES, table

__all__ = ["command"]  # a fixture

SQL = "SELECT g, COUNT(DISTINCT u) AS people, SUM(v) AS total FROM rows WHERE v >= 1 GROUP BY g"
ASKED: dict[str, list[Any]] = {
    "query": [SQL, "--bounds", "v=0:5", "--keys", "keys.txt", "--max-rows-per-user", 2],
    "quantile": ["--column", "v", "--at", "0.5", "--by", "g", "--bounds", "0:5", "--keys"],
}
SHOWN = ["NaN", "no value", "no number", "no group", "too few cells", "every group, often"]


@pytest.mark.parametrize("name", ASKED)
def test_a_line_changes_no_code_stream_or_file(tmp_path, command, monkeypatch, name):
    """Exit code, streams, keys of the document, groups, files and actions in the ledger."""

    def left(folder: Path, line: bytes) -> Any:
        source = table(folder, line)
        (folder / "keys.txt").write_text("g\n" + "\n".join(GROUPS) + "\n")
        monkeypatch.chdir(folder)
        ledger = Ledger.create(folder / "ledger.db", PureDP(100))
        given = ["--source", source] if name == "query" else [source]
        words = [*ASKED[name], "keys.txt"] if name == "quantile" else ASKED[name]
        more = ["--user", "u", "--epsilon", 2, "--max-groups-per-user", 2, "--json"]
        done = command(name, *given, *words, *more, "--ledger", "ledger.db", "--out", "a.csv")
        document = done.document
        assert SECRET not in done.out + done.err
        entries = [entry.action for entry in ledger.entries()]
        files = sorted(path.name for path in folder.iterdir())
        released = document.get("warnings", [])
        printed = "" if released else done.err
        return done.code, printed.replace(str(folder), ""), sorted(document), entries, files

    here = left(tmp_path / "here", b"")
    assert here[0] == 0, here
    for number, shown in enumerate(SHOWN):
        assert left(tmp_path / f"there{number}", LINES[shown]) == here, shown
