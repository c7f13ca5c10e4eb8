"""``expost.connect`` and ``expost --server`` against a running server."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner

import expost
from expost.analytics.count_result import CountResult
from expost.certificates.document import read_certificate
from expost.cli.main import app as command
from expost.errors import BudgetRefused, InvalidInput
from expost.server import client
from expost.server.app import create_app
from expost.server.client import Connection, ServerError, TunedAnswer
from expost.server.server_settings import ServerSettings
from tests.server.running_server import JOB, furnish


@dataclass
class Running:
    url: str
    tokens: dict[str, str]
    service: Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder, port = tmp_path_factory.mktemp("client"), free_port()
    app = create_app(ServerSettings(folder / "server", port=port, tick=0.0))
    tokens = furnish(app.state.service, folder)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield Running(f"http://127.0.0.1:{port}", tokens, app.state.service)
    server.should_exit = True
    thread.join(30)


@pytest.fixture
def server(running: Running) -> Connection:
    return expost.connect(running.url, running.tokens["ann"])


def test_the_words_of_the_library(server: Connection) -> None:
    assert [each["name"] for each in server.datasets()] == ["digits", "visits"]
    assert server.budget("visits")["budget"]["epsilon"] == 5.0
    assert {each["name"] for each in server.budget()} == {"models", "visits"}
    plan = server.plan([0.5, 1.0], 4)
    assert plan["worst_case"] > 0
    price = server.price("visits", by="city", within=0.2)
    result = server.count("visits", by="city", within=0.2, memo="a test")
    assert isinstance(result, CountResult)
    assert result.spent <= price["epsilon"]
    assert {answer.group for answer in result.answers} <= {"Bern", "Graz", "Ulm", "Linz"}
    read_certificate(result.certificate())
    mean = server.mean("visits", "spend", by="city", plus_minus=10)
    known = [each.estimate for each in mean.answers if each.group != "Linz"]  # nobody is there
    assert all(0 < estimate < 100 for estimate in known)
    total = server.sum("visits", "spend", where="age>=30", within=0.3)
    assert [each.group for each in total.answers + total.unanswered] == ["all"]
    (last, *_) = server.requests()
    again = server.release(last["id"])
    assert again.as_dict() == total.as_dict()


def test_certificates_survive_the_way(running: Running, server: Connection) -> None:
    server.count("visits", by="city", within=0.2, key="certificate")
    (last, *_) = server.requests()
    told = running.service.certificate(_person("ada", "auditor"), last["id"])
    assert server.release(last["id"]).certificate() == told


def _person(name: str, role: str) -> Any:
    from expost.server.people.accounts import Person

    return Person(name, role)


def test_errors_are_those_of_the_library(running: Running, server: Connection) -> None:
    with pytest.raises(BudgetRefused) as refused:
        server.count("visits", by="city", epsilon=100)
    assert refused.value.requested == 100
    with pytest.raises(InvalidInput, match="column"):
        server.sum("visits", "salary")
    with pytest.raises(ServerError, match="no such data set"):
        server.count("nothing")
    with pytest.raises(ServerError) as denied:
        expost.connect(running.url, running.tokens["ada"]).count("visits", within=0.3)
    assert denied.value.status == 403
    with pytest.raises(ServerError) as unknown:
        expost.connect(running.url, "nonsense").datasets()
    assert unknown.value.status == 401
    with pytest.raises(InvalidInput, match="https"):
        expost.connect("http://server.example", "token")
    assert running.tokens["ann"] not in repr(server)


def test_a_lost_answer_is_asked_for_again(running: Running, monkeypatch: Any) -> None:
    """The answer of the first call is lost after the server has recorded it; one charge."""
    server = expost.connect(running.url, running.tokens["ann"])
    before = len(running.service.entries(_person("ada", "auditor"), limit=1000))
    original, lost = server._opener.open, []

    def lossy(request: Any, timeout: float) -> Any:
        response = original(request, timeout=timeout)
        if request.method == "POST" and len(lost) < 2:
            lost.append(response.read())
            raise ConnectionResetError
        return response

    monkeypatch.setattr(server._opener, "open", lossy)
    result = server.count("visits", by="city", within=0.2)
    assert len(lost) == 2
    assert len({json.loads(each)["id"] for each in lost}) == 1
    assert len(result.answers + result.unanswered) == 4
    after = len(running.service.entries(_person("ada", "auditor"), limit=1000))
    assert after - before == 2  # one reserve, one settle


def test_redirects_are_not_followed(server: Connection) -> None:
    from expost.server.client import NoRedirects

    assert NoRedirects().redirect_request() is None


def test_tuning_at_the_server(running: Running, server: Connection, tmp_path: Path) -> None:
    config = {name: JOB[name] for name in ("model", "search", "goal")}
    result = server.tune("digits", config, key="tuned")
    assert isinstance(result, TunedAnswer)
    (view, *_) = server.requests()
    assert view["status"] == ("done" if result.passed else "missed")
    assert result.spent["epsilon"] > 0
    assert view["charge"] == dict(result.spent)
    if result.passed:
        result.save(tmp_path)
        assert expost.load_model(tmp_path / "model.npz") is not None
    report = running.service.report(_person("ada", "auditor"), view["id"])
    assert report["kind"] == "tune"
    assert running.service.verify_release(_person("ada", "auditor"), view["id"])["valid"]
    told = json.dumps(running.service.release(_person("ada", "auditor"), view["id"]))
    assert str(running.service.settings.home) not in told
    with pytest.raises(InvalidInput, match="kind"):
        server.tune("digits", config | {"model": {"kind": "os:system"}})
    with pytest.raises(InvalidInput):
        server.tune("visits", config)


def invoke(running: Running, *arguments: str, who: str = "ann") -> Any:
    return CliRunner().invoke(
        command,
        ["--server", running.url, *arguments],
        env={"EXPOST_TOKEN": running.tokens[who]},
        catch_exceptions=True,
    )


def test_command_line(running: Running, tmp_path: Path) -> None:
    plan = invoke(running, "count", "visits", "--by", "city", "--within", "0.2", "--plan", "--json")
    assert plan.exit_code == 0, plan.output
    price = json.loads(plan.stdout)["epsilon"]
    place = tmp_path / "certificate.json"
    arguments = ("count", "visits", "--by", "city", "--within", "0.2", "--json", "--key", "k")
    counted = invoke(running, *arguments, "--certificate", str(place))
    assert counted.exit_code == 0, counted.output
    told = json.loads(counted.stdout)
    assert told["spent"] <= price
    read_certificate(json.loads(place.read_text()))
    again = invoke(running, *arguments)
    assert json.loads(again.stdout) == told
    shown = invoke(running, "ledger", "show", "--name", "visits")
    assert shown.exit_code == 0
    assert "visits" in shown.stdout
    assert invoke(running, "datasets").exit_code == 0
    assert isinstance(
        invoke(running, "count", "visits", "--epsilon", "99").exception, BudgetRefused
    )
    planned = invoke(running, "plan", "--epsilons", "0.5,1", "--configurations", "4", "--json")
    assert json.loads(planned.stdout)["worst_case"] > 0
    assert invoke(running, "audit").exit_code != 0  # not a command of a server


def test_the_token_is_no_argument(running: Running, tmp_path: Path) -> None:
    missing = CliRunner().invoke(
        command, ["--server", running.url, "datasets"], env={"EXPOST_TOKEN": ""}
    )
    assert isinstance(missing.exception, InvalidInput)
    file = tmp_path / "token"
    file.write_text(running.tokens["ann"] + "\n")
    file.chmod(0o644)
    arguments = ["--server", running.url, "--token-file", str(file), "datasets", "--json"]
    loose = CliRunner().invoke(command, arguments, env={"EXPOST_TOKEN": ""})
    assert isinstance(loose.exception, InvalidInput)
    file.chmod(0o600)
    private = CliRunner().invoke(command, arguments, env={"EXPOST_TOKEN": ""})
    assert private.exit_code == 0


def test_the_price_of_a_job_from_the_command_line(running: Running, tmp_path: Path) -> None:
    """Catches a price of tuning that only the page can show."""
    job = tmp_path / "job.toml"
    job.write_text("[goal]\nat_least = 0.3\n\n[privacy]\nmax_epsilon = 1.5\n", encoding="utf-8")
    done = invoke(running, "tune", "digits", str(job), "--plan", "--json")
    assert done.exit_code == 0, done.output
    price = json.loads(done.stdout)
    assert price["epsilon"] <= 1.5
    assert price["fits"]
    shown = invoke(running, "tune", "digits", str(job), "--plan")
    assert "ε if the goal is missed" in shown.stdout
    job.write_text("[goal]\nat_leest = 0.3\n", encoding="utf-8")
    wrong = invoke(running, "tune", "digits", str(job), "--plan")
    assert isinstance(wrong.exception, InvalidInput)
    assert "did you mean at_least" in str(wrong.exception)


def test_all_requests_are_listed(server: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evidence for a year must not stop at the newest hundred."""
    for number in range(3):
        server.count("visits", by="city", epsilon=0.01, plus_minus=500.0, key=f"page {number}")
    every = server.requests()
    monkeypatch.setattr(client, "_PER_CALL", 2)
    assert [view["id"] for view in server.requests()] == [view["id"] for view in every]
    assert len(every) >= 3
