"""What a count, a sum or a mean releases: answers, charge and guarantee, as JSON, table and file.

Tests: ``tests/analytics/test_query.py``, ``tests/analytics/test_answer_files.py``.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any, NamedTuple

from expost._version import __version__
from expost.analytics.answer_charts import draw_answers
from expost.analytics.contribution import TOTAL
from expost.analytics.pricing import THEOREM, CheckedCount, too_much_removed
from expost.analytics.refinement import Answer
from expost.certificates.words import certificate_words, one_line, title_of
from expost.errors import InvalidInput, MissingExtra
from expost.facts.describe import Facts
from expost.files import spreadsheet_cell
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ApproxDP, Guarantee, guarantee_from_dict, persons_words
from expost.rationals import charge_text
from expost.selection.release import SCHEMA

SUFFIXES = (".csv", ".parquet", ".xlsx", ".json", ".md", ".png")
_NEEDS = {
    ".parquet": MissingExtra("pyarrow", "analytics"),
    ".xlsx": MissingExtra("openpyxl", "xlsx"),
    ".png": MissingExtra("matplotlib", "plot"),
}
_LONGEST_CELL = 32_000  # letters in a cell of a workbook
_DIGITS = 1  # after the first digit of the half-width


class Rounded(NamedTuple):
    """An estimate and its interval with sensible digits; None where nothing is known."""

    estimate: int | float | None
    low: int | float | None
    high: int | float | None


def round_answer(estimate: float, low: float, high: float, *, whole: bool = False) -> Rounded:
    """Return an estimate with the digits that its interval supports, and the interval.

    Parameters
    ----------
    estimate, low, high : float
        Released numbers; infinite or NaN where nothing is known.
    whole : bool
        Whether the value is a number of persons or rows.

    Returns
    -------
    Rounded
        The ends are rounded outwards, so the interval holds at least as often. Whole numbers are
        integers.
    """
    width = (high - low) / 2
    place = 0 if whole else None
    if math.isfinite(width) and width > 0:
        digit = math.floor(math.log10(width)) - _DIGITS
        place = max(0, digit) if whole else digit
    ways = (ROUND_HALF_EVEN, ROUND_FLOOR, ROUND_CEILING)
    numbers = zip((estimate, low, high), ways, strict=True)
    return Rounded(*(_at_place(number, place, way, whole) for number, way in numbers))


def _at_place(number: float, place: int | None, way: str, whole: bool) -> int | float | None:
    """A number rounded to a power of ten; None unless it is finite."""
    if not math.isfinite(number):
        return None
    if place is None:
        return number
    unit = Decimal(1).scaleb(place)
    steps = (Decimal(repr(float(number))) / unit).to_integral_value(way)
    return int(steps * unit) if whole else float(steps * unit) + 0.0


def number_text(value: float | None, *, whole: bool = False) -> str:
    """Return a rounded number for people, with thousands separated."""
    if value is None:
        return "–"
    if isinstance(value, int) or whole:
        return f"{value:,.0f}"
    if value and not 1e-4 <= abs(value) < 1e15:
        return repr(value)
    text = f"{Decimal(repr(value)):,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class Measured:
    """One measure of all groups: estimates, ends of intervals, and whether they are answered."""

    estimates: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    answered: Sequence[bool]
    name: str = "estimate"
    whole: bool = False
    spent: Sequence[float] | None = None


@dataclass(frozen=True)
class AnswerTable:
    """Released answers: ``keys`` names the columns of ``groups``; one or more measures.

    ``certificate`` is the document whose words go into workbooks and Markdown, and which a JSON
    file holds; ``what`` says in a few words what is measured.
    """

    keys: Sequence[str]
    groups: Sequence[Sequence[Any]]
    measures: Sequence[Measured]
    what: str = "values"
    title: str = ""
    certificate: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def header(self) -> list[str]:
        """Names of the columns; the first measure has short names if it is the only one."""
        names = list(self.keys)
        for measure in self.measures:
            alone = len(self.measures) == 1
            parts = ["low", "high", *(["spent"] if measure.spent is not None else []), "answered"]
            for name in (measure.name, *(p if alone else f"{measure.name}_{p}" for p in parts)):
                while name in names:  # a key may be called "low"
                    name += "_"
                names.append(name)
        return names

    def rows(self) -> list[list[Any]]:
        """The cells of all groups: keys as text, numbers rounded, None where nothing is known."""
        rows: list[list[Any]] = []
        for index, group in enumerate(self.groups):
            row: list[Any] = [str(key) for key in group]
            for measure in self.measures:
                row += round_answer(
                    measure.estimates[index],
                    measure.lows[index],
                    measure.highs[index],
                    whole=measure.whole,
                )
                if measure.spent is not None:
                    row.append(measure.spent[index])
                row.append(bool(measure.answered[index]))
            rows.append(row)
        return rows

    def to_frame(self) -> Any:
        """Return a pandas data frame: one column per key, whole persons, intervals."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "analytics") from None
        frame = pandas.DataFrame(self.rows(), columns=self.header)
        start = len(self.keys)
        for measure in self.measures:
            kind = "Int64" if measure.whole else "float64"
            names = list(frame.columns[start : start + 3])
            frame[names] = frame[names].astype(kind)
            start += 4 + (measure.spent is not None)
        return frame

    def save(self, path: str | Path) -> None:
        """Write the answers to a file; the suffix decides how (see :data:`SUFFIXES`)."""
        path = Path(path)
        check_suffix(path)
        _WRITERS[path.suffix.lower()](self, path)


def check_out(path: Path | None, option: str = "out") -> None:
    """Refuse a file of answers that could not be written later; reads no data."""
    if path is None:
        return
    check_suffix(path, option)
    if path.exists():
        raise InvalidInput(
            option, str(path), "the file exists already; name another, so that nothing is lost"
        )
    if not path.resolve().parent.is_dir():
        raise InvalidInput(option, str(path), "the folder does not exist")


def check_suffix(path: Path, option: str = "out") -> None:
    """Refuse a suffix that is not known, or one whose package is not installed."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInput(option, str(path), "give a file name ending in " + ", ".join(SUFFIXES))
    needed = _NEEDS.get(suffix)
    if needed is not None and importlib.util.find_spec(needed.package) is None:
        raise needed


def csv_cells(row: Sequence[Any]) -> list[Any]:
    """Return the cells of a row for a CSV file: yes and no, nothing for what is not known.

    No text is a formula.
    """
    words = {True: "yes", False: "no", None: ""}
    return [
        words[cell] if cell is None or isinstance(cell, bool) else spreadsheet_cell(cell)
        for cell in row
    ]


def _save_csv(table: AnswerTable, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(csv_cells(table.header))
        writer.writerows(csv_cells(row) for row in table.rows())


def _save_parquet(table: AnswerTable, path: Path) -> None:
    """A column per key and number, with types; whole numbers are integers."""
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    kinds = [pyarrow.string()] * len(table.keys)
    for measure in table.measures:
        kinds += [pyarrow.int64() if measure.whole else pyarrow.float64()] * 3
        kinds += ([] if measure.spent is None else [pyarrow.float64()]) + [pyarrow.bool_()]
    cells = list(zip(*table.rows(), strict=True)) or [()] * len(kinds)
    columns = [pyarrow.array(column, kind) for column, kind in zip(cells, kinds, strict=True)]
    parquet.write_table(pyarrow.Table.from_arrays(columns, names=table.header), path)


def _save_xlsx(table: AnswerTable, path: Path) -> None:
    """A workbook: the answers, and a sheet with the words of the certificate."""
    from openpyxl import Workbook
    from openpyxl.styles import Font

    book = Workbook()
    sheet, words = book.active, book.create_sheet("Certificate")
    sheet.title = "Answers"
    answers: list[Any] = [table.header, *table.rows()]
    for where, rows in ((sheet, answers), (words, _words(table))):
        for row, cells in enumerate(rows, start=1):
            for column, value in enumerate(cells, start=1):
                _fill(where.cell(row, column), value)
    for cell in sheet[1]:
        cell.font = Font(bold=True)
    sheet.freeze_panes = "A2"
    for where, widths in ((sheet, [18] * len(table.header)), (words, [22, 100])):
        for letter, width in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", widths, strict=False):
            where.column_dimensions[letter].width = width
    book.save(path)


def _fill(cell: Any, value: Any) -> None:
    """Fill a cell; a text is a text, also if it starts with an equals sign."""
    if isinstance(value, bool):
        value = "yes" if value else "no"
    if isinstance(value, str):
        cell.value = one_line(value)[:_LONGEST_CELL]
        cell.data_type = "s"
        return
    cell.value = value
    if isinstance(value, int):
        cell.number_format = "#,##0"


def _words(table: AnswerTable) -> list[tuple[str, str]]:
    """The certificate in words: pairs of a name and a line."""
    if not table.certificate:
        return []
    title = [("certificate", title_of(table.certificate))]
    said = certificate_words(table.certificate)
    return title + [(row.name, line) for row in said for line in row.lines]


def _save_json(table: AnswerTable, path: Path) -> None:
    write_document(table.certificate, path)


def write_document(document: Mapping[str, Any], path: Path) -> None:
    """Write a certificate as JSON, whatever the suffix."""
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _save_markdown(table: AnswerTable, path: Path) -> None:
    """A table for people, then the words of the certificate."""
    rows = [[_markdown(name) for name in table.header]]
    rows.append(["---"] * len(table.keys) + ["---:"] * (len(table.header) - len(table.keys)))
    spent = {name for name in table.header[len(table.keys) :] if name.strip("_").endswith("spent")}
    for row in table.rows():
        rows.append(
            [
                charge_text(cell, 4)
                if name in spent
                else number_text(cell)
                if isinstance(cell, (int, float))
                else _markdown(cell or "–")
                for name, cell in zip(table.header, csv_cells(row), strict=True)
            ]
        )
    lines = [f"# {_markdown(table.title)}", ""] if table.title else []
    lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    lines += [f"- {_markdown(name)}: {_markdown(line)}" for name, line in _words(table)]
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _markdown(text: object) -> str:
    """A text that adds no column, line or tag to a document."""
    shown = one_line(text)
    for letter in "\\|<*_`[":
        shown = shown.replace(letter, "\\" + letter)
    return shown


_WRITERS = {
    ".csv": _save_csv,
    ".parquet": _save_parquet,
    ".xlsx": _save_xlsx,
    ".json": _save_json,
    ".md": _save_markdown,
    ".png": draw_answers,
}


WHOLE_KINDS = ("count", "rows")
"""Kinds of questions whose answers are whole numbers of persons or rows."""


class ReleasedResult:
    """What every result of a question says about its charge."""

    charges: Charges
    outcome: int | None
    max_groups_per_user: int | None

    @property
    def charged(self) -> Guarantee:
        """The charge that a ledger settles."""
        return self.charges.nothing if self.outcome is None else self.charges[self.outcome]

    @property
    def protects(self) -> str:
        """Who is protected, in words."""
        return persons_words(self.max_groups_per_user)


@dataclass(frozen=True)
class CountResult(ReleasedResult):
    """What was released."""

    answers: tuple[Answer, ...]
    unanswered: tuple[Answer, ...]
    spent: float
    remaining: float
    unit: str
    within: float | None
    plus_minus: float | None
    confidence: float
    factor: float
    max_groups_per_user: int | None
    dropped_share: Mapping[str, float] | None
    guarantee: Guarantee
    keys: Mapping[str, Any] | None
    warnings: tuple[str, ...]
    query: Mapping[str, Any]
    source: str
    public: Mapping[str, Any]
    simulated: bool
    charges: Charges = field(repr=False)
    outcome: int | None = field(repr=False)
    ledger: Mapping[str, Any] | None = field(default=None, compare=False)
    facts: Facts | None = None
    asked_before: bool = field(default=False, compare=False)

    @property
    def total(self) -> ApproxDP | None:
        """What facts that were bought and everything else guarantee together; None without."""
        if self.facts is None:
            return None
        epsilon, delta = vars(self.guarantee)["epsilon"], vars(self.guarantee).get("delta", 0.0)
        return ApproxDP(epsilon, delta) + self.facts.guarantee

    def _repr_html_(self) -> str:
        """Return the answers for a notebook."""
        from expost.certificates.words import certificate_words
        from expost.html_tables import HtmlTable, Loss, html_summary

        columns = ["group", "estimate", "low", "high", f"spent ({self.unit})"]
        whole = self.query["kind"] in WHOLE_KINDS
        tables = [
            HtmlTable(
                caption,
                columns,
                [
                    (
                        answer.group,
                        *round_answer(answer.estimate, answer.low, answer.high, whole=whole),
                        Loss(answer.spent),
                    )
                    for answer in of
                ],
            )
            for caption, of in (("Answered", self.answers), ("Not answered", self.unanswered))
            if of
        ]
        words = {name: list(lines) for name, lines in certificate_words(self.certificate())}
        return html_summary("Released values", words, *tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``expost count``."""
        return {
            "answers": [answer.as_dict() for answer in self.answers],
            "unanswered": [plain_answer(answer) for answer in self.unanswered],
            "spent": self.spent,
            "remaining": self.remaining,
            "unit": self.unit,
            "within": self.within,
            "plus_minus": self.plus_minus,
            "confidence": self.confidence,
            "interval_factor": self.factor,
            "max_groups_per_user": self.max_groups_per_user,
            "protects": self.protects,
            "dropped_share": None if self.dropped_share is None else dict(self.dropped_share),
            "guarantee": self.guarantee.as_dict(),
            "keys": None if self.keys is None else dict(self.keys),
            "warnings": list(self.warnings),
            "query": dict(self.query),
            "simulated": self.simulated,
            **({"asked_before": True} if self.asked_before else {}),
            **self._bought(),
        }

    def _bought(self) -> dict[str, Any]:
        """Return the facts that were bought, and the total with them, for JSON."""
        if self.facts is None or self.total is None:
            return {}
        return {"facts": self.facts.certificate(), "total": self.total.as_dict()}

    def certificate(self) -> dict[str, Any]:
        """Return the certificate: query, source, public facts, answers, charge and theorem."""
        told = {
            "answers": [plain_answer(answer) for answer in self.answers],
            "unanswered": [plain_answer(answer) for answer in self.unanswered],
            "dropped_share": None if self.dropped_share is None else dict(self.dropped_share),
        }
        return certificate_of(self, "count", self.query, THEOREM, told) | self._bought()

    def answer_table(self) -> AnswerTable:
        """Return the answers, then the other groups, as a table with one column per key."""
        return table_of_answers(
            self.query, self.answers, self.unanswered, title_words(self), self.certificate()
        )

    def to_frame(self) -> Any:
        """Return a pandas data frame: one column per key, whole persons, intervals."""
        return self.answer_table().to_frame()

    def save(self, path: str | Path) -> None:
        """Write the answers to a file: CSV, Parquet, Excel, Markdown or PNG, by its suffix.

        ``.json`` is the certificate, with the exact released values.
        """
        self.answer_table().save(path)


def result_of_release(release: Mapping[str, Any]) -> CountResult:
    """Return the result that was released, from its JSON form and its certificate."""
    result = release["result"]
    same = ("within", "plus_minus", "confidence", "keys", "dropped_share", "query")
    return CountResult(
        **{name: result[name] for name in same},
        **charge_of_release(release),
        answers=told_answers(result["answers"]),
        unanswered=told_answers(result["unanswered"]),
        factor=result["interval_factor"],
        warnings=tuple(result["warnings"]),
    )


def charge_of_release(release: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a result that say what was charged, and what for."""
    result, certificate = release["result"], release["certificate"]
    paid = ("spent", "remaining", "unit", "max_groups_per_user")
    known = {name: result[name] for name in paid}
    known |= {name: certificate[name] for name in ("source", "public", "simulated", "ledger")}
    return known | {
        "guarantee": guarantee_from_dict(result["guarantee"]),
        "charges": Charges.from_dict(certificate["charges"]),
        "outcome": certificate["index"],
    }


def told_answers(records: Sequence[Mapping[str, Any]], kind: type[Any] = Answer) -> tuple[Any, ...]:
    """Return answers as they were, from JSON."""
    return tuple(
        kind(**{name: told_cell(value) for name, value in record.items()}) for record in records
    )


def told_cell(value: Any) -> Any:
    """Return a cell of an answer as it was, from JSON."""
    return math.nan if value is None else tuple(value) if isinstance(value, list) else value


def warnings_of_caps(
    request: CheckedCount, share: Mapping[str, Any] | None, most: int | None
) -> tuple[str, ...]:
    """What the released share of removed values says, if it is known well enough."""
    within = request.wanted.within or 0.1
    if not share or share["estimate"] <= within / 2 or not too_much_removed(share, within / 2):
        return ()
    what = {"pairs": "(user, group) pairs were", "rows": "rows were", "amount": "the amount was"}
    caps = [] if most is None else [f"{most} groups per user"]
    if request.measure.amount is not None:
        amount = float(request.measure.amount * request.measure.grid)
        caps += [f"{amount:,.6g} per user"]
    elif share["of"] != "pairs":
        caps += [f"{request.measure.rows} rows per user"]
    if request.measure.in_all:
        caps = [f"{caps[-1]} in all groups together"]
    elif share["of"] != "pairs":
        caps[-1] += " and group"
    effect = "Values are too low by about as much"
    if request.measure.kind == "mean":
        effect = "The mean is that of the rows that are kept"
    elif share.get("corrected"):
        effect = "Values are corrected for that"
    return (
        f"Capping, not noise, limits accuracy: about {share['estimate']:.0%} of "
        f"{what[share['of']]} dropped at {' and '.join(caps)}. {effect}; a larger cap keeps more.",
    )


def title_words(result: CountResult) -> str:
    """Return what was answered, in a line: "38 of 40 groups answered within 5 %"."""
    asked = len(result.answers) + len(result.unanswered)
    if (top := result.query.get("top")) is not None:
        known = f"Top {top:,} of {asked:,} groups"
        sure = f"{result.confidence:.0%} confidence"
        return f"{known}, with {sure}" if result.answers else f"{known}: not known with {sure}"
    error = f"{result.within:.0%}" if result.within is not None else f"± {result.plus_minus:g}"
    return f"{len(result.answers):,} of {asked:,} group{'s' * (asked != 1)} answered within {error}"


def table_of_answers(
    query: Mapping[str, Any],
    answers: Sequence[Answer],
    unanswered: Sequence[Answer] = (),
    title: str = "",
    certificate: Mapping[str, Any] | None = None,
) -> AnswerTable:
    """Return answers to a question (:func:`.describe_request`) as a table."""
    listed, kind = [*answers, *unanswered], query["kind"]
    what = {"count": "users", "rows": "rows"}.get(kind, f"{kind} of {query['column']}")
    names = tuple(query["by"]) or (("group",) if any(a.group != TOTAL for a in listed) else ())
    groups = [a.group if isinstance(a.group, tuple) else (a.group,) for a in listed]
    measured = Measured(
        [answer.estimate for answer in listed],
        [answer.low for answer in listed],
        [answer.high for answer in listed],
        [index < len(answers) for index in range(len(listed))],
        whole=kind in WHOLE_KINDS,
        spent=[answer.spent for answer in listed],
    )
    shown = groups if names else [()] * len(groups)
    return AnswerTable(names, shown, (measured,), what, title, certificate or {})


def plain_answer(answer: Any) -> dict[str, Any]:
    """Return an answer for JSON, without NaN and infinity; a group of several columns is a list."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return list(value)
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: plain(value) for key, value in vars(answer).items()}


def certificate_of(
    result: Any, kind: str, query: Mapping[str, Any], theorem: str, told: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the certificate of a count, quantiles or a query; ``told`` is what was released."""
    return {
        "expost": __version__,
        "schema": SCHEMA,
        "kind": kind,
        "query": dict(query),
        "source": result.source,
        "public": dict(result.public),
        "max_groups_per_user": result.max_groups_per_user,
        **told,
        "spent": {result.unit: result.spent},
        "worst_case": {result.unit: result.public["total"]},
        "guarantee": result.guarantee.as_dict(),
        "ledger": None if result.ledger is None else dict(result.ledger),
        "theorem": theorem,
        "simulated": result.simulated,
        "charges": result.charges.as_dict(),
        "index": result.outcome,
        "charged": result.charged.as_dict(),
    }
