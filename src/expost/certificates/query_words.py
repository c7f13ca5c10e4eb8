"""What a certificate says about queries in SQL, quantiles and columns; used by :mod:`.words`.

Tests: ``tests/analytics/test_sql_run.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from expost.certificates.document import Record
from expost.rationals import charge_text

_SIGNS = {"epsilon": "ε", "rho": "ρ"}


def cost_words(document: Record) -> str:
    """Return what a charge is for, and what earlier questions paid for the same noise."""
    paid = document["public"].get("paid_before")
    said = "what these answers cost"
    return (
        f"{said}, beyond ε = {charge_text(paid)} that earlier questions were charged"
        if paid
        else said
    )


def with_earlier(document: Record) -> Record:
    """Return what was spent, with what earlier questions paid for the same noise; or (ε, δ)."""
    if "delta" in document["guarantee"]:
        return dict(document["guarantee"])
    paid = document["public"].get("paid_before", 0.0)
    return {unit: size + paid for unit, size in document["spent"].items()}


def charged_in_all(document: Record) -> dict[str, float]:
    """Return ε and δ of a release and of the facts that were bought for it."""
    total = {unit: document["total"][unit] for unit in ("epsilon", "delta")}
    if document.get("kind") != "count":
        return total
    # The total of a count is what was guaranteed before; here it is what was charged.
    parts = document["facts"]["charged"], with_earlier(document)
    return {
        unit: float(sum(Fraction(repr(float(part.get(unit, 0)))) for part in parts))
        for unit in total
    }


def rows_words(rows: Sequence[Record]) -> str:
    """Return how many rows of the answer reached the error."""
    answered = sum(bool(row["answered"]) for row in rows)
    return f"{answered:,} of {len(rows):,} rows reached this error in every column"


def part_words(part: Record, unit: str) -> str:
    """Return what one aggregate cost, and in how many groups it reached the error."""
    answered, others = len(part["answers"]), len(part["unanswered"])
    said = f"{part['of']}: {_SIGNS[unit]} = {charge_text(part['spent'])}"
    of = "quantiles of groups" if part.get("kind") == "quantile" else "groups"
    return f"{said}, {answered:,} of {answered + others:,} {of}"


QUANTILE_METHOD = (
    "values drawn by the exponential mechanism from disjoint intervals, then checked by noisy "
    "histograms; what was drawn and looked at is charged"
)


def count_method(document: Record) -> list[str]:
    """Return how counts, sums, means and quantiles beside them were found."""
    law = {"laplace": "discrete Laplace", "gaussian": "discrete Gaussian"}
    noise = law.get(document["public"].get("noise", ""), "discrete")
    said = [f"{noise} noise of each group is reduced step by step; the last step is charged"]
    ranked = any(part["kind"] == "quantile" for part in document.get("parts", ()))
    return [*said, f"quantiles: {QUANTILE_METHOD}"] if ranked else said


def quantile_words(query: Record) -> str:
    """Return which quantiles and bins were asked for."""
    ranks = ", ".join(f"{rank:g}" for rank in query["at"])
    parts = [f"quantile{'s' * (len(query['at']) != 1)} at {ranks}"] if ranks else []
    if query["bins"]:
        parts.append(f"histogram with {len(query['bins']) - 1} bins")
    return " and ".join(parts)


def quantile_error(query: Record) -> str:
    """Return the error of ranks that was wanted."""
    sure = f"with {100 * query['confidence']:g} % confidence per quantile and group"
    if query["within_rank"] is None:
        return f"no goal: the best values for the ε, and rank intervals {sure}"
    return f"ranks and shares within {query['within_rank']:g}, {sure}"


def column_words(item: tuple[str, Record]) -> str:
    """Return the kind of a column of facts, and its bounds or categories."""
    name, column = item
    bounds = [" to ".join(map(str, column["bounds"]))] if "bounds" in column else []
    names = [str(category["name"]) for category in column.get("categories", ())]
    return f"{name}: {', '.join([str(column['kind']), *bounds, *names])}"


def key_words(document: Record) -> str | None:
    """Return where the groups come from; None without groups."""
    if not document["query"].get("by", True):
        return None
    if document["public"]["keys"] != "listed":
        return "found privately, at a charge that is included"
    bought = document["facts"]["facts"]["columns"] if "facts" in document else {}
    by = document["query"].get("by")
    learned = by is not None and all(column in bought for column in by)
    return "bought with the facts" if learned else "listed from public knowledge"


def private_words(public: Record) -> str | None:
    """Return how many rows of a person each private table of a join gave."""
    caps = public.get("private_tables") or {}
    said = ", ".join(f"{table} (at most {rows:,} rows of a person)" for table, rows in caps.items())
    return f"joined on the person: {said}" if said else None
