"""Answers as a table: one column per key, digits that the interval supports, files by suffix.

Counts, sums, means, quantiles and SQL queries make an :class:`AnswerTable` of released values; it
becomes a data frame, rows of text, or a file. The suffix decides: ``.csv``, ``.parquet``, ``.xlsx``
(with a sheet for the certificate's words), ``.json`` (the document with the exact released
values), ``.md`` and ``.png``. :func:`check_out` refuses any other suffix, a missing package, a
missing folder and a file that exists, and is called before data are read.

Rounding is post-processing. An estimate is rounded to the decimal place of the second digit of its
interval's half-width, the ends of the interval outwards, so that the interval still holds. Persons
and rows are whole numbers. Tests: ``tests/analytics/test_answer_files.py``.
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

from expost.analytics.answer_charts import draw_answers
from expost.certificates.words import certificate_words, one_line, title_of
from expost.errors import InvalidInput, MissingExtra
from expost.files import spreadsheet_cell
from expost.rationals import charge_text

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
