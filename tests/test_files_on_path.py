"""``tools/files_on_path.py``: how many files a reader opens to follow a path."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST = {"select": 15, "count": 26, "tune": 60, "server": 40}
LONG = ("tune", "server")  # ten seconds each


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in MOST]
)
def test_paths_do_not_grow(name: str) -> None:
    tool = ROOT / "tools" / "files_on_path.py"
    ran = subprocess.run(
        [sys.executable, tool, name, "--json"], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    files = [file for room in document["rooms"].values() for file in room]
    assert set(document) == {"files", "rooms"}
    assert document["files"] == len(set(files)) <= MOST[name]
    assert all((ROOT / "src" / "expost" / file).is_file() for file in files)
    if name == "select":  # it imports the ledger, and does not use it
        assert "selection/random_dropping.py" in files
        assert "budget/ledger.py" not in files
