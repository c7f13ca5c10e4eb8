"""Scripts that simulate whole jobs: is "passed" true, and what ``make demo`` prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reproduction.fixed_epsilon import Accuracies
from reproduction.least_epsilon import searches_of
from scripts import demo, passed_is_true


def test_models_one_row_below_the_bar_pass_as_seldom_as_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches a simulation that cannot find a wrong margin: without one, most searches pass."""
    monkeypatch.setattr(passed_is_true, "SEARCHES", 300)
    searches = searches_of(passed_is_true.progressive_problem("made-up"), [0.8])
    honest = passed_is_true.one_row_below(searches, 0.8)
    assert honest["passed"] <= 0.1 + 4 * (0.1 * 0.9 / 300) ** 0.5
    assert honest["passed"] > 0  # the looks are not deaf
    bar = int(searches.goals[0.8])
    careless = {
        0.8: tuple(
            None if rule is None else replace(rule, thresholds=(bar,) * len(rule.thresholds))
            for rule in searches.rules[0.8]
        )
    }
    assert passed_is_true.one_row_below(replace(searches, rules=careless), 0.8)["passed"] > 0.5


@pytest.mark.slow
def test_jobs_at_the_limit_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed_is_true, "SEARCHES", 50)
    monkeypatch.setattr(passed_is_true, "PILOTS", 3)
    record = passed_is_true.progressive("breast-cancer", 4)
    assert 0.9 < record["bar"] < 1
    assert 0 <= record["below_the_bar"] <= record["certified"] <= record["jobs"] == 4


@pytest.mark.slow
def test_the_demo_without_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A goal, its cost, other costs, the score without privacy, a picture, and plain words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "ADULT", tmp_path / "none.csv")
    demo.main()
    out = capsys.readouterr().out
    for words in ("the goal ", "80% right", "what it cost ", "with Opacus", "without any privacy "):
        assert words in out
    least = Accuracies.load("digits", "opacus").rows([0.8])[0]["mean_epsilon"]
    assert f"ε = {least:g} with Opacus" in out
    assert "Census" not in out
    assert not {"δ", "DP", "Gaussian", "zCDP", "clip", "seed"} & set(out.split())
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "out/demo.png" in out
