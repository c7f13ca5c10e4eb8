"""Pages that everybody can read: contrast, headings, nothing from other hosts, kept entries."""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

from expost.certificates import officer_report as documents
from expost.server.pages import amounts
from expost.server.pages.rendering import ASSETS, asset
from tests.server.running_server import JOB, QUESTION, Server, open_server
from tests.server.test_pages import PAGES, ROLE_OF, Page, csrf, problems, sign_in

ROOT = Path(__file__).parent.parent.parent
PAIRS = [  # text and its ground, with the contrast that WCAG 2.2 (AA) asks for
    *((text, ground, 4.5) for text in ("ink", "soft", "accent") for ground in ("paper", "ground")),
    *(("ink", ground, 4.5) for ground in ("tint", "bad-tint", "good-tint")),
    *(("soft", ground, 4.5) for ground in ("tint", "bad-tint", "good-tint")),
    ("accent", "tint", 4.5),
    ("on-accent", "accent", 4.5),
    ("bad", "paper", 4.5),
    ("bad", "ground", 4.5),
    ("bad", "bad-tint", 4.5),
    ("good", "paper", 4.5),
    ("good", "good-tint", 4.5),
    ("soft", "paper", 3.0),  # borders of fields
    ("accent", "line", 3.0),  # what is spent, beside what is left
    ("accent", "mid", 2.0),  # told in words as well
]


def colours() -> dict[str, dict[str, str]]:
    """The colours of the style sheet, light and dark."""
    style = asset("server.css").decode()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", each)) for each in blocks[:2])
    return {"light": light, "dark": light | dark}


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_measure_of_contrast() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground", "least"), PAIRS)
def test_contrast(scheme: str, text: str, ground: str, least: float) -> None:
    known = colours()[scheme]
    assert contrast(known[text], known[ground]) >= least


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with open_server(tmp_path_factory.mktemp("readable")) as made:
        asked = made.ask("ann", QUESTION, "readable", "for the report")
        made.id = asked.json()["id"]  # type: ignore[attr-defined]
        assert made.wait(asked.json()["id"])["status"] == "done"
        yield made


def headings(page: Page) -> list[int]:
    return [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]


@pytest.mark.parametrize("who", ROLE_OF)
def test_headings_and_hosts_of_every_page(server: Server, who: str) -> None:
    """Levels of headings are not skipped, and no page names another host."""
    client = sign_in(server, who)
    for path in ["/sign-in", "/first?link=x", "/none", *PAGES]:
        text = client.get(path.format(name="visits", id=server.id)).text  # type: ignore[attr-defined]
        levels = headings(Page(text)) if text else [1]
        assert levels[0] == 1, path
        assert all(b - a <= 1 for a, b in pairwise(levels)), (path, levels)
        assert not re.search(r"https?:|//[a-z]", text, re.IGNORECASE), path


def test_nothing_is_bundled_and_nothing_is_fetched() -> None:
    """Style, script and icon are our own; there is no third-party file that needs a licence."""
    folder = files("expost.server.pages").joinpath("static")
    assert sorted(each.name for each in folder.iterdir()) == sorted(ASSETS)
    for name in ASSETS:
        text = asset(name).decode().replace("http://www.w3.org/2000/svg", "")  # a name only
        assert not re.search(r"https?:|@import|//[a-z]+\.|url\(|@font-face", text), name
        assert len(text) < 40_000


def test_the_wheel_takes_whole_packages() -> None:
    """Templates and static files lie in a package that the wheel takes as a folder."""
    built = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    assert built["build"]["targets"]["wheel"] == {"packages": ["src/expost"]}
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    kinds = {path.suffix for path in (ROOT / "src/expost/server/pages").rglob("*.*")}
    assert not [line for line in ignored for kind in kinds - {".pyc"} if line.endswith(kind)]
    assert "templates" in (ROOT / "tools/dist.sh").read_text(encoding="utf-8")


def test_a_refused_form_keeps_what_was_entered(server: Server) -> None:
    client = sign_in(server, "olga")
    token = {"csrf": csrf(client)}
    source = str(server.folder / "visits.csv")
    long = {"budget": "visits", "source": source, "user": "nobody", "groups": "city\nBern\nGraz"}
    for path, fields, status in (
        ("/register", long | {"name": "kept", "description": "a long story"}, 422),
        ("/register", long | {"name": "visits", "user": "person"}, 409),
        ("/budgets", {"name": "kept", "kind": "approx", "epsilon": "2", "caps": "ann: 1"}, 422),
        ("/budgets/visits", {"analyst": "ann", "epsilon": "x", "reason": "kept reason"}, 422),
        ("/people", {"name": "ann", "role": "auditor"}, 409),
        ("/tokens", {"person": "ann", "days": "1000", "note": "kept note"}, 422),
    ):
        answer = client.post(path, data=fields | token)
        assert answer.status_code == status, path
        assert problems(answer.text) == []
        assert 'role="alert"' in answer.text
        for name, value in fields.items():
            chosen = rf'(?:value="{re.escape(value)}"(?: selected)?|>{re.escape(value)}<)'
            if name in ("kind", "role", "budget", "person", "analyst"):
                chosen = rf'(?:"{value}"| )[^>]* ?selected[^>]*>|selected>{value}<'
            assert re.search(chosen, answer.text), (path, name)


def test_caps_and_limits_are_changed_by_forms_of_their_own(server: Server) -> None:
    client = sign_in(server, "olga")
    fields = {"csrf": csrf(client), "reason": "more"}
    cap = fields | {"analyst": "ann", "epsilon": "2"}
    assert client.post("/budgets/visits", data=cap).status_code == 303
    shown = client.get("/budgets/visits").text
    assert "Cap of ann" in shown
    none = fields | {"analyst": "ann", "epsilon": ""}
    assert client.post("/budgets/visits", data=none).status_code == 303
    assert "Cap of ann" not in client.get("/budgets/visits").text


def test_the_page_and_the_report_name_the_same_cost(server: Server) -> None:
    client = sign_in(server, "ann")
    report = server.call("ann", "GET", f"/api/releases/{server.id}/report").json()  # type: ignore[attr-defined]
    here = report["facts"]["this_release"]["epsilon"]
    shown = client.get(f"/releases/{server.id}").text  # type: ignore[attr-defined]
    assert f"</span> {amounts.grouped_number(here)}</p>" in shown
    certain = f"{100 * amounts.certainty(here):.1f} %"
    assert certain in shown
    assert certain in client.get(f"/releases/{server.id}/report").text  # type: ignore[attr-defined]


def test_answers_as_csv(server: Server) -> None:
    answer = server.call("ann", "GET", f"/api/releases/{server.id}/answers")  # type: ignore[attr-defined]
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    release = server.call("ann", "GET", f"/api/releases/{server.id}").json()  # type: ignore[attr-defined]
    result = release["result"]
    assert [row["city"] for row in rows if row["error_reached"] == "yes"] == [
        each["group"] for each in result["answers"]
    ]
    assert float(rows[0]["estimate"]) == result["answers"][0]["estimate"]
    odd = {"group": ["=1+1", "-2+3"], "estimate": 1.0, "low": None, "high": 2.0}
    found = documents.answers_csv(
        {
            "result": {"answers": [odd], "unanswered": []},
            "request": {"question": {"by": ["@a", "b"]}},
        }
    )
    assert found.splitlines() == [
        "'@a,b,estimate,low,high,error_reached",
        "'=1+1,'-2+3,1.0,,2.0,yes",
    ]


def test_older_requests_follow_without_gaps(server: Server) -> None:
    for number in range(4):
        server.ask("bob", QUESTION | {"within": 0.0005}, f"older {number}")
    whole = [each["id"] for each in server.call("bob", "GET", "/api/requests").json()]
    assert len(whole) == 4
    paged: list[str] = []
    while True:
        query = f"?limit=1&before={paged[-1]}" if paged else "?limit=1"
        found = server.call("bob", "GET", f"/api/requests{query}").json()
        if not found:
            break
        paged += [each["id"] for each in found]
    assert paged == whole
    other = server.call("bob", "GET", f"/api/requests?before={server.id}")  # type: ignore[attr-defined]
    assert other.status_code == 404  # another analyst's request is no place to begin


def test_a_retired_data_set_leaves_its_requests_readable(server: Server) -> None:
    owner = server.person("olga")
    facts = server.service.dataset(owner, "visits") | {"name": "gone"}
    facts = {name: each for name, each in facts.items() if name not in ("standing", "columns")}
    server.service.register(owner, facts)
    dear = QUESTION | {"dataset": "gone", "within": 0.0005}
    identity = server.ask("ann", dear, "of a retired one").json()["id"]
    server.service.retire(owner, "gone")
    shown = sign_in(server, "ann").get(f"/requests/{identity}").text
    assert "gone (retired, or not open to you)" in shown
    assert "/ask/gone" not in shown
    refusals = server.service.budget(owner, "visits")["refusals"]
    assert identity in [each["id"] for each in refusals]


def test_expired_tokens_are_called_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    found = server.service.tokens(server.person("ann"))
    old = [each | {"expires": "2020-01-01T00:00:00+00:00"} for each in found]
    monkeypatch.setattr(server.service, "tokens", lambda person: [*found, *old])
    shown = sign_in(server, "ann").get("/tokens").text
    assert "valid, used now" in shown
    assert "expired" in shown
    assert shown.count("Yes, revoke") == len(found)


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ({"worst": ["607/10000"], "secret": "abc"}, "worst 0.0607"),
        ({"spent": ["1/3", "1/100000"]}, "spent 0.333333, 1e-05"),
        ({"name": "visits", "renews": None, "caps": {"bob": 1.0}}, "name visits; caps (bob 1)"),
        ({"reason": "a/b 1/2"}, "reason a/b 1/2"),
        ({"top": "9" * 300 + "/" + "9" * 300}, "top 1"),
    ],
)
def test_facts_in_words(detail: dict[str, object], words: str) -> None:
    assert amounts.facts(detail, ("secret",)) == words


def test_amounts_of_every_kind() -> None:
    renyi = {"orders": [2.0, 4.0, 8.0], "epsilons": [0.5, 1.0, 2.0]}
    assert amounts.amount(renyi) == "ε(2) 0.5 to ε(8) 2"
    assert amounts.used(renyi)
    assert not amounts.used({"orders": [2.0], "epsilons": [0.0]})
    assert not amounts.used({"epsilon": 0.0, "delta": 0.0})
    assert amounts.used({"epsilon": 0.0, "delta": 1e-9})
    assert not amounts.used(0.0)


def test_a_tuning_job_is_asked_differently_with_all_its_settings() -> None:
    from expost.server.pages.ask_pages import fields_again, job_fields, job_of_fields

    view = {"kind": "tune", "question": JOB | {"privacy": {"attempts": 3}}}
    fields = {name: str(each) for name, each in fields_again(view).items()}
    facts = {"name": "digits", "kind": "rows"}
    asked = job_of_fields(facts, job_fields(facts, fields))  # type: ignore[arg-type]
    assert asked["privacy"] == {"attempts": 3, "max_epsilon": 4.0}  # the field says 4
    assert {name: asked[name] for name in ("model", "search", "goal")} == {
        name: JOB[name] for name in ("model", "search", "goal")
    }
