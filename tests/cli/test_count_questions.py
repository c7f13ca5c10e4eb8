"""``expost count`` beyond distinct users: plans, certificates, sums, means, failures on the way.

And neighbours at the door: one row, whatever is in it, changes the noisy answers and nothing else
that the command shows.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from expost import PureDP
from expost.analytics import query
from expost.analytics.refinement import Refinement
from expost.budget.ledger import Ledger
from tests.cli.counting import count, expost, files

__all__ = ["count", "expost", "files"]  # fixtures


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """1,000 people: a city, a country, an age, whether they are active."""
    lines = ["u,city,country,age,status"]
    for user in range(1000):
        city, country = ("york", "uk") if user % 2 else ("lyon", "fr")
        lines.append(f"{user},{city},{country},{user % 80},{'active' if user % 4 else 'gone'}")
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "cities.txt").write_text("york\nlyon\n")
    (tmp_path / "both.csv").write_text("york,uk\nlyon,fr\nlyon,uk\n")
    return tmp_path / "people.csv"


def ask(expost, people, *options, epsilon=100):
    """The command, with a confidence at which an interval misses once in a million tests."""
    sure = ["--user", "u", "--epsilon", epsilon, "--confidence", 1 - 1e-6, "--json"]
    return expost("count", people, *sure, *options)


class TestQuestions:
    """What can be asked for."""

    def test_one_total(self, expost, people):
        (answer,) = ask(expost, people).document["answers"]
        assert answer["low"] <= 1000 <= answer["high"]

    def test_conditions(self, expost, people):
        done = ask(expost, people, "--where", "status=active", "--where", "age>=40")
        truth = sum(user % 4 != 0 and user % 80 >= 40 for user in range(1000))
        (answer,) = done.document["answers"]
        assert abs(answer["estimate"] - truth) <= 0.2 * truth
        assert done.document["query"]["where"] == ["status=active", "age>=40"]

    def test_several_columns(self, expost, people):
        done = ask(
            expost,
            people,
            *("--by", "city", "--by", "country"),
            *("--keys", people.parent / "both.csv", "--plus-minus", 5),
        )
        found = {tuple(each["group"]): each["estimate"] for each in done.document["answers"]}
        assert found.keys() == {("york", "uk"), ("lyon", "fr"), ("lyon", "uk")}
        assert abs(found["york", "uk"] - 500) < 50
        assert found["lyon", "uk"] < 50

    def test_rows(self, expost, tmp_path):
        table = tmp_path / "rows.csv"
        table.write_text("u,x\n" + "".join(f"{user},1\n" * 5 for user in range(400)))
        (answer,) = ask(expost, table, "--count-rows", epsilon=1000).document["answers"]
        assert answer["low"] <= 2000 <= answer["high"]
        more = ["--count-rows", "--max-rows-per-user", 2]
        capped = ask(expost, table, *more, epsilon=1000).document
        assert capped["answers"] == []  # the cap alone removes more than a tenth
        assert capped["dropped_share"]["low"] <= 0.6 <= capped["dropped_share"]["high"]

    def test_sums(self, expost, people):
        done = ask(
            expost,
            people,
            *("--by", "city", "--keys", people.parent / "cities.txt"),
            *("--sum", "age", "--bounds", 0, 100),
        )
        truth = sum(user % 80 for user in range(1, 1000, 2))
        york = next(each for each in done.document["answers"] if each["group"] == "york")
        assert abs(york["estimate"] - truth) <= 0.2 * truth
        assert done.document["query"]["kind"] == "sum"

    @pytest.mark.parametrize("error", [["--within", 0.1], ["--plus-minus", 4]])
    def test_means(self, expost, people, error, tmp_path):
        options = ["--mean", "age", "--bounds", 0, 100, *error, "--plot", tmp_path / "m.png"]
        done = ask(expost, people, *options)
        (answer,) = done.document["answers"]
        truth = sum(user % 80 for user in range(1000)) / 1000
        assert abs(answer["estimate"] - truth) < 8
        assert 0 <= answer["low"] <= answer["high"] <= 100
        assert (tmp_path / "m.png").exists()

    def test_the_table_for_people(self, expost, people):
        done = expost("count", people, "--user", "u", "--epsilon", 9, "--plus-minus", 20)
        assert done.code == 0
        assert "within ± 20" in " ".join(done.out.split())


class TestPlan:
    """The price before asking."""

    OPTIONS = ("--user", "u", "--by", "g", "--epsilon", "2", "--max-groups-per-user", "10")

    def test_reads_no_data(self, expost, files):
        """The source need not exist; larger groups never cost more."""
        done = expost("count", "missing.csv", *self.OPTIONS, "--keys", files[1], "--plan", "--json")
        assert done.code == 0
        sizes = done.document["sizes"]
        assert [each["size"] for each in sizes] == [10**power for power in range(2, 7)]
        costs = [each["cost"] for each in sizes if each["cost"] is not None]
        assert costs == sorted(costs, reverse=True)

    def test_for_people_with_a_picture(self, expost, files, tmp_path):
        done = expost(
            "count",
            "missing.csv",
            *self.OPTIONS,
            *("--keys", files[1], "--plan", "--plot", tmp_path / "plan.svg"),
        )
        assert done.code == 0
        assert "1,000,000" in done.out
        assert (tmp_path / "plan.svg").read_text().startswith("<?xml")

    def test_private_keys_show_the_threshold(self, expost):
        done = expost(
            "count", "no.csv", *self.OPTIONS, "--private-keys", "--delta", 1e-6, "--plan", "--json"
        )
        assert 50 < done.document["threshold"] < 500


class TestCertificate:
    """The document that says what was released."""

    def test_written_and_shown(self, count, expost, tmp_path):
        ledger = Ledger.create(tmp_path / "ledger.db", PureDP(100), "people")
        path = tmp_path / "certificate.json"
        done = count(
            "--json",
            *("--certificate", path, "--max-groups-per-user", 2),
            *("--ledger", tmp_path / "ledger.db", "--budget", "people", "--analyst", "ann"),
        )
        record = json.loads(path.read_text())
        assert (record["schema"], record["kind"]) == (2, "count")
        assert record["answers"] == done.document["answers"]
        assert record["spent"] == {"epsilon": done.document["spent"]}
        assert record["max_groups_per_user"] == 2
        assert record["ledger"]["reservation"] in {e.reservation for e in ledger.entries()}
        shown = expost("certificate", path, "--verbose")
        assert shown.code == 0
        assert "the m largest" in " ".join(shown.out.split())
        assert expost("certificate", path, "--json").document == record

    def test_a_false_one_is_refused(self, count, expost, tmp_path):
        path = tmp_path / "certificate.json"
        count("--certificate", path)
        record = json.loads(path.read_text())
        record["spent"]["epsilon"] = 10**6
        path.write_text(json.dumps(record))
        assert expost("certificate", path).code == 2


class TestNeverPayForNothing:
    """Failures on the way."""

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Ledger:
        return Ledger.create(tmp_path / "ledger.db", PureDP(100))

    def charged(self, ledger: Ledger) -> float:
        standing = ledger.standing().filter
        assert not ledger.open_reservations()
        return float(sum(standing.settled))

    def test_ctrl_c_before_a_look(self, count, ledger, tmp_path, monkeypatch):
        """Exit code 130; the reservation is settled at 0, and no file of answers is left."""

        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(query, "_values", interrupted)
        out = tmp_path / "answers.csv"
        done = count("--ledger", tmp_path / "ledger.db", "--out", out)
        assert (done.code, done.out) == (130, "")
        assert self.charged(ledger) == 0
        assert not out.exists()

    def test_ctrl_c_after_looks(self, count, ledger, tmp_path, monkeypatch):
        """What was looked at is charged, and what was released is shown."""
        answer = Refinement._answer
        made = []

        def second_fails(self, group):
            if len(made) == 1:
                raise KeyboardInterrupt
            made.append(answer(self, group))
            return made[-1]

        monkeypatch.setattr(Refinement, "_answer", second_fails)
        done = count("--ledger", tmp_path / "ledger.db", "--json")
        assert done.code == 130
        assert len(done.document["answers"]) == 1
        assert 0 < self.charged(ledger) <= 20

    def test_a_scan_that_fails(self, expost, ledger, tmp_path):
        """A damaged file, found out while it is read: nothing was released, nothing is charged."""
        table, keys = tmp_path / "t.csv.gz", tmp_path / "k.txt"
        table.write_bytes(gzip.compress(b"u,g\n" + b"".join(b"%d,a\n" % i for i in range(50_000))))
        table.write_bytes(table.read_bytes()[:20_000])
        keys.write_text("a\n")
        options = ["--by", "g", "--user", "u", "--epsilon", 1, "--keys", keys]
        done = expost("count", table, *options, "--ledger", tmp_path / "ledger.db")
        assert (done.code, done.out) == (2, "")
        assert self.charged(ledger) == 0

    def test_a_file_of_answers_that_fails(self, count, ledger, tmp_path, monkeypatch):
        """The disk is full: answers are paid for, so they are shown, and settled."""
        from expost.cli import count as module

        def full(self, answer, **_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module._Writer, "write", full)
        done = count("--json", "--ledger", tmp_path / "ledger.db", "--out", tmp_path / "a.csv")
        assert done.code == 2
        assert "No space left" in done.err
        assert done.document["answers"]
        assert self.charged(ledger) >= done.document["spent"] > 0


ODD = ["", "nan", "inf", "-inf", "1e999", "-1e308", "x", "NULL", "1e-400", '"1,5"', "0x10", "９"]


class TestNeighbours:
    """One more person with any row: the same exit code, the same stderr, the same shape."""

    def shape(self, done):
        document = done.document
        groups = {str(each["group"]) for each in (*document["answers"], *document["unanswered"])}
        return done.code, done.err, sorted(document), groups

    @pytest.mark.parametrize(
        ("first", "kind"),
        [
            (False, "--sum"),
            (True, "--mean"),
            pytest.param(True, "--sum", marks=pytest.mark.long),
            pytest.param(False, "--mean", marks=pytest.mark.long),
        ],
    )
    def test_values(self, expost, tmp_path, first, kind):
        """Wherever the row stands; catches a type or a format that is guessed from rows."""
        (tmp_path / "k.txt").write_text("a\nb\n")
        rows, table = [f"{user},a,{user % 9}" for user in range(200)], tmp_path / "people.csv"

        def asked(lines):
            table.write_text("\n".join(["u,g,v", *lines]) + "\n")
            options = ["--by", "g", "--user", "u", "--keys", tmp_path / "k.txt", "--json"]
            options += ["--max-groups-per-user", 1, "--epsilon", 10_000, kind, "v"]
            return expost("count", table, *options, "--bounds", 0, 10)

        here = asked(rows)
        assert here.code == 0
        for value in ODD:
            row = f"new,a,{value}"
            there = asked([row, *rows] if first else [*rows, row])
            assert self.shape(here) == self.shape(there), value

    @pytest.mark.parametrize("condition", [[], ["--where", "u>=0"], ["--where", "u!=x"]])
    def test_rows(self, count, files, condition):
        """An empty line, no user, no group, an unlisted group, a user that is no number."""
        here, text = count("--json", *condition), files[0].read_text()
        assert here.err == ""
        for row in ("", ",large", "7,", ",", "7,new group", "x,large", '"","large"'):
            files[0].write_text(text + row + "\n")
            assert self.shape(here) == self.shape(count("--json", *condition)), row
