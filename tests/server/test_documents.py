"""Documents for officers: sections, words, and YAML that reads back as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expost.certificates import officer_report as documents
from tests.server.running_server import QUESTION, open_server, visits

SECTIONS = [
    "What was released",
    "Who is protected",
    "How much protection",
    "Mechanism and theorem",
    "Composition",
    "Accuracy and bias",
    "Preprocessing and tuning",
    "Implementation and side channels",
    "Trust, access and records",
    "Data collection and security",
]
NASTY = 'a: "b" # c\n- d\u2028e\u0085f\x7f <script>alert(1)</script> {x} & *y !z %'

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(texts, plain | st.lists(texts, max_size=3), max_size=4))
@settings(max_examples=200, deadline=None)
def test_yaml_reads_back(document: dict[str, object]) -> None:
    yaml = pytest.importorskip("yaml")
    assert (yaml.safe_load(documents.to_yaml(document)) or {}) == document


@pytest.mark.parametrize(
    "key", ["yes", "no", "null", "true", "on", "y", "1", "1e3", "-", "~", "", "a b", "ключ"]
)
def test_keys_stay_texts(key: str) -> None:
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(documents.to_yaml({key: 1})) == {key: 1}


def test_report_and_registry(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    with open_server(tmp_path) as server:
        asked = server.ask("ann", QUESTION, "report", NASTY)
        view = server.wait(asked.json()["id"])
        report = server.call("ada", "GET", f"/api/releases/{view['id']}/report").json()
        assert [each["heading"] for each in report["sections"]] == SECTIONS
        numbers = report["facts"]
        assert numbers["epsilon"] == view["price"]["epsilon"]
        assert 0 < numbers["spent"] <= numbers["epsilon"]
        assert numbers["this_release"] == {"epsilon": numbers["spent"], "delta": 0.0}
        assert numbers["charged"] == view["charge"]
        rows = dict(map(tuple, report["sections"][0]["rows"]))
        assert rows["purpose"] == NASTY
        answer = server.call("ada", "GET", f"/api/releases/{view['id']}/registry")
        assert answer.headers["content-disposition"].startswith("attachment")
        record = yaml.safe_load(answer.text)
        assert list(record) == ["url_slug", "status", "tier", "deployment"]
        told = record["deployment"]
        assert list(told) == PARTS
        assert all(text for part in told.values() for text in part.values())
        assert told["basic"]["intended_use"] == NASTY
        assert told["privacy_loss"]["privacy_parameters"] == {"epsilon": numbers["epsilon"]}
        assert told["dp_variant"]["variant_name"] == "Pure DP"
        assert told["deployment_model"]["model_name"] == "Central"
        assert str(tmp_path) not in answer.text


PARTS = ["basic", "dp_variant", "privacy_loss", "deployment_model", "accounting"]
PARTS += ["implementation", "administrative"]


def test_each_kind_of_budget_is_told_as_it_was_charged(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    variants = {"approx": "Approximate DP", "zcdp": "Zero-concentrated DP"}
    with open_server(tmp_path) as server:
        owner = server.person("olga")
        for kind in variants:
            server.service.open_budget(owner, kind, kind, 5, 1e-5)
            facts = visits(server.folder / "visits.csv") | {"name": f"v.{kind}", "budget": kind}
            server.service.register(owner, facts | {"delta": 1e-7})
            asked = server.ask("ann", QUESTION | {"dataset": f"v.{kind}"}, kind)
            view = server.wait(asked.json()["id"])
            report = server.call("ada", "GET", f"/api/releases/{view['id']}/report").json()
            numbers = report["facts"]
            assert numbers["charged"] == view["charge"]
            assert numbers["charged"]["kind"] == kind
            assert numbers["variant"] == variants[kind]
            pair = {"epsilon": numbers["epsilon"], "delta": 1e-7}
            assert numbers["this_release"] == pair  # ρ has no ε of its own
            rows = dict(map(tuple, report["sections"][2]["rows"]))
            assert ("ρ" if kind == "zcdp" else "ε") in rows["charged"]
            text = server.call("ada", "GET", f"/api/releases/{view['id']}/registry").text
            record = yaml.safe_load(text)["deployment"]
            assert record["privacy_loss"]["privacy_parameters"] == pair | {
                "rho": numbers["worst_case"]
            }


def test_the_report_tells_both_epsilons() -> None:
    """What this release cost comes first; what the question could cost is told beside it."""
    ln2, ln3 = 0.6931471805599453, 1.0986122886681098
    numbers = {
        "unit": "epsilon",
        "spent": ln2,
        "worst_case": ln3,
        "epsilon": ln3,
        "delta": 0.0,
        "this_release": {"epsilon": ln2, "delta": 0.0},
        "charged": {"kind": "pure", "epsilon": ln2},
        "variant": "Pure DP",
    }
    told = documents._how_much(numbers)
    assert "66.7 % certain" in told["text"]
    assert "(75.0 %)" in told["text"]
    assert told["text"].index("66.7") < told["text"].index("75.0")
    assert dict(told["rows"])["charged"] == "ε = 0.693148"
    same = documents._how_much(numbers | {"this_release": {"epsilon": ln3, "delta": 0.0}})
    assert "75.0 % certain" in same["text"]
    assert "given back" not in same["text"]


def test_words_follow_the_numbers() -> None:
    """ε = ln 3: three times as likely, and three to one is 75 % certain."""
    text = documents.meaning_of(1.0986122886681098, 0.0)
    assert "3 times" in text
    assert "75.0 %" in text
    assert "fail" not in text
    assert "every outcome" in text
    assert "what was released" in documents.meaning_of(1.0, 0.0, ex_post=True)
    assert "1e-06" in documents.meaning_of(1.0, 1e-6)
    assert "100 %" in documents.meaning_of(900.0, 0.0)
