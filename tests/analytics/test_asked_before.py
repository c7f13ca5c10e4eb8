"""The same question on the same version of a table is paid once."""

from __future__ import annotations

import json
import math
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("ibis", reason="needs the analytics extra")

import expost
from expost import Ledger, PureDP
from expost.analytics import cap_choice, query
from expost.certificates.verify import verify_certificate
from expost.errors import InvalidInput
from tests.cli.counting import expost as command

__all__ = ["command"]  # a fixture


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.db", PureDP(10))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("u,g\n" + "".join(f"{n},{'ab'[n > 300]}\n" for n in range(1000)))
    return path


def ask(ledger: Any, table: Any, **options: Any) -> Any:
    usual = {"by": "g", "user": "u", "keys": ["a", "b", "c"], "epsilon": 1, "table_version": "v1"}
    return expost.count(table, ledger=ledger, one_row_per_user=True, **usual | options)


def paid(ledger: Ledger) -> Any:
    return ledger.standing().filter.settled


def test_a_paid_answer_is_given_again(ledger, table):
    first = ask(ledger, table)
    charged = paid(ledger)
    again = ask(ledger, table)
    assert again.asked_before
    assert not first.asked_before
    assert again.answers == first.answers
    assert again.certificate() == first.certificate()
    assert verify_certificate(again.certificate()) == []
    assert again.as_dict() == first.as_dict() | {"asked_before": True}
    assert paid(ledger) == charged
    assert len(list(ledger.entries())) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"table_version": "v2"},
        {"keys": ["a", "b"]},
        {"where": ["g=a"]},
        {"count_rows": True},
        {"delta": 1e-6, "budget": None},
        {"top": 1},
    ],
)
def test_another_question_is_another(ledger, table, other):
    """Catches a digest that leaves a setting out: full price, other noise."""
    ask(ledger, table)
    charged = paid(ledger)
    if "delta" in other:
        with pytest.raises(InvalidInput):  # a budget in ε
            ask(ledger, table, **other)
        return
    result = ask(ledger, table, **other)
    assert not result.asked_before
    assert "paid_before" not in result.public
    assert paid(ledger) > charged


def sum_of_largest(result: Any, most: int) -> float:
    costs = sorted((answer.spent for answer in (*result.answers, *result.unanswered)), reverse=True)
    return sum(costs[:most])


@pytest.mark.parametrize(
    "options",
    [
        {"within": 0.02, "epsilon": 3},
        {"within": 0.2},
        {"epsilon": 1.5},
        {"confidence": 0.8},
        {"within": None, "plus_minus": 5},
        {"within": None, "plus_minus": 100},
    ],
)
@pytest.mark.parametrize("first", [{}, {"within": None, "plus_minus": 30}])
def test_another_error_pays_the_difference(ledger, table, options, first):
    """Also a coarser one, which pays nothing where one look is enough."""
    before = ask(ledger, table, **first)
    charged = Fraction(paid(ledger)[0])
    after = ask(ledger, table, **options)
    assert not after.asked_before
    assert after.public["paid_before"] == pytest.approx(before.spent, rel=1e-9)
    more = sum_of_largest(after, 1) - sum_of_largest(before, 1)
    assert after.spent == pytest.approx(more, rel=1e-9, abs=1e-9)
    assert Fraction(paid(ledger)[0]) - charged == pytest.approx(after.spent, abs=1e-11)
    assert verify_certificate(after.certificate()) == []
    if options.get("plus_minus") == 100:
        assert after.spent <= 1e-11
    assert ask(ledger, table, **options).asked_before


@pytest.mark.parametrize("kind", ["count", "query"])
def test_what_is_told_again_is_in_the_guarantee(ledger, tmp_path, kind):
    """Caps that were chosen privately, and the share that they removed, are told by all answers."""
    people = pa.table(
        {"u": [str(n) for n in range(600) for _ in "abc"], "g": [*"abc"] * 600, "x": [3] * 1800}
    )
    usual: dict[str, Any] = {"user": "u", "keys": ["a", "b", "c"], "max_groups_per_user": "auto"}
    usual |= {"ledger": ledger, "table_version": "v1", "epsilon": 2}
    told = Fraction(0)
    for within in (0.9, 0.5, 0.3):
        if kind == "count":
            result: Any = expost.count(people, by="g", count_rows=True, within=within, **usual)
        else:
            sql = "SELECT g, COUNT(*), SUM(x) FROM t GROUP BY g"
            more = {"source": {"t": people}, "bounds": {"x": (0, 9)}, "within": within}
            result = expost.query(sql, **usual, **more)
        assert ("paid_before" in result.public) is (within < 0.9)
        largest = told + Fraction(result.public["total"])
        assert largest * (1 - Fraction(1, 2**40)) <= Fraction(result.guarantee.epsilon)
        assert result.guarantee.epsilon <= 2.0001
        told += Fraction(result.spent) - Fraction(2, 10**11)  # charges are rounded up
    assert told > 0


def test_a_free_continuation_verifies(ledger, table):
    """Sums of rounded costs, less what was paid before, are not exactly what was charged."""
    ask(ledger, table, keys=["a", "b"], within=0.1)
    again = ask(ledger, table, keys=["a", "b"], within=0.3)
    assert again.spent <= 1e-9
    document = again.certificate()
    before = document["public"]["paid_before"]
    for rounded in (before, math.nextafter(before, 0), math.nextafter(before, 9)):
        document["public"]["paid_before"] = rounded
        assert verify_certificate(document) == []
    document["public"]["paid_before"] = before * (1 - 1e-9)
    assert verify_certificate(document) == ["charge: the charge is not that of the answers"]


def test_the_second_answer_has_the_first_noise(ledger, table, tmp_path):
    """All questions look at one path, that of the first. Sums, with caps chosen privately."""
    usual = {"by": "g", "user": "u", "keys": ["a", "b"], "bounds": (0, 1000)}
    usual |= {"ledger": ledger, "table_version": "v", "epsilon": 1, "max_groups_per_user": "auto"}
    results = [
        expost.sum(table, "u", **usual, within=within) for within in (0.5, 0.5001, 0.3, 0.5002)
    ]
    (path,) = (tmp_path / "ledger.db.answers").glob("*.path")
    (kept,) = json.loads(path.read_text())["parts"]
    for left, right in pairwise(results):
        assert left.max_groups_per_user == right.max_groups_per_user
        assert left.public["max_rows_per_user"] == right.public["max_rows_per_user"]
        assert verify_certificate(right.certificate()) == []
    told = [
        (
            answer.estimate,
            [max(0, step[kept["groups"].index(answer.group)]) for step in kept["noisy"]],
        )
        for result in results
        for answer in (*result.answers, *result.unanswered)
    ]
    first, steps = told[0]
    units = [first / step for step in steps if step]  # one unit of the grid, corrected for the cap
    assert any(
        all(
            any(abs(step * unit - value) <= 1e-9 * value for step in steps) for value, steps in told
        )
        for unit in units
    )


def test_the_second_question_reads_no_rows(ledger, table):
    """So a table that changed under the same version changes nothing, and tells nothing."""
    ask(ledger, table, within=0.5)
    table.write_text("u,g\n")
    finer = ask(ledger, table, within=0.05, epsilon=5)
    assert {answer.group: round(answer.estimate, -2) for answer in finer.answers}["b"] == 700


@pytest.mark.parametrize("whale", [0, 1000])
def test_the_noise_on_what_was_removed_fits_its_limit(ledger, tmp_path, monkeypatch, whale):
    """A limit of the second question: its own depends on the wanted error, the values do not."""
    seen = []

    def third(users: Any, candidates: Any, *rest: Any, **how: Any) -> Any:
        return candidates[2]

    def watch(request: Any, progress: Any, values: Any, limit: int, randomness: Any) -> Any:
        seen.append((values.removed[0], limit))
        return estimate(request, progress, values, limit, randomness)

    estimate = query.share_of_removed
    monkeypatch.setattr(cap_choice, "choose_cap", third)
    monkeypatch.setattr(query, "share_of_removed", watch)
    rows = [*(f"{n},1" for n in range(300)), *(["w,50"] * whale)]
    (tmp_path / "v.csv").write_text("u,v\n" + "\n".join(rows))
    for error in ({"plus_minus": 500}, {"within": 0.3}):
        asked = {"bounds": (0, 50), "user": "u", "epsilon": 2, "table_version": "v1", **error}
        expost.sum(tmp_path / "v.csv", "v", ledger=ledger, **asked)
    assert len(seen) == 2
    for removed, limit in seen:  # without this person nothing is removed
        assert removed <= limit
        assert (removed > 0) == (whale > 0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_lost_path_costs_the_full_price(ledger, table, tmp_path, error):
    """Whoever stops in the middle has lost the path; what was looked at stays charged."""
    ask(ledger, table, within=0.3)
    folder = tmp_path / "ledger.db.answers"
    assert len(list(folder.glob("*.path"))) == 1

    def stop(*answer: Any) -> None:
        assert not list(folder.glob("*.path"))  # it is taken before the first look
        raise error

    with pytest.raises(error):
        ask(ledger, table, within=0.05, released=stop)
    charged = paid(ledger)
    again = ask(ledger, table, within=0.05)
    assert "paid_before" not in again.public
    assert paid(ledger) > charged


def test_a_killed_question_leaves_the_worst_case_and_no_path(ledger, table, tmp_path):
    """Between reserve and settle: the reservation stays open."""
    ask(ledger, table, within=0.3)
    before = paid(ledger)
    code = (
        "import os, sys, expost\n"
        "expost.count(sys.argv[1], by='g', user='u', keys=['a', 'b', 'c'], epsilon=1, within=0.05,"
        " one_row_per_user=True, table_version='v1', ledger=sys.argv[2],"
        " released=lambda *_: os._exit(9))\n"
    )
    place = str(tmp_path / "ledger.db")
    done = subprocess.run([sys.executable, "-c", code, str(table), place], check=False)
    assert done.returncode == 9
    assert not list((tmp_path / "ledger.db.answers").glob("*.path"))
    reopened = Ledger.open(place)
    assert paid(reopened) == before
    again = ask(reopened, table, within=0.05)
    assert "paid_before" not in again.public


def test_a_refused_question_keeps_the_path(table, tmp_path):
    ledger = Ledger.create(tmp_path / "small.db", PureDP(1))
    ask(ledger, table, within=0.3)
    with pytest.raises(expost.BudgetRefused):
        ask(ledger, table, within=0.01, epsilon=5)
    assert "paid_before" in ask(ledger, table, within=0.1, epsilon=0.5).public


def test_a_broken_path_is_lost(ledger, table, tmp_path):
    ask(ledger, table)
    (path,) = (tmp_path / "ledger.db.answers").glob("*.path")
    path.write_text("[1, 2")
    assert "paid_before" not in ask(ledger, table, within=0.2).public
    (path,) = (tmp_path / "ledger.db.answers").glob("*.path")
    path.chmod(0o640)
    with pytest.raises(InvalidInput, match="others can read"):
        ask(ledger, table, within=0.05)


def test_a_path_that_this_ledger_did_not_pay_is_lost(ledger, table, tmp_path):
    """An older copy of the ledger is put back: a difference would be too little."""
    copy = tmp_path / "copy.db"
    shutil.copy(ledger.path, copy)
    ask(ledger, table, within=0.1)
    for end in ("", "-wal", "-shm"):
        Path(f"{ledger.path}{end}").unlink(missing_ok=True)
    shutil.copy(copy, ledger.path)
    reopened = Ledger.open(ledger.path)
    finer = ask(reopened, table, within=0.05)
    assert "paid_before" not in finer.public
    assert float(paid(reopened)[0]) == pytest.approx(finer.spent, abs=1e-11)
    assert not ask(reopened, table, within=0.1).asked_before


def test_one_at_a_time(ledger, table):
    """Four ask the same finer question at once: one of them pays."""
    ask(ledger, table)
    with ThreadPoolExecutor(4) as pool:
        place = str(ledger.path)
        results = list(pool.map(lambda _: ask(place, table, within=0.05), range(4)))
    assert sum(result.asked_before for result in results) == 3
    assert len({result.answers for result in results}) == 1


def test_rows_do_not_decide(ledger, table, tmp_path):
    """Whether an answer is found must not depend on a row: the file may change or be gone."""
    first = ask(ledger, table)
    table.write_text(table.read_text() + "new,a\n")
    assert ask(ledger, table).answers == first.answers
    table.unlink()
    assert ask(ledger, table).answers == first.answers
    (tmp_path / "other.csv").write_text("u,g\n1,a\n")
    assert not ask(ledger, tmp_path / "other.csv").asked_before


def test_only_the_owner_can_read(ledger, table, tmp_path):
    ask(ledger, table)
    for path in (tmp_path / "ledger.db.answers").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (path,) = (tmp_path / "ledger.db.answers").glob("*.json")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match="others can read"):
        ask(ledger, table)


def test_versions_that_do_not_fit(ledger, table):
    for options in ({"ledger": None}, {"table_version": " "}, {"table_version": 3}):
        with pytest.raises(InvalidInput, match="table_version"):
            ask(options.pop("ledger", ledger), table, **options)
    assert len(list(ledger.entries())) == 1


def test_without_a_version_nothing_is_kept(ledger, table, tmp_path):
    ask(ledger, table, table_version=None)
    ask(ledger, table, table_version=None)
    assert len(list(ledger.entries())) == 5
    assert not (tmp_path / "ledger.db.answers").exists()


def test_the_command(ledger, table, command, tmp_path):
    (tmp_path / "k.txt").write_text("a\nb\n")
    options = ["--by", "g", "--user", "u", "--keys", tmp_path / "k.txt", "--epsilon", 1]
    options += ["--ledger", tmp_path / "ledger.db", "--table-version", "monday"]
    first = command("count", table, *options, "--out", tmp_path / "1.csv")
    again = command("count", table, *options, "--out", tmp_path / "2.csv")
    assert (first.code, again.code) == (0, 0), again.err
    assert "Asked before" in again.err
    assert "Asked before" not in first.err
    assert (tmp_path / "1.csv").read_text() == (tmp_path / "2.csv").read_text()
    finer = command(
        "count", table, *options, "--within", 0.02, "--certificate", tmp_path / "c.json"
    )
    assert "Continues an earlier question" in finer.err
    shown = command("certificate", tmp_path / "c.json")
    assert "beyond ε" in shown.out


def test_a_path_that_ends_too_early_is_not_continued(ledger, table):
    """An error far below the first one, or a step of the path above the total: the full price."""
    ask(ledger, table, within=None, plus_minus=300)
    far = ask(ledger, table, within=None, plus_minus=3, epsilon=5)
    assert "paid_before" not in far.public
    assert far.spent == pytest.approx(0.77, abs=0.1)
    needed = ask(ledger, table, within=None, plus_minus=1.9, table_version="v9", epsilon=5).spent
    between = ask(ledger, table, within=None, plus_minus=1.9, epsilon=needed * 1.0001)
    assert "paid_before" not in between.public
    assert between.spent == pytest.approx(needed)


def test_caps_of_analysts_count_what_they_were_told(table, tmp_path):
    """Who asks second would be told more than their own charges say."""
    ledger = Ledger.create(tmp_path / "caps.db", PureDP(10), caps={"eve": PureDP(1)})
    ask(ledger, table, analyst="ana", epsilon=1)
    second = ask(ledger, table, analyst="eve", epsilon=1)
    assert not second.asked_before
    finer = ask(ledger, table, analyst="ana", within=0.01, epsilon=3)
    assert "paid_before" in finer.public
    with pytest.raises(expost.BudgetRefused):
        ask(ledger, table, analyst="eve", within=0.01, epsilon=3)


def test_a_period_pays_for_what_it_tells(table, tmp_path, monkeypatch):
    """The limit of a period that renews holds for everything that is told in it."""
    ledger = Ledger.create(tmp_path / "renews.db", PureDP(10), renews="month")
    ask(ledger, table, within=0.3)
    assert ask(ledger, table, within=0.3).asked_before
    assert "paid_before" in ask(ledger, table, within=0.2).public
    for module in ("analytics.asked_before", "budget.totals"):
        monkeypatch.setattr(f"expost.{module}.period_at", lambda *_: "2099-01-01")
    later = ask(ledger, table, within=0.1)
    assert not later.asked_before
    assert "paid_before" not in later.public


def test_keys_that_can_be_read_once_are_refused(ledger, table):
    """Their text is an address, which the next generator may have, too."""
    for keys in (iter("ab"), (key for key in "ab")):
        with pytest.raises(InvalidInput, match="read twice"):
            ask(ledger, table, keys=keys)
    ask(ledger, table, keys={"a": 1, "b": 2}.keys())
    assert ask(ledger, table, keys=["a", "b"]).asked_before
