"""``kill -9`` at every point of a request: it finishes, is charged once, and can be fetched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.server.crashing import POINTS

ROOT = Path(__file__).parent.parent.parent


def test_kill_at_every_point(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.server.crashing", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 2 * len(POINTS), done.stderr[-2000:]
    for each in found:
        assert each["killed"] == 9, each
        assert each["status"] == "done", each
        assert each["requests"] == 1, each
        assert each["actions"] == ["reserve", "settle"], each
        assert each["others"] == 0, each
        assert each["answers"] == 4, each
        assert each["verify"] == [], each
        assert each["held"] == 0, each
