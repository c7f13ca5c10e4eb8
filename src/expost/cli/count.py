"""``expost count``: counts, sums and means per group, each to the accuracy you need.

The options are derived from :class:`.CountRequest` (:func:`with_request_options`).
Tests: ``tests/cli/test_count_cli.py``, ``tests/cli/test_count_inputs.py``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from expost import plots
from expost.analytics import count_plan as plans
from expost.analytics import query
from expost.analytics.learned_facts import facts_delta
from expost.analytics.query import CountResult
from expost.analytics.refinement import Answer
from expost.analytics.request import CountRequest, request_settings
from expost.budget.ledger import Ledger
from expost.cli.describe import show_plan
from expost.cli.output import Json, note_error, notes, show, shown_up, visible
from expost.cli.request_options import request_option, with_options
from expost.errors import InvalidInput
from expost.facts.describe import plan as facts_plan
from expost.files import read_small
from expost.privacy.charges import ShareCharges
from expost.privacy.dpsgd import gaussian_for
from expost.rationals import charge_text

INTERRUPTED = 130
_SHOWN = 40
_VAGUE = 0.5  # a share whose interval is wider says nothing
_UNITS = {"epsilon": "ε", "rho": "ρ"}
_SHARES = {"pairs": "(user, group) pairs", "rows": "rows", "amount": "the amount"}
_BOUNDS = "--bounds"
_MANY_ROWS = (
    "note: a person counts with up to 10 rows in a group, so the noise is made for 10 rows. If "
    "nobody has more than R rows in a group, --max-rows-per-user R costs less (auto chooses R "
    "privately); if everybody has one row in the table, --one-row-per-user does."
)
_CAPS = {"max_groups_per_user": ("auto", "none"), "max_rows_per_user": ("auto",)}
# Types on the command line, where they differ: lists are repeated, keys and sizes are files.
_TYPES: dict[str, Any] = {
    "bounds": tuple[float, float] | None,
    "grid": float | None,
    **dict.fromkeys(("by", "where"), list[str] | None),
    **dict.fromkeys(("keys", "prior"), Path | None),
    **dict.fromkeys(
        ("max_groups_per_user", "max_rows_per_user", "group_order", "rule"), str | None
    ),
}


def with_request_options(
    *, required: Sequence[str] = (), analysts: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of a request instead of ``**options``.

    With ``analysts`` only those that an analyst may set at a server. ``kind`` and ``column`` are
    written as ``--sum COLUMN`` and ``--mean COLUMN``.
    """
    return with_options(
        [
            request_option(name, _TYPES.get(name, hint), setting.help, required=name in required)
            for name, (hint, setting) in request_settings(CountRequest).items()
            if name not in ("kind", "column") and (setting.analysts or not analysts)
        ]
    )


def request_of_options(
    options: dict[str, Any], sum_column: str | None, mean_column: str | None
) -> dict[str, Any]:
    """Return the request that options of the command line mean; reads the files of keys."""
    asked = {
        name: value
        for name, value in options.items()
        if value is not None and value is not False  # 0 is a value
    }
    chosen = [
        name
        for name, given in (
            ("count-rows", "count_rows" in asked),
            ("sum", sum_column is not None),
            ("mean", mean_column is not None),
        )
        if given
    ]
    if len(chosen) > 1:
        raise InvalidInput("--" + chosen[1], "with --" + chosen[0], "ask for one of them")
    asked["kind"] = chosen[0] if chosen in (["sum"], ["mean"]) else "count"
    if asked["kind"] != "count":
        asked["column"] = sum_column or mean_column
    for name, words in (
        ("max_groups_per_user", ("auto", "none")),
        ("max_rows_per_user", ("auto",)),
    ):
        if name in asked:
            asked[name] = parse_cap(name, asked[name], *words)
    if "keys" in asked:
        asked["keys"] = read_keys(asked["keys"], asked.get("by", ()))
    if "prior" in asked:
        asked["prior"] = read_prior(asked["prior"])
    return asked


SumColumn = Annotated[str | None, typer.Option("--sum", help="Sum this column.")]
MeanColumn = Annotated[str | None, typer.Option("--mean", help="Average this column.")]


@with_request_options(required=("epsilon", "user"))
def count_command(
    source: Annotated[
        str,
        typer.Argument(
            help="A CSV, TSV, JSON-lines or Parquet file, a folder or glob of them, a DuckDB or "
            "SQLite file, or a connection URL (duckdb://, postgresql://, pyspark://)."
        ),
    ],
    sum_column: SumColumn = None,
    mean_column: MeanColumn = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what groups would cost; reads no data.")
    ] = False,
    ledger: Annotated[str | None, typer.Option(help="Charge this ledger.")] = None,
    budget: Annotated[str | None, typer.Option(help="Budget of the ledger.")] = None,
    analyst: Annotated[str, typer.Option(help="Who asks; for caps.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write answers to this CSV as they are released.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Write a certificate (JSON) to this file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a figure.")] = None,
    learn_facts: Annotated[
        float | None,
        typer.Option(
            help="Buy the bounds or the groups that are not given for this ε, a part of --epsilon."
        ),
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Answers per group, each within the wanted error, as many groups as the budget allows."""
    if plot is not None:
        plots.check_path(plot)
    check_files(out, certificate)
    request = request_of_options(options, sum_column, mean_column)
    if request["kind"] != "count" and "bounds" not in request and learn_facts is None:
        raise InvalidInput(
            "bounds",
            None,
            f"--{request['kind']} needs public bounds: --bounds LOW:HIGH, or buy them privately: "
            "--learn-facts 0.05",
        )
    if learn_facts is not None:
        request["learn_facts"] = learn_facts
    if plan:
        _show_plan(request, plot, as_json)
        return
    if ledger is None and (budget is not None or analyst):
        raise InvalidInput(
            "ledger", None, "a budget and an analyst belong to a ledger: give --ledger too"
        )
    usual_rows = "max_rows_per_user" not in request and "one_row_per_user" not in request
    if request.get("count_rows") and usual_rows and not as_json:
        notes.print(_MANY_ROWS, highlight=False)
    run = _Run(out, _total(request["epsilon"], request.get("delta")))
    request |= {"memo": f"expost {request['kind']}", "budget": budget, "analyst": analyst}
    request["ledger"] = None if ledger is None else Ledger.open(ledger)
    result = run.ask(source, request, as_json)
    _finish(result, certificate, plot, as_json, run.failure)


def _finish(
    result: CountResult,
    certificate: Path | None,
    plot: Path | None,
    as_json: bool,
    failure: OSError | None,
) -> None:
    """Show the answers first: they are paid for, whatever becomes of the files."""
    for warning in result.warnings:
        notes.print(f"warning: {warning}", highlight=False, soft_wrap=True)
    show(
        result.as_dict(),
        as_json=as_json,
        render=lambda console: render_result(console, result),
    )
    if result.facts is not None and result.total is not None:
        notes.print(
            f"Facts cost ε = {shown_up(result.facts.epsilon)}; with them all of this is "
            f"({shown_up(result.total.epsilon)}, {result.total.delta:g})-DP.",
            highlight=False,
        )
    if certificate is not None:
        result.save(certificate)
        notes.print(f"certificate: {certificate}")
    if plot is not None:
        plots.draw_counts(result, plot)
        notes.print(f"figure: {plot}")
    if failure is not None:
        raise failure


def _show_plan(request: dict[str, Any], plot: Path | None, as_json: bool) -> None:
    bought = request.pop("learn_facts", None)
    lacks = [request["kind"] != "count" and "bounds" not in request]
    lacks.append("by" in request and "keys" not in request and "private_keys" not in request)
    if bought is not None and any(lacks):
        delta = facts_delta(request.get("delta"))
        facts = facts_plan(bought, delta, sum(lacks))
        show({"facts": facts}, as_json=as_json, render=partial(show_plan, planned=facts))
        return
    groups = len(request["keys"]) if "keys" in request else None
    planned = plans.plan_count(groups=groups, **request)
    show(
        planned.as_dict(),
        as_json=as_json,
        render=lambda console: render_plan(console, planned),
    )
    if plot is not None:
        plans.draw_plan(planned, plot)
        notes.print(f"figure: {plot}")


def check_files(out: Path | None, certificate: Path | None) -> None:
    """Refuse to write over a file, or into a folder that does not exist."""
    for name, path in (("out", out), ("certificate", certificate)):
        if path is None:
            continue
        if path.exists():
            raise InvalidInput(
                name, str(path), "the file exists already; name another, so that nothing is lost"
            )
        if not path.resolve().parent.is_dir():
            raise InvalidInput(name, str(path), "the folder does not exist")


class _Run:
    """One request from the command line: progress, the file of answers, Ctrl-C."""

    def __init__(self, out: Path | None, total: float) -> None:
        self._out, self._total = out, total
        self._answers: list[Answer] = []
        self.failure: OSError | None = None  # of the file of answers; they are shown all the same

    def ask(self, source: str, request: dict[str, Any], as_json: bool) -> CountResult:
        """Run the request; answers go to the file before the ledger is settled."""
        out = self._out
        stream = None if out is None else out.open("x", encoding="utf-8", newline="")
        writer = None if stream is None else _Writer(stream)
        try:
            with _progress() as progress:
                task = progress.add_task("budget", total=1.0, answers=0)

                def released(answer: Answer, spent: float) -> None:
                    self._answers.append(answer)
                    self._write(writer, answer, answered=True)
                    share = min(1.0, spent / self._total)
                    progress.update(task, completed=share, answers=len(self._answers))

                result: CountResult = query.count(source, **request, released=released)
            for answer in result.unanswered:
                self._write(writer, answer, answered=False)
        except BaseException as error:
            if out is not None and not self._answers:
                out.unlink(missing_ok=True)  # nothing is lost: the same command may be given again
            if isinstance(error, KeyboardInterrupt):
                self._interrupted(as_json)
            raise
        finally:
            if stream is not None:
                self._close(stream)
        return result

    def _write(self, writer: _Writer | None, answer: Answer, *, answered: bool) -> None:
        if writer is None or self.failure is not None:
            return
        try:
            writer.write(answer, answered=answered)
        except OSError as error:
            self.failure = error

    def _close(self, stream: TextIO) -> None:
        try:
            stream.close()
        except OSError as error:
            self.failure = self.failure or error

    def _interrupted(self, as_json: bool) -> None:
        """Show answers that were paid for and are in no file, then exit with code 130."""
        reason = "interrupted; what was looked at is charged"
        notes.print(reason)
        note_error("Interrupted", reason)
        if self._answers and (self._out is None or self.failure is not None):
            document = {
                "interrupted": True,
                "answers": [answer.as_dict() for answer in self._answers],
            }
            show(
                document,
                as_json=as_json,
                render=lambda console: render_answers(console, self._answers),
            )
        raise typer.Exit(INTERRUPTED)


class _Writer:
    """Answers to a CSV file, each on the disk before the next is made."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows = csv.writer(stream)
        self._rows.writerow(["group", "estimate", "low", "high", "spent", "answered"])

    def write(self, answer: Answer, *, answered: bool) -> None:
        """Write one answer and flush it."""
        facts = [answer.estimate, answer.low, answer.high, answer.spent]
        name = " / ".join(answer.group) if isinstance(answer.group, tuple) else answer.group
        self._rows.writerow([name, *facts, "yes" if answered else "no"])
        self._stream.flush()


def _progress() -> Progress:
    columns = (
        TextColumn("budget spent"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %  {task.fields[answers]} answers"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal)


def _total(epsilon: float, delta: float | None) -> float:
    """The total in the unit of what is spent; 1 where the request will be refused anyway."""
    try:
        return epsilon if delta is None else gaussian_for(epsilon, delta).rho
    except InvalidInput:
        return 1.0


class CountCommand(TyperCommand):
    """The command ``count``, with bounds as two words or as LOW:HIGH."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split LOW:HIGH before the options are read."""
        return super().parse_args(ctx, split_bounds(args))


def split_bounds(arguments: list[str]) -> list[str]:
    """Return the arguments with ``--bounds LOW:HIGH`` as ``--bounds LOW HIGH``."""
    words: list[str] = []
    for index, word in enumerate(arguments):
        if word == "--":
            return words + arguments[index:]
        name, equals, value = word.partition("=")
        if index and arguments[index - 1] == _BOUNDS and word.count(":") == 1:
            words += word.split(":")
        elif name == _BOUNDS and equals and value.count(":") == 1:
            words += [_BOUNDS, *value.split(":")]
        else:
            words.append(word)
    return words


def parse_cap(name: str, text: str | None, *words: str) -> int | str | None:
    """Return a cap as a number or as one of some words."""
    if text is None or text in words:
        return text
    try:
        return int(text)
    except ValueError:
        choices = " or ".join(("a whole number", *words)).replace(" or ", ", ", len(words) - 1)
        raise InvalidInput(name, text, f"give {choices}") from None


def read_keys(path: Path, columns: Sequence[str] = ()) -> list[Any]:
    """Return group names, one per line (a CSV row for several columns); skips empty lines.

    A first line that names the columns is a header.
    """
    try:
        text = read_small(path, "keys", "utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput("keys", str(path), "the file is not UTF-8 text") from None
    lines = [line.rstrip("\r\n") for line in text.split("\n")]
    listed: list[Any] = [line for line in lines if line]
    if len(columns) > 1:
        listed = [tuple(row) for row in csv.reader(listed)]
    header = next(csv.reader(line for line in lines if line), [])
    if columns and header == list(columns):
        del listed[0]
    if not listed:
        raise InvalidInput("keys", str(path), "the file names no group")
    return listed


def read_prior(path: Path) -> dict[str, float]:
    """Return a CSV of group,size, with or without a header."""
    sizes: dict[str, float] = {}
    try:
        lines = StringIO(read_small(path, "prior", "utf-8-sig"), newline="")
        for number, row in enumerate(csv.reader(lines), start=1):
            try:
                sizes[row[0]] = float(row[1])
            except (IndexError, ValueError):
                if number > 1 and row:
                    raise InvalidInput(
                        "prior", f"line {number}", "give lines of group,size"
                    ) from None
    except (UnicodeDecodeError, csv.Error):
        raise InvalidInput("prior", str(path), "the file is not UTF-8 text of group,size") from None
    if not sizes:
        raise InvalidInput("prior", str(path), "the file names no group")
    return sizes


def group_name(group: Any) -> str:
    """Return a group's name for people; several columns are joined by a slash."""
    return " / ".join(map(str, group)) if isinstance(group, (tuple, list)) else str(group)


def short_number(value: float) -> str:
    """Return a number with as many digits as help."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def _groups(count: int) -> str:
    """Return a number of groups in words."""
    return f"{count:,} group{'s' * (count != 1)}"


def render_result(console: Console, result: CountResult) -> None:
    """Print all groups, what was spent, and what is protected."""
    error = f"{result.within:.0%}" if result.within is not None else f"± {result.plus_minus:g}"
    asked = len(result.answers) + len(result.unanswered)
    title = f"{len(result.answers):,} of {_groups(asked)} answered within {error}"
    title += _caps_in_title(result.dropped_share)
    render_answers(
        console,
        result.answers,
        title,
        interval=f"{result.confidence:.0%} interval",
        unit=_UNITS[result.unit],
        unanswered=result.unanswered,
    )
    if result.unanswered:
        console.print(_about_unanswered(result), highlight=False)
    console.print(_about_spent(result), highlight=False)
    if result.dropped_share is not None:
        console.print(_about_dropped(result, result.dropped_share), highlight=False)


def _about_unanswered(result: CountResult) -> str:
    """Why groups may have no answer; says nothing about rows."""
    bias = (result.dropped_share or {}).get("bias", 0.0)
    if result.within is not None and bias >= result.within:
        return (
            f"No group is answered within {result.within:.0%}, because the caps alone remove more "
            "than that. So each was looked at once only. Give a larger --max-rows-per-user or "
            "--max-groups-per-user, wider --bounds, or a larger --within."
        )
    text = (
        "Groups that are not answered are too small for this budget and this error; their "
        "intervals still hold."
    )
    if result.public["keys"] == "listed" and result.query["by"]:
        text += " Names of groups are compared letter by letter: capitals and spaces matter."
    return text


def _about_spent(result: CountResult) -> str:
    """What was spent, what becomes of the rest, and what was guaranteed beforehand."""
    unit, spent = _UNITS[result.unit], shown_up(result.spent, 5)
    facts = result.guarantee.as_dict()
    before = f"ε = {charge_text(facts['epsilon'])}"
    before += f", δ = {charge_text(facts['delta'])}" if "delta" in facts else ""
    if result.unit == "rho":
        total = f"{result.public['total']:.4g} (zCDP; the most that {before} allows)"
    else:
        total = f"{result.public['total']:.4g}"
    if result.ledger is not None and not isinstance(result.charges, ShareCharges):
        rest = f" The ledger is charged the whole {before}: one δ covers all outcomes."
    elif result.ledger is not None:
        rest = f" The other {result.remaining:.2g} of this request goes back to the budget."
    else:
        rest = f" The other {result.remaining:.2g} of this request was not used."
    return (
        f"Spent {unit} = {spent} of {total}.{rest}\n"
        f"Before the data were read, at most {before} was guaranteed for any result; {unit} = "
        f"{spent} is the privacy loss of the result above. Protected: {result.protects}."
    )


def _caps_in_title(share: Mapping[str, Any] | None) -> str:
    """What the caps remove from rows, sums and means, for the headline."""
    if share is None or share["of"] == "pairs":
        return ""
    if share["high"] - share["low"] > _VAGUE:
        return "; what the caps remove is not known"
    return f"; the caps remove at least about {share['estimate']:.1%} of {_SHARES[share['of']]}"


def _about_dropped(result: CountResult, share: Mapping[str, Any]) -> str:
    """How much the caps dropped, if the budget is large enough to say."""
    rows, what = result.public["max_rows_per_user"], _SHARES[share["of"]]
    caps = "" if rows is None else f" of {rows:,} row{'s' * (rows != 1)} per user and group"
    if caps and result.public["rows_chosen_privately"]:
        caps += " (chosen privately)"
    least = "" if share["of"] == "pairs" else "at least "  # a user counts with a limit
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
    if share["of"] == "amount":
        text += " The amount includes what the bounds clip."
    if result.within is not None and (share.get("bias") or share.get("shift")):
        text += f" What the caps change is counted against the {result.within:.0%}."
    return text


def render_answers(
    console: Console,
    answers: Sequence[Answer],
    title: str = "answers so far",
    *,
    interval: str = "interval",
    unit: str = "",
    unanswered: Sequence[Answer] = (),
) -> None:
    """Print a table of answers, then of groups without one."""
    table = Table(title=title, title_justify="left")
    spent = f"{unit} spent".strip()
    for heading in ("group", "estimate", interval, spent, *(["answered"] if unanswered else [])):
        table.add_column(
            heading, justify="left" if heading == "group" else "right", overflow="fold"
        )
    listed = [(answer, "yes") for answer in answers] + [(answer, "no") for answer in unanswered]
    for answer, answered in listed[:_SHOWN]:
        looked = answer.estimate == answer.estimate
        facts = (
            short_number(answer.estimate) if looked else "–",
            f"{short_number(answer.low)} – {short_number(answer.high)}" if looked else "–",
            charge_text(answer.spent, 4),
        )
        last = [answered] if unanswered else []
        table.add_row(Text(visible(group_name(answer.group))), *facts, *last)
    console.print(table)
    if len(listed) > _SHOWN:
        console.print(f"… and {len(listed) - _SHOWN} more (--out or --json for all).")


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
    console.print(
        f"Total {unit} = {planned.total:.4g}, of which {planned.for_values:.4g} for the answers. "
        f"With at most {most:,} groups per user{how} every group can have {unit} = "
        f"{planned.for_values / most:.3g}: enough for {planned.smallest:,.0f} users or more."
    )
    if planned.assumed_rows is not None:
        console.print(
            f"Rows per user and group will be chosen privately; {planned.assumed_rows} are assumed."
        )
    if planned.threshold is not None:
        console.print(f"Groups are found privately from about {planned.threshold:,} users on.")
