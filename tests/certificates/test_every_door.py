"""Every kind of certificate: the same words and the same verdict at every door.

Doors: ``expost certificate``, the server's page and report, and Python (of which notebooks and
scikit-learn are fronts).
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import expost
from expost import Candidate, DiscreteLaplace, PureDP, Query, RandomDropping
from expost.budget.budgets import ApproxBudget, ZCDPBudget
from expost.budget.ledger import Ledger
from expost.certificates.words import one_line
from tests.cli.counting import expost as command  # noqa: F401  (a fixture)
from tests.tuning.jobs import clouds, job, line

VISITS = {"u": list(range(900)), "g": ["ab"[n % 2] for n in range(900)]}
VISITS["v"] = [n % 3 for n in range(900)]
ASKED: dict[str, Any] = {"user": "u", "by": "g", "keys": ["a", "b"], "epsilon": 2.0}
ASKED |= {"within": 0.2, "max_groups_per_user": 1}
PATH = {"model": {"training": "progressive"}, "search": dict.fromkeys(job()["search"])}
PATH |= {"privacy": {"attempts": None, "max_epsilon": 10.0}}

Maker = Callable[[Ledger], dict[str, Any]]


def counted(kind: str, *columns: str, **options: Any) -> Maker:
    def make(ledger: Ledger) -> dict[str, Any]:
        pandas = pytest.importorskip("pandas")
        ask = getattr(expost, kind)
        table = pandas.DataFrame(VISITS)
        return ask(table, *columns, ledger=ledger, analyst="ann", **ASKED, **options).certificate()

    return make


def described(ledger: Ledger) -> dict[str, Any]:
    pandas = pytest.importorskip("pandas")
    facts = expost.describe(pandas.DataFrame(VISITS), epsilon=2.0, delta=1e-6, ledger=ledger)
    return json.loads(json.dumps(facts.certificate()))


def tuned(rows: tuple[Any, Any], **changes: Any) -> Maker:
    def make(ledger: Ledger) -> dict[str, Any]:
        tables = {name: keys for name, keys in job(**changes).items() if keys}
        return json.loads(expost.tune(tables, *rows, ledger=ledger, analyst="ann").certificate())

    return make


def selected(ledger: Ledger) -> dict[str, Any]:
    candidates = [Candidate(DiscreteLaplace(Query(len), e), {"level": e}) for e in (0.1, 0.2)]
    release = RandomDropping(0.05).select(candidates, ["ana", "ben"], ledger=ledger)
    return json.loads(release.to_json())


def searched(ledger: Ledger) -> dict[str, Any]:
    pytest.importorskip("sklearn")
    from expost.sklearn import DPLogisticRegression, ExPostSearch

    X, y = clouds(600)
    model = DPLogisticRegression(classes=[0, 1], feature_bounds=(0, 1), delta=1e-5)
    search = ExPostSearch(model, at_least=0.6, training="progressive", ledger=ledger)
    return json.loads(search.fit(np.clip(X, 0, 1), y).certificate())


ZERO_OUT = "zero-out"
APPROX = ApproxBudget(1000, 0.01, ZERO_OUT)
MAKERS: dict[str, tuple[Any, Maker]] = {
    "count": (PureDP(100), counted("count")),
    "rows": (PureDP(100), counted("count", count_rows=True, max_rows_per_user=1)),
    "sum": (PureDP(100), counted("sum", "v", bounds=(0, 2))),
    "mean": (PureDP(100), counted("mean", "v", bounds=(0, 2))),
    "gaussian": (ZCDPBudget(100), counted("count", delta=1e-6)),
    "selection": (PureDP(100), selected),
    "facts": (ApproxBudget(1000, 0.01), described),
    "dp-sgd": (APPROX, tuned(clouds())),
    "dp-sgd, missed": (APPROX, tuned(clouds(noise=0.9), goal={"at_least": 0.93})),
    "dp-sgd, best": (APPROX, tuned(clouds(), goal={"at_least": None, "maximize": True})),
    "progressive": (APPROX, tuned(clouds(600), **PATH)),
    "progressive, missed": (
        APPROX,
        tuned(clouds(600, noise=0.9), goal={"at_least": 0.93}, **PATH),
    ),
    "noise-reduction": (
        APPROX,
        tuned(
            line(600),
            **{**PATH, "model": {"kind": "linear", "training": "noise-reduction"}},
            data={"classes": None, "target_bounds": [0, 10]},
            goal={"metric": "mse", "at_least": None, "at_most": 60.0, "loss_bound": 100.0},
        ),
    ),
    "scikit-learn": (APPROX, searched),
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path, Ledger]]:
    """Each kind once: the document, its file, and the ledger that paid."""
    folder = tmp_path_factory.mktemp("certificates")
    written = {}
    for number, (kind, (budget, make)) in enumerate(MAKERS.items()):
        ledger = Ledger.create(folder / f"{number}.db", budget)
        document = make(ledger)
        file = folder / f"{number}.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        written[kind] = (document, file, ledger)
    return written


def said_in_python(document: dict[str, Any], **options: bool) -> list[tuple[str, list[str]]]:
    return [(name, list(lines)) for name, lines in expost.certificate_words(document, **options)]


def on_screen(text: str) -> list[tuple[str, list[str]]]:
    """The rows of the table that the command printed."""
    rows: list[tuple[str, list[str]]] = []
    for printed in text.splitlines():
        if printed.startswith("│"):
            name, said = (cell.strip() for cell in printed.strip("│").split("│"))
            if name:
                rows.append((name, []))
            rows[-1][1].append(said)
    return rows


def on_page(html: str) -> list[tuple[str, list[str]]]:
    """The rows of the table of words on a page of the server."""
    table = html[html.index("The certificate in words</caption>") :].partition("</table>")[0]
    cells = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', table, re.DOTALL)
    return [(unescape(name), [*map(unescape, said.split("<br>"))]) for name, said in cells]


def page_at(path: str) -> Callable[..., Any]:
    """The function behind a page of the server."""
    from expost.server.pages.release_pages import router

    return next(route.endpoint for route in router.routes if route.path == path)  # type: ignore[attr-defined]


class FakeServer:
    """A server that holds one release and the ledger that paid for it."""

    def __init__(self, document: dict[str, Any], ledger: Ledger) -> None:
        from expost.server.jobs.tuning_jobs import result_of
        from expost.server.service import Service

        kind = "tune" if document["kind"] == "tuning" else document["query"]["kind"]
        request = {"id": "a" * 32, "kind": kind, "memo": "", "person": "ann", "question": {}}
        request |= {"created": "2026-01-01T00", "published": "2026-01-01T00", "dataset": "d"}
        request["errors"] = []
        request["question"] = {"by": ["g"]}
        answers = {"answers": [], "unanswered": [], "warnings": [], "confidence": 0.9}
        result = result_of(document) if kind == "tune" else answers
        self.release = lambda *_: {"request": request, "result": result, "certificate": document}
        facts = {"name": "d", "user": "u", "budget": "b", "values": {}}
        self._datasets = SimpleNamespace(get=lambda *_, **__: facts)
        self.dataset = lambda *_: facts
        terms = {"name": "b", "kind": "approx", "budget": {"epsilon": 1.0}}
        self._ledgers = SimpleNamespace(ledger=ledger, standing=lambda name: terms)
        self.verify_release = lambda *given: Service.verify_release(self, *given)  # type: ignore[arg-type]

    def report(self, *_: Any) -> dict[str, Any]:
        from expost.certificates.officer_report import report

        return report(self.release(), self._datasets.get(), self._ledgers.standing("b"))


@pytest.mark.parametrize("kind", MAKERS)
def test_every_door_says_the_same_words(certificates, command, monkeypatch, kind):  # noqa: F811
    """Catches a door that puts a certificate into words of its own."""
    document, file, ledger = certificates[kind]
    assert expost.read_certificate(file) == document
    for options in ({}, {"verbose": True}):
        words = [
            (name, list(lines)) for name, lines in expost.certificate_words(document, **options)
        ]
        assert not any("cannot be read" in text for _, lines in words for text in lines)
        monkeypatch.setenv("COLUMNS", "4000")
        done = command("certificate", file, *(["--verbose"] if options else []))
        assert done.code == 0, done.err
        assert on_screen(done.out) == words
    words = said_in_python(document)
    if kind in ("selection", "facts"):
        return  # the server makes none
    pytest.importorskip("fastapi")
    from expost.server.people.accounts import Person

    server: Any = FakeServer(document, ledger)
    me = Person("ada", "auditor")
    assert server.report()["words"] == [list(row) for row in words]
    for path in ("/releases/{id}", "/releases/{id}/report"):
        answer = page_at(path)(server, me, "a" * 32)
        assert on_page(bytes(answer.body).decode("utf-8")) == words


def cheaper(document: dict[str, Any]) -> dict[str, Any]:
    """The certificate with a smaller charge."""
    forged = copy.deepcopy(document)
    ((unit, amount),) = [
        (unit, forged["spent"][unit]) for unit in ("epsilon", "rho") if unit in forged["spent"]
    ]
    forged["spent"][unit] = amount / 2
    return forged


@pytest.mark.parametrize("kind", MAKERS)
def test_every_door_refuses_a_smaller_price(certificates, command, tmp_path, kind):  # noqa: F811
    """Catches a door that believes the charge, or that finds other problems than another door."""
    document, file, ledger = certificates[kind]
    assert expost.verify_certificate(document, ledger=ledger) == []
    ledger_file = file.with_suffix(".db")
    genuine = command("certificate", "verify", file, "--ledger", ledger_file, "--json")
    assert genuine.code == 0, genuine.document
    forged = cheaper(document)
    problems = expost.verify_certificate(forged, ledger=ledger)
    assert any(problem.startswith("charge: ") for problem in problems)
    place = tmp_path / "forged.json"
    place.write_text(json.dumps(forged))
    done = command("certificate", "verify", place, "--ledger", ledger_file, "--json")
    assert done.code == 1
    assert done.document["problems"] == problems
    if kind in ("selection", "facts"):
        return
    pytest.importorskip("fastapi")
    from expost.server.people.accounts import Person

    me = Person("ada", "auditor")
    for shown, verdict in ((document, genuine.document), (forged, done.document)):
        server: Any = FakeServer(shown, ledger)
        assert server.verify_release(me, "a" * 32) == verdict
        answer = page_at("/releases/{id}/verify")(server, me, "a" * 32)
        page = unescape(bytes(answer.body).decode("utf-8"))
        assert ("Verified." in page) == verdict["valid"]
        assert all(problem in page for problem in verdict["problems"])


def test_notebooks_say_the_same_words():
    """Catches a result whose notebook view differs from its certificate."""
    tables = {name: keys for name, keys in job(**PATH).items() if keys}
    seeded: Any = {"randomness": expost.SimulationRandomness(1), "simulation": True}
    tuned = expost.tune(tables, *clouds(600), **seeded)
    counts = expost.count({"a": 900, "b": 20}, epsilon=1.0, keys=["a", "b"], **seeded)
    for result, document in (
        (tuned, json.loads(tuned.certificate())),
        (counts, counts.certificate()),
    ):
        html = unescape(result._repr_html_())
        assert "no privacy guarantee" in html
        for name, lines in expost.certificate_words(document):
            assert f">{name}</th>" in html
            assert all(text[:190] in html for text in lines)


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "\u202e", "\ud800", "ε ≥ 1"])
def test_a_text_of_a_file_is_one_printable_line(text):
    """Catches a name that adds a row or moves the cursor."""
    assert one_line(text).isprintable()
    assert one_line("ε ≥ 1") == "ε ≥ 1"
