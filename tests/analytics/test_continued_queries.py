"""A finer query continues the noise of its parts and pays the difference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("ibis", reason="needs the analytics extra")

import expost
from expost import BudgetRefused, Ledger, PureDP, SimulationRandomness
from expost.analytics import query as counting
from expost.analytics.contribution import GroupValues
from expost.analytics.pricing import KeptPath
from expost.analytics.refinement import RACE, Job
from expost.analytics.refinement_noise import GroupPaths, LaplaceLevels, StoppingRule
from expost.analytics.request import check_request
from expost.analytics.sql_request import CheckedQuery, check_query
from expost.analytics.sql_run import QueryRun
from expost.certificates.verify import verify_certificate
from tests.analytics import laws
from tests.cli.counting import expost as command
from tests.theorems.test_continued_paths import Unread, Watched

__all__ = ["command"]  # a fixture

SQL = "SELECT g, COUNT(DISTINCT u) AS people, SUM(x) AS s, AVG(x) AS mean FROM t GROUP BY g"
SUMS = SQL.replace(", AVG(x) AS mean", "")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.db", PureDP(100))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    rows = (f"{n % 3000},{'abc'[n // 3000]},{n % 9}\n" for n in range(9000))
    path.write_text("u,g,x\n" + "".join(rows))
    return path


def ask(ledger: Any, table: Any, **options: Any) -> Any:
    usual = {"source": table, "user": "u", "keys": ["a", "b", "c"], "bounds": {"x": (0, 9)}}
    usual |= {"epsilon": 2, "within": 0.3, "table_version": "v1", "max_groups_per_user": 3}
    return expost.query(options.pop("sql", SQL), ledger=ledger, **usual | options)


def paid(ledger: Ledger) -> Fraction:
    return Fraction(ledger.standing().filter.settled[0])


def paths(ledger: Ledger) -> list[Any]:
    (path,) = Path(f"{ledger.path}.answers").glob("*.path")
    return list(json.loads(path.read_text())["parts"])


def test_the_difference_is_paid(ledger, table):
    """All parts, means too, look further at the noise of the first question."""
    first = ask(ledger, table)
    kept, charged = paths(ledger), paid(ledger)
    # A wrong file would be read here: nothing is.
    table.write_text("u,g,x\n")
    finer = ask(ledger, table, within=0.1, epsilon=4)
    assert not finer.asked_before
    before = finer.public["paid_before"]
    assert 0 < before <= first.spent
    assert [one["beside"] is None for one in kept] == [True, True, False]
    assert paid(ledger) - charged == pytest.approx(finer.spent, abs=1e-11)
    assert finer.guarantee.epsilon == pytest.approx(finer.public["total"] + first.spent, abs=1e-11)
    assert finer.guarantee.epsilon <= 4.0001
    assert verify_certificate(finer.certificate(), ledger=ledger.path) == []
    assert len(finer.parts) == len(first.parts) == 3
    for now, then, one in zip(finer.parts, first.parts, kept, strict=True):
        assert now.spent >= then.spent - then.share_of_dropped
        if now.kind == "mean":
            continue
        for answer in (*now.answers, *now.unanswered):
            noisy = {max(0, step[one["groups"].index(answer.group)]) for step in one["noisy"]}
            if not (now.dropped_share or {}).get("corrected"):
                grid = 1 if now.kind == "sum" else 32
                assert round(answer.estimate * grid) in noisy
    means = {answer.group: answer.estimate for answer in finer.parts[2].answers}
    assert all(abs(mean - 4) < 0.6 for mean in means.values())
    assert ask(ledger, table, within=0.1, epsilon=4).asked_before
    coarser = ask(ledger, table, within=0.4)
    assert coarser.spent <= 1e-11  # the released share of what caps removed is used again


@pytest.mark.parametrize(
    ("within", "confidence", "again"),
    [(0.5, 0.9, True), (0.3, 0.9, False), (0.5, 0.95, False), (0.5, 0.8, True)],
)
def test_the_released_share_is_used_again_if_it_is_good_enough(within, confidence, again):
    """For the error and the confidence that are wanted now; else it is bought."""
    asked: dict[str, Any] = {"kind": "count", "by": ["g"], "user": "u", "keys": ["a", "b", "c"]}
    asked |= {"epsilon": 1, "max_groups_per_user": 1, "within": within, "confidence": confidence}
    request = check_request(pa.table({"u": ["1"], "g": ["a"]}), asked)
    share = {"estimate": 0.1, "low": 0.0, "high": 0.4, "confidence": 0.9}
    request = replace(request, kept=KeptPath(1, request.measure.caps, share=share))
    values = GroupValues(("a",), np.array([9]), kept=(9,), removed=(1,))
    progress = counting.Progress(most=1)
    price = counting.share_of_removed(request, progress, values, 1, SimulationRandomness(1))
    assert (price == 0) is again
    assert (progress.share == share) is again


def test_what_is_asked_decides_on_the_path(ledger, table):
    """Another SELECT, bound, cap or set of groups has other values."""
    ask(ledger, table, sql=SUMS)
    for other in (
        {"sql": SUMS.replace("SUM(x)", "SUM(x + 1)")},
        {"bounds": {"x": (0, 10)}},
        {"max_groups_per_user": 2},
        {"keys": ["a", "b"]},
        {"table_version": "v2"},
        {"analyst": "ana"},
    ):
        assert "paid_before" not in ask(ledger, table, **{"sql": SUMS} | other).public
    assert "paid_before" in ask(ledger, table, sql=SUMS, within=0.2).public


def test_quantiles_pay_in_full_and_the_others_the_difference(ledger, table):
    """Draws have no path; caps that were chosen are not chosen again."""
    sql = "SELECT g, COUNT(DISTINCT u) AS people, MEDIAN(x) AS m FROM t GROUP BY g"
    options = {"sql": sql, "within_rank": 0.2, "max_groups_per_user": "auto", "epsilon": 4}
    first = ask(ledger, table, **options)
    finer = ask(ledger, table, **options | {"within": 0.1, "within_rank": 0.1})
    assert finer.max_groups_per_user == first.max_groups_per_user
    assert finer.public["shares"] == dict.fromkeys(finer.public["shares"], 0.0)
    people, median = finer.parts
    assert median.kind == "quantile"
    assert people.spent + median.spent == pytest.approx(finer.spent + finer.public["paid_before"])
    assert finer.public["paid_before"] < people.spent + 1e-9
    assert len(median.answers) + len(median.unanswered) == 3
    assert verify_certificate(finer.certificate(), ledger=ledger.path) == []


def test_with_delta_or_groups_found_privately_nothing_is_continued(table, tmp_path):
    ledger = Ledger.create(tmp_path / "rho.db", expost.ApproxDP(20, 1e-4))
    sql = "SELECT g, COUNT(DISTINCT u) AS people FROM t GROUP BY g"
    for options in ({"keys": ["a", "b"]}, {"keys": None, "private_keys": True}):
        options |= {"sql": sql, "delta": 1e-6, "bounds": None}
        ask(ledger, table, **options)
        assert "paid_before" not in ask(ledger, table, **options, within=0.2).public
    assert not list(Path(f"{ledger.path}.answers").glob("*.path"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_lost_path_costs_the_full_price(ledger, table, error, monkeypatch):
    """Whoever stops in the middle has lost the paths; what was looked at stays charged."""
    ask(ledger, table)
    folder = Path(f"{ledger.path}.answers")
    with monkeypatch.context() as patched:

        def stop(*_: Any, **__: Any) -> Any:
            assert not list(folder.glob("*.path"))  # they are taken before the first look
            raise error

        patched.setattr("expost.analytics.sql_run._result", stop)
        with pytest.raises(error):
            ask(ledger, table, within=0.15)
    assert "paid_before" not in ask(ledger, table, within=0.15).public


@pytest.mark.parametrize("place", ["run_query", "_result"])
def test_a_killed_query_leaves_the_worst_case_and_no_path(ledger, table, place):
    """Between reserve and settle: the reservation stays open, and the noise is gone."""
    ask(ledger, table)
    before = paid(ledger)
    code = (
        "import os, sys\nfrom expost.analytics import sql_run\nimport expost\n"
        f"sql_run.{place} = lambda *_, **__: os._exit(9)\n"
        "expost.query(sys.argv[3], source=sys.argv[1], user='u', keys=['a', 'b', 'c'],"
        " bounds={'x': (0, 9)}, epsilon=2, within=0.15, max_groups_per_user=3,"
        " table_version='v1', ledger=sys.argv[2])\n"
    )
    words = [sys.executable, "-c", code, str(table), str(ledger.path), SQL]
    assert subprocess.run(words, check=False, env=dict(os.environ)).returncode == 9
    assert not list(Path(f"{ledger.path}.answers").glob("*.path"))
    reopened = Ledger.open(ledger.path)
    assert paid(reopened) == before
    assert "paid_before" not in ask(reopened, table, within=0.15).public


def test_a_refused_query_keeps_its_paths(table, tmp_path):
    ledger = Ledger.create(tmp_path / "small.db", PureDP(2))
    ask(ledger, table, epsilon=1)
    with pytest.raises(BudgetRefused):
        ask(ledger, table, within=0.05, epsilon=5)
    assert "paid_before" in ask(ledger, table, within=0.2, epsilon=1).public


def test_broken_paths_are_lost(ledger, table):
    """A part that is not whole, or fewer parts than there are: asked anew, and paid in full."""
    for number, broken in enumerate(("[1, 2", "parts", "noisy", "costs")):
        version = {"table_version": f"b{number}", "sql": SUMS}
        ask(ledger, table, **version)
        (path,) = Path(f"{ledger.path}.answers").glob("*.path")
        record = json.loads(path.read_text())
        if broken == "parts":
            record["parts"].pop()
        elif broken == "noisy":
            record["parts"][0]["noisy"].pop()
        elif broken == "costs":
            record["parts"][0]["costs"].reverse()
        path.write_text(broken if broken == "[1, 2" else json.dumps(record))
        assert "paid_before" not in ask(ledger, table, within=0.2, **version).public
        path.unlink(missing_ok=True)


def test_a_part_without_the_cap_stays_so(ledger, tmp_path, monkeypatch):
    """Persons were looked at in all groups because the cap had moved them too much."""
    path = tmp_path / "t.csv"
    rows = (f"{n % 2000},g{n // 2000},{n % 9}\n" for n in range(10_000))
    path.write_text("u,g,x\n" + "".join(rows))
    monkeypatch.setattr("expost.analytics.cap_choice.choose_cap", lambda _, caps, *a, **k: caps[0])
    keys = [f"g{n}" for n in range(5)]
    options = {"max_groups_per_user": "auto", "keys": keys, "epsilon": 10}
    options |= {"sql": "SELECT g, COUNT(DISTINCT u) AS p, SUM(x) AS s FROM t GROUP BY g"}
    first = ask(ledger, path, **options)
    finer = ask(ledger, path, **options | {"within": 0.1})
    for result in (first, finer):
        assert result.max_groups_per_user == 5
        assert verify_certificate(result.certificate(), ledger=ledger.path) == []
    assert "paid_before" in finer.public
    assert [one["most"] for one in paths(ledger)] == [5, 1]


def test_the_command_says_so(ledger, table, command, tmp_path):
    (tmp_path / "k.txt").write_text("a\nb\nc\n")
    words: list[Any] = ["query", SQL, "--source", table, "--user", "u", "--bounds", "x=0:9"]
    words += ["--keys", tmp_path / "k.txt", "--epsilon", 2, "--ledger", ledger.path]
    words += ["--table-version", "monday"]
    first = command(*words, "--within", 0.3)
    finer = command(*words, "--within", 0.15, "--certificate", tmp_path / "c.json")
    assert "Continues an earlier question" not in first.err
    assert "Continues an earlier question" in finer.err
    assert "beyond ε" in command("certificate", tmp_path / "c.json").out
    quantile = ["quantile", table, "--column", "x", "--user", "u", "--bounds", "0:9", "--by", "g"]
    for error in (0.2, 0.1):
        told = command(*quantile, *words[8:], "--within-rank", error)
        assert told.code == 0
        assert "Continues" not in told.err


# The joint law of two queries of two parts on their paths.

COSTS = (0.25, 0.5)
WINDOW = range(-2, 4)


def question(monkeypatch: pytest.MonkeyPatch) -> CheckedQuery:
    """Two counts of one group, in halves of steps: the noise is that of whole numbers."""
    options = {"source": pa.table({"u": ["a"]}), "user": "u", "epsilon": 0.8, "within": 0.5}
    sql = "SELECT COUNT(*) AS n, COUNT(DISTINCT u) AS people FROM t"
    checked = check_query(sql, {**options, "one_row_per_user": True})
    monkeypatch.setattr(type(checked.base), "check_levels", lambda *_: None)

    def job(self: Any, groups: int, most: Any, **_: Any) -> Job:
        costs = COSTS[: 2 if self.wanted.within == 0.25 else 1]
        wide, least = np.ones(len(costs)), np.array([2.0, 1.0][: len(costs)])
        rule = StoppingRule(0.5, 0.9, "paper", 1.0, least, wide, wide * 9)
        return Job(LaplaceLevels(costs), rule, self.counting_total(most), RACE, 1, len(costs) - 1)

    monkeypatch.setattr(type(checked.base), "job", job)
    return checked


class Plain:
    """Randomness that is not asked."""

    simulated = True


class Seen(QueryRun):
    """A run whose parts have the values of one group, which stand in no table."""

    def _values(self, requests: Any) -> list[Any]:
        self.groups = ["all"]
        zero = GroupValues(("all",), np.zeros(1, dtype=np.int64))
        return [zero if one.kept is None else one.kept.values for one in requests]


class OfPart(Watched):
    """The noisy values of one part: says which of them is missing."""

    def __init__(self, values: dict[tuple[int, int], int], part: int) -> None:
        super().__init__(values)
        self.part = part

    def __getitem__(self, cell: Any) -> Any:
        try:
            return super().__getitem__(cell)
        except Unread as unread:
            raise Unread(unread.args[0], self.part) from None


def transcripts(checked: CheckedQuery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What both queries release and charge, with the noisy values of both parts that they saw."""
    values: dict[tuple[int, int], int] = {}
    finer = replace(
        checked,
        requests=tuple(replace(r, wanted=replace(r.wanted, within=0.25)) for r in checked.requests),
    )
    made: list[int] = []

    def drawn(levels: Any, numbers: Any, randomness: Any, second: Any = None) -> GroupPaths:
        own = {(n, 0): z for (p, n), z in values.items() if p == len(made)}
        watched: Any = OfPart(own, len(made))
        made.append(len(made))
        return GroupPaths(COSTS, watched, np.full(1, -1))

    monkeypatch.setattr(GroupPaths, "beyond", staticmethod(drawn))
    pending: list[dict[tuple[int, int], int]] = [{}]
    while pending:
        values = pending.pop()
        made.clear()
        order = checked.order()
        try:
            first = Seen(checked, Plain(), keep_path=True)  # type: ignore[arg-type]
            first.measure()
            released = [first.parts[part][2] for part in order]
            kept = [path for path in first.kept_paths() if path is not None]
            second = None
            if first.spent < 2 * Fraction(COSTS[0]) + 1:
                second = Seen(finer.on_path(*kept), Plain(), keep_path=True)  # type: ignore[arg-type]
                second.measure()
                released += [second.parts[part][2] for part in order]
        except Unread as unread:
            level, part = unread.args
            pending.extend({**values, (part, level): z} for z in WINDOW)
            continue
        charge = first.spent + (Fraction(0) if second is None else second.spent)
        told = [(one.answers, one.unanswered) for one in released]
        yield (str(told), charge, first.spent), dict(values)


def law(leaves: Any, counts: tuple[int, int], *, fresh: bool = False) -> Counter[Any]:
    chances: Counter[Any] = Counter()
    for transcript, values in leaves:
        product = 1.0
        for part, count in enumerate(counts):
            looks = [values[part, n] - count for n in range(2) if (part, n) in values]
            if fresh:
                for cost, noise in zip(COSTS, looks, strict=False):
                    product *= float(laws.laplace(cost, noise))
            elif looks:
                product *= laws.path(COSTS, looks)
        chances[transcript] += product
    return chances


def test_both_queries_tell_what_both_cost(monkeypatch):
    """All transcripts, both directions; a person is in both parts. Mutants: free, or fresh."""
    checked = question(monkeypatch)
    leaves = list(transcripts(checked, monkeypatch))
    assert len(leaves) > 100
    charges = {key[1] for key, _ in leaves}
    assert len(charges) > 1

    def worst(charge: Any, **mutant: Any) -> float:
        one, other = law(leaves, (0, 0), **mutant), law(leaves, (1, 1), **mutant)
        return max(abs(np.log(one[key] / other[key])) - float(charge(key)) for key in one)

    assert -1e-9 <= worst(lambda key: key[1]) <= 1e-9
    assert worst(lambda key: key[2]) > 0.2  # a second query that is free
    assert worst(lambda key: key[1], fresh=True) > 0.2  # fresh noise for the difference


def test_the_paths_of_a_query_are_one_per_part(ledger, table):
    """Of quantiles the caps only: a file holds no cell of theirs."""
    sql = "SELECT g, COUNT(*) AS n, MEDIAN(x) AS m FROM t GROUP BY g"
    ask(ledger, table, sql=sql, epsilon=4, within_rank=0.2)
    counts, median = paths(ledger)
    assert set(median) == {"most", "caps", "limit", "share", "side"}
    assert counts["noisy"]
