"""Every page, for every role: status, landmarks, labels, no inline code, CSRF, escaping."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi.testclient import TestClient

from expost.server.people.accounts import ANALYST, AUDITOR, OWNER
from tests.server.running_server import QUESTION, Server, open_server

NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
EVERYBODY = {OWNER, ANALYST, AUDITOR}
ROLE_OF = {"olga": OWNER, "ann": ANALYST, "ada": AUDITOR}
PAGES: dict[str, set[str]] = {
    "/datasets": EVERYBODY,
    "/datasets/{name}": EVERYBODY,
    "/ask/{name}": EVERYBODY,
    "/ask/digits": EVERYBODY,
    "/plan": {OWNER, ANALYST},
    "/requests": EVERYBODY,
    "/requests/{id}": EVERYBODY,
    "/releases/{id}": EVERYBODY,
    "/releases/{id}/verify": EVERYBODY,
    "/releases/{id}/report": EVERYBODY,
    "/budgets": EVERYBODY,
    "/budgets/{name}": EVERYBODY,
    "/budgets/models": EVERYBODY,
    "/entries": {OWNER, AUDITOR},
    "/acts": {OWNER, AUDITOR},
    "/verify": {OWNER, AUDITOR},
    "/people": {OWNER, AUDITOR},
    "/tokens": EVERYBODY,
    "/register": {OWNER},
    "/datasets/{name}/edit": {OWNER},
}
EXAMPLES = ("/ask/digits", "/budgets/models")
"""Second examples of a route that has an entry."""
FORMS: dict[str, tuple[set[str], dict[str, str], int]] = {
    "/sign-out": (EVERYBODY, {}, 303),
    "/ask/{name}": ({ANALYST}, {"question": json.dumps(QUESTION), "key": "form"}, 303),
    "/requests/{id}/approve": ({OWNER}, {"reason": "needed"}, 409),
    "/requests/{id}/decline": ({OWNER}, {"reason": "no"}, 409),
    "/budgets": ({OWNER}, {"name": "fresh", "kind": "pure", "epsilon": "1", "caps": "ann: 1"}, 303),
    "/budgets/{name}": ({OWNER}, {"epsilon": "6", "reason": "more people"}, 303),
    "/people": ({OWNER}, {"name": "zoe", "role": "analyst"}, 303),
    "/people/{name}": ({OWNER}, {"groups": "health"}, 404),
    "/people/{name}/disable": ({OWNER}, {}, 404),
    "/people/{name}/enable": ({OWNER}, {}, 404),
    "/datasets/{name}/edit": ({OWNER}, {"user": "person", "preview": "1"}, 200),
    "/tokens": ({OWNER}, {"person": "ann", "days": "3", "note": NASTY}, 200),
    "/tokens/{id}/revoke": (EVERYBODY, {}, 404),
    "/register": ({OWNER}, {"name": "fresh", "budget": "visits", "user": "person"}, 303),
    "/datasets/{name}/retire": ({OWNER}, {}, 404),
}
VOID = {"meta", "link", "input", "img", "br", "hr"}


class Page(HTMLParser):
    """What the tests look for in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.nested: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.nested.append(tag)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def problems(text: str) -> list[str]:
    """What is wrong with a page: structure, access for all, content security."""
    page, found = Page(text), []
    found += [f"</{tag}> does not match" for tag in page.nested]
    found += [f"<{tag}> stays open" for tag in page.open]
    for tag in ("header", "main", "footer", "h1"):
        if len(page.all(tag)) < 1 or (tag in ("main", "h1") and len(page.all(tag)) != 1):
            found.append(f"landmark {tag}")
    if not page.all("html")[0].get("lang") or 'class="skip" href="#main"' not in text:
        found.append("language or skip link")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    found += [f"id {each} twice" for each in set(ids) if ids.count(each) > 1]
    labels = {each.get("for") for each in page.all("label")}
    for tag, attributes in page.tags:
        if "style" in attributes or any(name.startswith("on") for name in attributes):
            found.append(f"inline code in <{tag}>")
        for name in ("src", "href", "action"):
            if re.match(r"(?:[a-z]+:)?//|javascript:|data:", attributes.get(name) or ""):
                found.append(f"{name} {attributes[name]}")
        for name in ("aria-labelledby", "aria-describedby"):
            if attributes.get(name) and attributes[name] not in ids:
                found.append(f"{name} {attributes[name]}")
        field = tag in ("input", "select", "textarea")
        inside = attributes.get("type") in ("hidden", "radio", "checkbox")
        if field and not inside and attributes.get("id") not in labels:
            found.append(f"no label for {attributes.get('name')}")
    scripts = [each.get("src") or "" for each in page.all("script")]
    if len(scripts) != 1 or not scripts[0].startswith("/static/server.js") or page.all("style"):
        found.append("inline script or style")
    if len(page.all("table")) != len(page.all("caption")):
        found.append("a table without a caption")
    return found


def sign_in(server: Server, who: str) -> TestClient:
    client = TestClient(server.app, base_url="http://localhost", follow_redirects=False)
    answer = client.post("/sign-in", data={"token": server.tokens[who], "next": "/datasets"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/datasets")
    return client


def csrf(client: TestClient) -> str:
    return str(re.findall(r'name="csrf" value="([^"]+)"', client.get("/tokens").text)[0])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pages")
    with open_server(folder) as made:
        asked = made.ask("ann", QUESTION, "pages", NASTY)
        made.id = asked.json()["id"]  # type: ignore[attr-defined]
        assert made.wait(asked.json()["id"])["status"] == "done"
        refused = made.ask("ann", QUESTION | {"within": 0.0005}, "too dear").json()
        assert refused["status"] == "refused"
        made.refused = refused["id"]  # type: ignore[attr-defined]
        yield made


@pytest.fixture(scope="module")
def clients(server: Server) -> dict[str, TestClient]:
    return {who: sign_in(server, who) for who in [*ROLE_OF, "bob"]}


def at(server: Any, path: str) -> str:
    return path.format(name="visits", id=server.id)


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("who", ROLE_OF)
def test_page(server: Server, clients: dict[str, TestClient], who: str, path: str) -> None:
    answer = clients[who].get(at(server, path))
    wanted = 200 if ROLE_OF[who] in PAGES[path] else 403
    assert answer.status_code == wanted
    assert problems(answer.text) == []
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert answer.headers["cache-control"] == "no-store"
    assert "alert(1)</script>" not in answer.text
    assert "<img" not in answer.text
    for form in re.findall(r'<form[^>]*method="post".*?</form>', answer.text, re.DOTALL):
        assert 'name="csrf" value="' in form


@pytest.mark.parametrize("path", PAGES)
def test_nobody_sees_a_page_without_a_session(server: Server, path: str) -> None:
    client = TestClient(server.app, base_url="http://localhost", follow_redirects=False)
    answer = client.get(at(server, path), headers={"cookie": "expost_session=x"})
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/sign-in?next={at(server, path)}"
    assert answer.text == ""


@pytest.mark.parametrize("path", [path for path in PAGES if "{id}" in path])
def test_pages_of_another_analyst_do_not_exist(
    server: Server, clients: dict[str, TestClient], path: str
) -> None:
    theirs = clients["bob"].get(at(server, path))
    absent = clients["bob"].get(path.format(id="f" * 32))
    assert theirs.status_code == absent.status_code == 404
    assert theirs.text == absent.text
    assert clients["bob"].get(path.format(id="no-id")).status_code == 422


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("who", ROLE_OF)
def test_form(server: Server, who: str, path: str) -> None:
    roles, fields, status = FORMS[path]
    client = sign_in(server, who)
    identity = server.id if "requests" in path else "0" * 16  # type: ignore[attr-defined]
    place = path.format(name="nobody" if status == 404 else "visits", id=identity)
    fields = dict(fields)
    if path in ("/register", "/datasets/{name}/edit"):
        fields["source"] = str(server.folder / "visits.csv")
        fields["groups"] = "city\nBern\nGraz\n"
        fields["values"] = "spend: 0, 100"
    for wrong in ({}, {"csrf": "x"}, {"csrf": csrf(sign_in(server, who))}):
        refused = client.post(place, data=fields | wrong)
        assert refused.status_code == 403
        assert "CSRF" in refused.text
    answer = client.post(place, data=fields | {"csrf": csrf(client)})
    assert answer.status_code == (status if ROLE_OF[who] in roles else 403), answer.text
    if answer.status_code != 303:
        assert problems(answer.text) == []
    outside = TestClient(server.app, base_url="http://localhost", follow_redirects=False)
    assert outside.post(place, data=fields).headers["location"] == "/sign-in"


def test_sign_in_refuses_other_tokens_sites_and_places(server: Server) -> None:
    client = TestClient(server.app, base_url="http://localhost", follow_redirects=False)
    shown = client.get("/sign-in?next=//evil.example")
    assert problems(shown.text) == []
    assert "evil" not in shown.text
    wrong = client.post("/sign-in", data={"token": "exp_wrong"})
    assert wrong.status_code == 401
    assert problems(wrong.text) == []
    assert "exp_wrong" not in wrong.text
    token = {"token": server.tokens["ann"]}
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}):
        assert client.post("/sign-in", data=token, headers=headers).status_code == 403
    for place in ("//evil.example", "/\\evil.example", "http://evil.example", "/a?b", "/a\r\nb: c"):
        answer = client.post("/sign-in", data=token | {"next": place})
        assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/sign-in").headers["location"] == "/"
    assert client.get("/").headers["location"] == "/datasets"
    client.post("/sign-out", data={"csrf": csrf(client)})
    assert client.get("/datasets").headers["location"].startswith("/sign-in")


def test_the_first_owner(tmp_path: Any) -> None:
    from expost.server.app import create_app
    from expost.server.server_settings import ServerSettings

    app = create_app(ServerSettings(tmp_path / "server"), run=False)
    client = TestClient(app, base_url="http://localhost", follow_redirects=False)
    link = app.state.service.signin.first_link()
    shown = client.get("/first", params={"link": link})
    assert problems(shown.text) == []
    assert client.post("/first", data={"link": link, "name": NASTY}).status_code == 422
    assert client.post("/first", data={"link": "x" * 40, "name": "eve"}).status_code == 403
    made = client.post("/first", data={"link": link, "name": "olga"})
    assert problems(made.text) == []
    (token,) = re.findall(r'class="secret">([^<]+)<', made.text)
    for path in ("/datasets", "/budgets", "/requests", "/entries", "/verify", "/register"):
        empty = client.get(path)  # also a server without any budget has pages
        assert empty.status_code == 200
        assert problems(empty.text) == []
    assert client.post("/first", data={"link": link, "name": "eve"}).status_code == 403
    other = TestClient(app, base_url="http://localhost", follow_redirects=False)
    assert other.post("/sign-in", data={"token": token}).status_code == 303
    app.state.service.close()


def test_the_price_is_that_of_the_service(server: Server, clients: dict[str, TestClient]) -> None:
    fields = {"kind": "count", "by": "city", "unit": "percent", "error": "20"}
    shown = clients["ann"].get("/ask/visits", params=fields).text
    price = server.service.price(server.person("ann"), QUESTION)
    assert f"</span> {price['epsilon']:.3g}</p>" in shown
    assert "It fits" in shown
    dear = clients["ann"].get("/ask/visits", params=fields | {"error": "0.05"}).text
    assert "The budget would refuse this" in dear
    for error in ("0", "-1", "nan", "x", "1e-9"):
        bad = clients["ann"].get("/ask/visits", params=fields | {"error": error})
        assert bad.status_code == 200
        assert "disabled" in bad.text
        assert problems(bad.text) == []
    mean = clients["ann"].get("/ask/visits", params={"kind": "mean", "column": "spend"})
    assert "± units" in mean.text
    odd = clients["ann"].get("/ask/visits", params={"kind": NASTY, "by": NASTY, "where": NASTY})
    assert problems(odd.text) == []
    assert "alert(1)</script>" not in odd.text


def test_a_question_from_form_to_release(server: Server, clients: dict[str, TestClient]) -> None:
    client = clients["ann"]
    shown = client.get("/ask/visits", params={"kind": "count", "by": "city", "error": "30"}).text
    page = Page(shown)
    fields = {
        str(each["name"]): each["value"] or ""
        for each in page.all("input")
        if each.get("type") == "hidden"
    }
    answers = [client.post("/ask/visits", data=fields | {"memo": "twice"}) for _ in range(2)]
    assert len({answer.headers["location"] for answer in answers}) == 1  # sent twice, asked once
    place = answers[0].headers["location"]
    server.wait(place.rpartition("/")[2])
    shown = client.get(place)
    assert "Read the release" in shown.text
    assert problems(shown.text) == []
    again = re.findall(r'href="(/ask/visits\?[^"]+)"', shown.text)[0].replace("&amp;", "&")
    assert 'value="30"' in client.get(again).text
    checked = client.get(place.replace("requests", "releases") + "/verify")
    assert "Verified" in checked.text


def test_a_refusal_is_explained(server: Any, clients: dict[str, TestClient]) -> None:
    shown = clients["ann"].get(f"/requests/{server.refused}").text
    assert "The budget refused this" in shown
    assert "Nothing was charged" in shown
    assert server.refused[:8] in clients["ada"].get("/budgets/visits").text
    assert clients["ann"].get(f"/releases/{server.refused}").status_code == 402


def test_group_names_and_memos_are_text(server: Server, clients: dict[str, TestClient]) -> None:
    source = server.folder / "nasty.csv"
    with source.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["person", "tag"])
        rows.writerows([f"p{number}", NASTY] for number in range(2000))
    owner = server.person("olga")
    facts = {"name": "nasty", "budget": "visits", "source": str(source), "user": "person"}
    facts |= {"groups": {"tag": [NASTY, "other"]}, "description": NASTY, "max_groups_per_user": 1}
    server.service.register(owner, facts)
    question = {"dataset": "nasty", "kind": "count", "by": ["tag"], "within": 0.3}
    made = server.ask("ann", question, "nasty", NASTY).json()
    server.wait(made["id"])
    texts = []
    for path in (
        "/datasets/nasty",
        "/ask/nasty",
        "/requests",
        f"/requests/{made['id']}",
        f"/releases/{made['id']}",
        f"/releases/{made['id']}/report",
    ):
        answer = clients["ann"].get(path)
        assert problems(answer.text) == []
        texts.append(answer.text)
    texts += [clients["olga"].get(path).text for path in ("/entries", "/acts", "/budgets/visits")]
    joined = "".join(texts)
    assert "<script>alert" not in joined
    assert "<img" not in joined
    assert "&lt;script&gt;alert(1)" in joined


def test_names_with_markup_are_refused(server: Server, clients: dict[str, TestClient]) -> None:
    client = clients["olga"]
    token = {"csrf": csrf(client)}
    source = str(server.folder / "visits.csv")
    for path, fields in {
        "/people": {"name": NASTY, "role": "analyst"},
        "/budgets": {"name": NASTY, "kind": "pure", "epsilon": "1"},
        "/register": {"name": NASTY, "budget": "visits", "user": "person", "source": source},
    }.items():
        answer = client.post(path, data=fields | token)
        assert answer.status_code == 422
        assert problems(answer.text) == []
        assert "<script>alert" not in answer.text


def test_errors_are_pages_and_tell_nothing(server: Server, clients: dict[str, TestClient]) -> None:
    client = clients["ann"]
    for path, status in {"/none": 404, "/datasets/none": 404, "/static/none.css": 404}.items():
        answer = client.get(path)
        assert answer.status_code == status
        assert problems(answer.text) == []
    assert client.get("/api/none").headers["content-type"] == "application/json"
    assert client.get("/static/..%2Frendering.py").status_code == 404
    assert client.put("/datasets").status_code == 405
    broken = client.post("/ask/visits", data={"csrf": csrf(client), "question": "[", "key": "k"})
    assert broken.status_code == 422
    other = json.dumps(QUESTION | {"dataset": "digits"})
    fields = {"csrf": csrf(client), "question": other, "key": "k"}
    assert client.post("/ask/visits", data=fields).status_code == 422


def test_static_files(server: Server) -> None:
    for name, kind in {"server.css": "text/css", "server.js": "text/javascript"}.items():
        answer = server.client.get(f"/static/{name}")
        assert answer.headers["content-type"].startswith(kind)
        assert "max-age" in answer.headers["cache-control"]
        assert "http://" not in answer.text
        assert "https://" not in answer.text
    assert server.client.get("/static/icon.svg").status_code == 200


def test_waiting_pages_reload_and_show_no_progress(
    server: Server, clients: dict[str, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = server.service.request(server.person("ann"), server.id)  # type: ignore[attr-defined]
    waiting = view | {"status": "running", "charge": None, "release": False, "published": None}
    monkeypatch.setattr(server.service, "request", lambda person, identity: waiting)
    monkeypatch.setattr(server.service, "requests", lambda *_: [waiting])
    for path in (f"/requests/{view['id']}", "/requests"):
        shown = clients["ann"].get(path)
        assert 'http-equiv="refresh" content="1"' in shown.text
        assert problems(shown.text) == []
        assert "Release<" not in shown.text
