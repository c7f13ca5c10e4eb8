"""Daily use: what was asked before is free, searching, exports, copies, the head of the ledger."""

from __future__ import annotations

import csv
import html
import io
import json
import shlex
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from expost.cli.main import app
from expost.server.client import Connection
from expost.server.jobs.states import period_of
from expost.server.pages.amounts import loss_text
from expost.server.pages.ask_pages import copies_of
from tests.server.running_server import JOB, QUESTION, Server, open_server, visits
from tests.server.test_pages import problems, sign_in


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with open_server(tmp_path_factory.mktemp("daily"), threads=0, pricers=0) as server:
        for who, memo in (("ann", "=beds, 100%_sure"), ("bob", "wards")):
            server.ask(who, QUESTION, f"{who} asks", memo)
            runner = server.service.runner
            runner.run_one(server.service._queue.claim(runner.name, "here", 60.0))
        yield server


def price(server: Server, who: str, **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = server.call(who, "POST", "/api/price", QUESTION | more).json()
    return told


def test_what_was_asked_before_is_free(server: Server) -> None:
    mine = server.call("ann", "GET", "/api/requests").json()[0]["id"]
    before = server.call("ann", "GET", "/api/budgets/visits").json()["settled"]
    assert price(server, "ann")["asked_before"]["id"] == mine
    assert price(server, "ann", within=0.21)["asked_before"] is None
    assert price(server, "bob")["asked_before"]["id"] != mine  # never somebody else's
    page = sign_in(server, "ann").get("/ask/visits?kind=count&by=city&unit=percent&error=20")
    assert f"/releases/{mine}" in page.text
    assert problems(page.text) == []
    assert server.call("ann", "GET", f"/api/releases/{mine}").status_code == 200
    assert server.call("ann", "GET", "/api/budgets/visits").json()["settled"] == before


def test_searching(server: Server) -> None:
    def texts(who: str, query: str) -> list[str]:
        return [view["memo"] for view in server.call(who, "GET", f"/api/requests?{query}").json()]

    assert texts("ada", "text=WARDS") == ["wards"]
    assert texts("ada", "text=100%25_") == ["=beds, 100%_sure"]  # no wildcards
    assert texts("ada", "text=100_") == []
    assert texts("ann", "text=wards") == []  # not her own
    assert len(texts("ada", "status=done")) == 2
    assert texts("ada", "status=refused") == []
    assert texts("ada", "dataset=digits") == []
    shown = sign_in(server, "ada").get("/requests?text=wards&status=done").text
    assert "wards" in shown
    assert "100%_sure" not in shown
    assert problems(shown) == []


def test_the_export_of_a_period(server: Server) -> None:
    published = server.call("ada", "GET", "/api/requests").json()[0]["published"]
    for period in (published[:4], published[:7], published[:10]):
        text = server.call("ada", "GET", f"/api/export?period={period}").text
        lines = list(csv.DictReader(io.StringIO(text)))
        assert [line["memo"] for line in lines] == ["'=beds, 100%_sure", "wards"]  # no formula
        assert all(float(line["charge_epsilon"]) > 0 for line in lines)
    assert len(server.call("ada", "GET", "/api/export?period=1999").text.splitlines()) == 1
    assert len(server.call("bob", "GET", f"/api/export?period={published[:4]}").text.split()) == 2
    for wrong in ("x", "2026-13", "2026-02-30", "0000"):
        assert server.call("ada", "GET", f"/api/export?period={wrong}").status_code == 422


def test_copies_are_the_question(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The calls are run as they are shown, and their body is the one of the form."""
    monkeypatch.chdir(tmp_path)
    sent: list[Any] = []
    monkeypatch.setattr(Connection, "_ask", lambda self, question, *_: sent.append(question))
    monkeypatch.setenv("EXPOST_TOKEN", server.tokens["ann"])
    sums = QUESTION | {"kind": "sum", "column": "spend", "where": ["city=it's"]}
    listed = QUESTION | {"by": ["city", "age"], "keys": [["a, b", "1"], ["c", "2"]]}
    hostile = QUESTION | {"keys": ["END", "touch pwned", "ENDD", "Bern"]}
    for question in (QUESTION, sums, listed, hostile, JOB):
        (_, curl), (_, python), (_, command) = copies_of(question)
        sent.clear()
        exec(python.replace("SERVER", "http://localhost"), {})
        assert sent == [question]
        words = shlex.split(curl)
        assert json.loads(words[-1]) == {"question": question}
        subprocess.run(["sh", "-c", command.rpartition("\n")[0] or ":"], cwd=tmp_path, check=True)
        words = shlex.split(command.rpartition("\n")[2].replace("SERVER", "http://localhost"))
        sent.clear()
        CliRunner().invoke(app, words[1:])
        assert sent == [question]
    assert not (tmp_path / "pwned").exists()


def test_a_link_puts_no_command_into_a_copy(server: Server) -> None:
    """A link fills the form: its keys ended the text of a file, and what followed was a command."""
    link = "/ask/visits?kind=count&by=city&unit=percent&error=20&keys=END%0Atouch+pwned%0ABern"
    page = html.unescape(sign_in(server, "ann").get(link).text)
    assert "cat > keys.txt <<'ENDD'\nEND\ntouch pwned\nBern\nENDD\n" in page


def test_the_export_as_a_workbook(server: Server) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    year = server.call("ada", "GET", "/api/requests").json()[0]["published"][:4]
    for who, memos in (("ada", ["'=beds, 100%_sure", "wards"]), ("bob", ["wards"])):
        answer = server.call(who, "GET", f"/api/export?period={year}&format=xlsx")
        assert answer.headers["content-disposition"].endswith('.xlsx"')
        sheet = openpyxl.load_workbook(io.BytesIO(answer.content)).active
        names, *lines = sheet.iter_rows(values_only=True)
        assert [dict(zip(names, line, strict=True))["memo"] for line in lines] == memos
    assert server.call("ada", "GET", f"/api/export?period={year}&format=ods").status_code == 422


def test_a_budget_by_day_and_group(server: Server) -> None:
    owner = server.person("olga")
    server.service.change_person(owner, "ann", ["beds"])
    server.service.change_person(owner, "bob", ["beds", "wards"])
    past = server.call("ada", "GET", "/api/budgets/visits/history").json()
    spent = past["by_analyst"]
    assert past["by_group"] == pytest.approx(
        {"beds": spent["ann"] + spent["bob"], "wards": spent["bob"]}
    )
    assert sum(past["by_day"].values()) == pytest.approx(sum(spent.values()))
    shown = sign_in(server, "ada").get("/budgets/visits").text
    assert "Spent by group of people" in shown
    assert next(iter(past["by_day"])) in shown
    for amount in spent.values():  # as at the top of the page: rounded up
        assert f">ε {loss_text(amount)}</td>" in shown
    assert problems(shown) == []
    assert server.call("ann", "GET", "/api/budgets/visits/history").json()["by_group"] == {}


def test_the_head_of_the_ledger(server: Server) -> None:
    entries = server.call("ada", "GET", "/api/entries").json()
    assert server.call("ada", "GET", "/api/verify").json()["head"] == entries[-1]["hash"]
    assert entries[-1]["hash"] in sign_in(server, "ada").get("/verify").text


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("2026", "2026-01-01", "2027-01-01"),
        ("2026-03", "2026-03-01", "2026-04-01"),
        ("2026-12", "2026-12-01", "2027-01-01"),
        ("2024-02-29", "2024-02-29", "2024-03-01"),
    ],
)
def test_periods(text: str, begin: str, end: str) -> None:
    moments = [datetime.fromisoformat(f"{day}T00:00:00+00:00") for day in (begin, end)]
    assert period_of(text) == tuple(moment.timestamp() for moment in moments)


def test_other_facts_are_another_question(server: Server) -> None:
    """The owner may have replaced the rows: an old answer is not the one that is asked for."""
    assert price(server, "ann")["asked_before"] is not None
    facts = visits(server.folder / "visits.csv")
    assert server.call("olga", "PUT", "/api/datasets/visits", facts).status_code == 200
    assert price(server, "ann")["asked_before"] is None
