"""Errors of a released model by public subgroup, as a question about the rows it was tuned on.

It is the question for a mean: the error of each row, from 0 to 1, of a table with one line per row
(:mod:`expost.tuning.model.subgroup_errors`). Its checks, its price and its plan are those of a
mean, from public facts; rows are read when it runs, after its worst case is reserved. A person
counts in one subgroup, with one row. Tests: ``tests/server/test_error_questions.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from expost.analytics.pricing import CheckedCount
from expost.analytics.request import check_request
from expost.errors import InvalidInput
from expost.server.jobs.datasets import ROWS, TABLE, check_columns, file_of_rows
from expost.tuning.model.released_model import MODEL, Model, load_model
from expost.tuning.model.subgroup_errors import ERROR, GROUP, PERSON, PLUS_MINUS, error_table

ERRORS = "errors"
_FIELDS = (
    *("dataset", "kind", "release", "by", "keys"),
    *("plus_minus", "confidence", "epsilon", "delta", "size"),
)


@dataclass(frozen=True)
class CheckedErrors:
    """A checked question: the mean that it is, and what its table is made of when it runs."""

    mean: CheckedCount
    request: Mapping[str, Any]
    data: Mapping[str, Any]
    by: str
    model: Model | None

    def measured(self) -> CheckedCount:
        """Return the mean of the errors of all rows, which are read now."""
        assert self.model is not None
        table = error_table(self.model, *file_of_rows(self.data), self.by)
        table = table.rename_columns([PERSON, *self.request["by"], ERROR])
        return replace(check_request(table, self.request), source=self.mean.source)


def errors_as_mean(
    facts: Mapping[str, Any], asked: Mapping[str, Any], budget_kind: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the public facts of the table of errors, and the question for its mean."""
    for name, value in asked.items():
        if name not in _FIELDS and value not in (None, [], False):
            raise InvalidInput(name, value, "it does not belong to errors by subgroup")
    by = list(asked.get("by") or ())
    if len(by) != 1 or by[0] not in subgroups(facts):
        listed = ", ".join(map(repr, subgroups(facts))) or "none"
        raise InvalidInput("by", by, f"give one column of subgroups; the data set has {listed}")
    table = _table(facts, by)
    if budget_kind == "approx" and asked.get("delta") is None:
        table["delta"] = None  # each person is in one subgroup: pure noise is the smaller one
    groups = asked.get("keys") or table["groups"][by[0]] or (None,)
    table["typical_group"] = max(1, facts.get("places", 1000) // len(groups))
    mean = {name: asked[name] for name in _FIELDS if name in asked and name != "release"}
    return table, {"plus_minus": PLUS_MINUS, **mean, "kind": "mean", "column": ERROR}


def question_as_mean(
    facts: Mapping[str, Any], question: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a checked question in the same form, to price and to plan it."""
    return _table(facts, question["by"]), {**question, "kind": "mean", "column": ERROR}


def _table(facts: Mapping[str, Any], by: list[str]) -> dict[str, Any]:
    """The public facts of the table of errors."""
    return {
        "name": facts["name"],
        "kind": TABLE,
        "user": PERSON,
        "groups": {name: subgroups(facts)[name] for name in by},
        "values": {ERROR: [0.0, 1.0]},
        "filters": [],
        "columns": {},
        "max_groups_per_user": 1,
        "max_rows_per_user": 1,
        "delta": facts.get("delta"),
        "largest_epsilon": facts.get("largest_epsilon"),
    }


def subgroups(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns whose subgroups may be asked for, each with its public keys or None."""
    return dict(facts.get("groups") or {}) if facts["kind"] == ROWS else {}


def checked_errors(
    facts: Mapping[str, Any],
    question: Mapping[str, Any],
    mean: Mapping[str, Any],
    model: bytes | None,
) -> CheckedErrors:
    """Return a checked question; of the file the header is read, if there is a model, and no row.

    ``mean`` is the request for the mean of the errors.
    """
    opened, by = None if model is None else open_model(model), question["by"][0]
    if opened is not None:
        check_model(opened, facts, by)
    request = dict(mean)
    if by.lower() in (PERSON, ERROR):  # names of other columns of the table of errors
        request["by"] = [GROUP]
    checked = check_request("errors", request, open_table=False)
    name = f"errors by {by} of the model of request {question['release']}, data set {facts['name']}"
    return CheckedErrors(replace(checked, source=name), request, facts["data"], by, opened)


def check_model(model: Model, facts: Mapping[str, Any], by: str) -> None:
    """Refuse a model that was trained on other columns than the rows have now."""
    names = model.recipe.schema.names
    if names is None:
        raise InvalidInput("release", "this model", "it was not trained on named columns")
    check_columns("release", facts["data"], (*names, by))


def open_model(content: bytes) -> Model:
    """Return a released model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / MODEL
        path.write_bytes(content)
        return load_model(path)
