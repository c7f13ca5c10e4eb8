"""The gallery: every task runs as it stands and writes its picture; the page is up to date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripts import gallery


def test_the_page_is_what_the_script_writes() -> None:
    outputs = json.loads(gallery.RESULTS.read_text("utf-8"))
    assert list(outputs) == list(gallery.TASKS)
    assert gallery.PAGE.read_text("utf-8") == gallery.page(outputs)
    assert len(gallery.TASKS) == 10


@pytest.mark.slow
@pytest.mark.parametrize("name", gallery.TASKS)
def test_a_task_runs_as_it_stands(tmp_path: Path, name: str) -> None:
    """A task whose goal is missed ends with exit code 5; the goals are far from any limit."""
    for package in ("ibis", "matplotlib", "sklearn", "numba"):
        pytest.importorskip(package)
    task = gallery.TASKS[name]
    assert gallery.perform(task, tmp_path)
    assert (tmp_path / task.picture).stat().st_size > 0
