"""``expost ledger``: every command, its JSON, its exit codes, and what it says to bad input."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from expost import ApproxDP, PureDP, RenyiDP
from expost.budget.budgets import RenyiBudget
from expost.budget.ledger import Ledger
from expost.cli.main import main
from tests.cli.test_cli import expost as in_a_process

PNG = b"\x89PNG\r\n\x1a\n"


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one document on stdout; anything else beside it is an error."""
        return json.loads(self.out)


@pytest.fixture
def expost(monkeypatch, capsys):
    """The command, without the second that a new interpreter takes."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["expost", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    made = Ledger.create(path, PureDP(10), "visits")
    made.settle(made.reserve(PureDP(1), "first", reservation_id="one"), 0)
    made.reserve(PureDP(2), "second, with a comma", reservation_id="two")
    return made


# create


def test_create_in_a_process_of_its_own(path):
    """Catches an entry point that is not there, or that prints beside the document."""
    done = in_a_process(
        "ledger", "create", str(path), "--name", "visits", "--epsilon", "10", "--json"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["name"] == "visits"
    again = in_a_process(
        "ledger", "create", str(path), "--name", "visits", "--epsilon", "10", "--json"
    )
    assert again.returncode == 2
    assert "already" in json.loads(again.stdout)["error"]["message"]
    assert "already" in again.stderr
    assert "Traceback" not in again.stderr


@pytest.mark.parametrize(
    ("options", "kind", "promise"),
    [
        (["--epsilon", 10], "pure", PureDP(10)),
        (
            ["--epsilon", 10, "--kind", "pure", "--neighbours", "replace"],
            "pure",
            PureDP(10, "replace"),
        ),
        (["--epsilon", 10, "--delta", 1e-6], "approx", ApproxDP(10, 1e-6)),
        (
            ["--epsilon", 8, "--delta", 1e-6, "--kind", "renyi", "--orders", "8"],
            "renyi",
            ApproxDP(8, 1e-6),
        ),
        (
            [
                "--epsilon",
                8,
                "--delta",
                1e-6,
                "--kind",
                "renyi",
                "--orders",
                "4,8",
                "--rule",
                "any",
            ],
            "renyi",
            ApproxDP(8, 1e-6),
        ),
    ],
)
def test_every_kind_of_budget(expost, path, options, kind, promise):
    """Catches an option that is lost on the way to the budget."""
    done = expost("ledger", "create", path, "--name", "visits", *options, "--json")
    assert done.code == 0, done.err
    made = Ledger.open(path).standing().filter.budget
    assert done.json["kind"] == made.kind == kind
    told = made.guarantee()
    assert type(told) is type(promise)
    assert promise <= told
    assert told.as_dict()["epsilon"] <= promise.as_dict()["epsilon"] * (1 + 2.0**-50)
    assert done.json["budget"] == made.as_dict()
    assert ("any" in options) == (made.rule == "any")


def test_zcdp_budgets_keep_their_target(expost, path):
    """Catches ε taken for ρ."""
    expost(
        "ledger", "create", path, "--name", "v", "--epsilon", 10, "--delta", 1e-6, "--kind", "zcdp"
    )
    promise = Ledger.open(path).standing().filter.budget.guarantee()
    assert 9.99 < promise.to_approx(1e-6).epsilon <= 10


def test_caps_and_a_second_budget(expost, path):
    """Catches a cap that is not set, or --add that makes a new ledger."""
    create = ("ledger", "create", path, "--epsilon", 10)
    assert expost(*create, "--name", "visits", "--cap", "ann=1.5", "--cap", "bo=b=2").code == 0
    assert expost(*create, "--name", "income", "--delta", 1e-6, "--add").code == 0
    ledger = Ledger.open(path)
    assert ledger.budgets() == ["income", "visits"]
    assert ledger.remaining("visits", "ann") == 1.5
    assert ledger.remaining("visits", "bo=b") == 2.0


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--epsilon", "x"],
        ["--epsilon", 0],
        ["--epsilon", -1],
        ["--epsilon", "nan"],
        ["--epsilon", "inf"],
        ["--epsilon", 1, "--delta", 0],
        ["--epsilon", 1, "--delta", 1],
        ["--epsilon", 1, "--delta", 1e-6, "--kind", "pure"],
        ["--epsilon", 1, "--kind", "approx"],
        ["--epsilon", 1, "--kind", "zcdp"],
        ["--epsilon", 1, "--kind", "other"],
        ["--epsilon", 1, "--delta", 1e-6, "--kind", "renyi"],
        ["--epsilon", 1, "--delta", 1e-6, "--kind", "renyi", "--orders", "2,x"],
        ["--epsilon", 1, "--delta", 1e-6, "--kind", "renyi", "--orders", "1,2"],
        ["--epsilon", 1, "--delta", 1e-6, "--kind", "renyi", "--orders", "8,4"],
        ["--epsilon", 1, "--delta", 1e-6, "--kind", "renyi", "--orders", "2"],
        ["--epsilon", 1, "--delta", 1e-6, "--kind", "renyi", "--orders", "64", "--rule", "some"],
        ["--epsilon", 1, "--neighbours", "friends"],
        ["--epsilon", 1, "--cap", "ann"],
        ["--epsilon", 1, "--cap", "=1"],
        ["--epsilon", 1, "--cap", "ann="],
        ["--epsilon", 1, "--cap", "ann=x"],
        ["--epsilon", 1, "--cap", "ann=-1"],
        ["--epsilon", 1, "--cap", "ann=1", "--cap", "ann=3"],
        ["--epsilon", "-0"],
        ["--epsilon", "1_0"],
        ["--epsilon", "1" * 70],
        ["--epsilon", 1, "--renews", "sometimes"],
        ["--epsilon", 1, "--alert-at", "0.8"],
        ["--epsilon", 1, "--alert-at", "8", "--alert-command", "true"],
        ["--epsilon", 1, "--name", ""],
        ["--epsilon", 1, "--name", "x" * 201],
    ],
)
def test_bad_options_are_bad_input_and_make_nothing(expost, path, options):
    """Catches a traceback, a success, or a file left behind."""
    named = [] if "--name" in options else ["--name", "visits"]
    done = expost("ledger", "create", path, *named, *options)
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err
    assert done.err.strip()
    assert not path.exists()


@pytest.mark.parametrize(
    "url",
    [
        "mysql://x/y",
        "sqlite://",
        "postgresql://ann:hush@host:port/db",
        "://",
        "postgresql://ann:hush@localhost:1/none",
    ],
)
@pytest.mark.parametrize("command", [["show"], ["create", "--name", "x", "--epsilon", "1"]])
def test_bad_urls(expost, url, command):
    """Catches a raw driver error, and a password on the screen."""
    done = expost("ledger", command[0], url, *command[1:], "--json")
    assert done.code == 2
    assert list(done.json) == ["error"]
    assert "error" in done.err
    assert "hush" not in done.out + done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", ["show", "entries", "verify", "export"])
def test_a_missing_ledger_is_bad_input(expost, path, command):
    """Catches a ledger that appears because somebody looked."""
    done = expost("ledger", command, path, *(["--json"] if command == "export" else []))
    assert done.code == 2
    assert "no ledger" in done.err
    assert not path.exists()


# show


def test_show_as_json_is_the_contract(expost, ledger, path):
    """Catches a key that is renamed, missing or new."""
    done = expost("ledger", "show", path, "--json")
    assert (done.code, done.err) == (0, "")
    shown = done.json
    (waiting,) = shown.pop("open")
    assert 0 <= waiting.pop("age_seconds") < 60
    assert waiting.pop("time").endswith("+00:00")
    assert waiting == {
        "reservation": "two",
        "analyst": "",
        "memo": "second, with a comma",
        "worst_case": PureDP(2).as_dict(),
    }
    assert shown == {
        "caps": [],
        "alerts": [],
        "name": "visits",
        "kind": "pure",
        "budget": {"kind": "pure", "epsilon": 10.0, "neighbours": "add-remove"},
        "settled": 1.0,
        "held": 2.0,
        "remaining": 7.0,
        "entries": 4,
    }


def test_show_as_a_table(expost, ledger, path):
    """Catches a table without its numbers, and --name that is ignored."""
    ledger.add_budget("income", RenyiDP((4.0, 8.0), (1.0, 2.0)))
    done = expost("ledger", "show", path)
    assert done.code == 0
    for text in ("budget", "settled", "held", "remaining", "visits", "income", "α=4: 1", "7"):
        assert text in done.out
    only = expost("ledger", "show", path, "--name", "income")
    assert "visits" not in only.out
    assert expost("ledger", "show", path, "--name", "income", "--json").json["kind"] == "renyi"
    several = expost("ledger", "show", path, "--json").json
    assert several["ledger"] == ledger.identity
    assert [each["name"] for each in several["budgets"]] == ["income", "visits"]
    assert expost("ledger", "show", path, "--name", "nowhere").code == 2


def test_amounts_are_shown_in_words(expost, path):
    """Catches a Python dict where a table or an error names an amount with a δ."""
    create = ("ledger", "create", path, "--name", "visits", "--epsilon", 1, "--delta", 1e-6)
    created = expost(*create).out
    assert "ε = 1 " in created
    assert "δ = 1e-6" in created
    Ledger.open(path).reserve(ApproxDP(0.5, 1e-7), reservation_id="one")
    shown = expost("ledger", "show", path).out
    assert "ε = 0.5" in shown
    assert "δ = 1e-7" in shown
    abandoned = expost("ledger", "abandon", path, "one").out
    assert "one: charged ε = 0.5, δ = 1e-07 (add-remove)" in abandoned
    assert "{" not in shown + abandoned


@pytest.mark.parametrize("name", ["spending.png", "spending.pdf", "spending.svg"])
def test_show_draws(expost, ledger, path, tmp_path, name):
    """Catches a figure that is not written, or a note about it on stdout."""
    ledger.abandon("two")
    done = expost("ledger", "show", path, "--plot", tmp_path / name, "--json")
    assert done.code == 0, done.err
    assert done.json["settled"] == 3.0
    assert name in done.err.replace("\n", "")
    content = (tmp_path / name).read_bytes()
    assert len(content) > 2000
    assert content.startswith(PNG) or not name.endswith("png")


def test_every_kind_can_be_drawn(expost, tmp_path):
    """Catches a figure that knows one kind of budget only."""
    budgets = [
        PureDP(1),
        ApproxDP(1, 1e-6),
        RenyiBudget.for_approx(8, 1e-6, [4, 8], "any"),
        RenyiDP((4.0,), (1.0,)),
    ]
    for number, budget in enumerate(budgets):
        ledger = Ledger.create(tmp_path / f"{number}.db", budget)
        ledger.settle(ledger.reserve(PureDP(0.5)), 0)
        assert (
            expost(
                "ledger", "show", tmp_path / f"{number}.db", "--plot", tmp_path / f"{number}.png"
            ).code
            == 0
        )
        assert (tmp_path / f"{number}.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("figure", ["spending.txt", "none/spending.png", "spending"])
def test_figures_that_cannot_be_written(expost, ledger, path, tmp_path, figure):
    """Catches a refusal that comes only after the work."""
    done = expost("ledger", "show", path, "--plot", tmp_path / figure)
    assert (done.code, done.out) == (2, "")


# entries and export


def test_entries(expost, ledger, path):
    """Catches entries out of order, and a budget's name that is ignored."""
    ledger.add_budget("income", PureDP(1))
    done = expost("ledger", "entries", path, "--json")
    found = done.json["entries"]
    assert [entry["sequence"] for entry in found] == [1, 2, 3, 4, 5]
    assert [entry["action"] for entry in found] == [
        "create",
        "reserve",
        "settle",
        "reserve",
        "create",
    ]
    assert found[3]["memo"] == "second, with a comma"
    assert [
        e["budget"]
        for e in expost("ledger", "entries", path, "--name", "income", "--json").json["entries"]
    ] == ["income"]
    table = expost("ledger", "entries", path).out
    assert "5 entries" in table
    assert "second, with a comma" in table


def test_export(expost, ledger, path):
    """Catches an export that loses a column, a row or a comma."""
    entries = [vars(entry) for entry in ledger.entries()]
    assert expost("ledger", "export", path, "--json").json == {"entries": entries}
    rows = list(csv.DictReader(io.StringIO(expost("ledger", "export", path, "--csv").out)))
    assert rows == [{key: str(value) for key, value in entry.items()} for entry in entries]
    for wrong in ([], ["--csv", "--json"]):
        done = expost("ledger", "export", path, *wrong)
        assert done.code == 2
        assert "entries" not in done.out


# verify and abandon


def test_verify(expost, ledger, path):
    """Catches an exit code of 0 for a ledger that was edited, or a problem that does not name its
    row.
    """
    sound = expost("ledger", "verify", path, "--json")
    assert (sound.code, sound.json) == (0, {"sound": True, "problems": []})
    assert "sound" in expost("ledger", "verify", path).out
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE expost_entries SET memo = 'another' WHERE sequence = 2")
    edited = expost("ledger", "verify", path, "--json")
    assert edited.code == 1
    assert edited.json["sound"] is False
    assert any(problem.startswith("row 2: edited") for problem in edited.json["problems"])
    table = expost("ledger", "verify", path)
    assert table.code == 1
    assert "row 2: edited" in table.out


def test_verify_in_a_process_of_its_own(ledger, path):
    """Catches an exit code that is lost between the command and the shell."""
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM expost_entries WHERE sequence = 3")
    done = in_a_process("ledger", "verify", str(path), "--json")
    assert done.returncode == 1
    assert any("row 3: removed" in problem for problem in json.loads(done.stdout)["problems"])


def test_a_damaged_file_is_bad_input(expost, path):
    """Catches a traceback over a file that is no database."""
    path.write_bytes(b"not a database " * 500)
    done = expost("ledger", "verify", path)
    assert (done.code, done.out) == (2, "")
    assert "error" in done.err


def test_abandon(expost, ledger, path):
    """Catches a job that is given up and refunded, or another one that is given up instead."""
    done = expost("ledger", "abandon", path, "two", "--json")
    assert (done.code, done.json) == (0, {"reservation": "two", "charged": PureDP(2).as_dict()})
    assert ledger.remaining() == 7.0
    assert ledger.status_of("two") == "abandoned"
    assert "charged" in expost("ledger", "abandon", path, "two").out  # again: no harm
    settled = expost("ledger", "abandon", path, "one")
    assert (settled.code, settled.out) == (2, "")
    unknown = expost("ledger", "abandon", path, "three")
    assert (unknown.code, unknown.out) == (2, "")
    assert "three" in unknown.err


@pytest.mark.parametrize("text", ["[/red]", "[bold]", "[link=x]y"])
def test_texts_are_shown_as_they_are(expost, path, text):
    """Catches a memo, a budget's name or a problem whose brackets are taken for markup: it is lost,
    or the command falls over.
    """
    ledger = Ledger.create(path, PureDP(1), f"name {text}")
    ledger.reserve(PureDP(0.5), f"memo {text}")
    assert f"memo {text}" in expost("ledger", "entries", path).out
    assert f"name {text}" in expost("ledger", "show", path).out
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE expost_totals SET held = '[]'")
    assert f"name {text}" in expost("ledger", "verify", path).out


def test_help():
    """Catches a command that is not listed."""
    done = in_a_process("ledger", "--help")
    assert done.returncode == 0
    for command in ("create", "show", "entries", "verify", "abandon", "export"):
        assert command in done.stdout


# What operators see and do.


def test_decimals_from_the_command_line(expost, path):
    """Catches ten requests of 0.1 that do not fit a budget of 1, and binary digits on screen."""
    expost("ledger", "create", path, "--name", "visits", "--epsilon", "1", "--cap", "ann=0.3")
    ledger = Ledger.open(path)
    for number in range(10):
        ledger.reserve(PureDP(0.1), analyst="ann" if number < 3 else "bob")
    shown = expost("ledger", "show", path).out
    assert "0.3" in shown
    assert "99999" not in shown
    table = expost("ledger", "entries", path).out
    assert table.count("0.1 ") >= 10


def test_show_lists_caps_and_what_is_waiting(expost, path):
    """Catches an operator who cannot see who holds the budget."""
    ledger = Ledger.create(path, PureDP(10), "visits", caps={"ann": PureDP(3)})
    ledger.reserve(PureDP(1), "weekly", analyst="ann", reservation_id="one")
    ledger.reserve(PureDP(2), "daily", analyst="bob", reservation_id="two")
    shown = expost("ledger", "show", path)
    for text in ("cap of ann", "Open reservations", "weekly", "daily", "bob", " s "):
        assert text in shown.out
    only = expost("ledger", "show", path, "--analyst", "ann", "--json").json
    assert [each["memo"] for each in only["open"]] == ["weekly"]
    assert [(cap["analyst"], cap["remaining"]) for cap in only["caps"]] == [("ann", 2.0)]


def test_entries_are_filtered(expost, path):
    """Catches a filter that is ignored, or that hides what it should show."""
    ledger = Ledger.create(path, PureDP(10), "visits")
    release = {"value": 1}
    ledger.settle(ledger.reserve(PureDP(1), "a", analyst="ann"), 0, release=release)
    ledger.abandon(ledger.reserve(PureDP(2), "b", analyst="bob"))
    ledger.reserve(PureDP(3), "c", analyst="bob")

    def memos(*options: object) -> list[str]:
        found = expost("ledger", "entries", path, *options, "--json").json["entries"]
        return [entry["memo"] for entry in found if entry["action"] == "reserve"]

    assert memos("--analyst", "bob") == ["b", "c"]
    assert memos("--state", "open") == ["c"]
    assert memos("--state", "settled") == ["a"]
    assert memos("--state", "abandoned", "--analyst", "ann") == []
    assert memos("--since", "1h") == memos("--until", "2999-01-01") == ["a", "b", "c"]
    assert memos("--until", "2020-01-01") == memos("--since", "2999-01-01T00:00:00+02:00") == []
    settled = expost("ledger", "entries", path, "--state", "settled", "--json").json["entries"][1]
    assert settled["amounts"] == ["1"]
    assert len(settled["certificate"]) == 64
    assert settled["certificate"][:8] in expost("ledger", "entries", path).out
    wrong = expost("ledger", "entries", path, "--since", "yesterday")
    assert (wrong.code, wrong.out) == (2, "")


def test_watch(expost, path, ledger):
    """Catches a watch that shows the past, or misses what is new."""
    timer = threading.Timer(1.5, lambda: Ledger.open(path).reserve(PureDP(0.5), "news"))
    timer.start()
    done = expost("ledger", "watch", path, "--every", 0.1, "--looks", 50, "--json")
    timer.join()
    (line,) = done.out.splitlines()
    assert json.loads(line)["memo"] == "news"
    assert expost("ledger", "watch", path, "--every", 0.01, "--looks", 2).out == ""


def test_change(expost, path, ledger):
    """Catches a change without a reason, or one that is not made."""
    change = ("ledger", "change", path)
    assert expost(*change, "--epsilon", 12).code == 2
    done = expost(*change, "--epsilon", "12.5", "--reason", "a new year", "--json")
    assert done.json["remaining"] == 9.5
    assert expost(*change, "--epsilon", 1, "--analyst", "ann", "--reason", "new").code == 0
    assert Ledger.open(path).remaining(analyst="ann") == 1.0
    assert expost(*change, "--remove", "--analyst", "ann", "--reason", "gone").code == 0
    for wrong in (["--remove"], ["--epsilon", 1, "--remove"], []):
        assert expost(*change, *wrong, "--reason", "x").code == 2
    assert "a new year" in expost("ledger", "entries", path).out


@pytest.mark.parametrize(
    "options",
    [
        ["--delta", 1e-6],
        ["--delta", 1e-6, "--kind", "zcdp"],
        ["--delta", 1e-6, "--kind", "renyi", "--orders", "4,8,16", "--rule", "any"],
    ],
)
def test_every_kind_can_be_changed(expost, path, options):
    """Catches a change that forgets the δ, the orders or the rule."""
    expost("ledger", "create", path, "--name", "v", "--epsilon", 8, *options)
    more = ["--delta", "1e-6"] if "zcdp" in options else []
    done = expost("ledger", "change", path, "--epsilon", 9, *more, "--reason", "more")
    assert done.code == 0, done.err
    budget = Ledger.open(path).standing().filter.budget
    told = budget.guarantee()
    assert 8.9 < told.to_approx(max(1e-6, told.as_dict().get("delta", 0.0))).epsilon < 9 + 1e-12
    assert ("any" in options) == (budget.rule == "any")


def test_alerts_and_renewals(expost, path):
    """Catches options that are lost on the way to the ledger."""
    create = ("ledger", "create", path, "--name", "visits", "--epsilon", 1, "--renews", "month")
    assert "protected by the sum" in expost(*create).out.replace("\n", " ")
    done = expost("ledger", "alert", path, "--at", "0.8", "--command", "true", "--json")
    assert done.json == {"alerts": [{"budget": "visits", "share": "0.8", "command": "true"}]}
    shown = expost("ledger", "show", path, "--json").json
    assert (shown["renews"], len(shown["alerts"])) == ("month", 1)
    more = ("--add", "--alert-at", "0.5", "--alert-command", "true", "--json")
    second = expost("ledger", "create", path, "--name", "x", "--epsilon", 1, *more).json
    assert second["alerts"] == [{"budget": "x", "share": "0.5", "command": "true"}]


def test_keys_and_heads(expost, path, ledger, tmp_path):
    """Catches a rolled-back ledger that passes for today's."""
    key, head = tmp_path / "key", tmp_path / "head.json"
    made = expost("ledger", "keys", key, "--json").json
    assert expost("ledger", "keys", key, "--json").json == made
    ledger._store.close()
    before = path.read_bytes()
    ledger.reserve(PureDP(1))
    assert expost("ledger", "head", path, "--key", key, "--out", head).code == 0
    check = ("ledger", "verify", path, "--head", head, "--key", tmp_path / "key.pub")
    assert expost(*check, "--json").json == {"sound": True, "problems": []}
    assert "continues the head" in expost(*check).out
    with_copy = tmp_path / "copy.db"
    with_copy.write_bytes(before)
    assert expost("ledger", "verify", with_copy).code == 0
    done = expost("ledger", "verify", with_copy, "--head", head, "--json")
    assert done.code == 1
    assert "rolled back" in done.json["problems"][0]
    assert expost("ledger", "verify", path, "--head", path).code == 2
    assert expost("ledger", "verify", path, "--key", tmp_path / "key.pub").code == 2


@pytest.mark.parametrize("command", ["ledger keys", "ledger head", "certificate sign"])
def test_a_key_that_others_can_read_signs_nothing(expost, path, ledger, tmp_path, command):
    """Catches a signature by somebody who may not be the owner of the key."""
    key, document, out = tmp_path / "a key", tmp_path / "release.json", tmp_path / "out.json"
    document.write_text('{"spent": 1}')
    arguments = {
        "ledger keys": (key,),
        "ledger head": (path, "--key", key, "--out", out),
        "certificate sign": (document, "--key", key, "--out", out),
    }[command]
    expost("ledger", "keys", key)
    key.chmod(0o640)
    refused = expost(*command.split(), *arguments)
    words = " ".join(refused.err.replace("\n", "").split())
    assert refused.code == 2
    assert "640" in words
    assert f"chmod 600 '{key}'".replace(" ", "") in words.replace(" ", "")
    assert not out.exists()
    key.chmod(0o600)
    assert expost(*command.split(), *arguments).code == 0


def test_upgrade_and_recover(expost, path, ledger, tmp_path):
    """Catches commands that say nothing, or that touch a ledger which needs neither."""
    assert expost("ledger", "upgrade", path).code == 2
    assert expost("ledger", "recover", path, "--json").json == {"recovered": True}
    old = tmp_path / "old.db"
    shutil.copyfile(Path(__file__).parent.parent / "budget" / "data" / "schema_1.db", old)
    assert "upgrade" in expost("ledger", "show", old).err
    assert "kept at" in expost("ledger", "upgrade", old).out
    assert expost("ledger", "verify", old).code == 0


@pytest.mark.parametrize("command", ["show", "entries", "verify"])
def test_looking_writes_nothing(expost, ledger, path, command):
    """Catches an auditor's command that needs to write."""
    ledger._store.close()
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    assert expost("ledger", command, path).code == 0
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
