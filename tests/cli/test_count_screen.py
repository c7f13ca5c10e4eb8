"""What ``expost count`` shows on the screen: all groups, what was spent, and hints.

Hints depend on the options and on what was released, never on rows.
"""

from __future__ import annotations

import re

import pytest

from expost import (
    ApproxDP,
    PureDP,
    SimulationRandomness,
    certificate_words,
    read_certificate,
)
from expost import count as expost_count
from expost.analytics import query
from expost.budget.ledger import Ledger
from expost.cli.output import about_surer_answers
from tests.cli.counting import SIZES, count, expost, files

__all__ = ["count", "expost", "files"]  # fixtures
pa = pytest.importorskip("pyarrow")


def words(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


def test_groups_without_an_answer_are_listed(count):
    """They used to be in the file and in JSON only."""
    done = count(epsilon=0.001)
    assert f"0 of {len(SIZES) + 1} groups answered within 10%" in done.out
    assert all(name in done.out for name in (*SIZES, "absent"))
    assert "answered │" in words(done.out) or "answered ┃" in words(done.out)
    assert "capitals and spaces matter" in words(done.out)


def test_a_table_of_answers_has_no_column_for_the_others(count):
    done = count("--plus-minus", 5)
    assert "5 of 5 groups answered within ± 5" in done.out
    assert "capitals" not in done.out
    assert "┃ answered" not in done.out


def test_the_hint_does_not_depend_on_the_names_in_the_table(expost, files, tmp_path):
    """Unknown names and small groups look alike: catches a hint made from rows."""
    keys = tmp_path / "wrong.txt"
    keys.write_text("Large\nMIDDLE\n")
    done = expost(
        *("count", files[0], "--by", "g", "--user", "u", "--epsilon", 0.001, "--keys", keys)
    )
    assert done.code == 0
    assert "0 of 2 groups answered" in done.out
    assert "Large" in done.out
    assert "capitals and spaces matter" in words(done.out)


class TestSpent:
    """What was spent of what, and what becomes of the rest."""

    def test_facts_and_answers_are_added_up(self, expost, files):
        """Catches 0.8 and 0.2 shown as 1.001, and a total that leaves one of them out."""
        asked = ("count", files[0], "--by", "g", "--user", "u", "--epsilon", 1)
        done = expost(*asked, "--learn-facts", 0.2)
        assert done.code == 0
        text = words(done.out)
        spent, total = (
            float(re.search(pattern, text)[1])
            for pattern in (r"Charge: ε = (\S+) of 0\.8", r"Total: ε = (\S+), δ")
        )
        assert spent + 0.2 <= total <= spent + 0.2011
        assert "at most ε = 1.000 was possible" in text

    def test_a_certificate_adds_up_what_was_charged(self, expost, files, tmp_path):
        """Catches a total of what was possible, and bought groups that are called public."""
        asked = ("count", files[0], "--by", "g", "--user", "u", "--epsilon", 20)
        done = expost(*asked, "--learn-facts", 2, "--certificate", tmp_path / "c.json")
        assert "Groups with too few persons to be found are not listed." in words(done.out)
        document = read_certificate(tmp_path / "c.json")
        rows = {row.name: row.lines[0] for row in certificate_words(document)}
        spent = document["spent"]["epsilon"] + document["facts"]["charged"]["epsilon"]
        total = float(re.search(r"in all ε = ([0-9.]+)", rows["facts"])[1])
        assert spent <= total <= spent + 1e-4 < document["total"]["epsilon"]
        assert "1 column;" in rows["facts"]
        assert rows["groups"] == "bought with the facts"

    def test_nothing_found(self, count):
        """Catches a headline of 0 of 0 groups over an empty table."""
        text = words(count("--private-keys", "--delta", 1e-6, keys=None, epsilon=0.01).out)
        assert text.startswith("No group has enough persons to be found.")
        assert "Charge: ρ" in text

    def test_facts_need_a_budget_with_a_delta(self, expost, files, tmp_path):
        """Catches a refusal that does not say which budget would do."""
        Ledger.create(tmp_path / "l.db", PureDP(50), "visits")
        asked = ("count", files[0], "--by", "g", "--user", "u", "--epsilon", 1)
        done = expost(*asked, "--learn-facts", 0.2, "--ledger", tmp_path / "l.db")
        assert done.code == 2
        assert "a budget with a δ (expost ledger create --delta)" in done.err

    def test_columns_with_commas(self, expost, files):
        """Catches advice to name one of two columns that were both named."""
        asked = ("count", files[0], "--by", "u,g", "--user", "u", "--epsilon", 1)
        done = expost(*asked, "--private-keys", "--delta", 1e-6)
        assert "name the columns one by one: --by u --by g" in done.err

    def test_the_rest_goes_back(self, count, tmp_path):
        Ledger.create(tmp_path / "l.db", PureDP(50), "visits")
        text = words(count("--ledger", tmp_path / "l.db", "--verbose").out)
        assert " of 20. The other " in text
        assert "is returned to the budget." in text
        assert "Before the data were read, at most ε = 20 was guaranteed" in text
        assert "remains" not in text

    def test_without_a_ledger_nothing_goes_back(self, count):
        text = words(count().out)
        assert "was not used." in text
        assert "budget." not in text
        assert "% certain afterwards." in text
        assert "Before the data were read" not in text  # --verbose shows it

    def test_gaussian_noise_has_its_unit(self, count):
        text = words(count("--delta", 1e-6).out)
        assert "charge (ρ)" in text
        assert "(zCDP; the most that ε = 20, δ = 1e-06 allows)" in text

    def test_a_whole_charge_is_named(self, count, tmp_path):
        """In an (ε, δ) budget nothing goes back, whatever the noise used."""
        Ledger.create(tmp_path / "l.db", ApproxDP(50, 1e-5), "visits")
        text = words(count("--ledger", tmp_path / "l.db", "--delta", 1e-6).out)
        assert "The ledger is charged the whole ε = 20, δ = 1e-06" in text
        assert "goes back" not in text


@pytest.mark.parametrize(("high", "shown"), [(0.83, False), (0.1, True)])
def test_a_vague_share_is_not_shown(count, monkeypatch, high, shown):
    """An interval from 0 % to 83 % says nothing and alarms."""
    share = {"estimate": 0.0, "low": 0.0, "high": high, "confidence": 0.9}
    monkeypatch.setattr(
        query, "dropped_pairs", lambda values, limit, prices, *_: (share, prices[0])
    )
    text = words(count("--max-groups-per-user", 1, "--verbose").out)
    assert ("The cap dropped about 0.0% of (user, group) pairs (0.0% – " in text) == shown
    assert ("too small to say how much of (user, group) pairs the cap dropped" in text) != shown


def test_rows_name_the_option_that_saves(count):
    """Ten rows per person are assumed; the note comes before anything is charged."""
    assert "--max-rows-per-user R costs less" in words(count("--count-rows").err)
    assert count("--count-rows", "--max-rows-per-user", 1).err == ""
    assert count("--count-rows", "--json").err == ""


@pytest.mark.parametrize("delta", [None, 1e-6])
def test_the_price_of_a_higher_confidence(delta):
    """Told where all groups are answered, and near what it then costs; seeded."""
    groups = [f"g{number}" for number in range(20)]
    table = {"u": list(range(40_000)), "g": groups * 2000}

    def asked(**more):
        return expost_count(
            pa.table(table),
            **{"by": "g", "user": "u", "keys": groups, "delta": delta, "epsilon": 2.0} | more,
            max_groups_per_user=1,
            one_row_per_user=True,
            randomness=SimulationRandomness(1),
            simulation=True,
        )

    first = asked(within=0.05)
    told = about_surer_answers(first)
    assert "All 20 groups are answered" in told
    assert "up to about 2 of them may be off by more than 5%" in told
    cost = float(re.search(r"= (\S+) in all", told)[1])
    assert asked(within=0.05, confidence=0.99).spent == pytest.approx(cost, rel=0.35)
    assert first.spent < 0.7 * cost
    assert about_surer_answers(asked(within=0.05, confidence=0.99)) is None
    assert about_surer_answers(asked(within=0.001)) is None  # not all are answered
    assert about_surer_answers(asked(top=3)) is None
    assert about_surer_answers(asked(within=0.05, epsilon=1.2 * told_epsilon(first))) is None


def told_epsilon(result):
    """An ε for which the charge of a result is nearly all there is."""
    return result.spent if result.unit == "epsilon" else 2 * result.spent**0.5 * 3.7
