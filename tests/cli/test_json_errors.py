"""With ``--json`` an error is one JSON document on stdout; the exit code is the same."""

from __future__ import annotations

import pytest

from expost import PureDP
from expost.analytics import query
from expost.budget.ledger import Ledger
from tests.cli.counting import count, expost, files

__all__ = ["count", "expost", "files"]  # fixtures


@pytest.mark.parametrize(
    "words",
    [
        ("count", "missing.csv", "--user", "u", "--epsilon", "1"),
        ("count",),
        ("count", "x.csv", "--epsilon", "many", "--user", "u"),
        ("plan", "--epsilons", "none"),
        ("tune", "missing.toml"),
        ("certificate", "missing.json"),
        ("certificate", "verify", "missing.json"),
        ("ledger", "show", "missing.db"),
        ("ledger", "nothing"),
        ("audit", "nothing"),
        ("sum",),
        ("--server",),
    ],
)
def test_bad_input(expost, words, tmp_path, monkeypatch):
    """Every command: one document with the exit code; stderr is as without the option."""
    monkeypatch.chdir(tmp_path)
    done = expost(*words, "--json")
    assert done.code == 2
    error = done.document["error"]
    assert set(error) == {"kind", "message", "field", "exit_code"}
    assert error["exit_code"] == 2
    assert error["message"]
    assert done.err
    plain = expost(*words)
    assert plain.code == 2
    assert plain.out == ""


def test_a_field_is_named(count):
    done = count("--json", "--within", 7)
    assert done.document["error"]["field"] == "within"
    assert done.document["error"]["kind"] == "InvalidInput"
    assert done.document["error"]["message"] in done.err


def test_a_budget_that_refuses(count, tmp_path):
    Ledger.create(tmp_path / "l.db", PureDP(1), "visits")
    done = count("--ledger", tmp_path / "l.db", "--json")
    assert done.code == 3
    assert done.document["error"]["kind"] == "BudgetRefused"


def test_an_unexpected_error_quotes_nothing(count, monkeypatch):
    """Its text may be data."""

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("row 17")

    monkeypatch.delenv("EXPOST_TRACEBACK", raising=False)
    monkeypatch.setattr(query, "count", fails)
    done = count("--json")
    assert done.code == 4
    assert done.document["error"]["kind"] == "Unexpected"
    assert "17" not in done.out + done.err


def test_an_interrupted_command(count, monkeypatch):
    def stops(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(query, "count", stops)
    done = count("--json")
    assert done.code == 130
    assert done.document["error"]["exit_code"] == 130
    assert done.document["error"]["kind"] == "Interrupted"


def test_a_result_is_not_followed_by_an_error(count, tmp_path, monkeypatch):
    """Answers are shown, then their certificate cannot be written: still one document."""

    def fails(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("expost.cli.count.write_document", fails)
    done = count("--json", "--certificate", tmp_path / "c.json")
    assert done.code == 2
    assert "answers" in done.document


def test_a_check_that_fails_prints_its_result_only(expost, tmp_path):
    """Exit code 1 with a document of its own, and no error after it."""
    Ledger.create(tmp_path / "l.db", PureDP(1), "visits")
    done = expost("ledger", "verify", tmp_path / "l.db", "--json")
    assert done.document == {"sound": True, "problems": []}


def test_a_file_called_json_is_not_the_option(expost):
    """After -- words are arguments."""
    done = expost("ledger", "show", "--", "--json")
    assert done.code == 2
    assert done.out == ""


def test_nothing_is_left_from_an_earlier_command(count, expost):
    """Commands of one process: catches a document that an earlier result holds back."""
    assert count("--json").code == 0
    assert "error" in expost("ledger", "show", "missing.db", "--json").document
