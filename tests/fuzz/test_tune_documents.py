"""``expost tune`` on nearly correct TOML: the refusal names the key.

Nothing is written and nothing is charged.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.tuning.plan.job_plan import JobPlan
from tests.fuzz.command import Books, Done, assert_refused, expost
from tests.fuzz.profiles import examples
from tests.fuzz.strategies import changed_tables, damaged, toml_text
from tests.tuning.jobs import TOML, write

TABLES = tomllib.loads(TOML)
KEYS = {
    "data": [
        "name",
        "path",
        "target",
        "features",
        "feature_bounds",
        "classes",
        "target_bounds",
        "holdout",
        "public_test",
    ],
    "model": ["kind", "loss", "input_shape", "optimiser", "momentum"],
    "search": ["epsilons", "learning_rates", "epochs", "batch_sizes", "clips", "samples"],
    "goal": ["metric", "at_least", "at_most", "maximize", "loss_bound", "confidence"],
    "privacy": [
        "delta",
        "overhead",
        "repeats",
        "attempts",
        "scoring",
        "order",
        "expected_shares",
    ],
}
HOSTILE = [
    10**400, 10**30, -1, 0, 1e300, 1e-300, 5e-324, float("nan"), float("inf"), True, "", "auto",
    "..:x", "rows.npz", "job.toml", "a\x00.npz", [], [10**400], [1e300, -1e300], [-1e308, 1e308],
    [[]], [{}], {}, {"a": 1}, [0.5], [1, 1], ["a", "b"], list(range(1, 20)),
]  # fmt: skip


class Planned(BaseException):
    """The document is valid: rows have been read, the budget has not been asked."""


def planned(*job: object, **further: object) -> None:
    if isinstance(job[0], JobPlan):
        job[0].as_dict()
    raise Planned


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("tune")
    write(made)
    Ledger.create(made / "ledger.db", ApproxBudget(100, 0.01, neighbours="zero-out"), "people")
    yield made
    books = Books.of(made / "ledger.db")
    assert (books.reserved, books.finished) == (0, 0)
    assert not (made / "out").exists()


def tune(
    folder: Path, content: bytes, until: str = "tuning.plan.strategies.plan_search"
) -> Done | None:
    """Run the command until the forecast (or ``cli.tune.announce``); None if it got that far."""
    (folder / "job.toml").write_bytes(content)
    out = folder / "out"
    words = [
        "tune",
        str(folder / "job.toml"),
        "--ledger",
        str(folder / "ledger.db"),
        "--out",
        str(out),
        "--json",
    ]
    try:
        with mock.patch(f"expost.{until}", planned):
            done = expost(*words)
    except Planned:
        if out.exists():
            (out / ".lock").unlink()
            out.rmdir()
        return None
    assert_refused(done)
    assert not out.exists()
    return done


@pytest.mark.slow
@examples(200)
@given(table=st.sampled_from(sorted(KEYS)), place=st.integers(0, 8), value=st.sampled_from(HOSTILE))
def test_every_key_with_values_that_break_things(
    folder: Path, table: str, place: int, value: object
) -> None:
    """Catches a traceback, a hang, a grid that fills the memory, a refusal that names no key."""
    tables = copy.deepcopy(TABLES)
    key = KEYS[table][place % len(KEYS[table])]
    tables[table][key] = value
    done = tune(folder, toml_text(tables).encode())
    assert done is None or any(name in done.err for name in (table, key, key.rstrip("s"))), done


@examples(40)
@given(tables=changed_tables(TABLES, KEYS))
def test_changed_documents(folder: Path, tables: dict[str, object]) -> None:
    """Several changes at once, and the forecast of what is still valid."""
    tune(folder, toml_text(tables).encode(), "cli.tune.announce")


@examples(100)
@given(content=damaged(TOML.encode()) | st.binary(max_size=60))
def test_damaged_documents(folder: Path, content: bytes) -> None:
    """Catches a parser's own exceptions: encoding, recursion, numbers with thousands of digits."""
    tune(folder, content)


@examples(30)
@given(
    content=damaged((Path(__file__).parent / "rows.csv").read_bytes()),
    name=st.sampled_from(["rows.csv", "x.npz", "x.parquet"]),
)
def test_damaged_rows(folder: Path, content: bytes, name: str) -> None:
    """Catches a reader's own exceptions, and rows in messages."""
    (folder / name).write_bytes(content)
    text = (
        TOML.replace("rows.npz", name)
        .replace("classes = 2", 'classes = 2\ntarget = "y"')
        .replace("[40]", "[2]")
    )
    done = tune(folder, text.encode())
    assert done is None or "0.123456" not in done.err, done


@examples(20)
@given(data=st.data())
def test_a_line_is_named(folder: Path, data: st.DataObject) -> None:
    """A wrong value is refused with its key and its line. (TOML's first line is 1.)"""
    lines = TOML.splitlines()
    places = [
        place
        for place, line in enumerate(lines)
        if " = " in line and not line.startswith(("path", "metric", "kind"))
    ]
    place = data.draw(st.sampled_from(places))
    key = lines[place].split(" = ")[0]
    wrong = ["true", "-1", "nan", "[]", "1979-05-27", "{}", "1" + "0" * 400]
    lines[place] = f"{key} = {data.draw(st.sampled_from(wrong))}"
    done = tune(folder, "\n".join(lines).encode())
    assert done is not None
    assert re.search(rf"\.{key} \(line {place + 1}\)", done.err), done.err
