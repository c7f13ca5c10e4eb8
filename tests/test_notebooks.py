"""The notebooks of the four doors: without outputs, and every cell runs (``make test-long``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))
NEEDED = {"data_scientist": "sklearn", "analyst": "ibis", "ml_engineer": "torch"}


def test_there_is_one_for_every_door_without_outputs() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted([*NEEDED, "privacy_officer"])
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            assert not cell.get("outputs"), path.name
            assert cell.get("execution_count") is None, path.name


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, tmp_path: Path) -> None:
    client, formats = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip(NEEDED.get(path.stem, "ibis"))
    notebook = formats.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(notebook, timeout=600, resources=resources).execute()
