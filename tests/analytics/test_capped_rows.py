"""Which rows count: everybody's own sample, the same on every engine; which groups are candidates;
and totals that no look exceeds.
"""

from __future__ import annotations

import sqlite3
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import expost
from expost import PureDP, SimulationRandomness
from expost.analytics.contribution import (
    GroupValues,
    Measure,
    measured,
    pair_columns,
    run_totals,
    select,
    totals,
)
from expost.analytics.private_keys import KeySelection, laplace_threshold
from expost.budget.ledger import Ledger
from expost.certificates.verify import verify_certificate
from expost.errors import InvalidInput
from expost.tables.sources import as_table
from tests.analytics.tables import ask_everything, odd_rows
from tests.analytics.test_private_keys import hockey_stick
from tests.cli.counting import expost as command

__all__ = ["command"]  # a fixture

FALSE_ALARM = 1e-8
RATINGS = pa.table({"u": np.repeat(np.arange(2000), 5), "v": np.tile(np.arange(1, 6), 2000)})


@pytest.mark.parametrize("rows", [1, 2])
def test_a_mean_does_not_depend_on_the_salt(rows):
    """2,000 people rated 1, 2, 3, 4 and 5: the mean is 3. Catches a rank without the person."""
    for seed in range(5):
        randomness = SimulationRandomness(seed)
        found = expost.mean(
            RATINGS,
            "v",
            bounds=(0, 5),
            user="u",
            max_rows_per_user=rows,
            epsilon=100,
            plus_minus=0.02,
            randomness=randomness,
            simulation=True,
        )
        assert found.answers[0].estimate == pytest.approx(3, abs=0.2)


def kept_values(values: list[int], people: int, salt: str, group: str = "g") -> list[int]:
    """How often each value is kept when everybody keeps one of these rows (values 0, 1, …)."""
    users = np.repeat(np.arange(people), len(values))
    # one group per value would be capped alone, so the values are powers of a large base
    base = people + 1
    column = np.tile([base**value for value in values], people)
    table = as_table(pa.table({"u": users, "g": [group] * len(users), "v": column}))
    measure = Measure("sum", "v", 1, low=0, high=base ** max(values))
    rows = select(table, ["g"], "u", measure)
    total = int(run_totals(totals(measured(rows, measure, None, salt), None, salt)).first[0])
    return [total // base**value % base for value in range(max(values) + 1)]


def test_rows_are_kept_fairly():
    """Each row with the same chance. Catches a hash without person, group, salt or occurrence."""
    chances = np.array([3, 1, 1]) / 5  # value 0 occurs three times
    first = kept_values([0, 0, 0, 1, 2], 3000, "salt")
    assert stats.chisquare(first, 3000 * chances).pvalue > FALSE_ALARM
    assert first != kept_values([0, 0, 0, 1, 2], 3000, "other")
    assert first != kept_values([0, 0, 0, 1, 2], 3000, "salt", "h")


class TestEngines:
    """One salt gives one answer, whatever holds the table (servers: test_server_sources)."""

    def sources(self, folder: Path) -> dict[str, Any]:
        pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
        rows = odd_rows()
        pq.write_table(rows, folder / "rows.parquet")
        rows.to_pandas().to_csv(folder / "rows.csv", index=False)
        with duckdb.connect(str(folder / "rows.duckdb")) as connection:
            connection.register("view", rows)
            connection.execute("CREATE TABLE t AS SELECT * FROM view ORDER BY v")
        with sqlite3.connect(folder / "rows.sqlite") as database:
            database.execute("CREATE TABLE t (u, g, v)")
            database.executemany(
                "INSERT INTO t VALUES (?, ?, ?)", zip(*rows.to_pydict().values(), strict=True)
            )
        shuffled = rows.take(np.random.default_rng(5).permutation(len(rows)))
        return {
            "another order": (shuffled, None),
            "pandas": (pandas.DataFrame(rows.to_pandas()), None),
            "polars": (polars.from_arrow(rows), None),
            "parquet": (folder / "rows.parquet", None),
            "csv": (folder / "rows.csv", None),
            "duckdb": (folder / "rows.duckdb", "t"),
            "sqlite": (folder / "rows.sqlite", "t"),
        }

    def test_local_engines_agree(self, tmp_path):
        expected = ask_everything(odd_rows())
        for name, (source, table) in self.sources(tmp_path).items():
            assert ask_everything(source, table) == expected, name


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_candidates_are_the_groups_of_people_with_a_value(kind):
    """400 people without a value, and one who may have one: nobody can tell by the groups.

    Catches candidates from rows with a value and counts from all rows (30 of 30 against 0 of 30).
    """
    for value in (None, 3.0):
        table = pa.table(
            {
                "u": list(range(800)),
                "g": ["empty"] * 400 + ["full"] * 400,
                "v": [None] * 399 + [value] + [1.0] * 400,
            }
        )
        for seed in range(3):
            found = getattr(expost, kind)(
                table,
                "v",
                bounds=(0, 5),
                by="g",
                user="u",
                private_keys=True,
                epsilon=1,
                delta=1e-6,
                plus_minus=1000,
                max_groups_per_user=1,
                max_rows_per_user=1,
                randomness=SimulationRandomness(seed),
                simulation=True,
            )
            assert [a.group for a in (*found.answers, *found.unanswered)] == ["full"]


def capped(groups_of: dict[int, list[str]], most: int) -> GroupValues:
    rows = [(user, group) for user, groups in groups_of.items() for group in groups]
    columns = {"u": [user for user, _ in rows], "g": [group for _, group in rows]}
    schema = pa.schema([("u", pa.int64()), ("g", pa.string())])
    pairs = measured(
        pair_columns(as_table(pa.table(columns, schema=schema)), "g", "u"), Measure(), None, "s"
    )
    return run_totals(totals(pairs, most, "s"))


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("others", [{}, {1: ["a", "b"], 2: ["b"]}])
def test_one_person_brings_at_most_m_groups(most, others):
    """A person with rows in 4·m groups, present or absent: the exact law of the released sets.

    Groups that they have but do not keep have count 0 in the result of the query.
    """
    epsilon, delta = 1.0, 0.05
    limit = laplace_threshold(epsilon, delta, most)
    busy = others | {0: [*"abcdefghijkl"][: 4 * most]}
    tables = []
    for people in (others, busy):
        found = capped(people, most)
        listed = dict(zip(found.groups, found.users.tolist(), strict=True))
        tables.append({group: count for group, count in listed.items() if count})
    assert len({*tables[1]} - {*tables[0]}) <= most
    for one, other in (tables, tables[::-1]):
        assert hockey_stick(one, other, limit, epsilon, most) <= delta


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_a_group_that_nobody_keeps_is_not_released(noise):
    """With noise far above the threshold. Catches the m more candidates of count 0."""
    selection = KeySelection(noise, 1e-4, 0.4, 2, 2)
    counts = np.array([0, 1] * 5000)
    passed = selection.select(counts, SimulationRandomness(1))
    assert passed[counts == 1].mean() > 0.3
    assert not passed[counts == 0].any()


def test_new_groups_show_with_chance_delta_at_the_door():
    """m = 5 of ten groups of one person, δ = 0.4 of the key step: 40 % of releases may show any.

    Before, the five groups that the person does not keep were candidates, too (64 %).
    """
    runs, delta = 100, 0.8
    table = pa.table({"u": [0] * 10, "g": [*"abcdefghij"]})
    shown = 0
    for seed in range(runs):
        found = expost.count(
            table,
            by="g",
            user="u",
            private_keys=True,
            max_groups_per_user=5,
            epsilon=0.5,
            delta=delta,
            plus_minus=10**4,
            randomness=SimulationRandomness(seed),
            simulation=True,
        )
        shown += bool(found.answers or found.unanswered)
    assert shown <= stats.binom.isf(1e-4, runs, delta / 2)


class TestNeverTooMuch:
    """No look that the total does not pay."""

    OPTIONS = ("--by", "g", "--user", "u", "--sum", "v", "--bounds", "0:1000")

    def test_a_first_look_that_does_not_fit_is_refused(self, tmp_path, command):
        """285 groups on a fine grid at ε = 0.1: the looks cost 0.285 and settling failed."""
        (tmp_path / "rows.csv").write_text("u,g,v\n1,g1,5\n")
        (tmp_path / "keys.txt").write_text("".join(f"g{n}\n" for n in range(285)))
        ledger = Ledger.create(tmp_path / "l.db", PureDP(1))
        files = (tmp_path / "rows.csv", "--keys", tmp_path / "keys.txt")
        asked = ("--epsilon", 0.1, "--grid", 0.000001, "--ledger", tmp_path / "l.db")
        done = command("count", *files, *self.OPTIONS, *asked, "--max-rows-per-user", 1)
        assert done.code == 2
        assert "the first look at 285 groups would cost 0.285" in done.err
        assert [entry.action for entry in ledger.entries()] == ["create"]

    @pytest.mark.parametrize("private", [False, True])
    def test_it_is_refused_for_the_groups_of_one_person(self, private):
        """With private groups the number of groups is not known: m of them must fit."""
        more = {"private_keys": True, "delta": 1e-6} if private else {"keys": range(400)}
        with pytest.raises(InvalidInput, match="the first look at 300 groups"):
            expost.sum(
                pa.table({"u": [1], "g": ["a"], "v": [1.0]}),
                "v",
                bounds=(0, 1000),
                grid=1e-6,
                by="g",
                user="u",
                epsilon=0.01 if private else 0.1,
                max_groups_per_user=300,
                max_rows_per_user=1,
                **more,
            )

    @settings(max_examples=12, deadline=None)
    @given(
        kind=st.sampled_from(["sum", "mean"]),
        high=st.sampled_from([1, 1000, 10**6]),
        grid=st.sampled_from([None, 1, 1e-2, 1e-4]),
        most=st.sampled_from([None, 1, 3, "auto"]),
        rows=st.sampled_from([None, 1, 7]),
        epsilon=st.sampled_from([1e-4, 0.01, 0.5, 20]),
        error=st.sampled_from([{}, {"within": 0.5}, {"plus_minus": 500}]),
        seed=st.integers(0, 2**32),
    )
    def test_no_charge_exceeds_the_total(self, kind, high, grid, most, rows, epsilon, error, seed):
        """A request is refused before the reservation, or settled at no more than its total."""
        with tempfile.TemporaryDirectory() as folder:
            ledger = Ledger.create(Path(folder) / "l.db", PureDP(epsilon))
            try:
                found = getattr(expost, kind)(
                    odd_rows(),
                    "v",
                    bounds=(0, high),
                    grid=grid,
                    by="g",
                    user="u",
                    keys=[f"g{place}" for place in range(40)],
                    epsilon=epsilon,
                    max_groups_per_user=most,
                    max_rows_per_user=rows,
                    ledger=ledger,
                    **error,
                )
            except InvalidInput:
                assert [entry.action for entry in ledger.entries()] == ["create"]
                return
            assert Fraction(found.spent) <= Fraction(epsilon)
            assert verify_certificate(found.certificate()) == []
            assert [entry.action for entry in ledger.entries()][-1] == "settle"
