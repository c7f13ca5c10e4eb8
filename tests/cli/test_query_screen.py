"""``expost query`` shows the answer first, then its cost, then what that means; then the files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from expost.cli.main import main
from expost.cli.tour import write_customers

SQL = (
    "SELECT region, COUNT(*) AS people FROM customers WHERE region IN ('north', 'east') "
    "GROUP BY region"
)


@pytest.mark.parametrize("verbose", [False, True])
def test_the_order_of_the_screen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    verbose: bool,
) -> None:
    for package in ("ibis", "sqlglot"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    write_customers(Path("customers.csv"), Path("regions.txt"))
    words = ["expost", "query", SQL]
    words += ["--source", "customers.csv", "--user", "customer", "--within", "0.1"]
    words += ["--epsilon", "1", "--out", "answer.csv", *(["--verbose"] if verbose else [])]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    shown = capfd.readouterr()
    text = " ".join(shown.out.split())
    order = [text.index(word) for word in ("rows answered within", "Charge: ε", "% certain")]
    assert order == sorted(order)
    assert ("By part:" in text) == ("Before the data were read" in text) == verbose
    assert "answers: answer.csv" in shown.err


def test_a_cap_that_removes_much_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Everybody is in twelve months and counts in one: more ε per row would not help."""
    for package in ("ibis", "sqlglot"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    rows = [f"{person},2024-{month:02}-05" for person in range(2000) for month in range(1, 13)]
    Path("visits.csv").write_text("customer,day\n" + "\n".join(rows) + "\n", encoding="utf-8")
    sql = (
        "SELECT MONTH(day) AS month, COUNT(DISTINCT customer) AS people FROM visits GROUP BY month"
    )
    words = ["expost", "query", sql, "--source", "visits.csv", "--user", "customer"]
    words += ["--within", "0.05", "--epsilon", "1", "--max-groups-per-user", "1"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    text = " ".join(capfd.readouterr().out.split())
    assert "No row is called within 5%: the caps may have moved" in text
    assert "COUNT(DISTINCT person) by more" in text
