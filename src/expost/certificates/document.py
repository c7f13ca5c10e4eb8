"""A certificate as a document: plain JSON with a version and a kind, for all that is released.

A document is built from the record of a result, by one function per kind:
``Release.as_dict`` (selection), ``CountResult.certificate`` (count), ``QueryResult.certificate``
(query), ``Facts.certificate`` (facts) and :func:`tuning_document`.
It contains nothing that a selection keeps secret.

**Charges are computed again** from a certificate: of one grid, and of requests made in turn. A grid
is priced with the code that priced the selection, so a certificate whose charge was changed
no longer matches its grid. That the grid is the one that ran is shown by a signature or by the
ledger, which stores the digest of the charges. A tuning job composes its requests with the same
three functions before and after it runs: :func:`composed`, :func:`worst_in_turn` and
:func:`in_epsilon_delta`.

What a charge means for one person is one sentence on every screen and report
(:func:`person_words`).

Tests: ``tests/certificates/``, ``tests/selection/test_grid.py``, ``tests/tuning/test_missed.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, TypedDict, cast

from expost.budget.signing import load_document
from expost.errors import ExpostError, InvalidRelease
from expost.files import canonical
from expost.mechanisms import DiscreteGaussian, DiscreteLaplace, Query
from expost.privacy.charges import Charges
from expost.privacy.guarantees import (
    RELATIONS,
    ZERO_OUT,
    ApproxDP,
    Guarantee,
    guarantee_from_dict,
)
from expost.rationals import charge_text, round_down
from expost.selection.above_threshold import AboveThreshold, PlannedAttempt, PlannedPath, Tell
from expost.selection.baselines import (
    Doubling,
    Poisson,
    RepeatAndSelect,
    RunCount,
    TruncatedNegativeBinomial,
)
from expost.selection.candidate import Candidate, never_run
from expost.selection.held_out import GaussianCounts, HeldOut, look_deviations, rates_of
from expost.selection.noise_path import NoisePath, NoiseReduction, PathLevel, PathSearch
from expost.selection.random_dropping import RandomDropping
from expost.selection.release import SCHEMA, Release, plain_json
from expost.selection.selector import Selector

SELECTION, COUNT, FACTS, TUNING = "selection", "count", "facts", "tuning"
QUANTILE, QUERY = "quantile", "query"

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

    # A query in SQL; also query, source, public, guarantee, charges and charged.
    parts: list[dict[str, Any]]  # what was measured, each with its answers and its charge
    columns: list[str]
    rows: list[dict[str, Any]]  # the answer, computed from the parts
    max_rows_per_user: int | None

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
    elif record.get("kind") == QUERY:
        _check_query(record)
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
    _check_answers(record)
    _check_amounts(record)


def _check_query(record: Record) -> None:
    """Refuse what is not a certificate of a query."""
    known = set(_COUNT_KEYS) - {"answers", "unanswered", "dropped_share"}
    missing = sorted(key for key in (*known, "parts", "columns", "rows") if key not in record)
    if missing:
        raise InvalidRelease("certificate", missing[0], "this key is missing")
    if record["schema"] != SCHEMA:
        raise InvalidRelease("schema", record["schema"], f"give a document of schema {SCHEMA}")
    parts = record["parts"]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise InvalidRelease("parts", "the file", "not a list of measurements")
    for part in parts:
        _check_answers(part, ranks=part.get("kind") == QUANTILE)
    _check_amounts(record)


def _check_answers(record: Record, *, ranks: bool = False) -> None:
    """Refuse what is not two lists of answers; quantiles have ranks, too."""
    keys = {"group", "estimate", "low", "high", "spent"}
    keys |= {"at", "rank_low", "rank_high"} if ranks else set()
    for answers in (record.get("answers"), record.get("unanswered")):
        _check_list(answers, keys)


def _check_quantile(record: Record) -> None:
    """Refuse what is not a certificate of quantiles."""
    needed = [key for key in _COUNT_KEYS if key != "dropped_share"]
    missing = [key for key in (*needed, "histogram") if key not in record]
    if missing:
        raise InvalidRelease("certificate", missing[0], "this key is missing")
    if record["schema"] != SCHEMA:
        raise InvalidRelease("schema", record["schema"], f"give a document of schema {SCHEMA}")
    _check_answers(record, ranks=True)
    _check_list(record["histogram"], {"group", "start", "end", "share", "low", "high", "spent"})
    _check_amounts(record)


def _check_list(answers: Any, keys: set[str]) -> None:
    """Refuse what is not a list of answers with these keys."""
    if not isinstance(answers, list) or not all(
        isinstance(answer, dict) and set(answer) == keys for answer in answers
    ):
        raise InvalidRelease("answers", "the file", "not a list of answers")


def _check_amounts(record: Record) -> None:
    """Refuse a charge that is no charge in ε or ρ, or larger than the worst case."""
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


SELECTORS: tuple[type[Selector], ...] = (
    *(AboveThreshold, Doubling, NoiseReduction, PathSearch, RandomDropping, RepeatAndSelect),
    *(PlannedAttempt, PlannedPath, Tell),
)
"""Every selector whose grid can be priced again; two of the same name differ in their settings."""
_LAWS: dict[str, type[RunCount]] = {
    law.__name__: law for law in (TruncatedNegativeBinomial, Poisson)
}
_MOST_CANDIDATES = 10_000_000


def composed(charges: Sequence[Guarantee]) -> Guarantee:
    """Return the charge of several requests: sums, exact and rounded up.

    Of ex-post (ε̃, δ) charges both numbers add up. The first attempt of a job is charged with the
    δ of all attempts that are allowed, so the sum over those that were made is the job's δ. Test:
    ``tests/tuning/test_attempts.py``.
    """
    total = charges[0]
    for charge in charges[1:]:
        total = total + charge
    return total


def worst_in_turn(charges: Sequence[Charges]) -> Guarantee:
    """Return the most that requests cost of which each is made only if those before it missed.

    All but the last one that is made cost what a miss costs. Test: ``tests/tuning/test_missed.py``.
    """
    worst, missed = charges[0].worst_case, charges[0].nothing
    for request in charges[1:]:
        worst = worst.at_worst(missed + request.worst_case)
        missed = missed + request.nothing
    return worst


def in_epsilon_delta(charge: Guarantee, delta: float, order: float | None, looks: int) -> ApproxDP:
    """Return what a charge of a job means in (ε, δ), if nothing else is released.

    A charge in ρ belongs to a look of a path. All that was released up to this look is ρ-zCDP, so
    it is (ε, δ/looks)-DP, at an order of its own; the sum over the looks is the claim (docs/
    theory.md, "Stopping under zCDP"). A Rényi charge is converted at the job's order.
    """
    pair, stated, curve = charge.as_approx(), charge.as_zcdp(), charge.as_renyi()
    if pair is not None:
        return pair
    if stated is not None:
        share = round_down(Fraction(delta) / looks)
        return ApproxDP(stated.to_approx(share).epsilon, delta, charge.neighbours)
    if curve is None or order is None:
        raise InvalidRelease("spent", "the certificate's", "it is no charge of a tuning job")
    return curve.on([order]).to_approx(delta)


def charges_of_grid(grid: Mapping[str, Any] | None) -> Charges:
    """Return what each outcome of a selection costs, computed from the grid in its certificate."""
    if grid is None:
        raise InvalidRelease("grid", None, "without it the charge cannot be computed again")
    return _charges_of_text(canonical(grid))


@lru_cache(maxsize=64)  # a job repeats its grid, and a certificate is priced by several checks
def _charges_of_text(text: str) -> Charges:
    selector, candidates = rebuild(json.loads(text))
    with _readable():
        return selector.charges(candidates)


def rebuild(grid: Mapping[str, Any]) -> tuple[Selector, list[Candidate]]:
    """Return the selector of a grid, and candidates that can be priced and not run."""
    with _readable():
        candidates = list(_candidates(grid))
        return _selector(grid["selector"], candidates), candidates


@contextmanager
def _readable() -> Iterator[None]:
    """Turn what a damaged grid raises into an InvalidRelease."""
    try:
        yield
    except KeyError as error:
        raise InvalidRelease("grid", str(error.args[0]), "this key is missing") from None
    except ExpostError as error:
        raise InvalidRelease("grid", "the certificate's", str(error)) from None
    except (ValueError, TypeError, IndexError, AttributeError, ArithmeticError):
        raise InvalidRelease("grid", "the certificate's", "it cannot be read") from None


def _candidates(grid: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield candidates that can be priced and not run."""
    guarantees = [guarantee_from_dict(record) for record in grid["guarantees"]]
    kind = "path" if grid["selector"]["name"] == PathSearch.name else grid["mechanisms"]
    levels = []
    for number, repeats, drop_rate in grid["levels"]:
        stated = guarantees[number]
        mechanism = _mechanism(kind, stated)
        own = getattr(mechanism, "guarantee", None)
        if own not in (None, stated):
            raise InvalidRelease("grid", "a guarantee", "it is not that of its mechanism")
        levels.append(
            Candidate(
                mechanism,
                repeats=repeats,
                guarantee=stated if own is None else None,  # type: ignore[arg-type]
                drop_rate=_read(drop_rate),
            )
        )
    if sum(length for _, length in grid["candidates"]) > _MOST_CANDIDATES:
        raise InvalidRelease("grid", "candidates", f"give at most {_MOST_CANDIDATES}")
    for level, length in grid["candidates"]:
        yield from [levels[level]] * length


def _mechanism(kind: str, guarantee: Any) -> Any:
    """Return a mechanism of the kind that the price depends on; it is never run."""
    if kind == "queries":
        return Query(never_run)
    if kind == "laplace":
        return DiscreteLaplace(Query(never_run), guarantee.epsilon, guarantee.neighbours)
    if kind == "gaussian":
        return DiscreteGaussian(Query(never_run), guarantee.rho, guarantee.neighbours)
    if kind == "path":  # sensitivity and dimension do not enter the price
        return PathLevel(NoisePath(never_run, 1, never_run, 1, guarantee.neighbours), guarantee)
    if kind != "any":
        raise InvalidRelease("mechanisms", kind, "give queries, laplace, gaussian or any")
    return never_run


def _selector(settings: Mapping[str, Any], candidates: Sequence[Candidate]) -> Selector:
    """Return the selector with these settings."""
    # Certificates of 0.2 call the goal "target".
    values = {
        "at_least" if name == "target" else name: (
            _held_out(value, candidates) if name == "held_out" else _read(value)
        )
        for name, value in settings.items()
        if name != "name"
    }
    for kind in SELECTORS:
        own = {setting.name for setting in fields(kind)}  # type: ignore[arg-type]
        if kind.name == settings["name"] and own == set(values):
            return kind(**values)
    raise InvalidRelease("selector", settings["name"], "this version knows no such selector")


def _held_out(
    terms: Mapping[str, Any] | None, candidates: Sequence[Candidate]
) -> HeldOut | GaussianCounts | None:
    """Return the rule of held-out rows; its noise follows from the candidates' levels."""
    if terms is None:
        return None
    gaussian = terms["law"] == GaussianCounts.__name__
    known = {"law", "thresholds", "steps"} | (set() if gaussian else {"monotone"})
    if set(terms) != known:
        raise InvalidRelease("held_out", sorted(terms), "this version knows other settings")
    levels = [float(candidate.guarantee.size) for candidate in candidates]
    thresholds, steps = _read(terms["thresholds"]), terms["steps"]
    if gaussian:
        deviations = look_deviations(levels, steps)
        return GaussianCounts(never_run, thresholds, steps, deviations=deviations)
    rates = rates_of(levels, terms["monotone"])
    return HeldOut(never_run, thresholds, steps, terms["monotone"], rates=rates)


def _read(value: Any) -> Any:
    """Return a setting from its JSON form."""
    if isinstance(value, list):
        return tuple(map(_read, value))
    if isinstance(value, Mapping):
        if "exact" in value:
            return Fraction(value["exact"])
        law = dict(value)
        return _LAWS[law.pop("law")](**{name: _read(setting) for name, setting in law.items()})
    return value


_LARGE = 10_000  # characters of a part of a document that is written on one line


def document_text(document: Mapping[str, Any]) -> str:
    """Return a document as JSON text: indented, but each large part on one line."""
    parts = []
    for key, value in document.items():
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        if len(text) <= _LARGE:
            text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
        name = json.dumps(key, ensure_ascii=False)
        parts.append(f"  {name}: " + text.replace("\n", "\n  "))
    return "{\n" + ",\n".join(parts) + "\n}"


def certainty_text(epsilon: float) -> str:
    """Return e^ε/(1 + e^ε) in per cent, rounded up, with enough digits to stay below 100."""
    percent = 100 / (1 + math.exp(-min(epsilon, 700.0)))
    for digits in range(1, 5):
        shown = math.ceil(percent * 10**digits - 1e-8) / 10**digits  # 3/4 may end a bit above 75
        if shown < 100:
            return f"{shown:.{digits}f}"
    return "100"


def person_words(epsilon: float, delta: float = 0.0, unit: str = "person") -> str:
    """Return what a charge means for one person, or one row: the same sentence at every door.

    By Bayes' rule, even odds become at most e^ε if what was released is at most e^ε times as likely
    with the person as without. With δ > 0 the odds exceed e^(ε + t) with a probability of at most
    δ / (1 − e^(−t)), for every t > 0. Rounded up.
    Test: ``tests/certificates/test_person_words.py``.
    """
    text = (
        f"someone undecided before whether one {unit} is in the data can be at most "
        f"{certainty_text(epsilon)} % certain afterwards"
    )
    if delta:
        text += f"; this limit may fail with a small probability (about δ = {charge_text(delta)})"
    return text


def unit_of_job(job: Record) -> str:
    """Return whom a tuning job protects: a "row", or a "person" with all their rows."""
    data = job.get("data")
    return "row" if not isinstance(data, Mapping) or data.get("user") is None else "person"


def protected_words(relation: str, data: Record | None = None) -> str:
    """Return who is protected by a charge per row, or per person if ``data`` names persons."""
    if data is not None and data.get("user") is not None:
        there = "are in the data or not; the number of persons is not public"
        if relation == ZERO_OUT:
            there = "are present or all blank; the number of persons is public, that of rows is not"
        return (
            f"one person with all their rows ({relation}), of which at most "
            f"{data['max_rows_per_user']} are used: the rows of a person {there}. A person is "
            f"recognised by the column {data['user']!r}."
        )
    said = f"one row ({relation}): {RELATIONS.get(relation, relation)}"
    return f"{said}. A person with several rows is protected less."
