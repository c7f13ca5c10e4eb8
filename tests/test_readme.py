"""The README's Python example runs as written, and is as short as it says."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from expost import SimulationRandomness

ROOT = Path(__file__).parent.parent


def test_the_example_runs_as_written():
    """Catches an example that has drifted from the code."""
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "PureDP(epsilon=" in done.stdout
    assert "passed" in done.stdout


def test_the_example_passes_almost_always():
    """99 %: of 1,000 simulated runs at most 20 may miss (probability 0.002 at exactly 99 %)."""
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(example.split("release = ")[0], names)
    selector, candidates = names["selector"], names["candidates"]
    source = SimulationRandomness(99)
    missed = sum(
        not selector.select(
            candidates, names["visits"], score=names["precise"], randomness=source, simulation=True
        ).passed
        for _ in range(1000)
    )
    assert missed <= 20


def test_ci_calls_what_the_readme_gives():
    """Catches a CI that tests something else than what newcomers are told to run."""
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make test" in ci
    assert "make check" in ci
