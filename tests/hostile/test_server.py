"""Hostile neighbours of a server: what an analyst sees has the same shape on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from tests.server.running_server import QUESTION, Server, open_server

LINES = {
    "a person more": "p9999,Bern,30,5\n",
    "an empty line": "\n",
    "a quote that is not closed": 'p9999,"Bern,30,5\n',
    "too few cells": "p9999\n",
    "not a number": "p9999,Bern,x,nan\n",
    "a huge number": "p9999,Bern,1e999,-1e308\n",
    "another city": "p9999,<script>,30,5\n",
}


def shape(value: Any) -> Any:
    """A document without its numbers, times and random names."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in sorted(value.items()) if key not in RANDOM}
    if isinstance(value, list):
        return sorted((shape(each) for each in value), key=repr)
    return type(value).__name__ if isinstance(value, (int, float)) else value


RANDOM = ("id", "created", "published", "digest", "time", "salt", "reservation", "date", "ledger")


def seen(server: Server, kind: str) -> list[Any]:
    """Everything that an analyst sees of one request, from price to release."""
    question = QUESTION | {"kind": kind, "epsilon": 1.0}
    if kind != "count":
        question["column"] = "spend"
    price = server.call("ann", "POST", "/api/price", question)
    answer = server.ask("ann", question, f"key of {kind}")
    view = server.wait(answer.json()["id"])
    release = server.call("ann", "GET", f"/api/releases/{answer.json()['id']}")
    listed = server.call("ann", "GET", "/api/requests")
    codes = [each.status_code for each in (price, answer, release, listed)]
    groups = release.json()["result"]
    names = {str(each["group"]) for each in (*groups["answers"], *groups["unanswered"])}
    return [codes, shape(price.json()), view["status"], sorted(names), len(listed.json())]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    with open_server(tmp_path_factory.mktemp("plain")) as server:
        return {kind: seen(server, kind) for kind in ("count", "sum")}


@pytest.mark.parametrize("name", LINES)
def test_a_line_more_changes_nothing_that_is_not_paid_for(
    name: str, plain: dict[str, list[Any]], tmp_path: Path
) -> None:
    with open_server(tmp_path) as server:
        with (tmp_path / "visits.csv").open("a", encoding="utf-8") as stream:
            stream.write(LINES[name])
        assert {kind: seen(server, kind) for kind in ("count", "sum")} == plain
