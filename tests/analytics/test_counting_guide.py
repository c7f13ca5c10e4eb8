"""The tutorial of docs/counting.md runs, and what it says about its results is true."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "counting.md"


def test_the_tutorial(capsys):
    """All digits are answered for a small part of the budget; means are near the truth."""
    pytest.importorskip("sklearn")
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(compile(code, str(GUIDE), "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) == 11
    counts, ink, table = names["counts"], names["ink"], names["table"]
    assert len(counts.answers) == 10
    assert 0.05 < counts.spent < 0.6
    truth = table.groupby("digit").ink.mean()
    assert truth.min() > 250
    assert truth.max() < 330
    assert len(ink.answers) == 10
    assert 0.1 < ink.spent < 2
    errors = [abs(each.estimate - truth[int(each.group)]) for each in ink.answers]
    assert np.median(errors) < 25
