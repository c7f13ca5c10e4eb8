"""The tutorial's code, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

TUTORIAL = Path(__file__).parent.parent.parent / "docs" / "tutorial.md"


def test_the_tutorial_runs() -> None:
    pytest.importorskip("sklearn")
    blocks = re.findall(
        r"^```python\n(.*?)^```", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) >= 6
    names: dict[str, Any] = {"__name__": "tutorial"}
    exec(compile("\n".join(blocks), str(TUTORIAL), "exec"), names)
    assert len(names["labels"]) == 5
    assert names["ledger"].verify() == []
    assert names["search"].privacy_spent_.epsilon > 0
