"""Documents for officers: sections, words, and YAML that reads back as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expost.server import documents
from tests.server.desk import QUESTION, open_desk

SECTIONS = [
    "What was released",
    "Who is protected",
    "How much protection",
    "Mechanism and theorem",
    "Composition",
    "Preprocessing and tuning",
    "Access and records",
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
    with open_desk(tmp_path) as desk:
        asked = desk.ask("ann", QUESTION, "report", NASTY)
        view = desk.wait(asked.json()["id"])
        report = desk.call("ada", "GET", f"/api/releases/{view['id']}/report").json()
        assert [each["heading"] for each in report["sections"]] == SECTIONS
        numbers = report["facts"]
        assert numbers["epsilon"] == view["price"]["epsilon"]
        assert 0 < numbers["spent"] <= numbers["epsilon"]
        assert numbers["spent"] <= view["charge"]["epsilon"]
        rows = dict(map(tuple, report["sections"][0]["rows"]))
        assert rows["purpose"] == NASTY
        answer = desk.call("ada", "GET", f"/api/releases/{view['id']}/registry")
        assert answer.headers["content-disposition"].startswith("attachment")
        record = yaml.safe_load(answer.text)["deployment"]
        assert record["basic"]["intended_use"] == NASTY
        assert record["privacy_loss"]["privacy_parameters"] == {"epsilon": numbers["epsilon"]}
        assert record["dp_variant"]["variant_name"] == "Pure DP"
        assert record["deployment_model"]["model_name"] == "Central"
        assert str(tmp_path) not in answer.text


def test_words_follow_the_numbers() -> None:
    """ε = ln 3: three times as likely, and three to one is 75 % certain."""
    text = documents.in_words(1.0986122886681098, 0.0)
    assert "3 times" in text
    assert "75.0 %" in text
    assert "fail" not in text
    assert "1e-06" in documents.in_words(1.0, 1e-6)
    assert "100.0 %" in documents.in_words(900.0, 0.0)
