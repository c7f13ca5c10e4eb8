"""A tuning job in words: what every screen, certificate and report says about its record.

The functions take the record of a job, ``document["tuning"]`` of its certificate, so all doors say
the same. Values are in the metric's own direction. Charges are rounded up, certified bounds towards
the worse side; a noisy score beyond the metric's range is shown as the end of the range.

Tests: ``tests/cli/test_every_word.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

from expost.rationals import charge_text

Record = Mapping[str, Any]

METHODS = {
    "above-threshold": "a search over settings, each kept or dropped at random, that stops at the "
    "first model whose noisy score passes",
    "random-dropping": "the best of candidates that were each kept or dropped at random; a cheaper "
    "winner costs less",
    "repeat-and-select": "the best of a random number of runs",
    "doubling": "attempts with twice the budget each time, until one passes",
    "noise-reduction": "one noisy value whose noise is reduced step by step; the last step is paid",
    "noise-path": "one training whose noise is reduced step by step until the score passes; the "
    "last step is paid",
    "progressive": "one training with all rows, continued until the score passes; the steps that "
    "were made are paid",
}
"""Selectors in words, by what :func:`method_of` returns."""


def method_of(selector: Record) -> str:
    """Return how a selector works: its name, or "progressive" if its path is such a training."""
    progressive = selector.get("training") == "progressive"
    return "progressive" if progressive else str(selector.get("name"))


def certified_words(goal: Record) -> str:
    """Return what the score is: the metric's name and the public numbers that define it."""
    return str(goal.get("certified") or goal["metric"])


def side_words(goal: Record) -> str:
    """Return on which side of the bar a good value lies."""
    return "at least" if goal["larger_is_better"] else "at most"


def bar_words(goal: Record) -> str:
    """Return the bar as a formula."""
    if goal["bar"] is None:
        return f"none: the best {certified_words(goal)} was wanted"
    sign = "≥" if goal["larger_is_better"] else "≤"
    return f"{certified_words(goal)} {sign} {goal['bar']:g}"


def bound_text(value: float, larger: bool) -> str:
    """Return a certified bound with four digits, rounded so that it stays true."""
    rounding = ROUND_FLOOR if larger else ROUND_CEILING
    return f"{float(Context(prec=4, rounding=rounding).create_decimal(repr(float(value)))):.4g}"


def bounds_words(job: Record) -> str | None:
    """Return the certified bounds and their confidence; None without them."""
    bounds, goal = job["confidence"], job["goal"]
    if bounds is None:
        return None
    side, larger = side_words(goal), goal["larger_is_better"]
    scored = bound_text(_within(bounds["bound_on_scoring_rows"], goal), larger)
    text = f"{side} {scored} on the scoring rows"
    if bounds["bound_on_population"] is not None:
        new = bound_text(_within(bounds["bound_on_population"], goal), larger)
        text += f", {side} {new} on new rows of the same population"
    text += f" ({100 * bounds['confidence']:g} % confidence each)"
    asked = goal["confidence"]
    if bounds["confidence"] > asked:
        text += (
            f"; {100 * asked:g} % holds for the whole job, whose ways of training share the other "
            f"{100 * (1 - asked):g} %"
        )
    if bounds["bound_on_population"] is None and bounds.get("why_no_bound_on_population"):
        text += f"; no bound for new rows: {bounds['why_no_bound_on_population']}"
    return text


def score_words(job: Record) -> str | None:
    """Return the noisy score, within the metric's range, and its noise; None without a score."""
    bounds, noise, goal = job["confidence"], job["score_noise"], job["goal"]
    sign = 1 if goal["larger_is_better"] else -1
    shown = [each["score"] for each in job["attempts"] if each.get("score") is not None]
    score = bounds["noisy_score"] if bounds is not None else sign * shown[-1] if shown else None
    if score is None:
        return None
    spread = f" ± {noise:.3g} (standard deviation of its noise)" if noise else ""
    return f"{_within(score, goal):.4g}{spread}"


def value_words(value: Any) -> str:
    """Return a setting as text: any value that a grid may hold."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} = {value_words(each)}" for key, each in value.items()) + ")"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(value_words(each) for each in value) + "]"
    return "–" if value is None else str(value)


def settings_words(params: Record) -> str:
    """Return the settings of the winner; its privacy level is rounded up."""
    return (
        ", ".join(
            f"{name} = {charge_text(value) if name == 'epsilon' else value_words(value)}"
            for name, value in params.items()
        )
        or "–"
    )


def training_words(document: Record) -> str:
    """Return how the models of a job were trained, for each kind of request that was made."""
    made = [each for each in document["requests"]["made"] if each is not None] or [document]
    methods = {method_of(each["selector"]) for each in made}
    entropy = "drawn from the operating system's entropy"
    parts = []
    if "progressive" in methods:
        parts.append(
            "A linear model was trained progressively: by steps with all training rows and less "
            f"noise from step to step, {entropy}, until the score passed or the last step was made."
        )
    if "noise-path" in methods:
        parts.append(
            f"A linear model was computed from the training rows, with noise {entropy}, and the "
            "noise was reduced step by step until the score passed or the last step was reached."
        )
    if methods - {"progressive", "noise-path"}:
        parts.append(
            f"Models were trained by DP-SGD, with noise {entropy}, and chosen by random dropping. "
            "Losing models were never released."
        )
    return " ".join(parts)


def _within(value: float, goal: Record) -> float:
    """Return a value no further than the ends of the metric's range, if the record states it."""
    low, high = goal.get("range") or (value, value)
    return float(min(max(value, low), high))
