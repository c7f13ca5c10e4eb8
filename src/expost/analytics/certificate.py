"""What a request releases, and the document that certifies it (schema 2, kind ``count``).

Tests: ``tests/analytics/test_query.py``, ``tests/analytics/test_count_prices.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from expost._version import __version__
from expost.analytics.refinement import Answer
from expost.errors import InvalidRelease
from expost.privacy.charges import Charges, ShareCharges
from expost.privacy.conversions import gaussian_for
from expost.privacy.guarantees import Guarantee, guarantee_from_dict

_ROUNDING = Fraction(1, 2**48)  # sums of rounded numbers are compared up to this part
SCHEMA = 2
KIND = "count"
THEOREM = (
    "noise reduction per group; a user is in at most m groups, so the charge is the sum of the m "
    "largest group costs (docs/counting.md, What it costs)"
)
_KEYS = (
    *("expost", "schema", "kind", "query", "source", "public", "max_groups_per_user"),
    *("answers", "unanswered", "dropped_share", "spent", "worst_case", "guarantee", "ledger"),
    *("theorem", "simulated", "charges", "index", "charged"),
)


@dataclass(frozen=True)
class CountResult:
    """What was released.

    Attributes
    ----------
    answers, unanswered : tuple of Answer
        Groups within the wanted error, and the others at their last look. Coverage is per group and
        per category: a group is refined for free and missed, or it is one of the dearest, answered
        and missed, or not answered and missed, with probability at most 1 − ``confidence`` each.
    spent, remaining : float
        In the unit of the noise (``unit``): ε without δ, ρ of zCDP with one. Everything is in it:
        the values, the choice of m, the share of dropped pairs, finding groups. It is the amount
        that a ledger is charged, unless that charges the whole (ε, δ).
    max_groups_per_user : int or None
        m: in how many groups a user counts at most. None: in all of them.
    dropped_share : dict or None
        A private estimate of the share of (user, group) pairs that the cap left out.
    guarantee : Guarantee
        What everything released keeps, for a user with all their rows.
    keys : dict or None
        How groups were found privately.
    warnings : tuple of str
        What limits the accuracy.
    simulated : bool
        True if seeded randomness was used: then nothing is guaranteed.
    charges : Charges
        The rule by which the request was priced.
    outcome : int or None
        The outcome of that rule. Its charge is what a ledger settles.
    """

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

    @property
    def charged(self) -> Guarantee:
        """The charge that a ledger settles."""
        return self.charges.nothing if self.outcome is None else self.charges[self.outcome]

    @property
    def protects(self) -> str:
        """Who is protected, in words."""
        if self.max_groups_per_user is None:
            return "one person with all their rows, in any number of groups"
        most = self.max_groups_per_user
        return (
            f"one person with all their rows; they count in at most {most} "
            f"group{'s' if most > 1 else ''}, chosen at random per request"
        )

    def _repr_html_(self) -> str:
        """Return the answers for a notebook."""
        from expost.html_tables import HtmlTable, Loss, html_summary

        columns = ["group", "estimate", "low", "high", f"spent ({self.unit})"]
        tables = [
            HtmlTable(
                caption,
                columns,
                [(each.group, each.estimate, each.low, each.high, Loss(each.spent)) for each in of],
            )
            for caption, of in (("Answered", self.answers), ("Not answered", self.unanswered))
            if of
        ]
        facts = {
            f"spent ({self.unit})": Loss(self.spent),
            "guarantee": self.guarantee,
            "protects": self.protects,
            "coverage of an interval": self.confidence,
            "simulated (not private)": self.simulated,
        }
        return html_summary("Released values", facts, *tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``expost count``."""
        return {
            "answers": [answer.as_dict() for answer in self.answers],
            "unanswered": [_plain(answer) for answer in self.unanswered],
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
        }

    def certificate(self) -> dict[str, Any]:
        """Return the certificate: query, source, public facts, answers, charge and theorem."""
        return {
            "expost": __version__,
            "schema": SCHEMA,
            "kind": KIND,
            "query": dict(self.query),
            "source": self.source,
            "public": dict(self.public),
            "max_groups_per_user": self.max_groups_per_user,
            "answers": [answer.as_dict() for answer in self.answers],
            "unanswered": [_plain(answer) for answer in self.unanswered],
            "dropped_share": None if self.dropped_share is None else dict(self.dropped_share),
            "spent": {self.unit: self.spent},
            "worst_case": {self.unit: self.public["total"]},
            "guarantee": self.guarantee.as_dict(),
            "ledger": None if self.ledger is None else dict(self.ledger),
            "theorem": THEOREM,
            "simulated": self.simulated,
            "charges": self.charges.as_dict(),
            "index": self.outcome,
            "charged": self.charged.as_dict(),
        }

    def save(self, path: str | Path) -> None:
        """Write the certificate as JSON."""
        text = json.dumps(self.certificate(), indent=2, allow_nan=False, ensure_ascii=False)
        Path(path).write_text(text + "\n", encoding="utf-8")


def source_of(name: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the public description of the source whose digest a ledger stores.

    Parameters
    ----------
    name : str
        The key ``source`` of a certificate: a file name, a URL without its password, or a type.
    query : mapping
        The key ``query`` of a certificate.
    """
    columns = [*query["by"], query["user"], query["column"]]
    return {"name": name, "columns": [each for each in columns if each is not None]}


def price_problems(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the charge of a certificate cannot be right; the price is computed again.

    The charge is the sum of the m largest group costs and of the shares for m, for the share of
    dropped pairs and for finding groups (docs/counting.md, What it costs).
    """
    (unit,), public = record["spent"], record["public"]
    charges, index = Charges.from_dict(record["charges"]), record["index"]
    price = charges.nothing if index is None else charges[int(index)]
    if price.as_dict() != record["charged"]:
        yield "the charge is not the price of the outcome"
    listed = [*record["answers"], *record["unanswered"]]
    costs = sorted((Fraction(each["spent"]) for each in listed), reverse=True)
    most = record["max_groups_per_user"]
    needed = sum(costs if most is None else costs[:most], Fraction(0))
    needed += sum((Fraction(each) for each in public["shares"].values()), Fraction(0))
    spent, total = Fraction(record["spent"][unit]), Fraction(public["total"])
    if Fraction(record["worst_case"][unit]) != total or needed > total * (1 + _ROUNDING):
        yield "the worst case is not that of the request"
    step = Fraction(0)
    if isinstance(charges, ShareCharges):
        step = total / charges.parts
        if price.size != spent or charges.worst_case.size != total:
            yield "the charge is not the price of the outcome"
    elif charges.worst_case.as_dict() != record["guarantee"]:
        yield "the worst case is not that of the request"
    # The shares in the certificate are rounded, so that their sum is known up to rounding only.
    if not needed * (1 - _ROUNDING) <= spent <= needed * (1 + _ROUNDING) + step:
        yield "the charge is not that of the answers"
    yield from _guarantee_problems(record, total, unit)


def _guarantee_problems(record: Mapping[str, Any], total: Fraction, unit: str) -> Iterator[str]:
    """Yield whether the stated guarantee is not what the total gives."""
    stated = guarantee_from_dict(record["guarantee"])
    pure, pair = stated.as_pure(), stated.as_approx()
    if unit == "epsilon":
        right = pure is not None and Fraction(pure.epsilon) >= total * (1 - _ROUNDING)
    elif pair is None or pure is not None:
        right = False
    else:
        private = record["public"]["keys"] != "listed"
        delta = pair.delta / 2 if private else pair.delta
        right = Fraction(gaussian_for(pair.epsilon, delta).rho) >= total * (1 - _ROUNDING)
    if not right:
        yield "the guarantee is not that of the total"


def check_certificate(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a certificate of a count, or refuse it with the reason."""
    missing = [key for key in _KEYS if key not in record]
    if missing:
        raise InvalidRelease("certificate", missing[0], "this key is missing")
    if record["schema"] != SCHEMA or record["kind"] != KIND:
        raise InvalidRelease("schema", record["schema"], f"certificates of counts have {SCHEMA}")
    lists = [record["answers"], record["unanswered"]]
    wanted = {"group", "estimate", "low", "high", "spent"}
    for answers in lists:
        sound = isinstance(answers, list) and all(
            isinstance(answer, dict) and set(answer) == wanted for answer in answers
        )
        if not sound:
            raise InvalidRelease("answers", "the file", "not a list of answers")
    guarantee_from_dict(record["guarantee"] if isinstance(record["guarantee"], dict) else {})
    spent, worst = record["spent"], record["worst_case"]
    sound = isinstance(spent, dict) and isinstance(worst, dict) and len(spent) == 1
    if not sound or set(spent) != set(worst) or not set(spent) <= {"epsilon", "rho"}:
        raise InvalidRelease("spent", "the file", "not a charge in ε or ρ")
    numbers = [*spent.values(), *worst.values()]
    if not all(isinstance(number, (int, float)) and number >= 0 for number in numbers):
        raise InvalidRelease("spent", "the file", "not a charge in ε or ρ")
    if numbers[0] > numbers[1]:
        raise InvalidRelease("spent", numbers[0], "no outcome costs more than the worst case")
    return record


def _plain(answer: Answer) -> dict[str, Any]:
    """An answer for JSON, which has neither NaN nor infinity."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in answer.as_dict().items()
    }
