"""What commands share: their options, and output (results to stdout, all else to stderr).

Screens of ``expost count`` are here, too: answers, what they cost, what caps removed, and plans.

With ``--json``, stdout holds exactly one JSON document: the result, or the error as
``{"error": {...}}`` with the keys ``kind`` (the name of the error), ``message`` (the one on
stderr), ``field`` (the option or setting, where one is known) and ``exit_code``. There is no such
document if a result was already printed. The exit codes of all commands are defined here.
Tests: ``tests/cli/`` (screens: ``test_count_cli.py``, ``test_count_screen.py``), ``tests/fuzz/``.
"""

from __future__ import annotations

import codecs
import inspect
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost.analytics import count_plan as plans
from expost.analytics.count_result import CountResult, number_text, table_of_answers, title_words
from expost.analytics.quantiles import QuantileResult
from expost.analytics.refinement import Answer
from expost.analytics.sql_result import QueryResult
from expost.certificates.document import person_words
from expost.errors import InvalidInput
from expost.facts.describe import Facts
from expost.privacy.charges import ShareCharges
from expost.rationals import charge_text

FAILURE = 1
"""A check failed: an audit found a violation, or a ledger is damaged."""
BAD_INPUT = 2
"""An argument, a file or a URL is not valid."""
BUDGET_REFUSES = 3
"""The budget refuses the request; nothing ran and nothing was charged."""
UNEXPECTED = 4
"""An unexpected error."""
MISSED_BAR = 5
"""The command finished, but the released result does not reach the goal."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 a check failed, 2 bad input, 3 the budget refuses, "
    "4 unexpected error, 5 finished but the goal was missed."
)

_DEEPEST = 4  # levels of nesting that a table shows

# Without emoji and markup, ":a:" and "[data]" in a text are shown as they are.
notes = Console(stderr=True, emoji=False, markup=False)

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Also show settings, method and intermediate numbers.")
]

Source = Annotated[
    str,
    typer.Argument(
        help="A CSV, TSV, JSON-lines or Parquet file, a folder or glob of them, a DuckDB or "
        "SQLite file, or a connection URL (duckdb://, postgresql://, pyspark://)."
    ),
]
LedgerName = Annotated[str | None, typer.Option(help="Charge this ledger.")]
BudgetName = Annotated[str | None, typer.Option(help="Budget of the ledger.")]
Analyst = Annotated[str, typer.Option(help="The analyst, for caps per analyst.")]
CertificateFile = Annotated[
    Path | None, typer.Option(help="Write a certificate (JSON) to this file.")
]
Plot = Annotated[Path | None, typer.Option(help="Write a figure.")]

_PLAIN = {"ε": "epsilon", "δ": "delta", "ρ": "rho", "α": "alpha", "≥": ">=", "≤": "<="}
_PLAIN |= {"±": "+/-", "–": "-", "−": "-", "…": "...", "′": "'", "’": "'", "“": '"', "”": '"'}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Spell characters that a stream cannot encode; others become escapes such as \\u2713."""
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    text = "".join(_PLAIN.get(letter) or ascii(letter)[1:-1] for letter in letters)
    return text, error.end


codecs.register_error("expost.plain", _plain)


def accept_any_text() -> None:
    """Make stdout and stderr accept every text: what is printed may already be paid for."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="expost.plain")


def as_json_text(document: object, indent: int | None = 2) -> str:
    """Return JSON that stdout can encode."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(document, indent=indent, allow_nan=False, ensure_ascii=not unicode)
    return as_text(text)


def as_text(text: str) -> str:
    """Escape lone surrogates, which UTF-8 streams reject. JSON reads the escapes back."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def visible(text: object) -> str:
    """Escape characters that would move the cursor or change colours in a terminal.

    Use it for every text that comes from a file or a database.
    """
    letters = (
        character
        if character.isprintable() or character == "\n"
        else character.encode("unicode_escape").decode("ascii")
        for character in str(text)
    )
    return "".join(letters)


def value_in_words(value: object, depth: int = 0) -> str:
    """A value as text for people: names and values instead of Python's notation."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (dict, list, tuple)):
        return str(value)
    if depth == _DEEPEST:
        return "…"
    if isinstance(value, dict):
        text = ", ".join(
            f"{key} = {value_in_words(member, depth + 1)}" for key, member in value.items()
        )
        return f"({text})" if depth else text or "–"
    return "[" + ", ".join(value_in_words(member, depth + 1) for member in value) + "]"


def show(document: dict[str, Any], *, as_json: bool, render: Callable[[Console], None]) -> None:
    """Print a result, either as JSON or by calling ``render`` on a console."""
    if as_json:
        note_result()
        typer.echo(as_json_text(document))
    else:
        render(Console(emoji=False, markup=False))


def plural(number: int, noun: str) -> str:
    """Return a number and its noun: 1 row, 2 rows."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def shown_up(amount: float, digits: int = 3) -> str:
    """Return a charge for display, rounded up: what is shown is never below what was paid."""
    scale = 10**digits  # the shortest decimal of a float, so that 0.1 does not become 0.101
    return f"{math.ceil(Fraction(repr(float(amount))) * scale) / scale:.{digits}f}"


@dataclass
class _Printed:
    """What this process printed, and the last error."""

    printed: bool = False
    error: dict[str, Any] | None = None


_state = _Printed()


def begin_command() -> None:
    """Forget what an earlier command of this process did."""
    _state.printed, _state.error = False, None


def note_result() -> None:
    """Note that a result is on stdout."""
    _state.printed = True


def note_error(kind: str, message: str, field: str | None = None) -> None:
    """Note an error, for the document."""
    _state.error = {"kind": kind, "message": message, "field": field}


@contextmanager
def noted_mistakes() -> Iterator[None]:
    """Note mistakes in options, which the option parser shows itself."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):
            parameter = getattr(getattr(error, "param", None), "name", None)
            note_error("UsageError", str(error.format_message()), parameter)
        raise


def show_error(code: object) -> None:
    """Print the document if ``--json`` was given, the command failed, and no result is there."""
    options = sys.argv[1:]
    options = options[: options.index("--")] if "--" in options else options
    if "--json" not in options or _state.printed or not code:
        return
    _state.printed = True
    error = _state.error or {"kind": "Stopped", "message": "the command was stopped", "field": None}
    typer.echo(json.dumps({"error": error | {"exit_code": code}}, indent=2))


Command = Callable[..., None]
_EMPTY = inspect.Parameter.empty


def request_option(
    name: str, hint: Any, help_text: str, *, required: bool = False, panel: str | None = None
) -> inspect.Parameter:
    """Return the option ``--name`` of a type; one that is not required is None if not given."""
    option = typer.Option(f"--{name.replace('_', '-')}", help=help_text, rich_help_panel=panel)
    annotation = hint if required or hint is bool else hint | None
    default: Any = False if hint is bool else None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=_EMPTY if required else default,
        annotation=Annotated[annotation, option],
    )


def with_options(options: Sequence[inspect.Parameter]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command these options instead of its ``**options``."""

    def decorate(command: Command) -> Command:
        own = list(inspect.signature(command, eval_str=True).parameters.values())
        kept = [option for option in own if option.kind is not inspect.Parameter.VAR_KEYWORD]
        kept = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept]
        signature = inspect.Signature([*kept[:1], *options, *kept[1:]])
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {}  # typer would evaluate those of the command
        return command

    return decorate


Question = StrEnum("Question", ["tune", "count"])


def schema(
    question: Annotated[Question, typer.Argument(help="The question: tune or count.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the schema to this file, else to stdout.")
    ] = None,
) -> None:
    """Write the JSON Schema of a job file, or of a count, for editors and other programs."""
    from expost.analytics.request import count_schema
    from expost.tuning.request.tune_request import job_schema

    text = as_json_text(job_schema() if question.value == "tune" else count_schema())
    if out is None:
        typer.echo(text)
        return
    if out.exists():
        raise InvalidInput("out", str(out), "the file exists already; give another name")
    out.write_text(text + "\n", encoding="utf-8")
    notes.print(f"schema: {out}")


Answers = CountResult | QueryResult | QuantileResult
_SHOWN = 40
NOTHING_FOUND = (
    "No group has enough persons to be found. A larger --epsilon or --delta finds smaller groups; "
    "a public list of groups (--keys FILE) needs no search."
)
_VAGUE = 0.5  # a share whose interval is wider says nothing
_SURER = 0.99  # a confidence that the screen tells the price of
_UNITS = {"epsilon": "ε", "rho": "ρ"}
_ASKED_BEFORE = "Asked before: this is the answer that was paid for; nothing is charged now."
_SHARES = {"pairs": "(user, group) pairs", "rows": "the rows", "amount": "the amount"}


def earlier_words(result: Answers) -> str | None:
    """Return what an earlier question has paid for this one; None for nothing."""
    if result.asked_before:
        return _ASKED_BEFORE
    if not (paid := result.public.get("paid_before")):
        return None
    drawn = isinstance(result, QueryResult) and result.within_rank is not None
    return (
        f"Continues an earlier question, which paid ε = {shown_up(paid)}; only the difference is "
        f"charged now{', and quantiles in full: their draws are new' if drawn else ''}."
    )


def render_result(console: Console, result: CountResult, verbose: bool = False) -> None:
    """Print all groups, what they cost, and what that means for a person."""
    title = title_words(result) + _caps_in_title(result.dropped_share)
    if not result.answers and not result.unanswered:
        console.print(NOTHING_FOUND, highlight=False)
    else:
        render_answers(
            console,
            result.query,
            result.answers,
            title,
            interval=f"{result.confidence:.0%} interval",
            unit=_UNITS[result.unit],
            unanswered=_shown(result),
        )
    if result.unanswered:
        console.print(_about_unanswered(result), highlight=False)
    elif (surer := about_surer_answers(result)) is not None:
        console.print(surer, highlight=False)
    if result.answers and result.query["by"] and groups_found(result):
        console.print("Groups with too few persons to be found are not listed.")
    if result.dropped_share is not None:
        console.print(_about_dropped(result, result.dropped_share), highlight=False)
    render_cost(console, result, verbose)


def _shown(result: CountResult) -> Sequence[Answer]:
    """The groups without an answer that are shown: below a top list those that were looked at."""
    top = bool(result.answers and result.query.get("top"))
    return [row for row in result.unanswered if not (top and math.isnan(row.estimate))]


def groups_found(result: CountResult) -> bool:
    """Whether the groups were found privately, or bought as facts, instead of listed."""
    bought = result.facts is not None and set(result.query["by"] or ()) <= set(result.facts)
    return bought or result.public["keys"] != "listed"


def render_cost(console: Console, result: Answers, verbose: bool) -> None:
    """Print what was charged, and what that means for a person."""
    console.print(_about_spent(result), highlight=False)
    if isinstance(result, CountResult) and result.facts is not None:
        console.print(_facts_charge(result, result.facts), highlight=False)
    console.print(f"Meaning: {_meaning(result)}.", highlight=False)
    if verbose:
        console.print(_about_guarantee(result), highlight=False)


def _about_unanswered(result: CountResult) -> str:
    """Why groups may have no answer; says nothing about rows."""
    bias = (result.dropped_share or {}).get("bias", 0.0)
    share: Mapping[str, Any] = result.dropped_share or {}
    if result.within is not None and bias >= result.within and share.get("of") == "pairs":
        return (
            f"No group is called within {result.within:.0%}: the cap on groups per person may have "
            "moved counts by more. Give a larger --max-groups-per-user (or auto), a larger "
            "--within or --epsilon; --one-row-per-user if everybody has one row."
        )
    if result.within is not None and "in_all_groups" in share and bias >= 0.9 * result.within:
        return (
            f"No group is called within {result.within:.0%}: the budget does not tell well enough "
            f"what the cap removed ({share['low']:.1%} – {share['high']:.1%}). Values, where they "
            "are told, are corrected by the estimate; their intervals leave its error out. A "
            "larger --epsilon or --within answers more, or caps that you state."
        )
    if result.within is not None and bias >= result.within:
        return (
            f"No group is answered within {result.within:.0%}, because the caps alone remove more "
            "than that. Each was estimated only once. Give a larger --max-rows-per-user or "
            "--max-groups-per-user, wider --bounds, or a larger --within."
        )
    if result.query.get("top"):
        return (
            "The other groups are not among them; intervals hold where a group was looked at."
            if result.answers
            else "The list is not known for this budget. A larger --epsilon may find it."
        )
    text = (
        "Groups that are not answered are too small for this budget and this error; their "
        "intervals still hold. A larger --within or --epsilon answers more."
    )
    if result.query["kind"] in ("sum", "mean"):
        text += " Values that are not numbers are ignored."
    if result.public["keys"] == "listed" and result.query["by"]:
        text += " Names of groups are compared letter by letter: capitals and spaces matter."
    return text


def about_surer_answers(result: CountResult) -> str | None:
    """What a higher confidence would cost, where all groups are answered and ε is left for it."""
    groups, miss = len(result.answers), 1 - result.confidence
    goal = result.query.get("top") or result.query.get("answered")
    if result.within is None or goal or groups * miss < 1 or miss <= 1 - _SURER:
        return None
    factor = math.log(1 - _SURER) / math.log(miss)
    if result.public["noise"] == "gaussian":
        normal = NormalDist()
        factor = (normal.inv_cdf((1 + _SURER) / 2) / normal.inv_cdf(1 - miss / 2)) ** 2
    if (cost := factor * result.spent) > result.public["total"]:
        return None
    return (
        f"All {groups} groups are answered. Each answer holds with {result.confidence:.0%} "
        f"confidence: up to about {groups * miss:.0f} of them may be off by more than "
        f"{result.within:.0%}. --confidence {_SURER} makes that {groups * (1 - _SURER):.2g}, "
        f"for about {_UNITS[result.unit]} = {cost:.2g} in all."
    )


def _about_spent(result: Answers) -> str:
    """What was charged, and what becomes of the rest."""
    unit, spent = _UNITS[result.unit], shown_up(result.spent, 5)
    total = f"{result.public['total']:.4g}"
    if result.unit == "rho":
        total += f" (zCDP; the most that {_before(result)} allows)"
    if result.ledger is not None and not isinstance(result.charges, ShareCharges):
        rest = f" The ledger is charged the whole {_before(result)}: one δ covers all outcomes."
    elif result.remaining <= 1e-9 * result.public["total"]:  # what rounding leaves
        rest = ""
    elif result.ledger is not None:
        rest = f" The other {result.remaining:.2g} is returned to the budget."
    else:
        rest = f" The other {result.remaining:.2g} was not used."
    return f"Charge: {unit} = {spent} of {total}.{rest}"


def _before(result: Answers) -> str:
    """The ε and δ that were guaranteed before any row was read."""
    facts = result.guarantee.as_dict()
    delta = f", δ = {charge_text(facts['delta'])}" if "delta" in facts else ""
    return f"ε = {charge_text(facts['epsilon'])}{delta}"


def _meaning(result: Answers) -> str:
    """What the charge means for a person; ρ has no ε of its own, so that of the whole request."""
    before = result.guarantee.as_dict()
    pure = result.unit == "epsilon" and not before.get("delta")
    epsilon, delta = result.spent if pure else before["epsilon"], before.get("delta", 0.0)
    if isinstance(result, CountResult) and result.facts is not None:
        epsilon, delta = epsilon + result.facts.epsilon, delta + result.facts.delta
    return person_words(epsilon, delta)


def _facts_charge(result: CountResult, facts: Facts) -> str:
    """What the answers and the facts that were bought for them cost together."""

    def together(amount: float) -> str:
        """The sum as the decimals that are shown: 0.8 and 0.2 are 1, not 1.001."""
        parts = (amount, facts.epsilon)
        return shown_up(float(sum(Fraction(repr(float(part))) for part in parts)))

    before = result.guarantee.as_dict()
    delta = before.get("delta", 0.0)
    most = f"ε = {together(before['epsilon'])}"
    text = f"Facts: ε = {shown_up(facts.epsilon)} in addition. "
    total = f"δ = {charge_text(delta + facts.delta)}"
    if result.unit == "epsilon" and not delta:
        return f"{text}Total: ε = {together(result.spent)}, {total}; at most {most} was possible."
    return f"{text}Total: at most {most}, {total}."


def _about_guarantee(result: Answers) -> str:
    """What was guaranteed beforehand, and for whom."""
    unit, spent = _UNITS[result.unit], shown_up(result.spent, 5)
    return (
        f"Before the data were read, at most {_before(result)} was guaranteed for any result; "
        f"{unit} = {spent} is the privacy loss of the result above. Protected: {result.protects}."
    )


def _caps_in_title(share: Mapping[str, Any] | None) -> str:
    """What the caps remove from rows, sums and means, for the headline."""
    if share is None or share["of"] == "pairs":
        return ""
    if share["high"] - share["low"] > _VAGUE:
        return "; how much the caps remove is unknown"
    return f"; the caps remove at least about {share['estimate']:.1%} of {_SHARES[share['of']]}"


def _about_dropped(result: CountResult, share: Mapping[str, Any]) -> str:
    """How much the caps dropped, if the budget is large enough to say."""
    rows, what = result.public["max_rows_per_user"], _SHARES[share["of"]]
    caps = "" if rows is None else f" of {rows:,} row{'s' * (rows != 1)} per user and group"
    if (amount := result.public["max_amount_per_user"]) is not None:
        caps = f" of {amount:,.6g} per user and group"
    if "in_all_groups" in share:
        caps = caps.replace("per user and group", "per user in all groups together")
    if caps and result.public["rows_chosen_privately"]:
        caps += " (chosen privately)"
    whole = share["of"] == "pairs" or "in_all_groups" in share
    least = "" if whole else "at least "  # a user counts with a limit
    if share["high"] - share["low"] > _VAGUE:
        return (
            f"The budget is too small to say how much of {what} the cap{caps} dropped; "
            "intervals are for the capped values. If everybody has one row, --one-row-per-user "
            "saves this estimate."
        )
    text = (
        f"The cap{caps} dropped {least}about {share['estimate']:.1%} of {what} "
        f"({share['low']:.1%} – {share['high']:.1%}); intervals are for the capped values."
    )
    if share.get("corrected"):
        what = "counts" if share["of"] == "pairs" else "values"
        text = text.replace("intervals are for the capped values", f"{what} are corrected for that")
    if share["of"] == "amount":
        text += " The amount includes what the bounds clip."
    if result.within is not None and (share.get("bias") or share.get("shift")):
        text += f" What the caps change is counted against the {result.within:.0%}."
    return text


def render_answers(
    console: Console,
    asked: Mapping[str, Any],
    answers: Sequence[Answer],
    title: str = "answers so far",
    *,
    interval: str = "interval",
    unit: str = "",
    unanswered: Sequence[Answer] = (),
) -> None:
    """Print a table of answers, then of groups without one."""
    released = table_of_answers(asked, answers, unanswered)
    table = Table(title=title, title_justify="left")
    keys = len(released.keys)
    headings = [*released.keys, "estimate", interval, f"charge ({unit})" if unit else "charge"]
    for index, heading in enumerate(headings + ["answered"] * bool(unanswered)):
        table.add_column(
            Text(visible(heading)), justify="left" if index < keys else "right", overflow="fold"
        )
    rows = released.rows()
    for row in rows[:_SHOWN]:
        names, (estimate, low, high, spent, answered) = row[:keys], row[keys:]
        between = "–" if estimate is None else f"{number_text(low)} – {number_text(high)}"
        facts = [number_text(estimate), between, charge_text(spent, 4)]
        facts += [("no", "yes")[bool(answered)]] if unanswered else []
        table.add_row(*(Text(visible(name)) for name in names), *facts)
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"… and {len(rows) - _SHOWN:,} more (--out or --json for all).")


def render_plan(console: Console, planned: plans.QueryPlan) -> None:
    """Print what groups of some sizes would cost."""
    unit = _UNITS[planned.unit]
    table = Table(title="What a group costs, by its size", title_justify="left")
    for heading in ("users in the group", f"{unit} it needs", "such groups that can be answered"):
        table.add_column(heading, justify="right")
    for planned_size in planned.sizes:
        cost = "more than there is" if planned_size.cost is None else f"{planned_size.cost:.3g}"
        groups = "all" if planned_size.groups is None else f"{planned_size.groups:,}"
        table.add_row(f"{planned_size.size:,}", cost, groups)
    console.print(table)
    most = planned.max_groups_per_user
    how = " (assumed; it will be chosen privately)" if planned.assumed else ""
    size = math.ceil(planned.smallest)
    share = (
        f"With at most {most:,} groups per user{how} every group can have {unit} = "
        f"{planned.for_values / most:.3g}: enough for "
        + (f"{size:,} users or more." if size else "a group of any size.")
        if most < plans.MANY_GROUPS
        else "Every group is charged. If a person is in few groups, --max-groups-per-user M "
        "charges only the M most expensive ones; --keys FILE says how many groups there are."
    )
    console.print(
        f"Total {unit} = {planned.total:.4g}, of which {planned.for_values:.4g} for the answers. "
        + share
    )
    if planned.assumed_rows is not None:
        console.print(
            f"Rows per user and group will be chosen privately; {planned.assumed_rows} are assumed."
        )
    if planned.threshold is not None:
        console.print(f"Groups are found privately from about {planned.threshold:,} users on.")
