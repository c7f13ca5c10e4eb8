"""What fuzzing has found, each as an example of its own, so that it stays found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from expost import ApproxDP, PureDP
from expost.budget.ledger import Ledger
from expost.budget.store import Store
from expost.cli.output import visible
from expost.errors import CheckpointMismatch, InvalidInput
from expost.selection.release import Release
from expost.tuning.request.settings import read_settings
from expost.tuning.rows.job_rows import load_rows
from expost.tuning.runs.run_attempts import Journal
from tests.fuzz.command import Books, assert_refused, expost
from tests.fuzz.test_certificates import RECORD
from tests.fuzz.test_tune_documents import folder, tune  # noqa: F401
from tests.tuning.jobs import TOML, job

HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("line", "instead", "named"),
    [
        ("delta = 1e-4", f"delta = {HUGE}", "privacy.delta (line 21)"),
        ("attempts = 3", f"attempts = {HUGE}", "privacy.attempts (line 22)"),
        ("attempts = 3", "attempts = 100000000", "privacy.attempts (line 22)"),
        ("epochs = [4]", f"epochs = [{'9' * 5000}]", "not TOML"),
        ("epochs = [4]", f"epochs = {'[' * 3000}{']' * 3000}", "not TOML"),
        ("epochs = [4]", "epochs = [1e300]", "search"),
        ("batch_sizes = [40]", "batch_sizes = [5e-324]", "search"),
        ("attempts = 3", "overhead = 5e-324", "privacy.overhead (line 22)"),
        ("attempts = 3", "overhead = 1.7e308", "privacy.overhead (line 22)"),
        (
            "feature_bounds = [0, 1]",
            "feature_bounds = [-1e308, 1e308]",
            "data.feature_bounds (line 3)",
        ),
        ('kind = "logistic"', 'kind = "..:x"', "model.kind"),
        ('path = "rows.npz"', 'path = "job.toml"\ntarget = "y"', "data.path"),
    ],
)
def test_documents(folder: Path, line: str, instead: str, named: str) -> None:  # noqa: F811
    """Catches values beyond the limits of floats and parsers, and names that are not names.

    Numbers beyond floats, beyond a parser's digits and its recursion, bounds with an infinite
    difference.
    """
    done = tune(folder, TOML.replace(line, instead).encode())
    assert done is not None
    assert named in done.err


@pytest.mark.parametrize("name", ["rows.npz", "rows.parquet", "rows.csv"])
def test_rows_that_are_garbage(folder: Path, name: str) -> None:  # noqa: F811
    (folder / f"bad-{name}").write_bytes(b'a,"' + b"x" * 200_000)
    text = TOML.replace("rows.npz", f"bad-{name}").replace(
        "classes = 2", 'classes = 2\ntarget = "y"'
    )
    done = tune(folder, text.encode())
    assert done is not None
    assert ("quote" if name == "rows.csv" else "cannot be read") in done.err


def test_a_grid_is_not_made_before_it_is_measured() -> None:
    """Catches 10^12 settings in memory; and the public draw from a grid is that of its places."""
    many = list(range(1, 1001))
    wide = {"learning_rates": many, "epochs": many, "batch_sizes": many, "clips": many}
    with pytest.raises(InvalidInput, match="2000000000000 candidates"):
        read_settings(job(search=wide), given_data=True)
    assert (
        len(read_settings(job(search={**wide, "samples": 7}), given_data=True).search.settings) == 7
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--epsilon", "1e-300"),
        ("--max-group-epsilon", "1e-300"),
        ("--max-groups-per-user", "1" + "0" * 30),
        ("--within", "1e-300"),
    ],
)
@pytest.mark.parametrize("further", [[], ["--delta=1e-6"], ["--delta=1e-6", "--private-keys"]])
def test_a_count_that_cannot_be_made_is_not_charged(
    tmp_path: Path, option: str, value: str, further: list[str]
) -> None:
    """Catches noise that is too large to draw and detected only after the reservation.

    The reservation would then stay.
    """
    (tmp_path / "t.csv").write_text("u,g\n1,a\n2,b\n")
    (tmp_path / "k.txt").write_text("a\nb\n")
    Ledger.create(tmp_path / "l.db", ApproxDP(10, 1e-5, "zero-out"), "people")
    keys = [] if "--private-keys" in further else [f"--keys={tmp_path / 'k.txt'}"]
    words = [
        "--by=g",
        "--user=u",
        "--epsilon=2",
        *keys,
        *further,
        f"--ledger={tmp_path / 'l.db'}",
        f"{option}={value}",
    ]
    done = expost("count", str(tmp_path / "t.csv"), *words)
    books = Books.of(tmp_path / "l.db")
    assert books.reserved == books.finished == (1 if done.code == 0 else 0), done


@pytest.mark.parametrize("content", [b'"u","g\n1,zibeben\n', b'"u","g\n1,"zibeben\n'])
def test_a_quote_in_the_header_shows_no_row(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    (tmp_path / "k.txt").write_text("a\n")
    done = expost(
        "count",
        str(tmp_path / "t.csv"),
        "--by=g",
        "--user=u",
        "--epsilon=2",
        f"--keys={tmp_path / 'k.txt'}",
    )
    assert_refused(done)
    assert "zibeben" not in done.err


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hush@hush2@localhost:1/db",
        "postgresql:u:hush@localhost/db",
        "postgresql+moon://u:hush@localhost:1/db",
        "sqlite+moon:///x.db",
        "sqlite:///file:x.db?uri=true",
        "sqlite:///x.db?mode=ro",
        "sqlite://u:hush@localhost:1/x.db",
        "x\x00y",
        "sqlite:///x\udcff",
    ],
)
@pytest.mark.parametrize("command", [["show"], ["create", "--name=n", "--epsilon=1"]])
def test_urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, command: list[str]
) -> None:
    """Catches wrong readings of URLs.

    Half a password taken for the host, a URL taken for a file, options that open another file than
    the checked one.
    """
    monkeypatch.chdir(tmp_path)
    done = expost("ledger", command[0], url, *command[1:])
    assert_refused(done)
    assert "hush" not in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"score": 10**400},
        {"score": float("nan")},
        {"spent": {"kind": ["pure"]}},
        {"spent": PureDP(100).as_dict()},
        {"spent": PureDP(0.1, "replace").as_dict()},
        {"value": json.loads("[" * 700 + "]" * 700)},
    ],
    ids=[
        "a whole number beyond floats",
        "no number",
        "no kind",
        "above the worst case",
        "another relation",
        "deep",
    ],
)
def test_certificates(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "c.json").write_text(json.dumps({**RECORD, **change}))
    assert_refused(expost("certificate", str(tmp_path / "c.json")))


def test_a_certificate_is_shown_without_what_moves_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(
        json.dumps({**RECORD, "theorem": "a\x1b[31m\ud800:smile:", "params": {"k": "\ud800"}})
    )
    assert "\x1b" not in expost("certificate", str(tmp_path / "c.json")).out
    shown = expost("certificate", str(tmp_path / "c.json"), "--verbose")
    assert r"a\x1b[31m\ud800:smile:" in shown.out
    assert json.loads(expost("certificate", str(tmp_path / "c.json"), "--json").out)["params"] == {
        "k": "\ud800"
    }
    assert visible("é\t\u202e") == r"é\t\u202e"


def test_any_file_may_be_given_for_a_certificate(tmp_path: Path) -> None:
    """Catches a message that quotes the file: it may be the data."""
    (tmp_path / "c.json").write_text("zibeben,1\n")
    done = expost("certificate", str(tmp_path / "c.json"))
    assert_refused(done)
    assert "zibeben" not in done.err


def test_numbers_that_cannot_be_shown() -> None:
    """Catches an error about an error: Python does not write numbers of more than 4,300 digits."""
    with pytest.raises(InvalidInput, match="int is not valid"):
        PureDP(-(10**5000))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": 2}', '{"schema": 2, "salt": "zz", "identity": 3}']
)
def test_a_damaged_journal_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "attempts.json").write_text(content)
    with pytest.raises(CheckpointMismatch):
        Journal(tmp_path, {"X": 1})


def test_an_unforeseen_error_shows_no_text(tmp_path: Path) -> None:
    """Exit code 4 and the kind of the error; the text may quote data.

    With EXPOST_TRACEBACK the error is raised.
    """
    (tmp_path / "c.json").write_text(json.dumps(RECORD))
    with mock.patch.object(Release, "from_dict", side_effect=RuntimeError("zibeben")):
        with pytest.raises(RuntimeError):
            expost("certificate", str(tmp_path / "c.json"))
        with mock.patch("tests.fuzz.command.SETTINGS", {"EXPOST_TRACEBACK": ""}):
            done = expost("certificate", str(tmp_path / "c.json"))
    assert (done.code, done.out) == (4, "")
    assert "RuntimeError" in done.err
    assert "zibeben" not in done.err


@pytest.mark.parametrize(
    ("X", "y"),
    [([], []), ([[]], [0]), (3, 0), ([[1.0], [2.0]], [[0], [1]]), ([[1.0], [2.0]], 0)],
    ids=["no rows", "no features", "numbers", "targets in a table", "one target"],
)
def test_rows_that_are_no_table(X: Any, y: Any) -> None:
    with pytest.raises(InvalidInput):
        load_rows(read_settings(job(), given_data=True).data, np.array(X), np.array(y))


def test_a_password_after_the_question_mark_is_not_shown() -> None:
    """SQLAlchemy hides that before the @ only."""
    store = Store("postgresql://ann:hush@localhost:1/db?password=hush&sslmode=prefer")
    assert "hush" not in store.location.address + repr(Ledger(store))
    assert "localhost" in repr(Ledger(store))
