"""One definition of a question: every door has its keys, and no other list of them exists."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

import expost
from expost.analytics.pricing import price_request
from expost.analytics.request import CountRequest, check_request, request_settings
from expost.errors import InvalidInput
from expost.tables.typed_columns import split_condition

KEYS = set(CountRequest.__annotations__)
ANALYSTS = {
    name for name, (_, setting) in request_settings(CountRequest).items() if setting.analysts
}
WORDS = {"kind", "column"}  # --sum COLUMN and --mean COLUMN on the command line


def options(*command: str) -> set[str]:
    from expost.cli.main import app

    shown = CliRunner(env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"}).invoke(app, command)
    return {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", shown.output)}


def test_every_key_is_an_option_a_keyword_and_has_help() -> None:
    """Catches a key that one door forgets."""
    assert options("count", "--help") >= KEYS - WORDS
    described = (expost.count.__doc__ or "") + (expost.sum.__doc__ or "")
    assert {key for key in KEYS - {"kind"} if not re.search(rf"\b{key}\b", described)} == set()
    assert all(setting.help for _, setting in request_settings(CountRequest).values())


def test_analysts_ask_with_the_same_keys_and_with_no_fact_of_the_owner() -> None:
    """Catches a fact of the owner that an analyst could set: source, person, bounds."""
    routes = pytest.importorskip("expost.server.api.routes")
    fields = set(routes.Question.model_fields)
    assert fields & KEYS == ANALYSTS
    assert not {"user", "bounds", "grid", "table", "one_row_per_user"} & ANALYSTS
    remote = options("--server", "http://localhost", "count", "--help")
    assert (remote & KEYS) == ANALYSTS - WORDS
    schema = routes.Question.model_json_schema()["properties"]
    assert schema["within"]["description"] == request_settings(CountRequest)["within"][1].help


def test_unknown_and_missing_keys() -> None:
    with pytest.raises(TypeError, match="rows"):
        expost.count({"a": 5}, keys=["a"], epsilon=1, rows=True)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="epsilon"):
        expost.count({"a": 5}, keys=["a"])


@pytest.mark.parametrize("delta", [None, 1e-6])
@pytest.mark.parametrize("budget", [None, "pure", "approx", "zcdp", "renyi"])
def test_a_price_needs_no_table(delta: float | None, budget: str | None, tmp_path) -> None:
    """Catches a price that depends on the table: a server prices before anything is opened."""
    path = tmp_path / "t.csv"
    path.write_text("u,g\n1,a\n2,b\n")
    asked = {"by": "g", "user": "u", "keys": ["a", "b"], "epsilon": 1.0, "delta": delta}
    before = price_request(check_request(str(path), asked, open_table=False), budget)
    assert before == price_request(check_request(str(path), asked), budget)
    json.dumps([before.request, before.source])
    whole = delta is not None and budget in ("pure", "approx")
    assert (len(before.charges) == 1) == whole


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("age>=18", ("age", ">=", "18")),
        (" status = active ", ("status", "=", "active")),
        ("a b!='x > y'", ("a b", "!=", "'x > y'")),
        ("x=", ("x", "=", "")),
        ("n==3", ("n", "==", "3")),
    ],
)
def test_conditions_are_split_at_the_first_sign(text: str, parts: tuple[str, str, str]) -> None:
    assert split_condition(text) == parts


@pytest.mark.parametrize("text", ["", "age", "=3", "  =3", None, "\t" * 200_000])
def test_what_is_no_condition_is_refused_at_once(text: object) -> None:
    """Catches a pattern that needs cubic time: 1,000 tabs once took seconds."""
    with pytest.raises(InvalidInput, match="conditions like"):
        split_condition(text)
