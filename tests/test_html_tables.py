"""The HTML of notebooks: well formed, escaped, never rounded down; the text repr stays."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost import ApproxDP, Candidate, DiscreteLaplace, Query, RandomDropping
from expost.analytics.count_plan import plan_count as plan_query
from expost.html_tables import HtmlTable, Loss, guarantee_text, html_summary, shown
from expost.selection.plan import plan_levels
from tests.tuning.jobs import clouds, job

TAGS = {"div", "strong", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
EVIL = "<script>alert('x')</script>&\"<img src=x onerror=y>"


class Strict(HTMLParser):
    """Collects tags and text; raises if a tag is closed that is not open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        assert all(name in ("class", "style") for name, _ in attributes)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(thing: Any) -> Strict:
    read = Strict(thing._repr_html_())
    assert read.tags <= TAGS
    assert repr(thing)  # the text form stays
    assert "<table" not in repr(thing)
    return read


def noisy(epsilon: float) -> Any:
    return DiscreteLaplace(Query(len), epsilon)


def test_a_release() -> None:
    listed = [Candidate(noisy(0.5), {EVIL: EVIL}), Candidate(noisy(1), {"epsilon": 1.0})]
    release = RandomDropping(0.01).select(listed, [1, 2], score=float)
    read = page(release)
    assert "Release" in read.text
    assert "add-remove" in read.text
    assert "theorem:max-score" in read.text
    for secret in ("drop level", "coins", "runs"):
        assert secret not in read.text


def test_counts_with_hostile_names(tmp_path: Path) -> None:
    result = expost.count({EVIL: 5000, "Zug": 10}, epsilon=1.0, keys=[EVIL, "Zug"])
    assert EVIL in page(result).text
    assert len(result.answers) + len(result.unanswered) == 2


def test_a_ledger(tmp_path: Path) -> None:
    ledger = expost.Ledger.create(tmp_path / "ledger.db", ApproxDP(2, 1e-5), "a<b>")
    assert "a<b>" in page(ledger).text


def test_a_tuned_model_and_its_forecast() -> None:
    pytest.importorskip("numba")
    result = expost.tune(job(), *clouds())
    assert "all attempts, training and scoring together" in page(result).text
    assert "What to expect" in page(result.forecast).text


def test_plans() -> None:
    plan = plan_levels([1, 2], 4, delta=1e-6, overhead=0.1)
    assert "level ε" in page(plan).text
    assert "charge of a miss" not in page(plan).text
    text = page(plan.to_goal(attempts=2)).text
    assert "level ε" in text
    assert "charge of a miss" in text
    assert "Groups by size" in page(plan_query(groups=10, epsilon=1.0)).text


@pytest.mark.parametrize("value", [0.123449, 1 / 3, 1e-9 / 3, 123456.7, 2e-300, 0.0, 20000000.4])
def test_a_loss_is_never_rounded_down(value: float) -> None:
    assert float(shown(Loss(value))) >= value
    assert float(shown(Loss(value))) <= value * 1.001
    text = guarantee_text(ApproxDP(value, 0.3333333))
    assert float(text.split()[2].rstrip(",")) >= value
    assert "0.3334" in text


def test_values() -> None:
    values = (None, True, np.bool_(False), 3, 0.5, [1, 2], float("inf"))
    assert list(map(shown, values)) == ["–", "yes", "no", "3", "0.5", "1, 2", "∞"]
    assert shown({EVIL: EVIL}).count("<") == 0
    assert len(shown("x" * 10_000)) < 300
    read = Strict(html_summary("t", {}, HtmlTable("c", ["n"], [[each] for each in range(1000)])))
    assert "and 940 more" in read.text
