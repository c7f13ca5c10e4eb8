"""``expost count``.

The JSON contract, exit codes, the file of answers after a crash, and nothing on stdout that is not
the result.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from expost import ApproxDP, PureDP
from expost.analytics.count_result import round_answer
from expost.budget.ledger import Ledger
from tests.cli.counting import SIZES, count, expost, files

ANSWER_KEYS = {"group", "estimate", "low", "high", "spent"}
__all__ = ["count", "expost", "files"]  # fixtures


class TestJson:
    """The contract."""

    @pytest.mark.parametrize(
        "options",
        [
            [],
            ["--delta", "1e-6"],
            ["--group-order", "given"],
            ["--rule", "paper", "--confidence", "0.5"],
        ],
    )
    def test_keys_and_types(self, count, options):
        """Catches a renamed key, a second document, NaN, and notes on stdout."""
        done = count("--json", *options)
        assert done.code == 0
        document = done.document
        assert document.keys() >= {"answers", "unanswered", "spent", "remaining", "guarantee"}
        assert {"large", "middle"} <= {answer["group"] for answer in document["answers"]}
        assert all(
            set(answer) == ANSWER_KEYS for answer in (*document["answers"], *document["unanswered"])
        )
        assert all(
            answer["low"] <= answer["estimate"] <= answer["high"] for answer in document["answers"]
        )
        assert {answer["group"] for answer in (*document["answers"], *document["unanswered"])} == {
            *SIZES,
            "absent",
        }
        parts = sum(
            Fraction(answer["spent"]) for answer in (*document["answers"], *document["unanswered"])
        )
        step = Fraction(20, 10**12)  # what is charged is a whole number of steps, rounded up
        assert parts <= Fraction(document["spent"]) <= (parts + step) * (1 + Fraction(1, 10**12))
        assert document["guarantee"]["epsilon"] == 20
        assert document["guarantee"].get("delta") == (1e-6 if "--delta" in options else None)
        assert document["simulated"] is False

    def test_stderr_says_nothing_about_rows(self, count, files):
        """Catches a hint about ignored rows: one row decides it, and scripts keep stderr."""
        assert count("--json").err == ""
        files[0].write_text(files[0].read_text() + ",large\n" * 17)
        assert count("--json").err == ""

    def test_groups_not_looked_at_have_no_estimate(self, expost, files, tmp_path):
        """The budget ends before the last groups: null, as JSON has no NaN."""
        keys = tmp_path / "many.txt"
        keys.write_text("".join(f"g{place}\n" for place in range(300)) + "large\n")
        done = expost(
            "count",
            files[0],
            "--by",
            "g",
            "--user",
            "u",
            "--epsilon",
            0.05,
            "--keys",
            keys,
            "--group-order",
            "given",
            "--json",
        )
        last = done.document["unanswered"][-1]
        assert last == {"group": "large", "estimate": None, "low": 0.0, "high": None, "spent": 0.0}

    def test_private_keys(self, count):
        done = count("--json", "--private-keys", "--delta", "1e-6", keys=None, epsilon=100)
        assert done.code == 0
        found = {
            answer["group"] for answer in (*done.document["answers"], *done.document["unanswered"])
        }
        assert {"large", "middle", "[red]small"} <= found <= set(SIZES)
        keys = done.document["keys"]
        assert keys["delta"] == 5e-7
        assert keys["noise"] in ("gaussian", "laplace")
        assert keys["max_groups_per_user"] == done.document["max_groups_per_user"] == 10
        assert 1 < keys["threshold"] < 300

    def test_a_prior_decides_the_order(self, count, tmp_path):
        (tmp_path / "prior.csv").write_text("group,size\nmiddle,5000\nlarge,100\n")
        done = count("--json", "--prior", tmp_path / "prior.csv", epsilon=100)
        assert [answer["group"] for answer in done.document["answers"]][:3] == [
            "middle",
            "large",
            "[red]small",
        ]


def test_the_table_shows_names_as_they_are(count):
    """Catches group names taken for markup.

    '[/x]' would end in a traceback, after the budget was spent.
    """
    done = count()
    assert done.code == 0
    assert "[red]small" in done.out
    assert " of 20. The other" in " ".join(done.out.split())  # lines are folded
    assert "90% interval" in done.out


def test_closing_markup_in_a_name(expost, tmp_path):
    (tmp_path / "t.csv").write_text("u,g\n" + "".join(f"{user},[/x]\n" for user in range(500)))
    (tmp_path / "k.txt").write_text("[/x]\n")
    done = expost(
        "count",
        tmp_path / "t.csv",
        "--by",
        "g",
        "--user",
        "u",
        "--epsilon",
        20,
        "--keys",
        tmp_path / "k.txt",
    )
    assert done.code == 0
    assert "[/x]" in done.out


@pytest.mark.parametrize(
    "content", ["large\r\nmiddle\r\n", "\ufefflarge\n\nmiddle", "large\nmiddle\n\n\n"]
)
def test_key_files(count, tmp_path, content):
    """Catches a carriage return, a byte-order mark or an empty line as (part of) a group."""
    (tmp_path / "k.txt").write_bytes(content.encode())
    document = count("--json", keys=tmp_path / "k.txt").document
    assert [answer["group"] for answer in document["answers"]] == ["large", "middle"]
    assert document["unanswered"] == []


class TestBadInput:
    """Exit code 2, one line on stderr that says what would do, nothing on stdout."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--by", "nothing"], "give 2 names per group"),
            (["--where", "nothing=1"], "the table has the columns 'u', 'g'"),
            (["--where", "nothing"], "give conditions like"),
            (["--max-groups-per-user", "many"], "auto or none"),
            (["--max-groups-per-user", "0"], "max_groups_per_user"),
            (["--sum", "u"], "needs public bounds"),
            (["--bounds", "0", "1"], "belongs to sums and means"),
            (["--count-rows", "--sum", "u"], "ask for one"),
            (["--within", "0.1", "--plus-minus", "5"], "not both"),
            (["--budget", "people"], "give --ledger too"),
            (["--analyst", "ann"], "give --ledger too"),
            (["--user", "nothing"], "the table has the columns 'u', 'g'"),
            (["--private-keys"], "give one of the two"),
            (["--within", "0"], "within"),
            (["--within", "1.5"], "within"),
            (["--epsilon", "-1"], "epsilon"),
            (["--epsilon", "nan"], "epsilon"),
            (["--epsilon", "much"], "epsilon"),
            (["--delta", "2"], "delta"),
            (["--ratio", "1"], "ratio"),
            (["--ratio", "1.00001"], "ratio"),
            (["--confidence", "1"], "confidence"),
            (["--group-order", "random"], "order"),
            (["--rule", "none"], "rule"),
            (["--plot", "x.txt"], "plot"),
            (["--plot", "/no/such/folder/x.png"], "plot"),
            (["--out", "/no/such/folder/x.csv"], "/no/such/folder"),
            (["--ledger", "no-such-ledger.db"], "ledger"),
            (["--keys", "no-such-file.txt"], "no-such-file.txt"),
            (["--max-group-epsilon", "0"], "max_group_epsilon"),
            (["--no-such-option"], "no-such-option"),
        ],
    )
    def test_options(self, count, options, message):
        done = count(*options)
        assert (done.code, done.out) == (2, "")
        assert message in " ".join(done.err.split())
        assert "Traceback" not in done.err

    def test_a_column_that_is_not_there(self, expost, files):
        done = expost(
            "count", files[0], "--by", "x", "--user", "u", "--epsilon", 1, "--keys", files[1]
        )
        assert (done.code, done.out) == (2, "")
        assert "the table has the columns 'u', 'g'" in done.err

    def test_no_source(self, expost, files):
        done = expost(
            "count", "missing.csv", "--by", "g", "--user", "u", "--epsilon", 1, "--keys", files[1]
        )
        assert done.code == 2
        assert "no such file" in done.err

    def test_neither_keys_nor_private_keys(self, count):
        """Never the data's own groups for free."""
        done = count(keys=None)
        assert done.code == 2
        assert "which groups exist is protected, too" in done.err

    def test_private_keys_need_a_delta(self, count):
        done = count("--private-keys", keys=None)
        assert done.code == 2
        assert "needs a δ" in done.err

    @pytest.mark.parametrize("content", ["", "\n\n", "a\na\n", "a\n\udcff\n"])
    def test_keys(self, count, tmp_path, content):
        (tmp_path / "k.txt").write_bytes(content.encode("utf-8", "surrogateescape"))
        done = count(keys=tmp_path / "k.txt")
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err

    @pytest.mark.parametrize(
        "content", ["", "group,size\n", "a,1\nb\n", "a,1\nb,many\n", "a,nan\n"]
    )
    def test_priors(self, count, tmp_path, content):
        (tmp_path / "prior.csv").write_text(content)
        done = count("--prior", tmp_path / "prior.csv")
        assert (done.code, done.out) == (2, "")
        assert "prior" in done.err

    def test_an_error_does_not_show_the_password(self, expost, files):
        url = "postgresql://ann:hunter2@localhost:1/db"
        done = expost(
            "count",
            url,
            "--table",
            "t",
            "--by",
            "g",
            "--user",
            "u",
            "--epsilon",
            1,
            "--keys",
            files[1],
        )
        assert done.code == 2
        assert "hunter2" not in done.err + done.out

    def test_a_url_needs_a_table(self, expost, files):
        done = expost(
            "count", "duckdb://x.db", "--by", "g", "--user", "u", "--epsilon", 1, "--keys", files[1]
        )
        assert done.code == 2
        assert "--table" in done.err


class TestLedger:
    """What was paid is in the ledger."""

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Ledger:
        return Ledger.create(tmp_path / "ledger.db", PureDP(30), "people")

    def test_charged_and_refused(self, count, ledger, tmp_path):
        """Exit code 3 once the budget is too small.

        A refused job leaves no file, so the same command may be given again.
        """
        url, out = tmp_path / "ledger.db", tmp_path / "answers.csv"
        done = count("--json", "--ledger", url, "--budget", "people")
        (charged,) = ledger.standing().filter.settled
        assert done.code == 0
        assert float(charged) == done.document["spent"]
        refused = count("--json", "--ledger", url, "--budget", "people", "--out", out, epsilon=29.9)
        assert refused.code == 3
        assert list(refused.document) == ["error"]
        assert "refuses" in refused.err
        assert not out.exists()
        assert ledger.standing().filter.settled == (charged,)

    def test_bad_input_charges_nothing(self, count, ledger, tmp_path):
        for options in (["--by", "nothing"], ["--budget", "no such"], ["--ratio", "1"]):
            assert (
                count("--ledger", tmp_path / "ledger.db", "--budget", "people", *options).code == 2
            )
        assert [entry.action for entry in ledger.entries()] == ["create"]

    def test_the_wrong_kind_of_budget(self, count, tmp_path):
        """Pure and with δ do not mix: bad input, not a refusal."""
        Ledger.create(tmp_path / "approx.db", ApproxDP(30, 1e-5))
        Ledger.create(tmp_path / "pure.db", PureDP(30))
        assert count("--delta", "1e-6", "--ledger", tmp_path / "pure.db").code == 2
        assert count("--delta", "1e-6", "--ledger", tmp_path / "approx.db").code == 0


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream))


class TestOut:
    """Answers on disk as they are released."""

    HEADER = ("g", "estimate", "low", "high", "spent", "answered")

    def test_all_of_them(self, count, tmp_path):
        done = count("--json", "--out", tmp_path / "answers.csv")
        header, *rows = rows_of(tmp_path / "answers.csv")
        assert tuple(header) == self.HEADER
        assert [row[0] for row in rows if row[-1] == "yes"] == [
            answer["group"] for answer in done.document["answers"]
        ]
        assert [row[0] for row in rows if row[-1] == "no"] == [
            answer["group"] for answer in done.document["unanswered"]
        ]
        assert [int(row[1]) for row in rows if row[-1] == "yes"] == [
            round_answer(answer["estimate"], answer["low"], answer["high"], whole=True).estimate
            for answer in done.document["answers"]
        ]

    def test_a_suffix_decides(self, count, tmp_path):
        """Files by suffix; another one is refused before the table is opened."""
        for name in ("boss.xlsx", "a.parquet", "a.json", "a.md", "a.png"):
            done = count("--json", "--out", tmp_path / name)
            assert done.code == 0, done.err
            assert (tmp_path / name).stat().st_size > 100
            assert name in done.err
        done = count("--by", "no such column", "--out", tmp_path / "a.txt")
        assert done.code == 2
        assert ".xlsx" in done.err
        assert not (tmp_path / "a.txt").exists()

    def test_an_existing_file_is_refused(self, count, tmp_path):
        """Catches answers that were paid for being overwritten."""
        (tmp_path / "answers.csv").write_text("precious")
        done = count("--out", tmp_path / "answers.csv")
        assert done.code == 2
        assert "exists already" in done.err
        assert (tmp_path / "answers.csv").read_text() == "precious"

    KILLED = (
        "import os, signal, sys\n"
        "from expost.cli import count, main\n"
        "write, made = count._Writer.write, []\n"
        "def counted(self, answer, **options):\n"
        "    write(self, answer, **options)\n"
        "    made.append(answer)\n"
        "    if len(made) == 2:\n"
        "        os.kill(os.getpid(), signal.{signal})\n"
        "count._Writer.write = counted\n"
        "main.main()\n"
    )

    def interrupted(
        self, files: tuple[Path, Path], tmp_path: Path, signal: str
    ) -> subprocess.CompletedProcess[str]:
        """The command in a process of its own, which sends itself a signal right after its second
        answer.
        """
        arguments = [
            "count",
            files[0],
            "--by",
            "g",
            "--user",
            "u",
            "--epsilon",
            "20",
            "--keys",
            files[1],
        ]
        more = ["--ledger", tmp_path / "ledger.db", "--out", tmp_path / "answers.csv", "--json"]
        code = self.KILLED.format(signal=signal)
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments + more)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @pytest.mark.parametrize(("signal", "state"), [("SIGKILL", "held"), ("SIGINT", "settled")])
    def test_a_crash_loses_nothing(self, files, tmp_path, signal, state):
        """Catches a buffer or a charge that dies with the process.

        Killed, the worst case stays held; interrupted, it is settled.
        """
        ledger = Ledger.create(tmp_path / "ledger.db", PureDP(30))
        done = self.interrupted(files, tmp_path, signal)
        assert done.returncode == (-9 if signal == "SIGKILL" else 130)
        if signal == "SIGKILL":
            assert done.stdout == ""
        else:  # the answers are in the file
            assert json.loads(done.stdout)["error"]["kind"] == "Interrupted"
        assert "Traceback" not in done.stderr
        rows = rows_of(tmp_path / "answers.csv")[1:]
        assert [row[-1] for row in rows] == ["yes", "yes"]
        standing = ledger.standing().filter
        paid = sum(Fraction(float(row[4])) for row in rows)
        (charged,) = standing.held if state == "held" else standing.settled
        assert charged >= paid > 0
        assert len(ledger.open_reservations()) == (state == "held")
        assert charged == 20 if state == "held" else charged < 20


class TestPlot:
    """A figure of the estimates."""

    def test_png(self, count, tmp_path):
        done = count("--json", "--plot", tmp_path / "figure.png")
        assert done.document["answers"]
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
        assert "figure" in done.err

    def test_answers_come_first(self, count, tmp_path):
        """The figure cannot be written: the answers are paid for, and shown all the same."""
        (tmp_path / "figure.png").mkdir()
        done = count("--json", "--plot", tmp_path / "figure.png")
        assert done.code == 2
        assert done.document["answers"]

    def test_nothing_to_draw(self, count, tmp_path):
        """No group was found: an empty figure, not a traceback."""
        done = count(
            "--private-keys",
            "--delta",
            "1e-9",
            "--plot",
            tmp_path / "figure.svg",
            keys=None,
            epsilon=0.001,
        )
        assert done.code == 0
        assert (tmp_path / "figure.svg").exists()


def test_help(expost, monkeypatch):
    """Catches an option that went missing: each of the contract's is there."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    text = expost("count", "--help").out
    wanted = (
        "by user within epsilon delta keys private-keys group-order prior max-group-epsilon "
        "ledger budget out plot json"
    )
    assert all(f"--{option}" in text for option in (*wanted.split(), "confidence", "rule", "ratio"))


def test_the_installed_command():
    """Through the entry point, with the encoding of a bare environment."""
    done = subprocess.run(
        [
            Path(sys.executable).parent / "expost",
            "count",
            "missing.csv",
            "--by",
            "g",
            "--user",
            "u",
            "--epsilon",
            "1",
            "--keys",
            "x",
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
