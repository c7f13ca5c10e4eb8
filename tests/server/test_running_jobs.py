"""Nobody sees the progress of a tuning job: every view of every role is the same while it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from expost.budget.ledger import Reservation
from expost.errors import BudgetRefused
from expost.privacy.guarantees import ApproxDP
from expost.server.jobs import states
from tests.server.running_server import JOB, PEOPLE, PLACES, QUESTION, Server, open_server
from tests.server.test_pages import sign_in
from tests.server.test_roles import routes

pytest.importorskip("expost.server.jobs.tuning_jobs")
COST = ApproxDP(1.0, 1e-6, PLACES)
WHO = [who for who in PEOPLE if who != "bob"]


class Job:
    """A tuning job of ann that has begun; its attempts are made by hand."""

    def __init__(self, server: Server) -> None:
        self.server, service = server, server.service
        self.id = server.ask("ann", JOB, "a search").json()["id"]
        assert service._queue.claim(service.runner.name, "here", 600.0)["id"] == self.id
        self.ticks = 0
        service.runner._wait_for_tick = self._tick
        entry = partial(service.runner._begin_entry, self.id)
        self.ledger = service._ledgers.ledger.calling(entry)

    def _tick(self) -> None:
        self.ticks += 1

    def reserve(self) -> Reservation:
        return self.ledger.reserve(COST, budget="models", analyst="ann")

    def attempt(self) -> None:
        self.ledger.settle(self.reserve(), 0)

    def end(self) -> None:
        service = self.server.service
        result = {"passed": False, "spent": {"epsilon": 1.0, "delta": 1e-6}}
        document = {"result": result, "certificate": {}}
        service._queue.record(self.id, service.runner.name, states.TUNED, document)
        service.runner.publish()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with open_server(tmp_path, threads=0) as made:
        owner = made.person("olga")
        made.service.change_budget(owner, "models", "a cap", 40.0, analyst="ann")
        yield made


@pytest.fixture
def job(server: Server) -> Job:
    return Job(server)


@pytest.fixture
def views(server: Server, job: Job) -> Callable[[], dict[str, str]]:
    """Everything that anybody can look at: each GET of the API and each page, and prices."""
    clients = {who: sign_in(server, who) for who in WHO}
    names = {"name": ["models", "digits"], "id": [job.id]}
    paths = ["/api/entries?after=2", "/api/entries?budget=models&after=1"]
    for method, path in sorted(routes(server.app)):
        part = re.search(r"{(\w+)[^}]*}", path)
        if method == "GET":
            values = names[part[1]] if part else [""]
            paths += [re.sub(r"{.*?}", value, path) for value in values]
    assert {"/api/budgets/models/history", "/budgets/models", "/api/entries"} <= set(paths)

    def look() -> dict[str, str]:
        seen = {f"{who} {path}": clients[who].get(path).text for who in WHO for path in paths}
        # Each form has a key of its own, and responses to these very calls are counted.
        fresh = re.compile(r'name="key" value="[^"]*"|expost_http_responses_total.*')
        seen = {view: fresh.sub("", text) for view, text in seen.items()}
        for who in ("olga", "ann"):
            seen[f"{who} price"] = server.call(who, "POST", "/api/price", JOB).text
        return seen

    return look


def test_no_view_changes_while_a_job_runs(job: Job, views: Callable[[], dict[str, str]]) -> None:
    """Catches points, amounts, counts and times of attempts that are not released yet."""
    before = views()
    job.attempt()
    job.attempt()
    job.reserve()
    during = views()
    assert {view for view in before if before[view] != during[view]} == set()
    assert job.ticks == 5  # nothing is written between ticks


def test_what_a_job_cost_appears_when_it_has_ended(server: Server, job: Job) -> None:
    """Catches a charge that stays hidden."""
    job.attempt()
    job.attempt()
    assert server.service.history(server.person("ada"), "models")["points"][-1]["spent"] == 0
    job.end()
    for who in ("ann", "olga", "ada"):
        history = server.call(who, "GET", "/api/budgets/models/history").json()
        assert history["points"][-1]["spent"] == 2.0
        assert history["by_analyst"] == {"ann": 2.0}
        standing = server.call(who, "GET", "/api/budgets/models").json()
        assert standing["settled"]["epsilon"] == 2.0
        assert standing["caps"][0]["settled"]["epsilon"] == 2.0
    actions = [each["action"] for each in server.call("ada", "GET", "/api/entries").json()]
    assert actions.count("settle") == 2
    assert server.call("ada", "GET", "/api/verify").json()["entries"] == len(actions)


def test_others_go_on_while_a_job_runs(server: Server, job: Job) -> None:
    """Catches a view that hides more than the running job, or less than what is admitted."""
    job.attempt()
    service, ada = server.service, server.person("ada")
    view = server.ask("ann", QUESTION, "beside it").json()
    row = service._queue.claim(service.runner.name, "here", 600.0)
    service.runner.run_one(row)
    service.runner.publish()
    assert server.wait(view["id"])["status"] == "done"
    spent = server.call("ada", "GET", "/api/budgets/visits/history").json()["points"][-1]["spent"]
    assert spent > 0
    settled = server.call("ada", "GET", "/api/budgets/visits").json()["settled"]
    assert settled == pytest.approx(spent)
    beside = server.service._ledgers.ledger.reserve(COST, budget="models", analyst="bob")
    assert server.call("ada", "GET", "/api/budgets/models").json()["held"]["epsilon"] == 1.0
    assert [each["reservation"] for each in service.budget(ada, "models")["open"]] == [beside.id]


def test_a_refusal_tells_what_is_shown_elsewhere(server: Server, job: Job) -> None:
    """Catches a refusal, which costs nothing, that tells what a running job holds."""
    job.attempt()
    shown = server.call("ann", "GET", "/api/budgets/models").json()
    with pytest.raises(BudgetRefused) as refused:
        server.service._ledgers.ledger.reserve(
            ApproxDP(39.5, 1e-6, PLACES), budget="models", analyst="ann"
        )
    told = server.service._ledgers.refusal(refused.value, "models", "ann")
    cap = shown["caps"][0]
    assert (told["remaining"], told["held"]) == (cap["remaining"], cap["held"])
    assert told["remaining"]["epsilon"] == 40.0


def test_times_are_those_of_ticks(tmp_path: Path) -> None:
    """Catches a time that is finer than a tick."""
    with open_server(tmp_path, threads=0, tick=5.0) as made:
        job = Job(made)
        made.service._ledgers.ledger.reserve(COST, budget="models", analyst="ann")
        job.attempt()
        for path in ("/api/budgets/models/history", "/api/budgets/models"):
            text = made.call("ada", "GET", path).text
            times = re.findall(r"T\d\d:\d\d:(\d\d(?:\.\d+)?)", text)
            assert times
            assert all(Fraction(each) % 5 == 0 for each in times)
