"""How the errors of a released model differ between public subgroups, for a stated extra ε.

A released model is public, so a row's error is a public function of that row: wrong (1) or right
(0), or for a regression the distance from the target as a share of its range. The average error of
each subgroup is then a private mean (:mod:`expost.analytics`), with its goal, its charge and its
certificate. No error depends on another row: rows are read as text or by their stated type, each is
predicted alone, and one that cannot be read counts as wrong. The charge is reserved before a row
is read. Tests: ``tests/tuning/test_subgroup_errors.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from expost.analytics.count_result import CountResult
from expost.analytics.pricing import CheckedCount, outcome_of, price_request
from expost.analytics.query import Progress, run_request
from expost.analytics.request import check_request
from expost.arrays import Array
from expost.budget.charging import Account, LedgerOrPlace
from expost.errors import InvalidInput
from expost.randomness.source import Randomness, require_protection
from expost.tables.cells import label_text
from expost.tuning.model.released_model import Model, load_model
from expost.tuning.request.settings import DataSettings
from expost.tuning.rows.job_tables import read_source

Texts = Sequence[str | None]
ERROR, GROUP, PERSON = "error", "group", "person"
PLUS_MINUS = 0.05


class ErrorOptions(TypedDict, total=False):
    """The optional keywords of :func:`subgroup_errors`."""

    user: str | None
    plus_minus: float
    confidence: float
    ledger: LedgerOrPlace
    budget: str | None
    analyst: str
    memo: str
    randomness: Randomness | None
    simulation: bool


def subgroup_errors(
    model: Model | str | Path,
    path: str | Path,
    *,
    target: str,
    by: str,
    keys: Sequence[str],
    epsilon: float,
    **options: Unpack[ErrorOptions],
) -> CountResult:
    """Measure the average error of a released model in public subgroups.

    Parameters
    ----------
    model : Model or path
        The released model, or its ``.npz`` file.
    path : path
        The rows, such as those that the model was tuned on: a CSV, TSV or Parquet file.
    target : str
        Column of the target.
    by : str
        Column of the subgroups.
    keys : sequence of str
        The subgroups, which are public. Rows of others do not count.
    epsilon : float
        The most that this may cost, beside what the model cost.
    user : str, optional
        Column of the person; without one, each row is one person.
    plus_minus : float, default 0.05
        The wanted error of each average.
    confidence : float, default 0.9
        Coverage of the intervals.
    ledger, budget, analyst, memo, randomness, simulation
        As for :func:`expost.count`.

    Returns
    -------
    CountResult
        One answer per subgroup: 0.1 means that a tenth of its rows are wrong, or for a regression
        that predictions are off by a tenth of the target's range. Its certificate is one for
        ``expost evidence --errors``.

    Raises
    ------
    InvalidInput
        If the model, the columns or the goal do not fit; nothing is charged then.
    BudgetRefused
        If the ledger's budget does not allow the request. Nothing was read.

    Notes
    -----
    A person counts in one subgroup, chosen at random where they have rows in several, and there
    with one row. The guarantee is that of :func:`expost.mean` with bounds 0 and 1.
    """
    fitted = model if isinstance(model, Model) else load_model(model)
    names = fitted.recipe.schema.names
    if Path(path).suffix == ".npz":
        raise InvalidInput("path", Path(path).name, "give a table with named columns")
    if names is None or by in (target, options.get("user")):
        valid = "give a model that was trained on named columns, and a column of subgroups"
        raise InvalidInput("by", by, valid)
    settings = DataSettings(target=target, user=options.get("user"))
    simulated = bool(options.get("simulation"))
    source = require_protection(options.get("randomness"), simulation=simulated)
    memo, analyst = options.get("memo", "errors by subgroup"), options.get("analyst", "")
    account = Account(options.get("ledger"), options.get("budget"), analyst, memo)
    account.check_simulation(source.simulated)
    request = {
        "kind": "mean",
        "column": ERROR,
        "bounds": (0.0, 1.0),
        "by": [GROUP],
        "keys": [label_text(key) for key in keys],
        "user": PERSON,
        "epsilon": epsilon,
        "plus_minus": options.get("plus_minus", PLUS_MINUS),
        "confidence": options.get("confidence", 0.9),
        "max_groups_per_user": 1,
        "max_rows_per_user": 1,
    }
    asked = _checked(_frame([], [], []), request, Path(path).name)
    kind = None if account.ledger is None else account.ledger.kind_of(account.budget)
    priced, progress = price_request(asked, kind), Progress()
    with account.reserve(priced.charges, request=priced.request, source=priced.source) as reserved:
        certificate = None
        try:
            rows = error_table(fitted, Path(path), settings, by)
            evidence = reserved.evidence()
            checked = _checked(rows, request, Path(path).name)
            result = run_request(checked, priced.charges, source, evidence, progress)
            if evidence is not None:
                certificate = result.certificate()
        finally:
            reserved.settle(outcome_of(progress.spent, priced.charges), certificate)
    return result


def _checked(frame: Any, request: Mapping[str, Any], name: str) -> CheckedCount:
    """The request on a table of errors; the certificate names the file of the rows."""
    return replace(check_request(frame, request), source=f"errors of a model on {name}")


def _frame(
    persons: Sequence[str | None], groups: Sequence[str | None], errors: Sequence[float]
) -> Any:
    """A table with one line per row: the person, the subgroup, the error."""
    import pyarrow as arrow  # type: ignore[import-untyped]

    columns: dict[str, Any] = {PERSON: (persons, arrow.string()), GROUP: (groups, arrow.string())}
    columns |= {ERROR: (errors, arrow.float64())}
    return arrow.table({name: arrow.array(*content) for name, content in columns.items()})


def error_table(model: Model, path: Path, settings: DataSettings, by: str) -> Any:
    """Return a table with the person, the subgroup and the error of each row of a file.

    ``settings`` says which columns are the target and the person, and how the file is read.
    """
    schema = model.recipe.schema
    assert schema.names is not None
    columns = tuple(dict.fromkeys([*schema.names, by]))
    only = {name: getattr(settings, name) for name in ("target", "user", "delimiter")}
    table = read_source(path, DataSettings(features=columns, **only))
    targets = table.targets
    assert table.names is not None
    assert targets is not None
    cells: dict[str, Array] = dict(zip(table.names, table.cells, strict=True))
    errors = row_errors(model, [cells[name] for name in schema.names], targets)
    numbers = range(len(errors)) if table.users is None else table.users
    persons = [_text(number) for number in numbers]
    return _frame(persons, [label_text(cell) for cell in cells[by]], errors)


def row_errors(model: Model, cells: Sequence[Array], targets: Array) -> list[float]:
    """Return the error of each row, from 0 to 1; a row that cannot be read has 1."""
    schema = model.recipe.schema
    rows, wanted = schema.encode(list(cells)), schema.targets(targets)
    usable = np.isfinite(rows).all(axis=1) & np.isfinite(wanted)
    return [
        _error(model, rows[index : index + 1], float(wanted[index])) if fine else 1.0
        for index, fine in enumerate(usable)
    ]


def _error(model: Model, row: Array, truth: float) -> float:
    """The error of one row, predicted alone: products of matrices may round by their size."""
    recipe = model.recipe
    row = row.astype(np.int64) if recipe.schema.integers else row
    decided = float(recipe.decide(model.parameters, row)[0])
    if recipe.target_bounds is None:
        return float(decided != truth)
    low, high = recipe.target_bounds
    off = abs((decided - low) / (high - low) - truth)
    return min(1.0, off) if off == off else 1.0


def _text(cell: Any) -> str | None:
    """A person as text; whole numbers read the same whatever the other rows hold."""
    if cell is None or cell != cell:
        return None
    number = isinstance(cell, (float, np.floating))
    return str(int(cell)) if number and float(cell).is_integer() else str(cell)
