"""What ``expost certificate`` shows of a tuning job: rows of a table, in words.

The rows are those of :mod:`expost.cli.certificate_words`.
Tests: ``tests/cli/test_certificate_words.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from expost.cli.certificate_words import (
    Document,
    Row,
    charge,
    ledger_words,
    method_words,
    protected_words,
    selector_row,
    settings_words,
    shown_name,
    signature_words,
    technical_rows,
)
from expost.cli.output import in_words
from expost.privacy.guarantees import Guarantee, guarantee_from_dict
from expost.rationals import charge_text
from expost.tuning.words import bar_words, bounds_words, score_words, value_words


def tuning_rows(
    document: Document, spent: Guarantee, worst: Guarantee, *, verbose: bool
) -> list[Row]:
    """Return the rows of a tuning job; the parameters are those of ``selection_rows``."""
    job: Document = document["tuning"]
    rows: list[Row] = [
        ("result", lambda: _result(document)),
        ("bar", lambda: _bar(job["goal"])),
        ("score", lambda: _shown(bounds_words(job))),
        ("noisy score", lambda: score_words(job)),
        (
            "privacy cost",
            lambda: f"{_pair(job['spent'])}: all attempts, training and scoring together",
        ),
        ("at most", lambda: f"{charge(worst)}: certain before the job began"),
        ("attempts", lambda: _attempts(job)),
        ("protects", lambda: protected_words(spent.neighbours, job["neighbours_in_words"])),
        ("data", lambda: _data(job["data"])),
        ("columns", lambda: "\n".join(_columns(job["data"])) or None),
        ("target", lambda: _target(job["data"])),
        ("rows", lambda: _rows(job)),
        ("model", lambda: _model(document, job, verbose)),
        ("features", lambda: _features(job)),
        ("method", lambda: method_words(document, verbose)),
        ("ledger", lambda: ledger_words(document)),
        ("date", lambda: _date(document, job)),
        ("signature", lambda: signature_words(document)),
        ("warnings", lambda: "\n".join(map(shown_name, job["warnings"])) or None),
    ]
    if verbose:
        rows += [
            *technical_rows(document),
            ("charge", lambda: f"{charge(spent)} ({spent.neighbours})"),
            ("converted at", lambda: _at_order(job)),
            ("noise calibrated by", lambda: shown_name(job.get("accountant") or "") or None),
            ("scoring", lambda: shown_name(job["scoring"])),
            ("requests", lambda: f"{len(document['requests']['grids'])} different grids"),
            selector_row(document),
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
    bar = shown_name(bar_words(goal))
    return bar if goal["bar"] is None else f"{bar}, with {100 * goal['confidence']:g} % confidence"


def _shown(text: str | None) -> str | None:
    return None if text is None else shown_name(text)


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
            said = shown_name(each["outcome"])
        else:
            said = {True: "passed", False: "missed", None: "done"}[each["passed"]]
        paid = charge(guarantee_from_dict(each["spent"])).removesuffix(", δ = 0")
        lines.append(f"{number}: {said}, {paid}")
    if job["budget_refused_another_attempt"]:
        lines.append("The budget refused another attempt.")
    return "\n".join(lines)


def _data(data: Document) -> str:
    name = data.get("path") or data.get("name")
    return "rows that were passed in Python" if name is None else shown_name(name)


def _columns(data: Document) -> list[str]:
    """One line per column: its kind, and its public bounds or categories."""
    bounds, gaps = data.get("bounds"), data.get("missing") or {}
    if bounds is not None and not isinstance(bounds, Mapping):
        pairs = bounds if isinstance(bounds[0], Sequence) else [bounds]
        lines = [f"number from {low:g} to {high:g}" for low, high in pairs]
        if len(lines) == 1:
            return [f"every column: {lines[0]}"]
        return [f"column {place}: {text}" for place, text in enumerate(lines)]
    kinds = {
        name: f"number from {low:g} to {high:g}" for name, (low, high) in (bounds or {}).items()
    }
    for name, (low, high) in (data.get("dates") or {}).items():
        kinds[name] = f"date from {low} to {high}"
    for name, values in (data.get("categories") or {}).items():
        kinds[name] = "one of " + ", ".join(map(str, values)) + "; all else is 'other'"
    kinds |= dict.fromkeys(data.get("booleans") or [], "true or false")
    kinds |= dict.fromkeys(data.get("texts") or [], "text, as hashed n-grams")
    if not isinstance(gaps, Mapping):
        gaps = dict.fromkeys(kinds, gaps)
    if not kinds:
        return [", ".join(map(shown_name, data.get("features") or []))]
    lines = []
    for name in data.get("features") or kinds:
        gap = gaps.get(name)
        filled = "" if gap is None else f"; an empty cell counts as {_gap(gap)}"
        lines.append(shown_name(f"{name}: {kinds.get(name, 'no facts')}{filled}"))
    return lines


def _gap(value: Any) -> str:
    return "'missing'" if value == "indicator" else value_words(value)


def _target(data: Document) -> str | None:
    name = "" if data.get("target") is None else f"{shown_name(data.get('target'))}, "
    if data.get("target_bounds") is not None:
        low, high = data["target_bounds"]
        return f"{name}number from {low:g} to {high:g}"
    classes = data.get("classes")
    if classes is None:
        return None
    if not isinstance(classes, list):
        return f"{name}{in_words(classes)} classes"
    return f"{name}{len(classes)} classes: {', '.join(map(shown_name, classes))}"


def _rows(job: Document) -> str:
    rows, data = job["rows"], job["data"]
    text = f"{rows['training']:,} for training, {rows['scoring']:,} for scoring"
    if data.get("public_test") is not None:
        text += f" (public rows of {shown_name(data.get('public_test'))}, not protected)"
    if data["rows"] is not None:
        return f"{text}; from the stated number {data['rows']:,}, the actual one is secret"
    return f"{text}; these numbers are public"


def _model(document: Document, job: Document, verbose: bool) -> str:
    kind, value = shown_name(job["model"]["kind"]), document["value"]
    if not isinstance(value, Mapping):
        return kind
    file = f", file {shown_name(value['model'])}" if isinstance(value.get("model"), str) else ""
    settings = f"; {settings_words(document['params'])}" if document["params"] else ""
    digest = shown_name(value.get("sha256", ""))
    shown = digest if verbose else digest[:12] + "…"
    return f"{kind}{file}{settings}" + (f"\nSHA-256 {shown}" if digest else "")


def _features(job: Document) -> str | None:
    features = job.get("features")
    return None if features is None else shown_name(features["in_words"])


def _date(document: Document, job: Document) -> str | None:
    """When the job began; older certificates have the date of their ledger entries only."""
    if job.get("date") is not None:
        return shown_name(job["date"])
    entries = document["ledger"]
    return shown_name(entries[0]["date"]) if entries else None


def _at_order(job: Document) -> str | None:
    order = job["converted_at_order"]
    return None if order is None else f"Rényi order {order:g}"
