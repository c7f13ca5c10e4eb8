"""A certificate as a document: plain JSON with a version and a kind, for all that is released.

A document is built from the record of a result, by one function per kind:
``Release.as_dict`` (selection), ``CountResult.certificate`` (count), ``Facts.certificate`` (facts)
and :func:`tuning_document`.
It contains nothing that a selection keeps secret. Tests: ``tests/certificates/``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypedDict, cast

from expost.budget.ledger_rows import canonical
from expost.budget.signing import load_document
from expost.errors import InvalidRelease
from expost.privacy.guarantees import guarantee_from_dict
from expost.selection.release import SCHEMA, Release, plain_json

SELECTION, COUNT, FACTS, TUNING = "selection", "count", "facts", "tuning"
QUANTILE = "quantile"

Record = Mapping[str, Any]
"""A document or a part of one, which may be damaged."""


class Document(TypedDict, total=False):
    """The keys of a certificate; those of every kind come first."""

    expost: str  # the version that wrote it
    schema: int
    kind: str
    spent: dict[str, Any]  # the charge: a guarantee; of a count {"epsilon" or "rho": number}
    worst_case: dict[str, Any]
    index: int | None  # the outcome that was released; None for nothing
    theorem: str
    simulated: bool
    ledger: dict[str, Any] | list[dict[str, Any]] | None  # the entries that paid
    signature: dict[str, Any]

    # A selection, and the released one of a tuning job.
    outcome: str
    value: Any
    params: dict[str, Any]
    score: float | str | None
    passed: bool | None
    selector: dict[str, Any]
    grid: dict[str, Any] | None  # all that the price depends on

    # A tuning job: what was asked of the budget, and the job's public terms and results.
    requests: dict[str, Any]
    tuning: dict[str, Any]
    total: dict[str, float]  # with the facts that the job bought, whose certificate is in "facts"

    # Counts, sums and means.
    query: dict[str, Any]
    source: str
    public: dict[str, Any]
    max_groups_per_user: int | None
    answers: list[dict[str, Any]]
    unanswered: list[dict[str, Any]]
    dropped_share: dict[str, Any] | None
    histogram: list[dict[str, Any]]  # of quantiles
    guarantee: dict[str, Any]
    charges: dict[str, Any]
    charged: dict[str, Any]

    # Facts about a table; also source, guarantee, charges and charged.
    facts: dict[str, Any]
    mechanism: dict[str, Any]


_COUNT_KEYS = (
    *("expost", "schema", "kind", "query", "source", "public", "max_groups_per_user"),
    *("answers", "unanswered", "dropped_share", "spent", "worst_case", "guarantee", "ledger"),
    *("theorem", "simulated", "charges", "index", "charged"),
)


def read_certificate(source: str | Path | Record) -> Document:
    """Return a certificate from a file or a mapping; refuse what no version writes.

    Parameters
    ----------
    source : str, Path or mapping
        The name of a JSON file, or the document itself.

    Returns
    -------
    Document
        The certificate, as it is written. :func:`verify_certificate` checks its charge.

    Raises
    ------
    InvalidRelease
        It is not a certificate that this version can read.
    """
    record = dict(source) if isinstance(source, Mapping) else load_document(source, "certificate")
    try:
        plain_json(record, "certificate")
    except RecursionError:
        raise InvalidRelease("certificate", "the file", "it is nested too deeply") from None
    if record.get("kind") == COUNT:
        check_count(record)
    elif record.get("kind") == QUANTILE:
        _check_quantile(record)
    elif record.get("kind") == FACTS:
        _check_facts(record)
    elif record.get("kind") in (SELECTION, TUNING):
        Release.from_dict(record)
    else:
        raise InvalidRelease("kind", record.get("kind"), "the file is not a certificate")
    return cast(Document, record)


def check_count(record: Record) -> None:
    """Refuse what is not a certificate of a count."""
    missing = [key for key in _COUNT_KEYS if key not in record]
    if missing:
        raise InvalidRelease("certificate", missing[0], "this key is missing")
    if record["schema"] != SCHEMA or record["kind"] != COUNT:
        raise InvalidRelease("schema", record["schema"], f"certificates of counts have {SCHEMA}")
    keys = {"group", "estimate", "low", "high", "spent"}
    for answers in (record["answers"], record["unanswered"]):
        _check_answers(answers, keys)
    _check_amounts(record)


def _check_quantile(record: Record) -> None:
    """Refuse what is not a certificate of quantiles."""
    needed = [key for key in _COUNT_KEYS if key != "dropped_share"]
    missing = [key for key in (*needed, "histogram") if key not in record]
    if missing:
        raise InvalidRelease("certificate", missing[0], "this key is missing")
    if record["schema"] != SCHEMA:
        raise InvalidRelease("schema", record["schema"], f"certificates of quantiles have {SCHEMA}")
    keys = {"group", "at", "estimate", "low", "high", "rank_low", "rank_high", "spent"}
    for answers in (record["answers"], record["unanswered"]):
        _check_answers(answers, keys)
    _check_answers(record["histogram"], {"group", "start", "end", "share", "low", "high", "spent"})
    _check_amounts(record)


def _check_answers(answers: Any, keys: set[str]) -> None:
    """Refuse what is not a list of answers with these keys."""
    if not isinstance(answers, list) or not all(
        isinstance(answer, dict) and set(answer) == keys for answer in answers
    ):
        raise InvalidRelease("answers", "the file", "not a list of answers")


def _check_amounts(record: Record) -> None:
    """Refuse a charge that is no amount of ε or ρ, or above the worst case."""
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


def _check_facts(record: Record) -> None:
    """Refuse what is not a certificate of facts about a table."""
    keys = ("source", "facts", "mechanism", "spent", "worst_case", "charges", "charged", "ledger")
    missing = [key for key in (*keys, "theorem", "simulated") if key not in record]
    if missing:
        raise InvalidRelease("certificate", missing[0], "this key is missing")
    if record.get("schema") != SCHEMA:
        raise InvalidRelease("schema", record.get("schema"), f"give a document of schema {SCHEMA}")


def tuning_document(
    chosen: Release,
    grids: Sequence[Record | None],
    releases: Sequence[Release | None],
    terms: Record,
    encode: Callable[[Any], Any],
) -> dict[str, Any]:
    """Return the certificate of a tuning job.

    ``chosen`` is what the job releases, with the charge of all requests together; ``grids`` and
    ``releases`` are those of the planned and of the made requests; ``terms`` are the job's public
    settings and results; ``encode`` describes the released model.
    """
    paid = [release.ledger for release in releases if release is not None]
    return chosen.as_dict(encode) | {
        "kind": TUNING,
        "ledger": [dict(entry) for entry in paid if entry is not None] or None,
        "grid": None,  # of all attempts, in "requests"
        "requests": _requests(grids, releases),
        "tuning": dict(terms),
    }


def _requests(
    planned: Sequence[Record | None], releases: Sequence[Release | None]
) -> dict[str, Any]:
    """Return the requests of a job in short, so that its price can be computed again.

    ``grids``: the distinct grids of the planned requests, with numbers instead of their guarantees;
    ``guarantees``: the distinct ones of all grids; ``planned``: the number of the grid of each
    planned request, in runs as [grid, length]; ``made``: the certificate of each request that was
    made, without its value and with the number of its grid. A request whose outcome a crash lost is
    None: it is charged at its worst case.
    """
    grids, numbers = _distinct(planned)
    records: list[dict[str, Any] | None] = []
    for index, release in enumerate(releases):
        record = None if release is None else release.as_dict(encode=lambda value: None)
        if record is not None:
            record["grid"] = numbers[min(index, len(numbers) - 1)]
        records.append(record)
    stated = [grid["guarantees"] for grid in grids if grid is not None]
    guarantees, positions = _distinct([record for records in stated for record in records])
    shared = iter(positions)
    return {
        "guarantees": guarantees,
        "grids": [  # None for a selector that this package does not define
            grid and {**grid, "guarantees": [next(shared) for _ in grid["guarantees"]]}
            for grid in grids
        ],
        "planned": [[number, len(list(run))] for number, run in groupby(numbers)],
        "made": records,
    }


def _distinct(records: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Return the different records, and the number of each record among them."""
    numbers: dict[str, int] = {}
    different: list[Any] = []
    positions = []
    for record in records:
        text = canonical(record)
        if text not in numbers:
            numbers[text] = len(different)
            different.append(record)
        positions.append(numbers[text])
    return different, positions


def grids_of(requests: Record) -> list[Any]:
    """Return the grids of a job, each with its guarantees, which a file may also write in full."""
    shared = requests.get("guarantees", [])
    return [
        grid
        and {
            **grid,
            "guarantees": [shared[g] if isinstance(g, int) else g for g in grid["guarantees"]],
        }
        for grid in requests["grids"]
    ]


def made_records(document: Record) -> list[dict[str, Any] | None]:
    """Return the certificates of the requests that a job made, each with its grid."""
    grids = grids_of(document["requests"])
    records = document["requests"]["made"]
    return [record and {**record, "grid": grids[record["grid"]]} for record in records]
