"""What ``expost certificate`` shows: selections and counts as rows of a table, in words.

A row is a name and a function that makes its text from the document. A part of the document that
is damaged makes its row unreadable, and no other. Numbers are rounded against the reader's wishes:
charges up, and certified scores towards the bar. Tests: ``tests/cli/test_certificate_words.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from expost.tuning import words
from expost.tuning.words import METHODS, method_of, value_words

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
            text = visible(text)
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


def shown_name(value: object) -> str:
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


def settings_words(params: Document) -> str:
    """The settings of the winner; its privacy level is rounded up."""
    return shown_name(words.settings_words(params))


def protected_words(relation: str, words: object = None) -> str:
    """Who is protected: the neighbouring relation in words."""
    text = words if isinstance(words, str) else _RELATIONS[relation]
    said = f"one row ({shown_name(relation)}): {shown_name(text)}"
    return f"{said}. A person with several rows is protected less."


def signature_words(document: Document) -> str:
    """Whether the certificate is signed."""
    if document.get("signature") is None:
        return "none: whoever can write the file can change it"
    return "signed; expost certificate verify --key FILE checks by whom"


def ledger_words(document: Document) -> str:
    """The ledger entries that paid."""
    found = document.get("ledger")
    entries = [] if found is None else found if isinstance(found, list) else [found]
    if not entries:
        return "none: no ledger was charged"
    lines = []
    for each in entries:
        who = f" for {shown_name(each['analyst'])}" if each.get("analyst") else ""
        lines.append(
            f"budget {shown_name(each['budget'])}{who}, {shown_name(each['date'])}, "
            f"entry {shown_name(each['reservation'])}"
        )
    return "\n".join(lines)


def method_words(document: Document, verbose: bool) -> str:
    """How the winner was found."""
    name = method_of(document["selector"])
    return METHODS.get(name, shown_name(name)) + ("" if verbose else " (theorems: --verbose)")


def technical_rows(document: Document) -> list[Row]:
    """The rows of ``--verbose`` that every certificate has."""
    return [
        ("theorem", lambda: shown_name(document["theorem"])),
        (
            "written by",
            lambda: f"expost {shown_name(document['expost'])}, schema {document['schema']}",
        ),
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
        ("settings", lambda: settings_words(document["params"])),
        ("score", lambda: _score(document)),
        ("target reached", lambda: passed[document["passed"]]),
        *_costs(charge(spent), charge(worst)),
        ("protects", lambda: protected_words(spent.neighbours)),
        ("method", lambda: method_words(document, verbose)),
        ("ledger", lambda: ledger_words(document)),
        ("signature", lambda: signature_words(document)),
    ]
    return rows + ([*technical_rows(document), selector_row(document)] if verbose else [])


def _costs(spent: str, worst: str) -> list[Row]:
    return [
        ("privacy cost", lambda: f"{spent}: what this release costs, search included"),
        ("at most", lambda: f"{worst}: certain before anything ran"),
    ]


def selector_row(document: Document) -> Row:
    """The settings of the selector."""
    settings = document["selector"]
    return "selector", lambda: shown_name(
        in_words({key: each for key, each in settings.items() if each is not None})
    )


def _outcome(document: Document) -> str:
    if document["outcome"] == "nothing":
        return "nothing: no candidate was released"
    if document["outcome"] == "failed":
        return "the run that was chosen failed"
    return shown_name(in_words(document["value"]))


def _score(document: Document) -> str | None:
    """The score that was compared; of held-out rows it is a difference of counts, no score."""
    score = document["score"]
    if score is None or document["selector"].get("held_out") is not None:
        return None
    return f"{float(score):g}"


def count_rows(document: Document, *, verbose: bool) -> list[Row]:
    """Return the rows of counts, sums or means."""
    query, public = document["query"], document["public"]
    ((unit, spent),) = document["spent"].items()
    ((_, worst),) = document["worst_case"].items()
    symbol = _UNITS[unit]
    rows: list[Row] = [
        ("question", lambda: _question(query)),
        ("data", lambda: shown_name(document["source"])),
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
        ("ledger", lambda: ledger_words(document)),
        ("signature", lambda: signature_words(document)),
    ]
    if not verbose:
        return rows
    return [
        *rows,
        *technical_rows(document),
        ("charge", lambda: charge(guarantee_from_dict(document["charged"]))),
    ]


def _question(query: Document) -> str:
    measure = _MEASURES.get(query["kind"], shown_name(query["kind"]))
    text = f"number of {measure}" if query["column"] is None else f"{measure} of {query['column']}"
    if query["user"] is not None:
        text += f" (a person is a value of {query['user']})"
    if query["bounds"] is not None:
        low, high = query["bounds"]
        text += f", values from {value_words(low)} to {value_words(high)}"
    if query["by"]:
        text += f", by {', '.join(map(str, query['by']))}"
    if query["where"]:
        text += f", where {' and '.join(map(str, query['where']))}"
    return shown_name(text)


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
