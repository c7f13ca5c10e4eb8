"""Backup and restore: one moment, no charge forgotten silently, nothing half restored."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from typer.testing import CliRunner

from expost import PureDP
from expost.budget import totals
from expost.budget.ledger import Ledger
from expost.budget.signing import SigningKey, load_public, public_name
from expost.cli.main import app as cli
from expost.errors import BudgetRefused, InvalidInput, LedgerError
from expost.server import audit_log, backup
from expost.server.backup import back_up, check_backup, restore
from expost.server.database import requests, sessions
from expost.server.jobs import states
from expost.server.people.accounts import Person
from expost.server.server_settings import ServerSettings
from expost.server.service import Service
from tests.server.running_server import QUESTION, furnish

ANN, ADA, OLGA = Person("ann", "analyst"), Person("ada", "auditor"), Person("olga", "owner")
LEASE, HOME = 30.0, "h"


def settings_of(home: Path, database: str | None = None) -> ServerSettings:
    return ServerSettings(home, database=database, tick=0.0, threads=0, pricers=0)


def run_queued(service: Service) -> None:
    while (row := service._queue.claim(service.runner.name, HOME, LEASE)) is not None:
        service.runner.run_one(row)
    service.runner.publish()


def spent(service: Service) -> float:
    return float(service.budget(ADA, "visits")["settled"])


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a server: one answer that was published, one question that is queued."""
    folder = tmp_path_factory.mktemp("furnished")
    service = Service(settings_of(folder / "home"))
    furnish(service, folder)
    service.ask(ANN, QUESTION | {"epsilon": 0.5}, "answered")
    run_queued(service)
    service.ask(ANN, QUESTION | {"epsilon": 0.25}, "queued")
    service.close()
    return folder


@pytest.fixture
def home(furnished: Path, tmp_path: Path) -> Path:
    shutil.copytree(furnished / "home", tmp_path / "home")
    return tmp_path / "home"


def answer_later(home: Path) -> float:
    """Answer what is queued and one question more; return what is spent then."""
    service = Service(settings_of(home))
    service.ask(ANN, QUESTION | {"epsilon": 0.125}, "later")
    run_queued(service)
    total = spent(service)
    service.close()
    return total


def view_of(service: Service, key: str) -> dict[str, Any]:
    row = service._queue.by_key("ann", key)
    assert row is not None
    return service.request(OLGA, row["id"])


def test_a_stopped_server_goes_on_where_it_was(home: Path, tmp_path: Path) -> None:
    made = back_up(settings_of(home), tmp_path / "backup")
    assert made == check_backup(tmp_path / "backup")
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "backup").iterdir()} == {0}
    report = restore(tmp_path / "backup", settings_of(tmp_path / "new"), charged_since="nothing")
    assert report["ended"] == 0
    service = Service(settings_of(tmp_path / "new"))
    assert view_of(service, "answered")["status"] == "done"
    run_queued(service)
    assert view_of(service, "queued")["status"] == "done"
    assert service.verify(ADA)["valid"]
    (act,) = [act for act in service.acts(ADA, limit=500) if act["act"] == "restore backup"]
    assert act["detail"]["charged_since"] == "nothing"
    assert service.store.rows(sql.select(sessions)) == []
    service.close()


def test_what_was_charged_since_must_be_said(home: Path, tmp_path: Path) -> None:
    back_up(settings_of(home), tmp_path / "backup")
    with pytest.raises(InvalidInput, match="knows no charge after"):
        restore(tmp_path / "backup", settings_of(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_unknown_charges_take_all_that_was_left(home: Path, tmp_path: Path) -> None:
    """The lost server may have answered what was queued, and spent the rest: no second draw."""
    back_up(settings_of(home), tmp_path / "backup")
    answer_later(home)
    report = restore(tmp_path / "backup", settings_of(tmp_path / "new"), charged_since="unknown")
    assert report["ended"] == 1
    service = Service(settings_of(tmp_path / "new"))
    assert service._queue.claim("w", HOME, LEASE) is None
    assert view_of(service, "queued")["status"] == "no answer"
    for name in service._ledgers.names():
        standing = service.budget(ADA, name)
        assert standing["held"] in (0, {"epsilon": 0, "delta": 0})
        assert standing["remaining"] in (0, {"epsilon": 0, "delta": 0})
    assert service.ask(ANN, QUESTION | {"epsilon": 0.01}, "new")["status"] == "refused"
    memos = [entry["memo"] for entry in service.entries(ADA)]
    assert any("what was charged later is not known" in memo for memo in memos)
    assert service.verify(ADA)["valid"]
    service.change_budget(OLGA, "visits", "counted the mails of that week", 6.0)
    assert service.ask(ANN, QUESTION | {"epsilon": 0.01}, "paid")["status"] == "queued"
    service.close()


def test_the_newest_ledger_keeps_every_charge(home: Path, tmp_path: Path) -> None:
    """Tables of the backup, ledger of now: what was answered since is neither free nor repeated."""
    back_up(settings_of(home), tmp_path / "backup")
    total = answer_later(home)
    new = settings_of(tmp_path / "new")
    report = restore(tmp_path / "backup", new, ledger=home / "ledger.db")
    assert report["charged_since"] == "in the newest ledger"
    service = Service(new)
    assert spent(service) == total
    assert view_of(service, "queued")["status"] == "no answer"  # its answer is lost, and paid
    assert service.verify(ADA)["valid"]
    service.close()


def test_a_home_with_a_newer_ledger_is_not_overwritten(home: Path, tmp_path: Path) -> None:
    back_up(settings_of(home), tmp_path / "backup")
    answer_later(home)
    before = (home / "ledger.db").read_bytes()
    with pytest.raises(InvalidInput, match=r"has 3 entries that the backup does not have"):
        restore(tmp_path / "backup", settings_of(home), charged_since="nothing")
    assert (home / "ledger.db").read_bytes() == before


def test_another_or_an_older_ledger_is_refused(home: Path, tmp_path: Path) -> None:
    Ledger.create(tmp_path / "other.db", PureDP(1))
    shutil.copy(home / "ledger.db", tmp_path / "older.db")
    answer_later(home)
    back_up(settings_of(home), tmp_path / "backup")
    for name in ("other.db", "older.db"):
        with pytest.raises(InvalidInput, match="does not continue"):
            restore(tmp_path / "backup", settings_of(tmp_path / "new"), ledger=tmp_path / name)
        assert not (tmp_path / "new").exists()


def test_commands_of_a_backup_do_not_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored ledger belongs to whoever restores it, so it ran what others had stored."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    started: list[str] = []
    monkeypatch.setattr(totals.subprocess, "Popen", lambda command, **_: started.append(command))
    Ledger.open(home / "ledger.db").set_alert(0.5, "true", budget="visits")
    back_up(settings_of(home), tmp_path / "backup")
    restore(tmp_path / "backup", settings_of(tmp_path / "new"), charged_since="nothing")
    for folder, runs in ((tmp_path / "new", 0), (home, 1)):
        ledger = Ledger.open(folder / "ledger.db")
        assert [alert.share for alert in ledger.alerts("visits")] == ["0.5"]
        ledger.reserve(PureDP(3.0), budget="visits")  # of 5
        assert len(started) == runs


@pytest.mark.parametrize("name", ["older.db", None], ids=["older", "none"])
def test_an_older_ledger_beside_newer_tables_is_refused(
    home: Path, tmp_path: Path, name: str | None
) -> None:
    """What was charged meanwhile would be free to spend again."""
    back_up(settings_of(home), tmp_path / "backup")
    shutil.copy(home / "ledger.db", tmp_path / "older.db")
    answer_later(home)
    for path in home.glob("ledger.db*"):
        path.rename(tmp_path / f"newest-{path.name}")
    if name is not None:
        shutil.copy(tmp_path / name, home / "ledger.db")
    with pytest.raises(LedgerError, match="lacks charges"):
        Service(settings_of(home))
    answer = CliRunner().invoke(cli, ["server", "start", "--home", str(home), "--port", "1"])
    assert isinstance(answer.exception, LedgerError)
    restore(tmp_path / "backup", settings_of(tmp_path / "new"), charged_since="unknown")
    Service(settings_of(tmp_path / "new")).close()
    for path in tmp_path.glob("newest-*"):
        path.replace(home / path.name.removeprefix("newest-"))
    service = Service(settings_of(home))
    assert service.verify(ADA)["valid"]
    row = service._queue.by_key("ann", "queued")
    lost = {column.name: row[column.name] for column in requests.c}
    lost |= {"id": "f" * 32, "key": "lost", "reserved": "2000"}
    service.store.change(requests.insert().values(lost))
    (problem,) = service.verify(ADA)["problems"]
    assert "lacks charges" in problem
    service.close()


def test_older_tables_beside_a_newer_ledger_draw_nothing(home: Path, tmp_path: Path) -> None:
    """As an operator does who copies a file back: a second answer would have no charge."""
    shutil.copy(home / "server.db", tmp_path / "server.db")
    total = answer_later(home)
    for path in home.glob("server.db*"):
        path.unlink()
    shutil.copy(tmp_path / "server.db", home / "server.db")
    service = Service(settings_of(home))
    run_queued(service)
    view = view_of(service, "queued")
    assert view["status"] == "no answer"
    assert "before the server was restored" in view["failure"]
    assert spent(service) == total
    service.close()


def damage_row(folder: Path) -> None:
    """A charge is lowered, and the digest with it: the chain tells."""
    with sqlite3.connect(folder / "ledger.db") as connection:
        connection.execute("UPDATE expost_entries SET memo = 'x' WHERE sequence = 3")
    renew_digests(folder)


def damage_act(folder: Path) -> None:
    with sqlite3.connect(folder / "server.db") as connection:
        connection.execute("UPDATE server_acts SET person = 'eve' WHERE number = 2")
    renew_digests(folder)


def cut_ledger(folder: Path) -> None:
    """The ledger of a new server takes the place of this one."""
    (folder / "ledger.db").unlink()
    Ledger.create(folder / "ledger.db", PureDP(5))
    renew_digests(folder)


def renew_digests(folder: Path) -> None:
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    document["files"] = {file.name: backup._digest(file) for file in backup._files(folder)}
    path.write_text(json.dumps(document))


def flip_bit(folder: Path) -> None:
    content = bytearray((folder / "server.db").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "server.db").write_bytes(content)


DAMAGES: list[Callable[[Path], None]] = [
    damage_row,
    damage_act,
    cut_ledger,
    flip_bit,
    lambda folder: (folder / "ledger.db").unlink(),
    lambda folder: (folder / "manifest.json").unlink(),
    lambda folder: (folder / "manifest.json").write_text('{"kind": "expost server backup"}'),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_is_refused(
    home: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    back_up(settings_of(home), tmp_path / "backup")
    damage(tmp_path / "backup")
    with pytest.raises(InvalidInput, match="backup"):
        restore(tmp_path / "backup", settings_of(tmp_path / "new"), charged_since="nothing")
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_signed_manifest_needs_its_key(home: Path, tmp_path: Path) -> None:
    key = SigningKey.create(tmp_path / "key")
    back_up(settings_of(home), tmp_path / "backup", key)
    public = load_public(public_name(tmp_path / "key"))
    assert check_backup(tmp_path / "backup", public)["signature"]
    SigningKey.create(tmp_path / "other")
    with pytest.raises(InvalidInput, match="another key"):
        check_backup(tmp_path / "backup", load_public(public_name(tmp_path / "other")))
    renew_digests(tmp_path / "backup")  # the same digests: the text changes, the content does not
    check_backup(tmp_path / "backup", public)
    path = tmp_path / "backup" / "manifest.json"
    path.write_text(path.read_text().replace('"acts": ', '"acts": 1'))
    with pytest.raises(InvalidInput, match="changed after it was signed"):
        check_backup(tmp_path / "backup", public)


def test_a_damaged_server_is_not_backed_up(home: Path, tmp_path: Path) -> None:
    with sqlite3.connect(home / "ledger.db") as connection:
        connection.execute("UPDATE expost_entries SET memo = 'x' WHERE sequence = 3")
    with pytest.raises(LedgerError, match="no backup was made"):
        back_up(settings_of(home), tmp_path / "backup")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_files_are_of_one_moment_while_the_server_writes(home: Path, tmp_path: Path) -> None:
    """No request of the copy lacks its reservation, and no reservation its request."""
    service, stop = Service(settings_of(home)), threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            service.ask(ANN, QUESTION | {"epsilon": 0.001}, f"busy {number}")
            run_queued(service)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for number in range(5):
            back_up(settings_of(home), tmp_path / f"backup{number}")
    finally:
        stop.set()
        for writer in writers:
            writer.join()
        service.close()
    for number in range(5):
        folder = tmp_path / f"backup{number}"
        with sqlite3.connect(folder / "server.db") as connection:
            rows = dict(connection.execute("SELECT id, state FROM server_requests").fetchall())
        status = Ledger.open(folder / "ledger.db", read_only=True).statuses()
        assert set(status) <= set(rows)
        for identity, state in rows.items():
            known = status.get(identity)
            assert known is not None or state in (states.RECORDED, states.REFUSED)
            assert known != "open" or state not in states.FINAL


def killed(work: Callable[[], Any]) -> bool:
    """Whether a forked child was killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


POINTS = ("_digest", "_head", "_problems", "_adjust", "_clean", "_charge_since", "_copy_into")


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_nothing_half_done(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    back_up(settings_of(home), tmp_path / "backup")
    original = getattr(backup, point)

    def deadly(*args: Any) -> Any:
        result = original(*args)
        os.kill(os.getpid(), signal.SIGKILL)
        return result

    new = settings_of(tmp_path / "new")
    with monkeypatch.context() as patched:
        patched.setattr(backup, point, deadly)
        if point in ("_digest", "_head", "_problems", "_clean", "_copy_into"):
            assert killed(lambda: back_up(settings_of(home), tmp_path / "second"))
            assert not (tmp_path / "second").exists()
        if point != "_copy_into":
            assert killed(lambda: restore(tmp_path / "backup", new, charged_since="unknown"))
            assert not (tmp_path / "new").exists()
    restore(tmp_path / "backup", new, charged_since="nothing")
    service = Service(new)
    assert service.verify(ADA)["valid"]
    service.close()


@pytest.fixture
def database(postgres_server: Any) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url


def test_between_sqlite_and_postgresql(home: Path, tmp_path: Path, database: str) -> None:
    """A team moves its server to PostgreSQL, backs it up there, and restores a file."""
    back_up(settings_of(home), tmp_path / "first")
    team = settings_of(tmp_path / "team", database)
    restore(tmp_path / "first", team, charged_since="nothing")
    service = Service(team)
    run_queued(service)
    assert view_of(service, "queued")["status"] == "done"
    service.signin.first_link(again=True)  # rows with numbers of their own go on
    assert service.verify(ADA)["valid"]
    back_up(team, tmp_path / "second")
    total = answer_later_in(service)
    with pytest.raises(InvalidInput, match="has a server already"):
        restore(tmp_path / "second", settings_of(tmp_path / "again", database))
    service.close()
    with service.store._writers.begin() as connection:
        backup.metadata.drop_all(connection)
    service.store.close()
    again = settings_of(tmp_path / "again", database)
    assert restore(tmp_path / "second", again)["charged_since"] == "in the newest ledger"
    service = Service(again)
    assert spent(service) == total
    assert service.verify(ADA)["valid"]
    assert audit_log.problems(service.store) == []
    service.close()
    restore(tmp_path / "second", settings_of(tmp_path / "file"), charged_since="nothing")
    service = Service(settings_of(tmp_path / "file"))
    assert view_of(service, "queued")["status"] == "done"
    service.close()


def answer_later_in(service: Service) -> float:
    service.ask(ANN, QUESTION | {"epsilon": 0.125}, "later")
    run_queued(service)
    return spent(service)


def test_every_kind_of_budget_can_be_used_up(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1), "first")
    for kind in ("pure", "approx", "zcdp", "renyi"):
        delta = None if kind == "pure" else 1e-6
        ledger.add_budget(kind, backup_terms(kind, delta))
    ledger.settle(ledger.reserve(PureDP(1 / 3), budget="pure"), 0)
    backup._charge_since(ledger, "unknown", "today", set())
    for name in ledger.budgets():
        state = ledger.standing(name).filter
        assert all(
            part * 2**100 <= limit
            for part, limit in zip(state.remaining, state.budget.limits, strict=True)
        )
    assert ledger.verify() == []
    with pytest.raises(BudgetRefused):
        ledger.reserve(PureDP(1e-9), budget="pure")


def backup_terms(kind: str, delta: float | None) -> Any:
    from expost.server.jobs.ledgers import make_budget

    return make_budget(kind, 1.7, delta)


def test_the_commands(home: Path, tmp_path: Path) -> None:
    made = CliRunner().invoke(
        cli, ["server", "backup", "--home", str(home), "--out", str(tmp_path / "b"), "--json"]
    )
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["ledger"][0] == 6
    words = ["server", "restore", str(tmp_path / "b"), "--home", str(tmp_path / "new")]
    refused = CliRunner().invoke(cli, words)
    assert "charged-since" in str(refused.exception)
    done = CliRunner().invoke(cli, [*words, "--charged-since", "nothing"])
    assert done.exit_code == 0, done.output
    assert "revoked later" in done.stdout.replace("\n", " ")
    missing = CliRunner().invoke(
        cli, ["server", "backup", "--home", str(tmp_path / "no"), "--out", str(tmp_path / "c")]
    )
    assert "there is no server" in str(missing.exception)


def test_nothing_of_the_requests_is_lost(home: Path, tmp_path: Path) -> None:
    back_up(settings_of(home), tmp_path / "backup")
    restore(tmp_path / "backup", settings_of(tmp_path / "new"), charged_since="nothing")
    rows = []
    for folder in (home, tmp_path / "new"):
        service = Service(settings_of(folder))
        rows.append(service.store.rows(sql.select(requests).order_by(requests.c.id)))
        service.close()
    assert rows[0] == rows[1]
