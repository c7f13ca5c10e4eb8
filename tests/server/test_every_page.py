"""Every page in a real browser: axe without findings, on a desktop, a dark phone and by keyboard.

The pages are those of the routes: a new one fails the first test until ``VISITS`` says how it is
reached.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("axe_playwright_python", reason="axe is not installed")
if shutil.which("chromium") is None:
    pytest.skip("there is no chromium", allow_module_level=True)

from expost.server import pages
from expost.server.people.accounts import Person as Signed
from tests.server import browsing, test_error_questions
from tests.server.running_server import PEOPLE, QUESTION

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
NO_PAGES = {"/static/{name}", "/metrics", "/", "/sign-in/openid", "/sign-in/callback"}
"""Files, numbers, and redirects."""
SQL = "SELECT city, COUNT(*) AS n, AVG(spend) AS spend FROM visits GROUP BY city"
DARK_PHONE = {"viewport": browsing.PHONE, "color_scheme": "dark"}


@dataclass
class World:
    """A server on which everything has happened, and a browser."""

    address: str
    tokens: dict[str, str]
    browser: Any
    ids: dict[str, str] = field(default_factory=dict)
    # One page of each person is kept: a new one is a new process of the browser.
    pages: dict[tuple[str | None, bool], Any] = field(default_factory=dict)

    def page(self, who: str | None, *, phone: bool = False) -> Any:
        """The page of somebody; the browser has no complaints yet."""
        if (who, phone) not in self.pages:
            page = self.browser.new_context(**(DARK_PHONE if phone else {})).new_page()
            page.set_default_timeout(120_000)
            if who is not None:
                browsing.sign_in(page, self.address, self.tokens[who])
            page.on("pageerror", lambda error: page.complaints.append(str(error)))
            self.pages[who, phone] = page
        self.pages[who, phone].complaints = []
        return self.pages[who, phone]


Path_ = Callable[[World], str]


def at(kind: str, *, of: str = "releases", more: str = "") -> Path_:
    """The page of a request or a release of some kind."""
    return lambda world: f"/{of}/{world.ids[kind]}{more}"


def plain(path: str) -> Path_:
    return lambda _: path


VISITS: dict[str, list[tuple[str, str | None, Path_]]] = {
    "/sign-in": [("sign in", None, plain("/sign-in"))],
    "/first": [("first owner", None, plain("/first?link=abc"))],
    "/datasets": [
        ("data sets", "ann", plain("/datasets")),
        ("data sets of an owner", "olga", plain("/datasets")),
    ],
    "/datasets/{name}": [
        ("data set", "ann", plain("/datasets/visits")),
        ("data set of an owner", "olga", plain("/datasets/visits")),
        ("rows to tune on", "ann", plain("/datasets/patients")),
    ],
    "/datasets/{name}/edit": [("edit", "olga", plain("/datasets/visits/edit"))],
    "/register": [("register", "olga", plain("/register"))],
    "/ask/{name}": [
        ("ask a count", "ann", plain("/ask/visits")),
        ("ask a mean", "ann", plain("/ask/visits?kind=mean&column=spend")),
        ("ask a quantile", "ann", plain("/ask/visits?kind=quantile&column=spend")),
        ("ask a query", "ann", lambda _: f"/ask/visits?kind=query&sql={SQL}&error=20&unit=percent"),
        ("ask for a model", "ann", plain("/ask/digits")),
        (
            "ask for errors",
            "ann",
            lambda world: f"/ask/patients?kind=errors&release={world.ids['model']}",
        ),
        ("a field that is wrong", "ann", plain("/ask/visits?kind=count&by=city&error=-3")),
    ],
    "/plan": [("plan", "ann", plain("/plan"))],
    "/requests": [
        ("requests", "ann", plain("/requests")),
        ("requests of all", "olga", plain("/requests")),
        ("requests, none found", "ann", plain("/requests?text=nothing+like+this")),
    ],
    "/requests/{id}": [
        ("a request with an answer", "ann", at("count", of="requests")),
        ("a request that waits", "ann", at("waits", of="requests")),
        ("a request to approve", "olga", at("waits", of="requests")),
        ("a request that was declined", "ann", at("declined", of="requests")),
        ("a request that the budget refused", "bob", at("refused", of="requests")),
        ("a request without an answer", "olga", at("failed", of="requests")),
    ],
    "/releases/{id}": [
        *((f"release: {kind}", "ann", at(kind)) for kind in ("count", "mean", "quantile", "query")),
        ("release: a model", "ann", at("model")),
        ("release: errors by subgroup", "ann", at("errors")),
    ],
    "/releases/{id}/verify": [("verify", "ann", at("count", more="/verify"))],
    "/releases/{id}/report": [
        ("report of a count", "ann", at("count", more="/report")),
        ("report of a query", "ann", at("query", more="/report")),
        ("report of a model", "ann", at("model", more="/report")),
    ],
    "/budgets": [
        ("budgets", "ann", plain("/budgets")),
        ("budgets of an owner", "olga", plain("/budgets")),
    ],
    "/budgets/{name}": [
        ("budget", "ann", plain("/budgets/visits")),
        ("budget of an owner", "olga", plain("/budgets/visits")),
    ],
    "/entries": [("ledger", "ada", plain("/entries"))],
    "/acts": [("acts", "ada", plain("/acts"))],
    "/verify": [("verify the ledger", "ada", plain("/verify"))],
    "/people": [("people", "olga", plain("/people"))],
    "/tokens": [("tokens", "ann", plain("/tokens")), ("all tokens", "olga", plain("/tokens"))],
}
CASES = [pytest.param(who, path, id=name) for v in VISITS.values() for name, who, path in v]
CASES += [
    pytest.param("ann", plain("/no/such/page"), id="error: not found"),
    pytest.param("ann", plain("/people"), id="error: not allowed"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("pages")
    with browsing.served(folder, tick=0.0) as (address, service, tokens), browsing.browser() as op:
        made = World(address, tokens, op)
        fill(made, service, folder)
        yield made


def fill(world: World, service: Any, folder: Path) -> None:
    """Ask a question of every kind, with every end."""
    olga, ann, bob = (Signed(name, PEOPLE[name]) for name in ("olga", "ann", "bob"))
    rows = test_error_questions.write(folder / "patients.csv")
    service.register(olga, test_error_questions.patients(rows))
    table = service.dataset(olga, "visits")
    dear = {**table, "name": "dear", "approval_above": 0.01, "description": "A dear one."}
    service.register(olga, {name: value for name, value in dear.items() if name != "standing"})
    away = folder / "away.csv"
    shutil.copy(folder / "visits.csv", away)
    service.register(olga, {**dear, "name": "away", "source": str(away), "approval_above": None})
    away.unlink()

    def ask(name: str, who: Signed, question: dict[str, Any], memo: str = "weekly report") -> None:
        world.ids[name] = service.ask(who, question, name, memo)["id"]

    by_city = {"dataset": "visits", "by": ["city"], "within": 0.2}
    half = {"dataset": "visits", "kind": "quantile", "column": "spend", "at": [0.5]}
    half |= {"by": ["city"], "within_rank": 0.1}
    ask("count", ann, QUESTION)
    ask("mean", ann, by_city | {"kind": "mean", "column": "spend"})
    ask("quantile", ann, half)
    ask("query", ann, {"dataset": "visits", "kind": "query", "sql": SQL, "within": 0.3})
    ask("model", ann, test_error_questions.JOB)
    ask("waits", ann, QUESTION | {"dataset": "dear"}, "for the board")
    ask("declined", ann, QUESTION | {"dataset": "dear", "within": 0.3})
    service.decline(olga, world.ids["declined"], "the table is too small for this")
    ask("refused", bob, QUESTION | {"within": None, "plus_minus": 10.0, "epsilon": 2.0})
    ask("failed", ann, QUESTION | {"dataset": "away"})
    service.new_token(olga, "ann", note="a script")
    ended = ("count", "mean", "quantile", "query", "model", "failed")
    settle(service, olga, [world.ids[name] for name in ended])
    errors = {"dataset": "patients", "kind": "errors", "by": ["sex"], "release": world.ids["model"]}
    ask("errors", ann, errors)
    settle(service, olga, [world.ids["errors"]])


def settle(service: Any, owner: Signed, ids: list[str]) -> None:
    """Wait for the end of requests."""
    deadline = time.monotonic() + 300
    while {service.request(owner, identity)["status"] for identity in ids} & {"queued", "running"}:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_no_page_is_forgotten(world: World) -> None:
    modules = [route for module in pages.MODULES for route in module.router.routes]
    shown = {route.path for route in modules if "GET" in route.methods}
    assert shown - NO_PAGES == set(VISITS)


def findings(page: Any) -> list[str]:
    """What axe finds: the rule, and where."""
    page.evaluate(AXE)
    told = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:160]}" for one in told["violations"] for node in one["nodes"]
    ]


# Everything that takes the focus, in the order of the document, as browsers see it.
REACHED = """() => [...document.querySelectorAll(
    'a[href], button, input, select, textarea, summary, [tabindex]')].filter(
    (one) => one.tabIndex >= 0 && !one.disabled && one.type !== 'hidden' && one.checkVisibility()
        && !(one.type === 'radio' && !one.checked
            && document.querySelector(`input[name="${one.name}"]:checked`))).length"""
FOCUS = """() => {
    const one = document.activeElement, style = getComputedStyle(one);
    const box = one.getBoundingClientRect();
    const around = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
    const visible = box.width > 0 && box.right > 0 && box.bottom > 0 && box.top < innerHeight;
    one.dataset.seen = (one.dataset.seen || 0) * 1 + 1;
    return [one.tagName, (one.id || one.name || one.textContent).trim().slice(0, 40),
            around && visible, one.dataset.seen * 1];
}"""


def by_keyboard(page: Any) -> list[Any]:
    """Tab through the page: what has the focus, whether that shows, and how often it had it."""
    seen = []
    for _ in range(page.evaluate(REACHED)):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUS))
    return seen


@pytest.mark.parametrize(("who", "path"), CASES)
def test_a_page_by_keyboard_by_axe_and_on_a_dark_phone(
    world: World, who: str | None, path: Path_
) -> None:
    page = world.page(who)
    page.goto(world.address + path(world), wait_until="load")
    seen = by_keyboard(page)
    assert seen[0][1] == "Skip to the content"
    assert [step for step in seen if not step[2]] == []  # the focus is visible
    assert [step for step in seen if step[0] == "BODY" or step[3] > 1] == []  # no trap, no gap
    assert findings(page) == []
    phone = world.page(who, phone=True)
    phone.goto(world.address + path(world), wait_until="load")
    assert findings(phone) == []
    wide = phone.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"{wide} pixels to scroll sideways"
    assert page.complaints == phone.complaints == []


def test_the_checks_notice_what_is_wrong(world: World) -> None:
    """A picture without words, a faint text, a focus that does not show, a wide box."""
    page = world.page("ann")
    page.set_viewport_size(browsing.PHONE)
    page.goto(f"{world.address}/datasets", wait_until="load")
    page.evaluate(
        """() => {
            const main = document.querySelector('main');
            main.innerHTML += '<img src="/static/icon.svg"><p class="faint">faint</p>'
                + '<div class="far">wide</div>';
            const sheet = new CSSStyleSheet();
            sheet.replaceSync(`* { outline: none !important }
                .faint { color: #ccc } .far { width: 900px }`);
            document.adoptedStyleSheets = [sheet];
        }"""
    )
    rules = {line.partition(":")[0] for line in findings(page)}
    assert {"image-alt", "color-contrast"} <= rules
    assert not all(step[2] for step in by_keyboard(page))
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") > 0
    page.set_viewport_size({"width": 1280, "height": 720})
