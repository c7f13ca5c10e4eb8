"""The evidence pack: thirteen points from the record, or "not covered"; and its records."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from expost.budget.signing import SigningKey
from expost.certificates.self_assessment import NOT_COVERED, POINTS, assessment, evidence_files
from expost.cli.main import app
from tests.server.running_server import QUESTION, Server, open_server

yaml = pytest.importorskip("yaml")
SCHEMA = {
    "basic": {
        *("name", "data_curators", "intended_use", "data_product_type", "data_product_region"),
        *("description", "publication_date", "data_product_sector"),
    },
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        *("privacy_unit", "privacy_unit_details", "privacy_parameters"),
        "privacy_parameters_details",
    },
    "deployment_model": {
        *("model_name", "model_name_details", "actors", "release_type", "release_type_details"),
        *("data_source_type", "data_source_type_details", "access_type", "access_type_details"),
    },
    "accounting": {"post_processing", "composition"},
    "implementation": {
        *("preprocessing_and_hyperparameter_tuning", "mechanisms", "justification"),
    },
    "administrative": {"sources", "evidence_sources", "notes", "registry_authors"},
}
"""The fields of OpenDP's deployments registry (its schema of July 2026); no others are allowed."""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with open_server(tmp_path_factory.mktemp("evidence"), threads=0, pricers=0) as server:
        yield recorded(server)


def recorded(server: Server) -> dict[str, Any]:
    """All that a server has on record about one release, as ``Connection.record`` returns it."""
    identity = server.ask("ann", QUESTION, "one", "=the weekly <b>report</b>").json()["id"]
    runner = server.service.runner
    runner.run_one(server.service._queue.claim(runner.name, "here", 60.0))
    whole: dict[str, Any] = server.call("ann", "GET", f"/api/releases/{identity}").json()
    whole["verdict"] = server.call("ann", "GET", f"/api/releases/{identity}/verify").json()
    whole["facts"] = server.call("ann", "GET", "/api/datasets/visits").json()
    whole["budget"] = server.call("ann", "GET", "/api/budgets/visits").json()
    return whole


def test_every_point_is_answered_or_open(record: dict[str, Any]) -> None:
    judged = assessment(record, record["verdict"])
    assert [point["title"] for point in judged["points"]] == list(POINTS)
    assert len(POINTS) == 13
    open_points = [point["title"] for point in judged["points"] if not point["covered"]]
    assert open_points == ["Data collection"]
    told = {point["title"]: point["answer"] for point in judged["points"]}
    assert told["Data collection"] == NOT_COVERED
    assert "correct" in told["Correctness"]
    assert "4 public groups" in told["Error by subgroup"]
    assert "ann" in told["Access"]


def test_a_certificate_alone_covers_less(record: dict[str, Any]) -> None:
    judged = assessment({"certificate": record["certificate"]}, record["verdict"])
    open_points = {point["title"] for point in judged["points"] if not point["covered"]}
    assert open_points == {
        *("Budget over time", "Trust model", "Side channels", "Access"),
        "Data collection",
    }


def test_a_wrong_certificate_is_called_wrong(record: dict[str, Any]) -> None:
    verdict = record["verdict"] | {"valid": False, "problems": ["the charge is too small"]}
    judged = assessment(record, verdict)
    assert "wrong: the charge is too small" in judged["points"][3]["answer"]
    (line,) = csv.DictReader(io.StringIO(_csv(record, verdict)))
    assert line["check"] == "certificate NOT valid"


def _csv(record: dict[str, Any], verdict: dict[str, Any]) -> str:
    return evidence_files([record], [verdict])["disclosure-control.csv"].decode()


def test_the_record_of_disclosure_control(record: dict[str, Any]) -> None:
    (line,) = csv.DictReader(io.StringIO(_csv(record, record["verdict"])))
    assert line["requested by"] == "ann"
    assert line["purpose"] == "'=the weekly <b>report</b>"  # no formula in a spreadsheet
    assert line["check"] == "certificate verified"
    assert line["decided by"] == "the budget, automatically"


def test_the_page_escapes_and_has_lines_to_sign(record: dict[str, Any]) -> None:
    page = evidence_files([record], [record["verdict"]])["assessment.html"].decode()
    assert "<b>report" not in page
    assert all(f'<th scope="row">{word}</th>' in page for word in ("Name", "Date", "Signature"))
    assert "http" not in page


def test_the_registry_has_the_fields_of_its_schema(record: dict[str, Any]) -> None:
    files = evidence_files([record], [record["verdict"]])
    (text,) = [content for name, content in files.items() if name.endswith(".yaml")]
    document = yaml.safe_load(text)
    assert set(document) == {"url_slug", "status", "tier", "deployment"}
    assert (document["status"], document["tier"]) == ("Draft", 3)
    parts = document["deployment"]
    assert set(parts) == set(SCHEMA)
    for name, fields in parts.items():
        assert set(fields) <= SCHEMA[name]
    basic, model = parts["basic"], parts["deployment_model"]
    assert all(isinstance(curator, str) for curator in basic["data_curators"])
    assert basic["data_product_type"] == "Summary statistics"
    assert isinstance(basic["publication_date"], str)
    assert len(basic["publication_date"]) == 10
    assert parts["dp_variant"]["variant_name"] == "Pure DP"
    assert set(parts["privacy_loss"]["privacy_parameters"]) <= {"epsilon", "delta", "rho"}
    assert (model["model_name"], model["release_type"]) == ("Central", "Many releases")
    assert (model["data_source_type"], model["access_type"]) == ("Static", "Interactive")
    assert parts["administrative"]["registry_authors"]


def test_the_command(record: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "release.json"
    file.write_text(json.dumps(record["certificate"]), encoding="utf-8")
    SigningKey.create(tmp_path / "office.key")
    year, out = record["request"]["published"][:4], tmp_path / "pack"
    command = ["evidence", str(file), "--period", year, "--out", str(out)]
    done = CliRunner().invoke(app, [*command, "--key", str(tmp_path / "office.key")])
    assert done.exit_code == 0, done.output
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    name = record["request"]["id"]
    assert written == {
        *("assessment.json", "assessment.html", "assessment.dsse.json", "disclosure-control.csv"),
        *(f"certificates/{name}.json", f"certificates/{name}.dsse.json", f"registry/{name}.yaml"),
    }
    assert json.loads((out / "assessment.json").read_bytes())["releases"][0]["valid"]
    again = CliRunner().invoke(app, command)
    assert again.exit_code != 0  # the folder exists
    other = [*command[:2], "--period", "1999", "--out", str(tmp_path / "none")]
    assert CliRunner().invoke(app, other).exit_code != 0


def test_no_certificate_names_a_file_outside_the_pack(
    record: dict[str, Any], tmp_path: Path
) -> None:
    """A certificate is given by others; the id in it became part of a path, and hid its twin."""
    written = record["certificate"]
    names = ["../../../secret", "a/b", "..", "ä", written["ledger"]["reservation"]]
    (tmp_path / "given").mkdir()
    for number, name in enumerate([*names, names[-1]]):
        changed = written | {"ledger": written["ledger"] | {"reservation": name}}
        changed |= {"memo": str(number)} if number else {}
        (tmp_path / "given" / f"{number}.json").write_text(json.dumps(changed))
    pack = tmp_path / "one" / "two" / "pack"
    CliRunner().invoke(app, ["evidence", str(tmp_path / "given"), "--out", str(pack)])
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    outside = {path for path in files if pack not in path.parents}
    assert outside == set((tmp_path / "given").iterdir())
    kept = [json.loads(file.read_text()) for file in (pack / "certificates").iterdir()]
    assert len(kept) == len(names) + 1
    assert len(list((pack / "registry").iterdir())) == len(kept)
    assert (pack / "certificates" / f"{names[-1]}.json").exists()
