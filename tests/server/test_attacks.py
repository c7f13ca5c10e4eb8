"""Attacks on a server: requests that stop others, ways around limits, what leaks early."""

from __future__ import annotations

import copy
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from expost.errors import InvalidInput
from expost.server.database import requests
from expost.server.jobs import states, tuning_jobs
from expost.server.jobs.runner import Runner
from expost.server.jobs.states import request_view, status_of
from expost.server.people.accounts import Person
from expost.server.server_settings import ServerSettings
from tests.server.running_server import JOB, QUESTION, Server, open_server, visits

ANN = Person("ann", "analyst")


def raw(server: Server, path: str, content: str, **headers: str) -> Any:
    """One call of an analyst with a body as it is."""
    sent = {"authorization": f"Bearer {server.tokens['ann']}", "content-type": "application/json"}
    return server.client.post(path, content=content.encode(), headers=sent | headers)


class TestOneRequestStopsAnother:
    def test_a_memo_that_the_ledger_cannot_store(self, tmp_path: Path) -> None:
        """It was recorded, could never be reserved, and kept the publisher from all others."""
        with open_server(tmp_path, threads=0) as server:
            assert server.ask("ann", QUESTION, "nul", "a\x00b").status_code == 422
            with pytest.raises(InvalidInput, match="memo"):
                server.service.ask(ANN, QUESTION, "nul", "a\x00b")
            assert server.call("ann", "GET", "/api/requests").json() == []

    def test_a_request_that_cannot_be_reserved_ends(self, tmp_path: Path) -> None:
        with open_server(tmp_path, threads=0) as server:
            made = server.ask("ann", QUESTION, "good").json()["id"]
            bad = server.ask("ann", QUESTION, "bad").json()["id"]
            server.service.store.change(
                requests.update()
                .where(requests.c.id == bad)
                .values(state=states.RECORDED, memo="\x00", id="0" * 32, created=0.0)
            )
            runner: Runner = server.service.runner
            runner._complete_all()
            view = server.call("ann", "GET", f"/api/requests/{'0' * 32}").json()
            assert (view["status"], view["charge"]) == ("no answer", None)
            assert server.call("ann", "GET", f"/api/requests/{made}").json()["status"] == "queued"

    def test_one_that_fails_does_not_keep_others_waiting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_server(tmp_path, threads=0) as server:
            for key in ("one", "two"):
                server.ask("ann", QUESTION, key)
            everybody = requests.update().values(state=states.RECORDED, created=0.0)
            server.service.store.change(everybody)
            runner, seen = server.service.runner, []

            def broken(row: Any) -> None:
                seen.append(row["id"])
                raise RuntimeError

            monkeypatch.setattr(runner, "_complete", broken)
            runner._complete_all()
            assert len(seen) == 2


def test_numbers_and_texts_that_are_not_json(tmp_path: Path) -> None:
    with open_server(tmp_path, threads=0) as server:
        for value in ("NaN", "1e400", "[-Infinity]", '"\\ud800"', '{"a": [NaN]}'):
            text = json.dumps({**JOB, "privacy": {"delta": "@"}}).replace('"@"', value)
            for path, body in (
                ("/api/price", text),
                ("/api/requests", '{"question": ' + text + "}"),
            ):
                answer = raw(server, path, body, **{"idempotency-key": "odd"})
                assert answer.status_code == 422, answer.text
        assert server.call("olga", "GET", "/api/requests").json() == []


def test_confidence_below_one_half_is_refused(tmp_path: Path) -> None:
    """It says nothing, and its price takes many seconds of the server."""
    with open_server(tmp_path, threads=0) as server:
        for confidence in (0.49, 1e-6, 1e-300):
            body = QUESTION | {"confidence": confidence}
            assert server.call("ann", "POST", "/api/price", body).status_code == 422


def test_every_accepted_grid_has_a_page(tmp_path: Path) -> None:
    """Lists of lists were accepted by the API, and the page of the request failed for everybody."""
    job = copy.deepcopy(JOB)
    job["search"] |= {"class_weights": [[1.0] * 10], "schedules": ["cosine"]}  # type: ignore[operator]
    with open_server(tmp_path, threads=0) as server:
        made = server.ask("ann", job, "grid").json()
        server.client.post("/api/session", json={"token": server.tokens["olga"]})
        assert server.client.get(f"/requests/{made['id']}").status_code == 200


def test_a_refused_job_has_a_page(tmp_path: Path) -> None:
    with open_server(tmp_path, threads=0) as server:
        made = server.ask("ann", JOB, "job").json()["id"]
        row = server.service._queue.claim(server.service.runner.name, "here", 60.0)
        assert row["id"] == made
        server.service.change_budget(server.person("olga"), "models", "test", 1e-6, 1e-9)
        server.service.runner.run_one(row)
        assert server.call("ann", "GET", f"/api/requests/{made}").json()["status"] == "refused"
        server.client.post("/api/session", json={"token": server.tokens["ann"]})
        page = server.client.get(f"/requests/{made}")
        assert page.status_code == 200
        assert "models" in page.text


def test_levels_of_noise_reduction_count() -> None:
    """A job with levels up to 2 in its grid was answered, and charged, at a level of 20."""
    facts = {
        "kind": "rows",
        "name": "digits",
        "delta": 1e-5,
        "largest_epsilon": 2.0,
        "data": {"name": "digits", "feature_bounds": [0, 16], "classes": 10},
    }
    job = {**JOB, "model": {"kind": "softmax", "training": "auto", "levels": [0.5, 20.0]}}
    with pytest.raises(InvalidInput, match=r"model\.levels"):
        tuning_jobs.read_job(facts, job, "approx")
    job["model"] = {"kind": "softmax", "training": "auto"}  # by default up to 4, or what is allowed
    assert tuning_jobs.read_job(facts, job, "approx")["privacy"]["max_epsilon"] == 2.0
    above = {**job, "privacy": {"max_epsilon": 4.0}}
    with pytest.raises(InvalidInput, match=r"privacy\.max_epsilon"):
        tuning_jobs.read_job(facts, above, "approx")
    job["model"] = {"kind": "softmax"}  # not said: paths up to the highest level of the grid
    unsaid = tuning_jobs.read_job(facts, job, "approx")
    assert unsaid["model"]["training"] == "auto"
    assert "max_epsilon" not in unsaid["privacy"]
    with pytest.raises(InvalidInput, match=r"privacy\.max_epsilon"):
        tuning_jobs.read_job(facts, {**job, "privacy": {"max_epsilon": 4.0}}, "approx")
    job["model"] = {"kind": "softmax", "training": "auto", "levels": [0.5, 2.0]}
    assert tuning_jobs.read_job(facts, job, "approx")["kind"] == "tune"


def test_a_training_without_end_is_refused() -> None:
    """Epochs are a number of the analyst: 10⁹ of them would keep a worker for ever."""
    data = {"name": "digits", "feature_bounds": [0, 16], "classes": 10}
    facts = {"kind": "rows", "name": "digits", "delta": 1e-5, "data": data}
    job = {**JOB, "search": {**JOB["search"], "epochs": [5, 1_000_000_000]}}
    with pytest.raises(InvalidInput, match=r"search\.epochs"):
        tuning_jobs.read_job(facts, job, "approx")


class TestWhatIsToldBeforeTheEnd:
    def test_a_failed_try_is_not_told(self, tmp_path: Path) -> None:
        """A request that is given back after an error looked queued again at once."""
        with open_server(tmp_path, threads=0, tick=3600.0) as server:
            made = server.ask("ann", QUESTION, "try").json()["id"]
            tables, queue = server.service.store, server.service._queue
            queue.claim("worker", "here", 60.0)
            queue.release(made, "worker", 0.0)
            row = queue.get(made)
            assert row["state"] == states.QUEUED
            assert status_of(row, 3600.0) == "queued"  # it began after the last tick
            tables.change(requests.update().values(started=0.0))
            row = queue.get(made)
            assert status_of(row, 3600.0) == "running"
            assert request_view(row, 3600.0)["status"] == "running"

    def test_entries_are_not_in_the_order_in_which_requests_ended(self, tmp_path: Path) -> None:
        with open_server(tmp_path, threads=0) as server:
            made = [server.ask("ann", QUESTION, f"{n}").json()["id"] for n in range(4)]
            for place, identity in enumerate(made):
                ended = {"state": states.COMPUTED, "finished": float(10 - place)}
                ended["created"] = float(place)
                change = requests.update().where(requests.c.id == identity).values(**ended)
                server.service.store.change(change)
            assert [row["id"] for row in server.service._queue.computed(time.time())] == made


def test_certificates_of_jobs_do_not_name_the_file(tmp_path: Path) -> None:
    """Sources are for owners; the certificate of a job named the file of its rows."""
    source = tmp_path / "ward-7-patients.csv.gz"
    config = {"data": {"path": str(source), "public_test": "rel/rows.parquet"}, "model": {}}
    for _ in range(2):  # also when the job continues
        renamed = tuning_jobs._renamed(config, tmp_path, "visits")
    assert Path(renamed["data"]["path"]).name == "visits.csv.gz"
    assert Path(renamed["data"]["path"]).readlink() == source
    assert Path(renamed["data"]["public_test"]).name == "visits-public.parquet"
    assert config["data"]["path"] == str(source)
    assert tuning_jobs._renamed({"data": {"name": "digits"}}, tmp_path, "x")["data"] == {
        "name": "digits"
    }


def test_a_request_runs_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a long pause a process claims its own request again while a thread still runs it."""
    with open_server(tmp_path, threads=0) as server:
        runner, begun = server.service.runner, []

        def work(row: Any) -> None:
            begun.append(row["id"])
            if len(begun) == 1:
                runner.run_one(server.service._queue.claim(runner.name, "here", 60.0))

        monkeypatch.setattr(runner, "_count", work)
        made = server.ask("ann", QUESTION, "slow").json()["id"]
        row = server.service._queue.claim(runner.name, "here", 0.0)
        runner.run_one(row)
        assert begun == [made]
        assert server.service._queue.get(made)["state"] == states.RUNNING


@pytest.mark.parametrize(
    ("host", "hosts", "secure"),
    [
        ("127.0.0.1", (), False),
        ("localhost", ("localhost",), False),
        ("127.0.0.1", ("server.example",), True),
        ("10.0.0.1", (), True),
    ],
)
def test_cookies_behind_a_proxy_on_this_machine(
    tmp_path: Path, host: str, hosts: tuple[str, ...], secure: bool
) -> None:
    assert ServerSettings(tmp_path, host=host, hosts=hosts).cookies_secure is secure
    assert ServerSettings(tmp_path, host=host, hosts=hosts, secure=False).cookies_secure is False


@pytest.mark.parametrize(
    ("rows", "charged"), [("a row that breaks a view", True), (None, False)], ids=["read", "gone"]
)
def test_an_error_that_a_row_may_have_caused_is_charged(
    tmp_path: Path, rows: str | None, charged: bool
) -> None:
    """SQLite files are copied when they are opened: one odd row ended a request at no charge."""
    path = tmp_path / "visits.sqlite"
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE raw (person TEXT, facts TEXT)")
        made.execute(
            "CREATE VIEW visits AS SELECT person, json_extract(facts, '$.city') AS city FROM raw"
        )
        made.execute("INSERT INTO raw VALUES ('p1', '{\"city\": \"Bern\"}')")
        made.commit()
    with open_server(tmp_path, threads=0) as server:
        facts = {"name": "copied", "budget": "visits", "source": str(path), "table": "visits"}
        facts |= {"user": "person", "groups": {"city": ["Bern"]}, "max_groups_per_user": 1}
        server.service.register(server.person("olga"), facts)
        question = {"dataset": "copied", "kind": "count", "by": ["city"], "plus_minus": 50.0}
        view = server.ask("ann", question, "odd").json()
        if rows is None:
            path.unlink()
        else:
            with closing(sqlite3.connect(path)) as made:
                made.execute("INSERT INTO raw VALUES ('p2', ?)", (rows,))
                made.commit()
        server.service.store.change(requests.update().values(tries=3))
        row = server.service._queue.claim(server.service.runner.name, "here", 60.0)
        server.service.runner.run_one(row)
        view = server.call("ann", "GET", f"/api/requests/{view['id']}").json()
        assert view["status"] == "no answer"
        assert (view["charge"]["epsilon"] > 0) is charged


def test_a_larger_delta_is_no_way_around_the_limit_on_epsilon(tmp_path: Path) -> None:
    """In ρ, ε is a price at a δ: at δ = 0.9 an ε of 0.1 bought more than an ε of 1 at 10⁻⁶."""
    with open_server(tmp_path, threads=0, pricers=0) as server:
        olga, stated = server.person("olga"), visits(tmp_path / "visits.csv")
        data = {"name": "digits", "feature_bounds": [0, 16], "classes": 10}
        rows = {"name": "rows", "kind": "rows", "data": data}
        rules = {"largest_epsilon": 1.0, "approval_above": 0.5}
        server.service.open_budget(olga, "rho", "zcdp", 20.0, 1e-3)
        server.service.register(
            olga, stated | rules | {"name": "rho", "budget": "rho", "delta": 1e-6}
        )
        server.service.open_budget(olga, "rho_rows", "zcdp", 20.0, 1e-3, neighbours="zero-out")
        server.service.register(olga, rows | rules | {"budget": "rho_rows"})
        question = QUESTION | {"dataset": "rho", "epsilon": 0.1}
        average = {"kind": "mean", "column": "spend"}
        words = "SELECT city, COUNT(*) AS n FROM rho GROUP BY city"
        sql = {"dataset": "rho", "kind": "query", "sql": words, "epsilon": 0.1, "within": 0.2}
        goal = {"metric": "accuracy", "at_least": 0.3}
        job = {"dataset": "rows", "kind": "tune", "goal": goal}
        for asked, given in (
            (question, {"delta": 0.9}),
            (question | average, {"delta": 1.1e-6}),
            (sql, {"delta": 0.01}),
            (job, {"privacy": {"delta": 0.5, "max_epsilon": 0.1}}),
        ):
            answer = server.ask("ann", asked | given, f"{asked} {given}"[:128])
            assert answer.status_code == 422, answer.text
            assert answer.json()["field"].endswith("delta")
            assert server.call("ann", "POST", "/api/price", asked | given).status_code == 422
        for asked in (question, question | {"delta": 1e-7}, sql):
            assert server.call("ann", "POST", "/api/price", asked).status_code == 200


def test_a_limit_on_epsilon_lets_jobs_without_a_grid_pass(tmp_path: Path) -> None:
    """They ended with an error that named nothing: a grid without levels has no largest one."""
    facts = {
        "kind": "rows",
        "name": "digits",
        "delta": 1e-5,
        "largest_epsilon": 1.0,
        "data": {"name": "digits", "feature_bounds": [0, 16], "classes": 10},
    }
    job = {"dataset": "digits", "kind": "tune", "goal": JOB["goal"]}
    read = tuning_jobs.read_job(facts, job, "approx")
    assert read["privacy"]["max_epsilon"] == 1.0
