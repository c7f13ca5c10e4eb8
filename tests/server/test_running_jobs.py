"""Nobody sees the progress of a tuning job: every view of every role is the same while it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from expost.budget.ledger import Reservation
from expost.errors import BudgetRefused
from expost.privacy.guarantees import ApproxDP
from expost.server import queue as states
from expost.server.charging import AtTicks
from tests.server.desk import JOB, PEOPLE, PLACES, QUESTION, Desk, open_desk
from tests.server.test_pages import sign_in
from tests.server.test_roles import routes

pytest.importorskip("expost.server.tuning_jobs")
COST = ApproxDP(1.0, 1e-6, PLACES)
WHO = [who for who in PEOPLE if who != "bob"]


class Job:
    """A tuning job of ann that has begun; its attempts are made by hand."""

    def __init__(self, desk: Desk) -> None:
        self.desk, service = desk, desk.service
        self.id = desk.ask("ann", JOB, "a search").json()["id"]
        assert service._queue.claim(service.runner.name, "here", 600.0)["id"] == self.id
        self.ticks = 0
        self.ledger = AtTicks(
            service._ledgers.ledger,
            self._tick,
            lambda reservation: service._queue.note_attempt(self.id, reservation),
        )

    def _tick(self) -> None:
        self.ticks += 1

    def reserve(self) -> Reservation:
        return self.ledger.reserve(COST, budget="models", analyst="ann")

    def attempt(self) -> None:
        self.ledger.settle(self.reserve(), 0)

    def end(self) -> None:
        service = self.desk.service
        result = {"passed": False, "spent": {"epsilon": 1.0, "delta": 1e-6}}
        document = {"result": result, "certificate": {}}
        service._queue.record(self.id, service.runner.name, states.TUNED, document)
        service.runner.publish()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with open_desk(tmp_path, threads=0) as made:
        owner = made.person("olga")
        made.service.change_budget(owner, "models", "a cap", 40.0, analyst="ann")
        yield made


@pytest.fixture
def job(desk: Desk) -> Job:
    return Job(desk)


@pytest.fixture
def views(desk: Desk, job: Job) -> Callable[[], dict[str, str]]:
    """Everything that anybody can look at: each GET of the API and each page, and prices."""
    clients = {who: sign_in(desk, who) for who in WHO}
    names = {"name": ["models", "digits"], "id": [job.id]}
    paths = ["/api/entries?after=2", "/api/entries?budget=models&after=1"]
    for method, path in sorted(routes(desk.app)):
        part = re.search(r"{(\w+)[^}]*}", path)
        if method == "GET":
            values = names[part[1]] if part else [""]
            paths += [re.sub(r"{.*?}", value, path) for value in values]
    assert {"/api/budgets/models/history", "/budgets/models", "/api/entries"} <= set(paths)

    def look() -> dict[str, str]:
        seen = {f"{who} {path}": clients[who].get(path).text for who in WHO for path in paths}
        fresh = re.compile(r'name="key" value="[^"]*"')  # each form has a key of its own
        seen = {view: fresh.sub("", text) for view, text in seen.items()}
        for who in ("olga", "ann"):
            seen[f"{who} price"] = desk.call(who, "POST", "/api/price", JOB).text
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


def test_what_a_job_cost_appears_when_it_has_ended(desk: Desk, job: Job) -> None:
    """Catches a charge that stays hidden."""
    job.attempt()
    job.attempt()
    assert desk.service.history(desk.person("ada"), "models")["points"][-1]["spent"] == 0
    job.end()
    for who in ("ann", "olga", "ada"):
        history = desk.call(who, "GET", "/api/budgets/models/history").json()
        assert history["points"][-1]["spent"] == 2.0
        assert history["by_analyst"] == {"ann": 2.0}
        standing = desk.call(who, "GET", "/api/budgets/models").json()
        assert standing["settled"]["epsilon"] == 2.0
        assert standing["caps"][0]["settled"]["epsilon"] == 2.0
    actions = [each["action"] for each in desk.call("ada", "GET", "/api/entries").json()]
    assert actions.count("settle") == 2
    assert desk.call("ada", "GET", "/api/verify").json()["entries"] == len(actions)


def test_others_go_on_while_a_job_runs(desk: Desk, job: Job) -> None:
    """Catches a view that hides more than the running job, or less than what is admitted."""
    job.attempt()
    service, ada = desk.service, desk.person("ada")
    view = desk.ask("ann", QUESTION, "beside it").json()
    row = service._queue.claim(service.runner.name, "here", 600.0)
    service.runner.run_one(row)
    service.runner.publish()
    assert desk.wait(view["id"])["status"] == "done"
    spent = desk.call("ada", "GET", "/api/budgets/visits/history").json()["points"][-1]["spent"]
    assert spent > 0
    assert desk.call("ada", "GET", "/api/budgets/visits").json()["settled"] == pytest.approx(spent)
    beside = desk.service._ledgers.ledger.reserve(COST, budget="models", analyst="bob")
    assert desk.call("ada", "GET", "/api/budgets/models").json()["held"]["epsilon"] == 1.0
    assert [each["reservation"] for each in service.budget(ada, "models")["open"]] == [beside.id]


def test_a_refusal_tells_what_is_shown_elsewhere(desk: Desk, job: Job) -> None:
    """Catches a refusal, which costs nothing, that tells what a running job holds."""
    job.attempt()
    shown = desk.call("ann", "GET", "/api/budgets/models").json()
    with pytest.raises(BudgetRefused) as refused:
        desk.service._ledgers.ledger.reserve(
            ApproxDP(39.5, 1e-6, PLACES), budget="models", analyst="ann"
        )
    told = desk.service._ledgers.refusal(refused.value, "models", "ann")
    cap = shown["caps"][0]
    assert (told["remaining"], told["held"]) == (cap["remaining"], cap["held"])
    assert told["remaining"]["epsilon"] == 40.0


def test_times_are_those_of_ticks(tmp_path: Path) -> None:
    """Catches a time that is finer than a tick."""
    with open_desk(tmp_path, threads=0, tick=5.0) as made:
        job = Job(made)
        made.service._ledgers.ledger.reserve(COST, budget="models", analyst="ann")
        job.attempt()
        for path in ("/api/budgets/models/history", "/api/budgets/models"):
            text = made.call("ada", "GET", path).text
            times = re.findall(r"T\d\d:\d\d:(\d\d(?:\.\d+)?)", text)
            assert times
            assert all(Fraction(each) % 5 == 0 for each in times)
