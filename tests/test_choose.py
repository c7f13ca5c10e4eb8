"""The page "Choose a library": its code runs where the library is installed."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "choose.md"
BLOCKS = re.findall(
    r"<!-- runs: (\w+) -->\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
)


def test_every_block_says_what_it_needs() -> None:
    assert PAGE.read_text("utf-8").count("```python") == len(BLOCKS)


@pytest.mark.parametrize("library", sorted({library for library, _ in BLOCKS}))
def test_the_code_of_a_library_runs(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks of one library share their names, in the order of the page."""
    pytest.importorskip(library)
    names: dict[str, Any] = {"__name__": library}
    for code in (code for needed, code in BLOCKS if needed == library):
        exec(compile(code, f"{PAGE.name}: {library}", "exec", dont_inherit=True), names)


@pytest.mark.parametrize("library", ["opendp", "opacus"])
def test_the_versions_are_those_that_are_tested(library: str) -> None:
    pytest.importorskip(library)
    series = ".".join(importlib.metadata.version(library).split(".")[:2])
    assert f"| `{series}." in PAGE.read_text("utf-8"), "the page names another version"
