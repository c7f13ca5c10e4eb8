"""What a count, a sum or a mean releases: answers, charge and guarantee, as JSON, table and file.

Tests: ``tests/analytics/test_query.py``, ``tests/analytics/test_answer_files.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expost._version import __version__
from expost.analytics.answer_files import AnswerTable, Measured, round_answer
from expost.analytics.contribution import TOTAL
from expost.analytics.pricing import THEOREM, CheckedCount, too_much_removed
from expost.analytics.refinement import Answer
from expost.facts.describe import Facts
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ApproxDP, Guarantee, guarantee_from_dict, persons_words
from expost.selection.release import SCHEMA

WHOLE_KINDS = ("count", "rows")
"""Kinds of questions whose answers are whole numbers of persons or rows."""


class ReleasedResult:
    """What every result of a question says about its charge."""

    charges: Charges
    outcome: int | None
    max_groups_per_user: int | None

    @property
    def charged(self) -> Guarantee:
        """The charge that a ledger settles."""
        return self.charges.nothing if self.outcome is None else self.charges[self.outcome]

    @property
    def protects(self) -> str:
        """Who is protected, in words."""
        return persons_words(self.max_groups_per_user)


@dataclass(frozen=True)
class CountResult(ReleasedResult):
    """What was released."""

    answers: tuple[Answer, ...]
    unanswered: tuple[Answer, ...]
    spent: float
    remaining: float
    unit: str
    within: float | None
    plus_minus: float | None
    confidence: float
    factor: float
    max_groups_per_user: int | None
    dropped_share: Mapping[str, float] | None
    guarantee: Guarantee
    keys: Mapping[str, Any] | None
    warnings: tuple[str, ...]
    query: Mapping[str, Any]
    source: str
    public: Mapping[str, Any]
    simulated: bool
    charges: Charges = field(repr=False)
    outcome: int | None = field(repr=False)
    ledger: Mapping[str, Any] | None = field(default=None, compare=False)
    facts: Facts | None = None
    asked_before: bool = field(default=False, compare=False)

    @property
    def total(self) -> ApproxDP | None:
        """What facts that were bought and everything else guarantee together; None without."""
        if self.facts is None:
            return None
        epsilon, delta = vars(self.guarantee)["epsilon"], vars(self.guarantee).get("delta", 0.0)
        return ApproxDP(epsilon, delta) + self.facts.guarantee

    def _repr_html_(self) -> str:
        """Return the answers for a notebook."""
        from expost.certificates.words import certificate_words
        from expost.html_tables import HtmlTable, Loss, html_summary

        columns = ["group", "estimate", "low", "high", f"spent ({self.unit})"]
        whole = self.query["kind"] in WHOLE_KINDS
        tables = [
            HtmlTable(
                caption,
                columns,
                [
                    (
                        answer.group,
                        *round_answer(answer.estimate, answer.low, answer.high, whole=whole),
                        Loss(answer.spent),
                    )
                    for answer in of
                ],
            )
            for caption, of in (("Answered", self.answers), ("Not answered", self.unanswered))
            if of
        ]
        words = {name: list(lines) for name, lines in certificate_words(self.certificate())}
        return html_summary("Released values", words, *tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``expost count``."""
        return {
            "answers": [answer.as_dict() for answer in self.answers],
            "unanswered": [plain_answer(answer) for answer in self.unanswered],
            "spent": self.spent,
            "remaining": self.remaining,
            "unit": self.unit,
            "within": self.within,
            "plus_minus": self.plus_minus,
            "confidence": self.confidence,
            "interval_factor": self.factor,
            "max_groups_per_user": self.max_groups_per_user,
            "protects": self.protects,
            "dropped_share": None if self.dropped_share is None else dict(self.dropped_share),
            "guarantee": self.guarantee.as_dict(),
            "keys": None if self.keys is None else dict(self.keys),
            "warnings": list(self.warnings),
            "query": dict(self.query),
            "simulated": self.simulated,
            **({"asked_before": True} if self.asked_before else {}),
            **self._bought(),
        }

    def _bought(self) -> dict[str, Any]:
        """Return the facts that were bought, and the total with them, for JSON."""
        if self.facts is None or self.total is None:
            return {}
        return {"facts": self.facts.certificate(), "total": self.total.as_dict()}

    def certificate(self) -> dict[str, Any]:
        """Return the certificate: query, source, public facts, answers, charge and theorem."""
        told = {
            "answers": [plain_answer(answer) for answer in self.answers],
            "unanswered": [plain_answer(answer) for answer in self.unanswered],
            "dropped_share": None if self.dropped_share is None else dict(self.dropped_share),
        }
        return certificate_of(self, "count", self.query, THEOREM, told) | self._bought()

    def answer_table(self) -> AnswerTable:
        """Return the answers, then the other groups, as a table with one column per key."""
        return table_of_answers(
            self.query, self.answers, self.unanswered, title_words(self), self.certificate()
        )

    def to_frame(self) -> Any:
        """Return a pandas data frame: one column per key, whole persons, intervals."""
        return self.answer_table().to_frame()

    def save(self, path: str | Path) -> None:
        """Write the answers to a file: CSV, Parquet, Excel, Markdown or PNG, by its suffix.

        ``.json`` is the certificate, with the exact released values.
        """
        self.answer_table().save(path)


def result_of_release(release: Mapping[str, Any]) -> CountResult:
    """Return the result that was released, from its JSON form and its certificate."""
    result = release["result"]
    same = ("within", "plus_minus", "confidence", "keys", "dropped_share", "query")
    return CountResult(
        **{name: result[name] for name in same},
        **charge_of_release(release),
        answers=told_answers(result["answers"]),
        unanswered=told_answers(result["unanswered"]),
        factor=result["interval_factor"],
        warnings=tuple(result["warnings"]),
    )


def charge_of_release(release: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a result that say what was charged, and what for."""
    result, certificate = release["result"], release["certificate"]
    paid = ("spent", "remaining", "unit", "max_groups_per_user")
    known = {name: result[name] for name in paid}
    known |= {name: certificate[name] for name in ("source", "public", "simulated", "ledger")}
    return known | {
        "guarantee": guarantee_from_dict(result["guarantee"]),
        "charges": Charges.from_dict(certificate["charges"]),
        "outcome": certificate["index"],
    }


def told_answers(records: Sequence[Mapping[str, Any]], kind: type[Any] = Answer) -> tuple[Any, ...]:
    """Return answers as they were, from JSON."""
    return tuple(
        kind(**{name: told_cell(value) for name, value in record.items()}) for record in records
    )


def told_cell(value: Any) -> Any:
    """Return a cell of an answer as it was, from JSON."""
    return math.nan if value is None else tuple(value) if isinstance(value, list) else value


def warnings_of_caps(
    request: CheckedCount, share: Mapping[str, Any] | None, most: int | None
) -> tuple[str, ...]:
    """What the released share of removed values says, if it is known well enough."""
    within = request.wanted.within or 0.1
    if not share or share["estimate"] <= within / 2 or not too_much_removed(share, within / 2):
        return ()
    what = {"pairs": "(user, group) pairs were", "rows": "rows were", "amount": "the amount was"}
    caps = [] if most is None else [f"{most} groups per user"]
    if request.measure.amount is not None:
        amount = float(request.measure.amount * request.measure.grid)
        caps += [f"{amount:,.6g} per user"]
    elif share["of"] != "pairs":
        caps += [f"{request.measure.rows} rows per user"]
    if request.measure.in_all:
        caps = [f"{caps[-1]} in all groups together"]
    elif share["of"] != "pairs":
        caps[-1] += " and group"
    effect = "Values are too low by about as much"
    if request.measure.kind == "mean":
        effect = "The mean is that of the rows that are kept"
    elif share.get("corrected"):
        effect = "Values are corrected for that"
    return (
        f"Capping, not noise, limits accuracy: about {share['estimate']:.0%} of "
        f"{what[share['of']]} dropped at {' and '.join(caps)}. {effect}; a larger cap keeps more.",
    )


def title_words(result: CountResult) -> str:
    """Return what was answered, in a line: "38 of 40 groups answered within 5 %"."""
    asked = len(result.answers) + len(result.unanswered)
    if (top := result.query.get("top")) is not None:
        known = f"Top {top:,} of {asked:,} groups"
        sure = f"{result.confidence:.0%} confidence"
        return f"{known}, with {sure}" if result.answers else f"{known}: not known with {sure}"
    error = f"{result.within:.0%}" if result.within is not None else f"± {result.plus_minus:g}"
    return f"{len(result.answers):,} of {asked:,} group{'s' * (asked != 1)} answered within {error}"


def table_of_answers(
    query: Mapping[str, Any],
    answers: Sequence[Answer],
    unanswered: Sequence[Answer] = (),
    title: str = "",
    certificate: Mapping[str, Any] | None = None,
) -> AnswerTable:
    """Return answers to a question (:func:`.describe_request`) as a table."""
    listed, kind = [*answers, *unanswered], query["kind"]
    what = {"count": "users", "rows": "rows"}.get(kind, f"{kind} of {query['column']}")
    names = tuple(query["by"]) or (("group",) if any(a.group != TOTAL for a in listed) else ())
    groups = [a.group if isinstance(a.group, tuple) else (a.group,) for a in listed]
    measured = Measured(
        [answer.estimate for answer in listed],
        [answer.low for answer in listed],
        [answer.high for answer in listed],
        [index < len(answers) for index in range(len(listed))],
        whole=kind in WHOLE_KINDS,
        spent=[answer.spent for answer in listed],
    )
    shown = groups if names else [()] * len(groups)
    return AnswerTable(names, shown, (measured,), what, title, certificate or {})


def plain_answer(answer: Any) -> dict[str, Any]:
    """Return an answer for JSON, without NaN and infinity; a group of several columns is a list."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return list(value)
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: plain(value) for key, value in vars(answer).items()}


def certificate_of(
    result: Any, kind: str, query: Mapping[str, Any], theorem: str, told: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the certificate of a count, quantiles or a query; ``told`` is what was released."""
    return {
        "expost": __version__,
        "schema": SCHEMA,
        "kind": kind,
        "query": dict(query),
        "source": result.source,
        "public": dict(result.public),
        "max_groups_per_user": result.max_groups_per_user,
        **told,
        "spent": {result.unit: result.spent},
        "worst_case": {result.unit: result.public["total"]},
        "guarantee": result.guarantee.as_dict(),
        "ledger": None if result.ledger is None else dict(result.ledger),
        "theorem": theorem,
        "simulated": result.simulated,
        "charges": result.charges.as_dict(),
        "index": result.outcome,
        "charged": result.charged.as_dict(),
    }
