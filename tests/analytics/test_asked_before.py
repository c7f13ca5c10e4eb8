"""The same question on the same version of a table is paid once."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ibis", reason="needs the analytics extra")

import expost
from expost import Ledger, PureDP
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
        {"epsilon": 1.5},
        {"within": 0.2},
        {"keys": ["a", "b"]},
        {"where": ["g=a"]},
        {"confidence": 0.8},
    ],
)
def test_another_question_is_another(ledger, table, other):
    """Catches a digest that leaves a setting out."""
    ask(ledger, table)
    charged = paid(ledger)
    assert not ask(ledger, table, **other).asked_before
    assert paid(ledger) > charged


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
    (path,) = (tmp_path / "ledger.db.answers").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
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
