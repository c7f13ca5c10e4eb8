"""What ``expost certificate`` shows: a certificate as rows of a table, in words.

A row is a name and a function that makes its text from the document. A part of the document that
is damaged makes its row unreadable, and no other. Numbers are rounded against the reader's wishes:
charges up, and certified scores towards the bar. Tests: ``tests/cli/test_certificate_words.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

from expost.cli.output import in_words, visible
from expost.privacy.guarantees import (
    ADD_REMOVE,
    REPLACE,
    ZERO_OUT,
    Guarantee,
    guarantee_from_dict,
)
from expost.rationals import charge_text

Document = Mapping[str, Any]
Row = tuple[str, Callable[[], str | None]]

MOST_LINES = 12
"""Lines of a row that are shown without ``--verbose``."""
_LONGEST = 300  # characters of a line
_FURTHER = "use --verbose for all of them"
_UNREADABLE = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError),
    RecursionError,
)
_RELATIONS = {
    ADD_REMOVE: "a person's row is in the data or not; the number of rows is not public",
    ZERO_OUT: "a person's row stands in its place or the place is empty; the number of places is "
    "public",
    REPLACE: "a person's row is replaced by any other row; the number of rows is public",
}
_METHODS = {
    "above-threshold": "a search over settings, each kept or dropped at random, that stops at the "
    "first model whose noisy score passes",
    "random-dropping": "the best of candidates that were each kept or dropped at random; a cheaper "
    "winner costs less",
    "repeat-and-select": "the best of a random number of runs",
    "doubling": "attempts with twice the budget each time, until one passes",
    "noise-reduction": "one noisy value whose noise is reduced step by step; the last step is paid",
    "noise-path": "one training whose noise is reduced step by step until the score passes; the "
    "last step is paid",
}
_MEASURES = {"count": "persons", "rows": "rows", "sum": "sum", "mean": "mean"}
_UNITS = {"epsilon": "ε", "rho": "ρ", "delta": "δ", "orders": "orders", "epsilons": "ε"}


def texts(rows: Sequence[Row], *, verbose: bool) -> list[tuple[str, str]]:
    """Return the rows that have something to say, each as a name and a text for a terminal."""
    found = []
    for name, make in rows:
        try:
            text = make()
        except _UNREADABLE:
            text = "this part cannot be read"
        if text is not None:
            found.append((name, text if verbose else _shortened(text)))
    return found


def _shortened(text: str) -> str:
    """A text of bounded length."""
    lines = [
        line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…  (use --json for all of it)"
        for line in text.split("\n")
    ]
    left = len(lines) - MOST_LINES
    if left > 0:
        lines[MOST_LINES:] = [f"… and {left} more ({_FURTHER})"]
    return "\n".join(lines)


def _name(value: object) -> str:
    """A name from a file: on one line, and without characters that move the cursor."""
    return visible(value).replace("\n", "\\n")


def charge(guarantee: Guarantee) -> str:
    """Return a guarantee in symbols, rounded up; without its neighbouring relation."""
    numbers = guarantee.as_dict()
    return ", ".join(
        f"{_UNITS[key]} = {_number(value)}" for key, value in numbers.items() if key in _UNITS
    )


def _number(value: Any) -> str:
    """A number, or the numbers of a curve, as text; a charge is never rounded down."""
    if isinstance(value, (int, float)):
        return charge_text(value)
    return "[" + ", ".join(charge_text(each, 4) for each in value) + "]"


def _value(value: Any) -> str:
    """A setting as text, a float with six digits."""
    return f"{value:g}" if isinstance(value, float) else in_words(value)


def _settings(params: Document) -> str:
    """The settings of the winner; its privacy level is rounded up."""
    found = [
        f"{name} = {charge_text(value) if name == 'epsilon' else _value(value)}"
        for name, value in params.items()
    ]
    return _name(", ".join(found) or "–")


def _protected(relation: str, words: object = None) -> str:
    text = words if isinstance(words, str) else _RELATIONS[relation]
    return (
        f"one row ({_name(relation)}): {_name(text)}. A person with several rows is protected less."
    )


def _signature(document: Document) -> str:
    if document.get("signature") is None:
        return "none: whoever can write the file can change it"
    return "signed; expost certificate verify --key FILE checks by whom"


def _entries(document: Document) -> str:
    """The ledger entries that paid."""
    found = document.get("ledger")
    entries = [] if found is None else found if isinstance(found, list) else [found]
    if not entries:
        return "none: no ledger was charged"
    lines = []
    for each in entries:
        who = f" for {_name(each['analyst'])}" if each.get("analyst") else ""
        lines.append(
            f"budget {_name(each['budget'])}{who}, {_name(each['date'])}, "
            f"entry {_name(each['reservation'])}"
        )
    return "\n".join(lines)


def _method(document: Document, verbose: bool) -> str:
    name = str(document["selector"].get("name"))
    return _METHODS.get(name, _name(name)) + ("" if verbose else " (theorems: --verbose)")


def _technical(document: Document) -> list[Row]:
    """The rows of ``--verbose`` that every certificate has."""
    return [
        ("theorem", lambda: _name(document["theorem"])),
        ("written by", lambda: f"expost {_name(document['expost'])}, schema {document['schema']}"),
    ]


def selection_rows(
    document: Document, spent: Guarantee, worst: Guarantee, *, verbose: bool
) -> list[Row]:
    """Return the rows of a selection.

    Parameters
    ----------
    document : mapping
        The certificate.
    spent, worst : Guarantee
        Its charge, and its worst case.
    verbose : bool
        Whether to add the technical rows.
    """
    passed = {None: "no target", True: "yes", False: "no"}
    rows: list[Row] = [
        ("value", lambda: _outcome(document)),
        ("settings", lambda: _settings(document["params"])),
        ("score", lambda: _score(document)),
        ("target reached", lambda: passed[document["passed"]]),
        *_costs(charge(spent), charge(worst)),
        ("protects", lambda: _protected(spent.neighbours)),
        ("method", lambda: _method(document, verbose)),
        ("ledger", lambda: _entries(document)),
        ("signature", lambda: _signature(document)),
    ]
    return rows + ([*_technical(document), _selector(document)] if verbose else [])


def _costs(spent: str, worst: str) -> list[Row]:
    return [
        ("privacy cost", lambda: f"{spent}: what this release costs, search included"),
        ("at most", lambda: f"{worst}: certain before anything ran"),
    ]


def _selector(document: Document) -> Row:
    settings = document["selector"]
    return "selector", lambda: _name(
        in_words({key: each for key, each in settings.items() if each is not None})
    )


def _outcome(document: Document) -> str:
    if document["outcome"] == "nothing":
        return "nothing: no candidate was released"
    if document["outcome"] == "failed":
        return "the run that was chosen failed"
    return _name(in_words(document["value"]))


def _score(document: Document) -> str | None:
    """The score that was compared; of held-out rows it is a difference of counts, no score."""
    score = document["score"]
    if score is None or document["selector"].get("held_out") is not None:
        return None
    return f"{float(score):g}"


def tuning_rows(
    document: Document, spent: Guarantee, worst: Guarantee, *, verbose: bool
) -> list[Row]:
    """Return the rows of a tuning job; the parameters are those of :func:`selection_rows`."""
    job: Document = document["tuning"]
    rows: list[Row] = [
        ("result", lambda: _result(document)),
        ("bar", lambda: _bar(job["goal"])),
        ("score", lambda: _bounds(job)),
        ("noisy score", lambda: _noisy(job)),
        (
            "privacy cost",
            lambda: f"{_pair(job['spent'])}: all attempts, training and scoring together",
        ),
        ("at most", lambda: f"{charge(worst)}: certain before the job began"),
        ("attempts", lambda: _attempts(job)),
        ("protects", lambda: _protected(spent.neighbours, job["neighbours_in_words"])),
        ("data", lambda: _data(job["data"])),
        ("columns", lambda: "\n".join(_columns(job["data"])) or None),
        ("target", lambda: _target(job["data"])),
        ("rows", lambda: _rows(job)),
        ("model", lambda: _model(document, job, verbose)),
        ("method", lambda: _method(document, verbose)),
        ("ledger", lambda: _entries(document)),
        ("date", lambda: _date(document, job)),
        ("signature", lambda: _signature(document)),
        ("warnings", lambda: "\n".join(map(_name, job["warnings"])) or None),
    ]
    if verbose:
        rows += [
            *_technical(document),
            ("charge", lambda: f"{charge(spent)} ({spent.neighbours})"),
            ("converted at", lambda: _at_order(job)),
            ("scoring", lambda: _name(job["scoring"])),
            ("requests", lambda: f"{len(document['requests']['grids'])} different grids"),
            _selector(document),
        ]
    return rows


def _result(document: Document) -> str:
    if document["outcome"] == "value":
        reached = {True: "a model that reaches the bar", None: "the best model of one search"}
        return reached.get(document["passed"], "a model that does not reach the bar")
    if document["outcome"] == "failed":
        return "no model: the training that was chosen failed"
    return "no model: the bar was missed; what the attempts cost was paid"


def _bar(goal: Document) -> str:
    metric = _name(goal["metric"])
    if goal["bar"] is None:
        return f"none: the best {metric} was wanted"
    sign = "≥" if goal["larger_is_better"] else "≤"
    return f"{metric} {sign} {goal['bar']:g}, with {100 * goal['confidence']:g} % confidence"


def bound_text(value: float, larger: bool) -> str:
    """Return a certified bound with four digits, rounded so that it stays true."""
    rounding = ROUND_FLOOR if larger else ROUND_CEILING
    return f"{float(Context(prec=4, rounding=rounding).create_decimal(repr(float(value)))):.4g}"


def _bounds(job: Document) -> str | None:
    found, larger = job["confidence"], job["goal"]["larger_is_better"]
    if found is None:
        return None
    side = "at least" if larger else "at most"
    text = f"{side} {bound_text(found['bound_on_scoring_rows'], larger)} on the scoring rows"
    if found["bound_on_population"] is not None:
        population = bound_text(found["bound_on_population"], larger)
        text += f", {side} {population} on new rows of the same population"
    return f"{text} ({100 * found['confidence']:g} % confidence each)"


def _noisy(job: Document) -> str | None:
    found, noise = job["confidence"], job["score_noise"]
    shown = [each.get("score") for each in job["attempts"] if each.get("score") is not None]
    sign = 1 if job["goal"]["larger_is_better"] else -1
    score = found["noisy_score"] if found is not None else sign * shown[-1] if shown else None
    if score is None:
        return None
    spread = f" ± {noise:.3g} (standard deviation of its noise)" if noise else ""
    return f"{score:.4g}{spread}"


def _pair(numbers: Document) -> str:
    return f"ε = {charge_text(numbers['epsilon'])}, δ = {charge_text(numbers['delta'])}"


def _attempts(job: Document) -> str:
    """Every attempt and its charge."""
    made = job["attempts"]
    lines = [f"{len(made)} of at most {job['attempts_allowed']}"]
    if len(made) > 1:
        lines[0] += "; their charges add up"
    for number, each in enumerate(made, 1):
        if "outcome" in each:
            said = _name(each["outcome"])
        else:
            said = {True: "passed", False: "missed", None: "done"}[each["passed"]]
        paid = charge(guarantee_from_dict(each["spent"])).removesuffix(", δ = 0")
        lines.append(f"{number}: {said}, {paid}")
    if job["budget_refused_another_attempt"]:
        lines.append("The budget refused another attempt.")
    return "\n".join(lines)


def _data(data: Document) -> str:
    name = data["path"] or data["name"]
    return "rows that were passed in Python" if name is None else _name(name)


def _columns(data: Document) -> list[str]:
    """One line per column: its kind, and its public bounds or categories."""
    bounds, gaps = data["bounds"], data["missing"] or {}
    if bounds is not None and not isinstance(bounds, Mapping):
        low, high = bounds
        return [f"every column: number from {low:g} to {high:g}"]
    kinds = {
        name: f"number from {low:g} to {high:g}" for name, (low, high) in (bounds or {}).items()
    }
    for name, (low, high) in (data["dates"] or {}).items():
        kinds[name] = f"date from {low} to {high}"
    for name, values in (data["categories"] or {}).items():
        kinds[name] = "one of " + ", ".join(map(str, values)) + "; all else is 'other'"
    kinds |= dict.fromkeys(data["booleans"] or [], "true or false")
    if not isinstance(gaps, Mapping):
        gaps = dict.fromkeys(kinds, gaps)
    lines = []
    for name in data["features"] or kinds:
        gap = gaps.get(name)
        filled = "" if gap is None else f"; an empty cell counts as {_gap(gap)}"
        lines.append(_name(f"{name}: {kinds.get(name, 'no facts')}{filled}"))
    return lines


def _gap(value: Any) -> str:
    return "'missing'" if value == "indicator" else _value(value)


def _target(data: Document) -> str | None:
    name = "" if data["target"] is None else f"{_name(data['target'])}, "
    if data["target_bounds"] is not None:
        low, high = data["target_bounds"]
        return f"{name}number from {low:g} to {high:g}"
    classes = data["classes"]
    if classes is None:
        return None
    if not isinstance(classes, list):
        return f"{name}{in_words(classes)} classes"
    return f"{name}{len(classes)} classes: {', '.join(map(_name, classes))}"


def _rows(job: Document) -> str:
    rows, data = job["rows"], job["data"]
    text = f"{rows['training']:,} for training, {rows['scoring']:,} for scoring"
    if data["public_test"] is not None:
        text += f" (public rows of {_name(data['public_test'])}, not protected)"
    if data["rows"] is not None:
        return f"{text}; from the stated number {data['rows']:,}, the actual one is secret"
    return f"{text}; these numbers are public"


def _model(document: Document, job: Document, verbose: bool) -> str:
    kind, value = _name(job["model"]["kind"]), document["value"]
    if not isinstance(value, Mapping):
        return kind
    file = f", file {_name(value['model'])}" if isinstance(value["model"], str) else ""
    settings = f"; {_settings(document['params'])}" if document["params"] else ""
    digest = _name(value.get("sha256", ""))
    shown = digest if verbose else digest[:12] + "…"
    return f"{kind}{file}{settings}" + (f"\nSHA-256 {shown}" if digest else "")


def _date(document: Document, job: Document) -> str | None:
    """When the job began; older certificates have the date of their ledger entries only."""
    if job.get("date") is not None:
        return _name(job["date"])
    entries = document["ledger"]
    return _name(entries[0]["date"]) if entries else None


def _at_order(job: Document) -> str | None:
    order = job["converted_at_order"]
    return None if order is None else f"Rényi order {order:g}"


def count_rows(document: Document, *, verbose: bool) -> list[Row]:
    """Return the rows of counts, sums or means."""
    query, public = document["query"], document["public"]
    ((unit, spent),) = document["spent"].items()
    ((_, worst),) = document["worst_case"].items()
    symbol = _UNITS[unit]
    rows: list[Row] = [
        ("question", lambda: _question(query)),
        ("data", lambda: _name(document["source"])),
        ("groups", lambda: _groups(public)),
        (
            "answers",
            lambda: (
                f"{len(document['answers']):,} ({len(document['unanswered']):,} groups not "
                "answered within the wanted error)"
            ),
        ),
        ("error", lambda: _error(query)),
        ("privacy cost", lambda: f"{symbol} = {charge_text(spent)}: what these answers cost"),
        ("at most", lambda: f"{symbol} = {charge_text(worst)}: certain before anything ran"),
        (
            "guarantee",
            lambda: f"{charge(guarantee_from_dict(document['guarantee']))} for everything released",
        ),
        ("protects", lambda: _persons(document["max_groups_per_user"])),
        ("method", lambda: "noise of each group is reduced step by step; the last step is paid"),
        ("ledger", lambda: _entries(document)),
        ("signature", lambda: _signature(document)),
    ]
    if not verbose:
        return rows
    return [
        *rows,
        *_technical(document),
        ("charge", lambda: charge(guarantee_from_dict(document["charged"]))),
    ]


def _question(query: Document) -> str:
    measure = _MEASURES.get(query["kind"], _name(query["kind"]))
    text = f"number of {measure}" if query["column"] is None else f"{measure} of {query['column']}"
    if query["user"] is not None:
        text += f" (a person is a value of {query['user']})"
    if query["bounds"] is not None:
        low, high = query["bounds"]
        text += f", values from {_value(low)} to {_value(high)}"
    if query["by"]:
        text += f", by {', '.join(map(str, query['by']))}"
    if query["where"]:
        text += f", where {' and '.join(map(str, query['where']))}"
    return _name(text)


def _groups(public: Document) -> str:
    listed = public["keys"] == "listed"
    return "listed in public" if listed else "found privately, at a cost that is included"


def _error(query: Document) -> str:
    within, most = query["within"], query["plus_minus"]
    wanted = f"{100 * within:g} % of the value" if within is not None else f"± {most:g}"
    return f"within {wanted}, with {100 * query['confidence']:g} % confidence per group"


def _persons(most: int | None) -> str:
    if most is None:
        return "one person with all their rows, in any number of groups"
    limit = "one group" if most == 1 else f"at most {most:,} groups"
    return f"one person with all their rows; a person counts in {limit}"
