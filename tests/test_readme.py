"""The README's Python example runs as written, and is as short as it says."""

import re
import subprocess
import sys
from pathlib import Path

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


def test_ci_calls_what_the_readme_gives():
    """Catches a CI that tests something else than what newcomers are told to run."""
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make test" in ci
    assert "make check" in ci
