"""``expost quantile``: screen, JSON, files, plan, certificate, refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ibis", reason="needs the analytics extra")
pytest.importorskip("duckdb", reason="needs the analytics extra")

from expost import Ledger, PureBudget
from tests.cli.counting import expost

__all__ = ["expost"]  # a fixture


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    chosen = np.random.default_rng(1)
    lines = ["customer,region,amount"]
    lines += [f"{k},{'NS'[k % 2]},{chosen.lognormal(4, 1):.2f}" for k in range(4000)]
    (tmp_path / "orders.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "regions.txt").write_text("region\nN\nS\n", encoding="utf-8")
    return tmp_path / "orders.csv"


def words(orders: Path, *more: object) -> tuple[object, ...]:
    usual = ("--column", "amount", "--user", "customer", "--bounds", "0:10000", "--epsilon", 4)
    return ("quantile", orders, *usual, *more)


def by_region(orders: Path) -> tuple[object, ...]:
    keys = orders.with_name("regions.txt")
    return ("--by", "region", "--keys", keys, "--max-groups-per-user", 1)


def test_the_command_of_the_guide(expost: Any, orders: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    Ledger.create(ledger, PureBudget(10))
    files = ("--out", tmp_path / "out.csv", "--certificate", tmp_path / "c.json")
    asked = ("--at", "0.25,0.5,0.75", "--within-rank", 0.05, *by_region(orders), *files)
    done = expost(*words(orders, *asked, "--ledger", ledger, "--json"))
    assert done.code == 0
    document = done.document
    assert len(document["answers"]) + len(document["unanswered"]) == 6
    rows = list(csv.DictReader((tmp_path / "out.csv").open(encoding="utf-8")))
    assert {row["region"] for row in rows} == {"N", "S"}
    assert {row["at"] for row in rows} == {"0.25", "0.5", "0.75"}
    assert expost("certificate", "verify", tmp_path / "c.json", "--ledger", ledger).code == 0
    shown = expost("certificate", "show", tmp_path / "c.json").out
    assert "quantiles at 0.25, 0.5, 0.75" in shown


def test_the_screen_and_bins(expost: Any, orders: Path, tmp_path: Path) -> None:
    done = expost(*words(orders, "--within-rank", 0.05))
    assert done.code == 0
    assert "quantiles within 0.05 of the wanted rank" in done.out
    assert done.out.index("wanted rank") < done.out.index("Charge: ε") < done.out.index("Meaning: ")
    out = tmp_path / "bins.csv"
    done = expost(*words(orders, "--bins", "0,50,100,10000", *by_region(orders), "--out", out))
    assert "Share of rows per bin" in done.out
    assert out.read_text(encoding="utf-8").startswith("region,start,end,share,low,high,spent\n")
    done = expost(*words(orders, "--at", 0.5, "--bins", 4, "--out", tmp_path / "both.json"))
    assert done.code == 0
    both = json.loads((tmp_path / "both.json").read_text(encoding="utf-8"))
    assert both["histogram"]
    assert both["query"]["at"] == [0.5]


def test_a_plan_reads_no_data(expost: Any, tmp_path: Path) -> None:
    done = expost(*words(tmp_path / "nothing.csv", "--plan", "--json"))
    assert done.code == 0
    assert [size["size"] for size in done.document["sizes"]] == [100, 1000, 10_000, 100_000]
    assert "cost" in expost(*words(tmp_path / "nothing.csv", "--plan")).out


@pytest.mark.parametrize(
    "more",
    [
        ("--at", "half"),
        ("--at", "2"),
        ("--bins", "a,b"),
        ("--out", "answers.txt"),
        ("--out", "answers.csv", "--at", "0.5", "--bins", "4"),
        ("--max-groups-per-user", "many"),
        ("--within-rank", "0.9"),
    ],
)
def test_refusals_name_the_setting(expost: Any, orders: Path, more: Any, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    book = Ledger.create(ledger, PureBudget(10))
    done = expost(*words(orders, *more, "--ledger", ledger))
    assert done.code == 2
    assert more[0].removeprefix("--").replace("-", "_").split("_")[0] in done.err
    assert [entry.action for entry in book.entries()] == ["create"]
