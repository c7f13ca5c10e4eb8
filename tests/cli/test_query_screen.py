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
