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
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperCommand

from expost import plots
from expost.analytics import count_plan as plans
from expost.analytics import query
from expost.analytics.answer_charts import draw_answers
from expost.analytics.count_result import (
    CountResult,
    check_out,
    csv_cells,
    table_of_answers,
    write_document,
)
from expost.analytics.learned_facts import facts_delta, fill_stated_facts
from expost.analytics.refinement import Answer
from expost.analytics.request import CountRequest, request_settings
from expost.budget.ledger import Ledger
from expost.cli.describe import show_plan
from expost.cli.output import (
    Analyst,
    BudgetName,
    CertificateFile,
    Json,
    LedgerName,
    Plot,
    Source,
    Verbose,
    earlier_words,
    note_error,
    notes,
    render_answers,
    render_plan,
    render_result,
    request_option,
    show,
    with_options,
)
from expost.errors import InvalidInput
from expost.facts.describe import plan as facts_plan
from expost.files import read_small
from expost.privacy.dpsgd import gaussian_for

INTERRUPTED = 130
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


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, with caps as numbers or words."""
    asked = {
        name: value
        for name, value in options.items()
        if value is not None and value is not False  # 0 is a value
    }
    for name in _CAPS.keys() & asked.keys():
        asked[name] = parse_cap(name, asked[name], *_CAPS[name])
    return asked


def opened_ledger(ledger: str | None, budget: str | None, analyst: str) -> Ledger | None:
    """Open the ledger that is to be charged, if there is one."""
    if ledger is None and (budget is not None or analyst):
        raise InvalidInput(
            "ledger", None, "a budget and an analyst belong to a ledger: give --ledger too"
        )
    return None if ledger is None else Ledger.open(ledger)


def request_of_options(
    options: dict[str, Any], sum_column: str | None, mean_column: str | None
) -> dict[str, Any]:
    """Return the request that options of the command line mean; reads the files of keys."""
    asked = given_options(options)
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
    if "keys" in asked:
        asked["keys"] = read_keys(asked["keys"], asked.get("by", ()))
    if "prior" in asked:
        asked["prior"] = read_prior(asked["prior"])
    return asked


SumColumn = Annotated[str | None, typer.Option("--sum", help="Sum this column.")]
MeanColumn = Annotated[str | None, typer.Option("--mean", help="Average this column.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Write the answers to this file: .csv, .parquet, .xlsx, .json, .md or .png (a chart)."
    ),
]
TableVersion = Annotated[
    str | None,
    typer.Option(
        help="A name for the present state of the table: a question that was paid for on this "
        "version costs nothing again, and a smaller error the difference (of quantiles: all); with "
        "--ledger."
    ),
]


@with_request_options(required=("epsilon", "user"))
def count_command(
    source: Source,
    sum_column: SumColumn = None,
    mean_column: MeanColumn = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what groups would cost; reads no data.")
    ] = False,
    ledger: LedgerName = None,
    budget: BudgetName = None,
    analyst: Analyst = "",
    out: Out = None,
    certificate: CertificateFile = None,
    plot: Plot = None,
    learn_facts: Annotated[
        float | None,
        typer.Option(
            help="Buy the bounds or the groups that are not given for this ε, a part of --epsilon."
        ),
    ] = None,
    facts: Annotated[
        Path | None,
        typer.Option(help="File of facts: bounds, groups and caps that are not given."),
    ] = None,
    verbose: Verbose = False,
    table_version: TableVersion = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Answers per group, each within the wanted error, as many groups as the budget allows."""
    if plot is not None:
        plots.check_path(plot)
    check_out(out)
    check_new_certificate(certificate)
    request = request_of_options(options, sum_column, mean_column)
    if facts is not None:
        fill_stated_facts(request, facts)
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
    opened = opened_ledger(ledger, budget, analyst)
    usual_rows = "max_rows_per_user" not in request and "one_row_per_user" not in request
    if request.get("count_rows") and usual_rows and not as_json:
        notes.print(_MANY_ROWS, highlight=False)
    run = _Run(out, _total(request["epsilon"], request.get("delta")))
    request |= {"memo": f"expost {request['kind']}", "budget": budget, "analyst": analyst}
    request["ledger"] = opened
    request["table_version"] = table_version
    result = run.ask(source, request, as_json)
    rendered = partial(render_result, result=result, verbose=verbose)
    show(result.as_dict(), as_json=as_json, render=rendered)
    _finish(result, (out, certificate, plot), run.failure)


def _finish(
    result: CountResult,
    files: tuple[Path | None, Path | None, Path | None],
    failure: OSError | None,
) -> None:
    """Say where the files are; the answers, which are paid, are shown."""
    out, certificate, plot = files
    for warning in result.warnings:
        notes.print(f"warning: {warning}", highlight=False, soft_wrap=True)
    if told := earlier_words(result):
        notes.print(told, highlight=False)
    if out is not None and not _streamed(out):
        result.save(out)
    if out is not None and failure is None:
        notes.print(f"answers: {out}", soft_wrap=True)
    if certificate is not None:
        write_document(result.certificate(), certificate)
        notes.print(f"certificate: {certificate}")
    if plot is not None:
        draw_answers(result.answer_table(), plot)
        notes.print(f"figure: {plot}")
    if failure is not None:
        raise failure


def _streamed(out: Path | None) -> bool:
    """Whether answers are written one by one, before the ledger is settled."""
    return out is not None and out.suffix.lower() == ".csv"


def _show_plan(request: dict[str, Any], plot: Path | None, as_json: bool) -> None:
    bought = request.pop("learn_facts", None)
    lacks = [request["kind"] != "count" and "bounds" not in request]
    lacks.append("by" in request and "keys" not in request and "private_keys" not in request)
    if bought is not None and any(lacks):
        delta = facts_delta(request.get("delta"))
        by = request.get("by", ())
        columns = lacks[0] + lacks[1] * (1 if isinstance(by, str) else len(by))
        facts = facts_plan(bought, delta, columns)
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


def check_new_certificate(path: Path | None) -> None:
    """Refuse a certificate that could not be written later."""
    if path is None:
        return
    if path.exists():
        raise InvalidInput(
            "certificate", str(path), "the file exists already; name another, so nothing is lost"
        )
    if not path.resolve().parent.is_dir():
        raise InvalidInput("certificate", str(path), "the folder does not exist")


class _Run:
    """One request from the command line: progress, the file of answers, Ctrl-C."""

    def __init__(self, out: Path | None, total: float) -> None:
        self._out, self._total = out if _streamed(out) else None, total
        self._answers: list[Answer] = []
        self._asked: dict[str, Any] = {}
        self.failure: OSError | None = None  # of the file of answers; they are shown all the same

    def ask(self, source: str, request: dict[str, Any], as_json: bool) -> CountResult:
        """Run the request; answers go to the file before the ledger is settled."""
        out, self._asked = self._out, _asked_in_words(request)
        stream = None if out is None else out.open("x", encoding="utf-8", newline="")
        writer = None if stream is None else _Writer(stream, self._asked)
        try:
            with _progress() as progress:
                task = progress.add_task("budget", total=1.0, answers=0)

                def released(answer: Answer, spent: float) -> None:
                    self._answers.append(answer)
                    self._write(writer, answer, answered=True)
                    share = min(1.0, spent / self._total)
                    progress.update(task, completed=share, answers=len(self._answers))

                result: CountResult = query.count(source, **request, released=released)
            if result.asked_before:
                for answer in result.answers:
                    released(answer, 0.0)
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
                render=lambda console: render_answers(console, self._asked, self._answers),
            )
        raise typer.Exit(INTERRUPTED)


class _Writer:
    """Answers to a CSV file, each on the disk before the next is made."""

    def __init__(self, stream: TextIO, asked: Mapping[str, Any]) -> None:
        self._stream, self._query = stream, asked
        self._rows = csv.writer(stream)
        self._rows.writerow(csv_cells(table_of_answers(self._query, ()).header))

    def write(self, answer: Answer, *, answered: bool) -> None:
        """Write one answer and flush it."""
        lists = ((answer,), ()) if answered else ((), (answer,))
        (row,) = table_of_answers(self._query, *lists).rows()
        self._rows.writerow(csv_cells(row))
        self._stream.flush()


def _asked_in_words(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a table of answers says about its question, before that is checked."""
    kind = "rows" if request.get("count_rows") else request["kind"]
    return {"kind": kind, "column": request.get("column"), "by": list(request.get("by") or ())}


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
    """A cap as a number or as one of some words."""
    if text is None or text in words:
        return text
    try:
        return int(text)
    except ValueError:
        choices = " or ".join(("a whole number", *words)).replace(" or ", ", ", len(words) - 1)
        raise InvalidInput(name, text, f"give {choices}") from None


def read_keys(path: Path, columns: Sequence[str] = ()) -> list[Any]:
    """Return group names, one per line (a CSV row for several columns); skips empty lines.

    A first line that names all the columns is a header: cells are then found by name.
    """
    try:
        text = read_small(path, "keys", "utf-8-sig")
    except FileNotFoundError:
        raise InvalidInput("keys", str(path), "there is no such file") from None
    except UnicodeDecodeError:
        raise InvalidInput("keys", str(path), "the file is not UTF-8 text") from None
    lines = [line.rstrip("\r\n") for line in text.split("\n")]
    listed: list[Any] = [line for line in lines if line]
    header = next(csv.reader(listed), [])
    if columns and set(columns) <= set(header) and len(set(header)) == len(header):
        rows = [row for row in csv.reader(listed[1:]) if row]
        listed = [_named_cells(row, header, columns) for row in rows]
    elif len(columns) > 1:
        listed = [tuple(row) for row in csv.reader(listed)]
    if not listed:
        raise InvalidInput("keys", str(path), "the file names no group")
    return listed


def _named_cells(row: Sequence[str], header: Sequence[str], columns: Sequence[str]) -> Any:
    """The cells of the columns in a row of a keys file; one cell alone for one column."""
    if len(row) != len(header):
        raise InvalidInput("keys", row, f"give {len(header)} cells per line, as in the header")
    cells = tuple(row[header.index(name)] for name in columns)
    return cells if len(cells) > 1 else cells[0]


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
