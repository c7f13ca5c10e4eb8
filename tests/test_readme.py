"""The README: short, its code runs as written, and what it shows was printed by the commands."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from expost import SimulationRandomness
from expost.cli.tour import write_customers

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
INSIDE = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8")
COMMAND = f'expost() {{ "{sys.executable}" -m expost "$@"; }}\nset -euo pipefail\n'
SENTENCE = "Say how accurate the answer must be; expost finds the smallest privacy loss that gets"


def code(language: str, text: str = README) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_readme_is_short() -> None:
    """At most 700 words, comments apart; the sentence comes first, everywhere the same."""
    text = re.sub(r"<!--.*?-->", "", README, flags=re.DOTALL)
    assert len(text.split()) <= 700
    words = " ".join(README.replace("*", "").split())
    assert words.startswith(f"# expost {SENTENCE} there, and proves it.")
    front = " ".join((ROOT / "docs/index.md").read_text("utf-8").replace("*", "").split())
    assert front.startswith(f"# expost {SENTENCE} there, and proves it.")
    assert f'"{SENTENCE} there, and proves it."' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_every_door_has_six_lines() -> None:
    """Four doors, each with a block of at most six commands or statements (and a blank line)."""
    doors = README[README.index("## Start here") : README.index("## Read on")]
    blocks = code("(?:python|sh)", doors)
    assert len(blocks) == 4
    front = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert code("(?:python|sh)", front) == blocks  # the front page shows the same
    for block in blocks:
        lines = [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]
        assert len(lines) <= 6, block


@pytest.mark.slow
def test_the_commands_run_as_written(tmp_path: Path) -> None:
    """The analyst's and the officer's lines, on the made-up customers of ``expost tour``."""
    pytest.importorskip("ibis")
    pytest.importorskip("sqlglot")
    write_customers(tmp_path / "customers.csv", tmp_path / "regions.txt")
    for block in code("sh"):
        done = subprocess.run(
            ["bash", "-c", COMMAND + block], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "counts.json").read_text("utf-8"))["ledger"] is not None


@pytest.mark.slow
def test_the_python_code_runs_as_written() -> None:
    """The data scientist's lines, then the engineer's; both print whether the goal was reached."""
    for module in ("sklearn", "numba", "torch"):
        pytest.importorskip(module)
    first, second = code("python")
    done = subprocess.run(
        [sys.executable, "-c", first + second], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ApproxDP(epsilon=") == 2


def test_the_example_runs_as_written() -> None:
    """Catches an example of docs/inside.md that has drifted from the code."""
    (example,) = code("python", INSIDE)
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "PureDP(epsilon=" in done.stdout
    assert "passed" in done.stdout


def test_the_example_passes_almost_always() -> None:
    """99 %: of 1,000 simulated runs at most 20 may miss (probability 0.002 at exactly 99 %)."""
    (example,) = code("python", INSIDE)
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


def test_ci_calls_what_the_readme_gives() -> None:
    """Catches a CI that tests something else than what newcomers are told to run."""
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make test" in ci
    assert "make check" in ci
