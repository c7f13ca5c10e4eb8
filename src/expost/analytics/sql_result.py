"""What a query releases: rows as the SELECT asks for them, parts as measured, a certificate.

Tests: ``tests/analytics/test_sql_run.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expost.analytics.count_result import (
    AnswerTable,
    Measured,
    ReleasedResult,
    certificate_of,
    charge_of_release,
    plain_answer,
    told_answers,
)
from expost.analytics.quantile_run import QuantileAnswer
from expost.analytics.refinement import Answer
from expost.analytics.sql_parser import (
    GROUP_MARK,
    VALUE_MARK,
    Aggregate,
    JoinedTable,
    SqlQuestion,
)
from expost.analytics.sql_question import rank_of, typed_group
from expost.analytics.sql_released import (
    ReleasedRow,
    Span,
    evaluate,
    marks_of,
    order_rows,
    root_of_variance,
    spanned,
    variance_of,
)
from expost.analytics.sql_request import CheckedQuery
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.tables.typed_columns import SEPARATOR

THEOREM = (
    "plain composition of the parts of a query, each a noise reduction per group in which a person "
    "is in at most m groups, or adds at most one cap to all groups (docs/query.md, What it costs)"
)
_TOLD = ("share_of_dropped", "dropped_share", "max_groups_per_user")  # of a part


@dataclass(frozen=True)
class PartResult:
    """What one part released: answers, other groups, its charge, and what the caps removed."""

    label: str
    kind: str
    answers: tuple[Answer | QuantileAnswer, ...]
    unanswered: tuple[Answer | QuantileAnswer, ...]
    spent: float
    share_of_dropped: float
    dropped_share: Mapping[str, Any] | None
    max_groups_per_user: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the part for JSON."""
        return {
            "of": self.label,
            "kind": self.kind,
            "answers": [plain_answer(answer) for answer in self.answers],
            "unanswered": [plain_answer(answer) for answer in self.unanswered],
            **{name: getattr(self, name) for name in ("spent", *_TOLD)},
        }


@dataclass(frozen=True)
class QueryResult(ReleasedResult):
    """What a query released: ``rows`` as the SELECT asks for them, ``parts`` as measured."""

    columns: tuple[str, ...]
    rows: tuple[ReleasedRow, ...]
    parts: tuple[PartResult, ...]
    question: SqlQuestion
    spent: float
    remaining: float
    unit: str
    within: float | None
    plus_minus: float | None
    within_rank: float | None
    confidence: float
    max_groups_per_user: int | None
    max_rows_per_user: int | None
    guarantee: Guarantee
    warnings: tuple[str, ...]
    source: str
    public: Mapping[str, Any]
    simulated: bool
    charges: Charges = field(repr=False)
    outcome: int | None = field(repr=False)
    ledger: Mapping[str, Any] | None = field(default=None, compare=False)
    asked_before: bool = field(default=False, compare=False)

    def reached(self) -> list[list[bool]]:
        """Return for each row which of its columns reached the wanted error."""
        return [[row.reached[name] for name in self.columns] for row in self.rows]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows with one key per column; a number has ``_low`` and ``_high``, too."""
        return [_record(row) for row in self.rows]

    def table(self) -> AnswerTable:
        """Return the rows as a table of released answers: sensible digits, files by suffix."""
        texts = dict(self.question.columns)
        numbers = [name for name in self.columns if marks_of(texts[name])]
        keys = [name for name in self.columns if name not in numbers]
        groups = [
            ["" if row.values[key] is None else row.values[key] for key in keys]
            for row in self.rows
        ]
        measures = [self._measured(name, texts[name]) for name in numbers]
        return AnswerTable(keys, groups, measures, "values", self.question.sql, self.certificate())

    def _measured(self, name: str, text: str) -> Measured:
        """One column of numbers; NaN where nothing is known.

        A number that is not answered and smaller than its error tells less than its interval.
        """
        spans = [row.values[name] for row in self.rows]
        numbers = [span if isinstance(span, Span) else Span(*[math.nan] * 3) for span in spans]
        counted = {
            f"{VALUE_MARK}{index}"
            for index, aggregate in enumerate(self.question.aggregates)
            if aggregate.function in ("rows", "distinct")
        }
        reached = [row.reached[name] for row in self.rows]
        vague = [span.high - span.low > 2 * abs(span.value) for span in numbers]
        return Measured(
            [
                math.nan if unsure and not told else span.value
                for span, unsure, told in zip(numbers, vague, reached, strict=True)
            ],
            [span.low for span in numbers],
            [span.high for span in numbers],
            reached,
            name,
            text in counted,
        )

    def to_frame(self) -> Any:
        """Return a pandas data frame of the rows, with the digits that the intervals support."""
        return self.table().to_frame()

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``expost query``."""
        return {
            "columns": list(self.columns),
            "rows": self.records(),
            "spent": self.spent,
            "remaining": self.remaining,
            "unit": self.unit,
            "within": self.within,
            "plus_minus": self.plus_minus,
            "within_rank": self.within_rank,
            "confidence": self.confidence,
            "max_groups_per_user": self.max_groups_per_user,
            "max_rows_per_user": self.max_rows_per_user,
            "protects": self.protects,
            "guarantee": self.guarantee.as_dict(),
            "parts": [
                {"of": part.label, "spent": part.spent, "dropped_share": part.dropped_share}
                for part in self.parts
            ],
            "warnings": list(self.warnings),
            "question": self.question.as_dict(),
            "simulated": self.simulated,
            **({"asked_before": True} if self.asked_before else {}),
        }

    def certificate(self) -> dict[str, Any]:
        """Return the certificate: question, source, public facts, parts, rows and charge."""
        errors = ("within", "plus_minus", "within_rank", "confidence")
        asked = self.question.as_dict() | {name: getattr(self, name) for name in errors}
        told = {
            "max_rows_per_user": self.max_rows_per_user,
            "parts": [part.as_dict() for part in self.parts],
            "columns": list(self.columns),
            "rows": self.records(),
        }
        return certificate_of(self, "query", asked, THEOREM, told)

    def save(self, path: str | Path) -> None:
        """Write the certificate as JSON."""
        text = json.dumps(self.certificate(), indent=2, allow_nan=False, ensure_ascii=False)
        Path(path).write_text(text + "\n", encoding="utf-8")


def query_of_release(release: Mapping[str, Any]) -> QueryResult:
    """Return the result that was released, from its JSON form and its certificate.

    ``reached``, if it is there, says which column of a row missed its error.
    """
    result = release["result"]
    asked, known = result["question"], release.get("reached")
    known = known or [[record["answered"]] * len(result["columns"]) for record in result["rows"]]
    read: dict[str, Any] = {
        name: tuple(map(tuple, asked[name])) for name in ("groups", "columns", "order")
    }
    read["aggregates"] = tuple(Aggregate(**aggregate) for aggregate in asked["aggregates"])
    read["joins"] = tuple(
        JoinedTable(**join | {"on": tuple(map(tuple, join["on"]))}) for join in asked["joins"]
    )
    question = SqlQuestion(**asked | read)
    same = ("within", "plus_minus", "within_rank", "confidence", "max_rows_per_user")
    return QueryResult(
        **{name: result[name] for name in same},
        **charge_of_release(release),
        columns=tuple(result["columns"]),
        rows=tuple(
            _row_of(record, dict(zip(result["columns"], reached, strict=True)))
            for record, reached in zip(result["rows"], known, strict=True)
        ),
        parts=tuple(_part_of(part) for part in release["certificate"]["parts"]),
        question=question,
        warnings=tuple(result["warnings"]),
    )


def _row_of(record: Mapping[str, Any], reached: Mapping[str, bool]) -> ReleasedRow:
    """A row from JSON, with whether each of its columns reached its error."""

    def cell(name: str) -> Any:
        if f"{name}_low" not in record or record[name] is None:
            return record[name]
        ends = record[f"{name}_low"], record[f"{name}_high"]
        low, high = (
            math.copysign(math.inf, side) if end is None else end
            for side, end in zip((-1, 1), ends, strict=True)
        )
        return Span(record[name], low, high)

    return ReleasedRow({name: cell(name) for name in reached}, dict(reached))


def _part_of(part: Mapping[str, Any]) -> PartResult:
    """A part from JSON."""
    kind = QuantileAnswer if part["kind"] == "quantile" else Answer
    answers, unanswered = (told_answers(part[name], kind) for name in ("answers", "unanswered"))
    told = {name: part[name] for name in ("spent", *_TOLD)}
    return PartResult(part["of"], part["kind"], answers, unanswered, **told)


def released_rows(
    checked: CheckedQuery, parts: Sequence[PartResult], groups: Sequence[str]
) -> list[ReleasedRow]:
    """The rows of the answer: HAVING, ORDER BY and LIMIT on released numbers."""
    compiled, question = checked.compiled, checked.compiled.question
    spans = [_spans(part) for part in parts]
    reached = [{_known_by(answer) for answer in part.answers} for part in parts]
    rows, marks = [], []
    for group in groups:
        names = tuple(group.split(SEPARATOR)) if len(compiled.kinds) > 1 else (group,)
        key: Any = names if len(compiled.kinds) > 1 else group
        cells: dict[str, Any] = {
            f"{GROUP_MARK}{index}": typed_group(kind, name)
            for index, (kind, name) in enumerate(zip(compiled.kinds, names, strict=False))
        }
        for index, aggregate in enumerate(question.aggregates):
            wanted = (key, _rank(aggregate))
            used = [spans[part].get(wanted) for part in compiled.sources[index]]
            cells[f"{VALUE_MARK}{index}"] = _combined(
                aggregate.function, used, compiled.centres[index]
            )
        if question.having is not None and evaluate(question.having, cells) is not True:
            continue
        values = {name: evaluate(text, cells) for name, text in question.columns}
        good = {
            name: _answered(checked, text, values[name], key, reached)
            for name, text in question.columns
        }
        rows.append(ReleasedRow(values, good))
        marks.append(cells)
    return order_rows(rows, marks, question.order, question.limit, question.offset)


def _rank(aggregate: Aggregate) -> float | None:
    """The rank that an answer states; None for what is no quantile."""
    return None if aggregate.at is None else float(rank_of(aggregate))


def _known_by(answer: Answer | QuantileAnswer) -> tuple[Any, float | None]:
    """The group of an answer and its rank."""
    return answer.group, answer.at if isinstance(answer, QuantileAnswer) else None


def _spans(part: PartResult) -> dict[tuple[Any, float | None], Span]:
    """The numbers of a part by group and rank; groups that were not looked at have none."""
    told = {
        _known_by(answer): spanned(answer.estimate, (answer.low, answer.high))
        for answer in (*part.answers, *part.unanswered)
    }
    return {known_by: span for known_by, span in told.items() if span is not None}


def _combined(function: str, used: Sequence[Span | None], centre: float) -> Span | None:
    """The value of an aggregate from its parts."""
    if any(span is None for span in used):
        return None
    if function not in ("var", "stddev"):
        return used[0]
    first, square = used
    assert first is not None
    assert square is not None
    spread = variance_of(square, Span(*(number - centre for number in first)))
    return root_of_variance(spread) if function == "stddev" and spread is not None else spread


def _answered(
    checked: CheckedQuery, text: str, value: Any, key: Any, reached: Sequence[set[Any]]
) -> bool:
    """Whether a column of a row reached the wanted error."""
    marks = marks_of(text)
    if not marks:
        return True
    if not isinstance(value, Span):
        return False
    used = [(part, mark) for mark in marks for part in checked.compiled.sources[mark]]
    if len(used) == 1 and text.startswith(VALUE_MARK):
        ((part, mark),) = used
        return (key, _rank(checked.compiled.question.aggregates[mark])) in reached[part]
    error = max(value.high - value.value, value.value - value.low)
    if checked.plus_minus is not None:
        return error <= checked.plus_minus
    return error <= (checked.within or 0.1) * abs(value.value)


def _record(row: ReleasedRow) -> dict[str, Any]:
    """A row with one key per column, for JSON and files: no NaN, no infinity."""
    record: dict[str, Any] = {}
    for name, value in row.values.items():
        if isinstance(value, Span):
            numbers = [number if math.isfinite(number) else None for number in value]
            record |= dict(zip((name, f"{name}_low", f"{name}_high"), numbers, strict=True))
        else:
            record[name] = value
    return record | {"answered": row.answered}
