"""Options of ``expost tune`` that describe a job without a TOML file.

Bounds are written LOW:HIGH, facts about a column COLUMN=…, lists with commas.

Tests: ``tests/cli/test_tune_rows.py``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from expost.cli.levels import parse_levels
from expost.errors import InvalidInput
from expost.tuning.missing_facts import NeededFacts

_PANEL = "A file of rows instead of a TOML file"


def option(help_text: str, *names: str) -> Any:
    """Return an option of the panel for files of rows."""
    return typer.Option(*names, help=help_text, rich_help_panel=_PANEL)


Target = Annotated[str | None, option("The column to predict.")]
AtLeast = Annotated[float | None, option("The bar: the least accuracy, or another metric.")]
AtMost = Annotated[float | None, option("The bar: the largest loss or error.")]
Maximize = Annotated[bool, option("Release the best model instead of one that passes a bar.")]
Metric = Annotated[
    str | None,
    option(
        "accuracy, balanced_accuracy, log_loss, auc, mae, mse, r2, or module:name or file.py:name "
        "of a function f(prediction, truth) of one row."
    ),
]
LossBound = Annotated[float | None, option("Clips the loss of a row.")]
ClassShares = Annotated[
    str | None, option("Public shares of the classes, 0.9,0.1, for a private balanced_accuracy.")
]
TargetVariance = Annotated[float | None, option("Public variance of the target, for r2.")]
MetricBounds = Annotated[
    str | None, option("Public range of a metric of your own, LOW:HIGH.", "--metric-bounds")
]
FeatureBounds = Annotated[str | None, option("Public bounds of all features, LOW:HIGH.")]
ColumnBounds = Annotated[
    list[str] | None, option("Public bounds of a column, age=0:120; repeatable.", "--bounds")
]
Categories = Annotated[
    list[str] | None, option("Public categories of a column, city=Bern,Zug; repeatable.")
]
Booleans = Annotated[
    list[str] | None,
    option("Columns of true and false, separated by commas; repeatable."),
]
Dates = Annotated[
    list[str] | None,
    option("First and last day of a column, born=1900-01-01:2026-12-31; repeatable."),
]
Texts = Annotated[
    list[str] | None, option("Columns of free text, separated by commas; repeatable.")
]
Shape = Annotated[str | None, option("Shape of a picture that is stored flat, 28x28 or 32x32x3.")]
Missing = Annotated[
    list[str] | None,
    option("What replaces a missing value, age=40, or age=indicator; repeatable."),
]
Features = Annotated[
    str | None,
    option(
        "The columns to use, separated by commas; by default all but the target. Or what linear "
        "models are trained on: auto (bins, logarithms, gradients of pictures) or plain (numbers "
        "scaled to ±1)."
    ),
]
Classes = Annotated[str | None, option("The number of classes, or the labels: no,yes.")]
TargetBounds = Annotated[str | None, option("Public bounds of a number to predict, LOW:HIGH.")]
Rows = Annotated[
    int | None,
    option("Public number of rows; the actual number then stays private (add-remove neighbours)."),
]
Holdout = Annotated[
    float | None,
    option("Share of the rows that score models and never train them; 0.2 by default."),
]
ModelName = Annotated[
    str | None,
    option("logistic, softmax, linear, cnn, or module:name or file.py:name of a torch module."),
]
InputShape = Annotated[
    str | None,
    option("Shape of one example for a torch module, 1,28,28; by default that of the array."),
]
Integers = Annotated[
    bool, option("Pass whole numbers such as token ids on without scaling.", "--integers")
]
Training = Annotated[
    str | None,
    option(
        "auto (the cheapest way first; the default of linear models), progressive (steps with all "
        "rows until the bar is passed), noise-reduction (least squares), or dp-sgd (over a grid)."
    ),
]
Epsilons = Annotated[str | None, option("Privacy levels: 0.5,1,2 or 0.5:2:0.5.")]
Delta = Annotated[float | None, option("δ of the whole job.")]
MaxEpsilon = Annotated[
    float | None, option("The most that the job may cost in all, whatever happens; 4 by default.")
]
Attempts = Annotated[int | None, option("The most attempts; planned if left out.")]
Confidence = Annotated[float | None, option('Of the statement "passed".')]


def bounds(text: str | None, name: str) -> list[float] | None:
    """Return LOW:HIGH as a pair."""
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise InvalidInput(name, text, "give LOW:HIGH, for example 0:120") from None
    return [low, high]


def by_column(texts: Sequence[str] | None, name: str, read: Callable[[str], Any]) -> Any:
    """Return facts COLUMN=… by column; None if there are none."""
    found: dict[str, Any] = {}
    for text in texts or ():
        column, sign, value = text.partition("=")
        if not (column and sign and value):
            raise InvalidInput(name, text, "give COLUMN=…, for example age=0:120")
        if column in found:
            raise InvalidInput(name, text, "this column was given before; give it once")
        found[column] = read(value)
    return found or None


def words(text: str | None) -> list[str] | None:
    """Return a list of texts that are separated by commas."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def feature_words(text: str | None) -> str | list[str] | None:
    """Return the columns to use, or the name of a map of rows."""
    return text if text in ("auto", "plain") else words(text)


def all_words(texts: Sequence[str] | None) -> list[str] | None:
    """Return the texts of a repeatable list, in which commas separate."""
    return None if not texts else [part for text in texts for part in words(text) or ()]


def classes_of(text: str | None) -> int | list[str] | None:
    """Return a number of classes, or labels."""
    return int(text) if text is not None and text.strip().isdecimal() else words(text)


def days(text: str) -> list[str]:
    """Return FIRST:LAST as a pair of days."""
    parts = text.split(":")
    if len(parts) != 2:
        raise InvalidInput("dates", text, "give FIRST:LAST, for example 1900-01-01:2026-12-31")
    return parts


def fill(text: str) -> float | str:
    """Return a fill value: a number, or a text such as "indicator"."""
    try:
        return float(text)
    except ValueError:
        return text


def whole_numbers(text: str | None) -> list[int] | None:
    """Return whole numbers that are separated by commas."""
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput("input_shape", text, "give whole numbers, for example 1,28,28") from None


def shares(text: str | None) -> list[float] | None:
    """Return shares that are separated by commas."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput("class_shares", text, "give shares, for example 0.9,0.1") from None


def levels(text: str | None) -> list[float] | None:
    """Return privacy levels."""
    return None if text is None else parse_levels(text)


def feature_bounds(everywhere: str | None, columns: Sequence[str] | None) -> Any:
    """Return the bounds of all features, or of each column."""
    named = by_column(columns, "bounds", lambda text: bounds(text, "bounds"))
    if everywhere is not None and named:
        raise InvalidInput(
            "feature_bounds", everywhere, "give --feature-bounds for all columns, or --bounds each"
        )
    return named or bounds(everywhere, "feature_bounds")


_BLANKS = {
    "feature_bounds": "--bounds {}=LOW:HIGH",
    "categories": "--categories {}=VALUE,VALUE",
    "booleans": "--booleans {}",
    "dates": "--dates {}=FIRST:LAST",
    None: "--bounds|--categories|--dates|--booleans {}=…",
}
_FORMS = """\
One option per column, by what it holds:
  numbers         --bounds COLUMN=0:120
  categories      --categories COLUMN=Bern,Zug  (all other values are "other")
  text            --texts COLUMN
  true and false  --booleans COLUMN
  dates           --dates COLUMN=1990-01-01:2029-12-31
  empty cells     --missing COLUMN=40 or COLUMN=indicator, besides
To leave columns out, list those to use: --features COLUMN,COLUMN"""


def as_options(missing: NeededFacts) -> str:
    """Return the options that give the facts that are missing, one per line."""
    asked = (
        (missing.target, "--target COLUMN"),
        (missing.target_bounds, "--target-bounds LOW:HIGH"),
        (missing.classes, "--classes LABEL,LABEL"),
        (missing.bounds, "--feature-bounds LOW:HIGH"),
    )
    lines = [f"  {text}" for wanted, text in asked if wanted]
    for name, kind in missing.columns.items():
        flag, _, value = _BLANKS[kind].partition(" ")
        lines.append(f"  {flag} {_quoted(value.format(name))}")
    return "\n".join([*lines, *([_FORMS] if missing.columns else ())])


def _quoted(text: str) -> str:
    """Return a word for a shell, in quotes only if its column name needs them."""
    return (
        text if shlex.quote(text.replace("…", "")) == text.replace("…", "") else shlex.quote(text)
    )
