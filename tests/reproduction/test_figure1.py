"""Figure 1 as the command prints it."""

import json
import subprocess
import sys

import pytest


def reproduction(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reproduction", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_figure1(tmp_path):
    """Catches formulas that no longer give the paper's means."""
    done = reproduction("figure1", "--json", "--plot", str(tmp_path / "figure1.svg"))
    assert done.returncode == 0
    curves = json.loads(done.stdout)["curves"]
    for curve in curves.values():
        for point in curve:
            assert point["mean"] == pytest.approx(point["paper_mean"], rel=1e-9)
    assert curves["random-dropping"][0]["deviation"] == pytest.approx(
        curves["random-dropping"][0]["paper_deviation"], rel=1e-9
    )
    assert (tmp_path / "figure1.svg").exists()
