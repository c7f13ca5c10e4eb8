"""``expost.describe``: check, price, reserve, read, look, settle; and what is released.

Tests: ``tests/facts/test_describe.py``, ``tests/cli/test_describe_cli.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from expost._version import __version__
from expost.budget.charging import Account, LedgerOrPlace
from expost.errors import InvalidInput, InvalidRelease
from expost.facts.column_facts import (
    CATEGORY,
    DAY,
    IDENTIFIER,
    NUMBER,
    WHOLE_NUMBER,
    YES_NO,
    ColumnFacts,
    Learned,
    Price,
    StatedFacts,
    job_toml,
    learn,
)
from expost.facts.readings import DAY_ZERO, TableCounts, table_counts
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT, ApproxDP
from expost.randomness.source import Randomness, require_protection
from expost.rationals import exact_positive
from expost.selection.release import SCHEMA
from expost.tables import typed_columns
from expost.tables.sources import as_table, may_collate, open_source, without_password

KIND = "facts"
THEOREM = (
    "adaptive Gaussian looks at disjoint counts with a fixed total precision, and names above a "
    "threshold (docs/theory.md, Facts about the data)"
)
DELTA = 1e-7
"""The default of δ."""
QUANTILES = (0.005, 0.995)
"""Between which quantiles bounds are looked for."""
_VISIBLE_GAPS = 0.01  # share of empty cells from which they get a number of their own
_CLEAR = 2.5  # standard deviations above 0
_MOST_COLUMNS = 10_000
_LISTED = 4  # categories that a table on a screen names


@dataclass(frozen=True)
class Facts(Mapping[str, ColumnFacts]):
    """Facts about the columns of a table, a mapping by column name.

    Attributes
    ----------
    rows : float
        Estimated number of rows (of persons, with a user column).
    rows_deviation : float
        Standard deviation of the noise of that number.
    epsilon, delta : float
        What the facts cost together.
    rows_per_person : mapping of int to float or None
        About how many persons have at most 1, 2, 4, 8, … rows and more than the number before.
    """

    columns: Mapping[str, ColumnFacts]
    rows: float
    rows_deviation: float
    price: Price
    quantiles: tuple[float, float]
    source: str
    user: str | None = None
    rows_per_person: Mapping[int, float] | None = None
    simulated: bool = False
    ledger: Mapping[str, Any] | None = field(default=None, compare=False)
    neighbours: str = ADD_REMOVE

    def __getitem__(self, name: str) -> ColumnFacts:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def epsilon(self) -> float:
        """ε of all facts together."""
        return self.price.epsilon

    @property
    def delta(self) -> float:
        """δ of all facts together."""
        return self.price.delta

    @property
    def guarantee(self) -> ApproxDP:
        """What all facts together guarantee to a person."""
        return ApproxDP(self.epsilon, self.delta, self.neighbours)

    @property
    def max_rows_per_user(self) -> int | None:
        """The least power of two that at most about 5 % of all persons have more rows than."""
        if self.rows_per_person is None:
            return None
        total = sum(self.rows_per_person.values())
        upto = 0.0
        for rows, persons in self.rows_per_person.items():
            upto += persons
            if upto >= 0.95 * total:
                return rows
        return None

    def stated(self) -> StatedFacts:
        """Return the facts in plain types, as a file states them."""
        head = {
            "rows": round(self.rows),
            "user": self.user,
            "max_rows_per_user": self.max_rows_per_user,
            "source": self.source,
            "epsilon": self.epsilon,
            "delta": self.delta,
        }
        return StatedFacts({name: self._statement(column) for name, column in self.items()}, head)

    def _statement(self, column: ColumnFacts) -> dict[str, Any]:
        """Return the facts of one column in plain types."""
        facts: dict[str, Any] = {"kind": column.kind}
        if column.bounds is not None:
            facts["bounds"] = [_shown(column, end) for end in column.bounds]
        if column.kind in (CATEGORY, YES_NO):
            facts["categories"] = column.names
        fill = self._fill(column)
        return facts if fill is None else facts | {"missing": fill}

    def data_settings(self, target: str | None = None) -> dict[str, Any]:
        """Return the facts as the ``[data]`` table of a tuning job."""
        return self.stated().data_settings(target)

    def _fill(self, column: ColumnFacts) -> Any:
        """Return what stands for an empty cell: an indicator if there are many, else the median."""
        if column.kind not in (NUMBER, WHOLE_NUMBER, DAY, YES_NO):
            return None
        if column.gaps > max(_VISIBLE_GAPS, _CLEAR * column.gaps_deviation):
            return "indicator"
        if column.kind == YES_NO:
            return False
        assert column.range is not None
        return _shown(column, column.range.median)

    def to_toml(self, target: str | None = None) -> str:
        """Return the facts as TOML.

        Parameters
        ----------
        target : str, optional
            The column to predict. Then the facts are the ``[data]`` table of a tuning job, with its
            categories as ``classes``; otherwise a file that ``--facts`` reads.

        Returns
        -------
        str
            The text of the file.
        """
        if target is None:
            return self.stated().to_toml()
        about = f"{self.epsilon:g}, delta = {self.delta:g}; about {self.rows:.0f} rows"
        return job_toml(self.data_settings(target), f"Facts learned with epsilon = {about}.")

    def as_dict(self) -> dict[str, Any]:
        """Return all facts in JSON types."""
        return {
            "rows": self.rows,
            "rows_deviation": self.rows_deviation,
            "user": self.user,
            "rows_per_person": None
            if self.rows_per_person is None
            else {str(rows): persons for rows, persons in self.rows_per_person.items()},
            "max_rows_per_user": self.max_rows_per_user,
            "quantiles": list(self.quantiles),
            "columns": {name: self._document(column) for name, column in self.items()},
            "epsilon": self.epsilon,
            "delta": self.delta,
            "simulated": self.simulated,
        }

    def _document(self, column: ColumnFacts) -> dict[str, Any]:
        """Return the facts of one column in JSON types."""
        facts: dict[str, Any] = {
            "kind": column.kind,
            "gaps": column.gaps,
            "gaps_deviation": column.gaps_deviation,
            "deviation": column.deviation,
            "cost": column.cost,
        }
        fill = self._fill(column)
        facts |= {} if fill is None else {"missing": fill}
        if column.range is not None and column.bounds is not None:
            facts |= {
                "bounds": [_shown(column, end) for end in column.bounds],
                "median": _shown(column, column.range.median),
                "outside": column.range.outside,
                "logarithm": column.logarithm,
                "histogram": {
                    "edges": list(column.range.edges),
                    "counts": list(column.range.counts),
                    "deviation": column.range.deviation,
                },
            }
        if column.kind in (CATEGORY, YES_NO) and column.range is None:
            facts["categories"] = [
                {"name": name, "rows": rows} for name, rows in column.categories.items()
            ]
        return facts

    def certificate(self) -> dict[str, Any]:
        """Return the certificate: request, source, facts, mechanism, charge and theorem."""
        charges = facts_charges(self.price, self.neighbours)
        return {
            "expost": __version__,
            "schema": SCHEMA,
            "kind": KIND,
            "source": self.source,
            "facts": self.as_dict(),
            "mechanism": asdict(self.price),
            "guarantee": self.guarantee.as_dict(),
            "spent": self.guarantee.as_dict(),
            "worst_case": self.guarantee.as_dict(),
            "ledger": None if self.ledger is None else dict(self.ledger),
            "theorem": THEOREM,
            "simulated": self.simulated,
            "charges": charges.as_dict(),
            "index": 0,
            "charged": self.guarantee.as_dict(),
        }

    def save(self, path: str | Path) -> None:
        """Write the facts: the certificate to a file ending in .json, else TOML."""
        file = Path(path)
        text = self.to_toml()
        if file.suffix == ".json":
            document = json.dumps(self.certificate(), indent=2, allow_nan=False, ensure_ascii=False)
            text = document + "\n"
        file.write_text(text, encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return the facts for a notebook."""
        from expost.html_tables import HtmlTable, Loss, html_summary

        rows = [
            (name, column.kind, words_of(column, self.rows), column.gaps, column.cost)
            for name, column in self.items()
        ]
        listed = HtmlTable(
            "Columns", ["column", "kind", "facts", "empty", "share of the cost"], rows
        )
        summary = {
            "rows": round(self.rows),
            "spent (ε)": Loss(self.epsilon),
            "δ": self.delta,
            "simulated (not private)": self.simulated,
        }
        return html_summary("Facts about the table", summary, listed)


def _shown(column: ColumnFacts, value: float) -> Any:
    """Return a bound as the column writes it: a whole number, a date, or four digits."""
    if column.kind == DAY:
        day = min(max(int(value) + DAY_ZERO, 1), date.max.toordinal())
        return date.fromordinal(day).isoformat()
    if column.kind in (WHOLE_NUMBER, YES_NO, IDENTIFIER) and abs(value) < 2.0**53:
        return int(value)
    return float(f"{value:.6g}")


def words_of(column: ColumnFacts, rows: float) -> str:
    """Return the facts of one column in a few words."""
    if column.range is not None and column.bounds is not None:
        low, high = (_shown(column, end) for end in column.bounds)
        return f"{low} to {high}" + (", logarithm advised" if column.logarithm else "")
    if column.kind in (CATEGORY, YES_NO):
        shares = [f"{name} {count / rows:.0%}" for name, count in column.categories.items()]
        if not shares:
            return "no value is frequent enough to be named"
        more = len(shares) - _LISTED
        return ", ".join([*shares[:_LISTED], *([f"{more} more"] if more > 0 else []), "other"])
    return ""


def facts_charges(price: Price, neighbours: str = ADD_REMOVE) -> Charges:
    """Return the one charge that facts have; it is due as soon as rows were read."""
    charge = ApproxDP(price.epsilon, price.delta, neighbours)
    return Charges.from_list([charge], charge)


def facts_price_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the charge of a certificate of facts cannot be right."""
    if document["schema"] != SCHEMA:
        raise InvalidRelease("schema", document["schema"], f"give a document of schema {SCHEMA}")
    stated = document["mechanism"]
    price = Price.of(stated["epsilon"], stated["delta"], stated["columns"])
    if asdict(price) != dict(stated) or not price.proven_delta() <= price.delta:
        yield "the noise is not what this charge pays"
    if len(document["facts"]["columns"]) > price.columns:
        yield "more columns are described than were paid for"
    neighbours = document["guarantee"]["neighbours"]
    if neighbours not in (ADD_REMOVE, ZERO_OUT):
        yield "facts are not proven for this neighbouring relation"
    charge = ApproxDP(price.epsilon, price.delta, neighbours).as_dict()
    if any(document[key] != charge for key in ("guarantee", "spent", "worst_case", "charged")):
        yield "the charge is not that of the facts"
    if document["charges"] != facts_charges(price, neighbours).as_dict() or document["index"] != 0:
        yield "the worst case is not that of the charges"


def total_problems(document: Mapping[str, Any], rest: Mapping[str, Any]) -> Iterator[str]:
    """Yield why facts that a request bought, or the total with the rest, cannot be right."""
    bought, total = document["facts"], document["total"]
    yield from facts_price_problems(bought)
    parts = [ApproxDP(p["epsilon"], p.get("delta", 0.0)) for p in (rest, bought["charged"])]
    both = parts[0] + parts[1]
    if (both.epsilon, both.delta) != (total["epsilon"], total["delta"]):
        yield "the total is not the sum of the facts and the rest"


def describe(
    data: Any,
    *,
    epsilon: float,
    delta: float = DELTA,
    user: str | None = None,
    columns: Sequence[str] | None = None,
    quantiles: tuple[float, float] = QUANTILES,
    table: str | None = None,
    delimiter: str | None = None,
    ledger: LedgerOrPlace = None,
    budget: str | None = None,
    analyst: str = "",
    memo: str = "expost describe",
    randomness: Randomness | None = None,
    simulation: bool = False,
) -> Facts:
    """Learn kinds, bounds, categories and missing values of the columns of a table privately.

    Parameters
    ----------
    data : str, Path or table
        A file, folder or glob, a connection URL (with ``table``), or a pandas, polars, pyarrow,
        Ibis or Spark table.
    epsilon, delta : float
        What all facts together cost.
    user : str, optional
        Column of the person. Each person counts with one of their rows, chosen at random. Without
        it, each row is a person.
    columns : sequence of str, optional
        The columns to describe; by default all but the user column.
    quantiles : (low, high)
        Between which quantiles the bounds of numbers should be. If noise does not allow that,
        bounds are a little narrower.
    table, delimiter : str, optional
        Table of a database; delimiter of a text file.
    ledger, budget, analyst, memo
        The ledger to charge, or its file name or URL. The charge is reserved before rows are read.

    Returns
    -------
    Facts
        A mapping from column names to facts, with what they cost.

    Raises
    ------
    InvalidInput
        A setting, column or file is wrong. Nothing was charged.
    BudgetRefused
        The budget cannot pay. Nothing was charged.

    Notes
    -----
    The guarantee and its proof are in ``docs/theory.md``, "Facts about the data". No row changes
    whether this succeeds, which columns are described, or any message.
    """
    source = require_protection(randomness, simulation=simulation)
    if ledger is None and (budget is not None or analyst):
        raise InvalidInput("ledger", None, "a budget and an analyst belong to a ledger: pass one")
    account = Account(ledger, budget, analyst, memo)
    account.check_simulation(source.simulated)
    check_quantiles(quantiles)
    opened, names = open_columns(data, columns, user, table, delimiter)
    price = price_of(epsilon, delta, len(names))
    name = source_name(data, table)
    request = {"columns": names, "user": user, "quantiles": list(quantiles), "kind": KIND}
    with account.reserve(facts_charges(price), request=request, source=name) as reserved:
        certificate = None
        try:
            counts = table_counts(opened, names, user, source, collated=may_collate(data))
            facts = released(
                counts, price, quantiles, name, user, source, ledger=reserved.evidence()
            )
            certificate = facts.certificate()
        finally:
            reserved.settle(0, certificate)
    return facts


def released(
    counts: TableCounts,
    price: Price,
    quantiles: tuple[float, float],
    source: str,
    user: str | None,
    randomness: Randomness,
    ledger: Mapping[str, Any] | None = None,
    neighbours: str = ADD_REMOVE,
) -> Facts:
    """Run the mechanism and return what it releases."""
    learned: Learned = learn(counts, price, quantiles, randomness)
    return Facts(
        learned.columns,
        learned.rows,
        learned.rows_deviation,
        price,
        quantiles,
        source,
        user,
        learned.rows_per_person,
        randomness.simulated,
        None if ledger is None else {**ledger, "source": source},
        neighbours,
    )


def price_of(epsilon: float, delta: float, columns: int) -> Price:
    """Return the price of describing so many columns; refuse settings that cannot be meant."""
    epsilon = float(exact_positive(epsilon, "epsilon"))
    if not 0 < float(delta) < 1:
        raise InvalidInput("delta", delta, "give 0 < delta < 1")
    if epsilon > 100:
        raise InvalidInput("epsilon", epsilon, "it protects nothing; give at most 100")
    return Price.of(epsilon, float(delta), columns)


def check_quantiles(quantiles: Any) -> None:
    """Refuse quantiles that are not two shares around the middle."""
    fine = isinstance(quantiles, (tuple, list)) and len(quantiles) == 2
    if not fine or not 0 <= float(quantiles[0]) < 0.25 or not 0.75 < float(quantiles[1]) <= 1:
        raise InvalidInput(
            "quantiles", quantiles, "give two shares below 0.25 and above 0.75, as 0.005 and 0.995"
        )


def open_columns(
    data: Any,
    columns: Sequence[str] | None,
    user: str | None,
    table: str | None = None,
    delimiter: str | None = None,
) -> tuple[Any, list[str]]:
    """Open a table and return it with the columns to describe, by its schema; reads no rows."""
    wanted = [] if columns is None else list(columns)
    if isinstance(columns, str) or len(set(wanted)) < len(wanted):
        raise InvalidInput("columns", columns, "give a list of different column names")
    used = [] if columns is None else [*wanted, *([] if user is None else [user])]
    if isinstance(data, (str, Path)):
        opened = open_source(data, table, delimiter=delimiter, columns=used)
    else:
        opened = as_table(data, used)
    names = wanted if columns is not None else [name for name in opened.columns if name != user]
    engine = typed_columns.engine_of(opened)
    for option, name in (
        *(("columns", name) for name in names),
        *((("user", user),) if user is not None else ()),
    ):
        typed_columns.check_column(opened, option, name, engine)
    if user in names:
        raise InvalidInput("columns", user, "it is the user column; leave it out")
    if not 0 < len(names) <= _MOST_COLUMNS:
        raise InvalidInput("columns", len(names), f"give from 1 to {_MOST_COLUMNS} columns")
    return opened, names


def source_name(data: Any, table: str | None = None) -> str:
    """Return what a certificate says about the source; a URL without its password."""
    if isinstance(data, (str, Path)):
        text = str(data)
        shown = without_password(text) if "://" in text else Path(text).name
        return shown if table is None else f"{shown}, table {table}"
    return f"{type(data).__module__.split('.')[0]} table"


def plan(epsilon: float, delta: float, columns: int) -> dict[str, Any]:
    """Return what facts at this price can find, before rows are read.

    ``rows_of_a_category`` is how many rows a category needs to be found with 99 %, if six tenths of
    the columns are categories and the others numbers; ``shares`` says which share of the rows that
    is in tables of several sizes.
    """
    price = price_of(epsilon, delta, columns)
    names = math.ceil(0.6 * columns)
    needed = price.rows_of_a_name(names, columns - names)
    sizes = (1_000, 10_000, 30_000, 100_000, 1_000_000)
    return {
        "epsilon": price.epsilon,
        "delta": price.delta,
        "columns": columns,
        "rows_of_a_category": math.ceil(needed),
        "shares": {str(rows): needed / rows for rows in sizes},
        "mechanism": asdict(price),
    }
