"""Facts of columns: learned by noisy looks with one total precision, or read from a file.

A *look* releases counts of disjoint sets of cells of one column with independent Gaussian noise of
standard deviation σ. One person changes one of these counts by one, so a look is 1/σ-Gaussian DP.
Which looks are made, and with which σ, depends on what was released before. Their precisions 1/σ²
add up to at most μ².

Everything released is μ-Gaussian DP. Noise is added to the counts of the names that occur, and a
name is released if its estimate reaches t = 1 + zσ, z = the normal quantile of 1 − p,
p = δ_names/(columns·looks). So the whole is (ε, δ)-DP with δ = δ_Gaussian(ε; μ) + e^ε·δ_names, in
both directions. Proofs: docs/theory.md, "Facts about the data".

Noise is exact and rounded to a lattice (:mod:`expost.randomness.samplers`), which is
post-processing. No count makes a look fail.

**Files of facts** are what ``expost describe --out facts.toml`` writes, and ``--facts`` reads. A
file has a table ``[facts]`` (rows, the user column, the cap of rows per person, the charge) and
one table per column: its kind, bounds, categories, and what stands for an empty cell. People may
edit it or write one by hand. A certificate of facts (JSON) has the same content. What a file holds
is public: released facts, or what somebody stated.
Tests: ``tests/theorems/test_facts.py``, ``tests/facts/test_mechanism.py``,
``tests/facts/test_facts_file.py``.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.facts.readings import (
    DATE,
    FRACTION,
    GAP,
    LONG,
    SHORT,
    TRUTH,
    WHOLE,
    ColumnCounts,
    DistinctNumbers,
    Range,
    TableCounts,
    find_range,
)
from expost.files import read_small
from expost.privacy.profiles import gaussian_delta, gaussian_mu
from expost.randomness.samplers import add_gaussian, lattice_for
from expost.randomness.source import Randomness

NUMBER, WHOLE_NUMBER, DAY, YES_NO = "number", "whole number", "date", "boolean"
CATEGORY, TEXT, IDENTIFIER = "category", "text", "identifier"
KINDS = (NUMBER, WHOLE_NUMBER, DAY, YES_NO, CATEGORY, TEXT, IDENTIFIER)
"""What a column may be."""
_DELTA_NAMES = 0.5  # of δ is for names that one person has alone
_KIND_SHARE = 0.05  # of the precision is for the kinds of all columns
_PERSON_SHARE = 0.02  # and for rows per person, where there is a user column
_NUMBER_WEIGHT = 2.3  # a column of numbers gets so many times what a column of names gets
_NAME_LOOKS = (1 / 8, 1 / 3, 1.0)  # of the precision of a column, after each look
_DISTINCT_SHARE = 0.02  # of what is given, at most, is for whether all cells differ
LOOKS = len(_NAME_LOOKS) + 1  # and one with what other columns left
_FOUND = 2.33  # standard deviations: a name with so many more cells is found with 99 %
_CLEAR = 2.0  # standard deviations that make a fact clear
_SURE = 3.0
_REPEATS = 0.15  # of the cells, clearly fewer: of amounts that are spread thinly a fifth may repeat
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Price:
    """What facts cost, by public numbers alone: (ε, δ), μ, and the level of names."""

    epsilon: float
    delta: float
    columns: int
    mu: float
    level: float

    @classmethod
    def of(cls, epsilon: float, delta: float, columns: int) -> Price:
        """Return the price of describing so many columns."""
        names = _DELTA_NAMES * delta * math.exp(-epsilon) * (1 - 1e-6)  # of the normal quantile
        chance = names / (columns * LOOKS)
        if not chance > 1e-300:
            raise InvalidInput("delta", delta, "it is too small; give a larger one")
        mu = gaussian_mu(epsilon, delta * (1 - _DELTA_NAMES))
        return cls(epsilon, delta, columns, mu, -NormalDist().inv_cdf(chance) * _ROUNDING)

    @property
    def precision(self) -> float:
        """The total of 1/σ² over all looks."""
        return self.mu**2

    def proven_delta(self) -> float:
        """Return the δ that is proven at ε: never above δ."""
        tail = 0.5 * math.erfc(self.level / _ROUNDING / math.sqrt(2))
        names = tail * self.columns * LOOKS
        return gaussian_delta(self.epsilon, self.mu) + math.exp(self.epsilon) * names

    def rows_of_a_name(self, names: int, numbers: int) -> float:
        """Return how many rows a category needs to be found with 99 %, with such columns."""
        share = self.precision * (1 - _KIND_SHARE) / (names + _NUMBER_WEIGHT * numbers)
        return 1 + (self.level + _FOUND) / math.sqrt(share)


@dataclass
class Looks:
    """Looks at counts, and how much of the total precision they have used."""

    total: float
    randomness: Randomness = field(repr=False)
    used: float = 0.0

    @property
    def left(self) -> float:
        """The precision that is left."""
        return max(0.0, self.total - self.used)

    def __call__(self, counts: Floats, precision: float) -> tuple[Floats, float]:
        """Return counts with noise, and its σ; never more precise than what is left allows."""
        precision = min(precision, self.left / _ROUNDING)
        if not precision > self.total * 1e-12:
            return np.zeros(len(counts)), 1 / math.sqrt(self.total * 1e-12)
        deviation = math.sqrt(1 / precision)
        self.used += precision * _ROUNDING  # more than 1/σ² as rounded
        exact = np.asarray(counts, dtype=np.float64)
        return add_gaussian(exact, lattice_for(deviation), self.randomness), deviation

    def named(self, counts: Mapping[str, int], precision: float) -> tuple[dict[str, float], float]:
        """Return counts of names with noise. Secret: which names occur is private."""
        noisy, deviation = self(np.array(list(counts.values()), dtype=np.float64), precision)
        return dict(zip(counts, noisy.tolist(), strict=True)), deviation


@dataclass(frozen=True)
class ColumnFacts:
    """What was learned about one column. All of it is released.

    Attributes
    ----------
    kind : str
        "number", "whole number", "date", "boolean", "category", "text" or "identifier".
    range : Range or None
        Bounds, median and histogram of a column of numbers or dates.
    categories : mapping of str to float
        The names that were found, with their estimated numbers of rows, most frequent first.
    gaps : float
        Estimated share of empty cells.
    gaps_deviation : float
        Standard deviation of the noise of that share.
    deviation : float
        Standard deviation of the noise of the counts of categories, or of the kinds, in rows.
    cost : float
        Share of the whole charge that was spent on the column.
    """

    kind: str
    range: Range | None = None
    categories: Mapping[str, float] = field(default_factory=dict)
    gaps: float = 0.0
    gaps_deviation: float = 0.0
    deviation: float = 0.0
    cost: float = 0.0

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Lower and upper bound of a column of numbers; None for other columns."""
        return None if self.range is None else (self.range.low, self.range.high)

    @property
    def names(self) -> list[str]:
        """The names of categories that were found; "0" and "1" of a column of these numbers."""
        return ["0", "1"] if self.kind == YES_NO and self.range else list(self.categories)

    @property
    def logarithm(self) -> bool:
        """Whether the numbers are so skewed that a logarithm is advised."""
        if self.range is None or self.kind not in (NUMBER, WHOLE_NUMBER):
            return False
        low, high, median = self.range.low, self.range.high, self.range.median
        near, far = sorted((high - median, median - low))
        return far > 8 * near or (low > 0 and high > 50 * low)


@dataclass
class _Column:
    """A column while it is looked at."""

    counts: ColumnCounts = field(repr=False)
    kinds: Floats
    deviation: float
    used: float = 0.0
    found: dict[str, float] = field(default_factory=dict)
    estimates: dict[str, float] = field(default_factory=dict, repr=False)
    precision: float = 0.0
    unique: bool = False
    facts: ColumnFacts | None = None

    def __post_init__(self) -> None:
        self.names = self.counts.names()


@dataclass(frozen=True)
class Learned:
    """Everything that the mechanism releases."""

    rows: float
    rows_deviation: float
    columns: Mapping[str, ColumnFacts]
    rows_per_person: Mapping[int, float] | None


def learn(
    table: TableCounts, price: Price, quantiles: tuple[float, float], randomness: Randomness
) -> Learned:
    """Return the facts about all columns of a table. Total: no count makes this fail."""
    looks = Looks(price.precision, randomness)
    per_person = None
    if table.rows_per_person is not None:
        per_person = _rows_per_person(table.rows_per_person, looks)
    columns = _kinds(table, looks)
    number = len(columns)
    rows = max(1.0, sum(float(c.kinds.sum()) for c in columns.values()) / number)
    spread = next(iter(columns.values())).deviation * math.sqrt(7 / number)
    chosen = {name: _kind(column) for name, column in columns.items()}
    chosen |= dict.fromkeys(table.named, CATEGORY)
    names = [name for name, kind in chosen.items() if kind in (CATEGORY, YES_NO)]
    numbers = [name for name, kind in chosen.items() if kind in (NUMBER, WHOLE_NUMBER, DAY)]
    share = looks.left / max(1.0, len(names) + _NUMBER_WEIGHT * len(numbers))
    for name in numbers:
        _learn_range(columns[name], chosen[name], looks, _NUMBER_WEIGHT * share, rows, quantiles)
    _learn_names([columns[name] for name in names], looks, price.level, rows, spread)
    released = {}
    for name, column in columns.items():
        facts = _facts(column, chosen[name])
        gaps = min(1.0, max(0.0, float(column.kinds[GAP]) / rows))
        noise = column.deviation / rows
        cost = column.used / looks.total
        released[name] = replace(facts, gaps=gaps, gaps_deviation=noise, cost=cost)
    return Learned(rows, spread, released, per_person)


def _spend(column: _Column, looks: Looks) -> Any:
    """Return a look that also notes what a column cost."""

    def look(counts: Floats, precision: float) -> tuple[Floats, float]:
        before = looks.used
        noisy = looks(counts, precision)
        column.used += looks.used - before
        return noisy

    return look


def _rows_per_person(sizes: Mapping[int, int], looks: Looks) -> dict[int, float]:
    """Return about how many persons have at most 1, 2, 4, 8, … rows, more than before."""
    caps = [2**power for power in range(16)]
    counts = np.zeros(len(caps) + 1)
    for size, persons in sizes.items():
        counts[int(np.searchsorted(caps, size))] += persons
    noisy, deviation = looks(counts, _PERSON_SHARE * looks.total)
    clear = [count if count > _CLEAR * deviation else 0.0 for count in noisy.tolist()]
    return dict(zip(caps, clear, strict=False))


def _kinds(table: TableCounts, looks: Looks) -> dict[str, _Column]:
    """Look at how the cells of each column read."""
    precision = _KIND_SHARE * looks.total / len(table.columns)
    columns = {}
    for name, counts in table.columns.items():
        column = _Column(counts, np.zeros(7), 1.0)
        column.kinds, column.deviation = _spend(column, looks)(counts.of_kinds(), precision)
        columns[name] = column
    return columns


def _kind(column: _Column) -> str:
    """Return the kind of a column, by noisy counts of how its cells read."""
    cells, deviation = column.kinds, column.deviation
    scores = {
        NUMBER: float(cells[WHOLE] + cells[FRACTION]),
        DAY: float(cells[DATE]),
        CATEGORY: float(cells[SHORT] + cells[LONG] + cells[TRUTH]),
    }
    best = max(scores, key=lambda kind: scores[kind])
    if scores[best] < _SURE * deviation:
        return TEXT
    if best == NUMBER:
        few = float(cells[FRACTION]) < 0.1 * scores[NUMBER] + _CLEAR * deviation
        return WHOLE_NUMBER if few else NUMBER
    if best == CATEGORY:
        if cells[TRUTH] > cells[SHORT] + cells[LONG]:
            return YES_NO
        return TEXT if cells[LONG] > cells[SHORT] else CATEGORY
    return best


def _learn_range(
    column: _Column,
    kind: str,
    looks: Looks,
    precision: float,
    rows: float,
    quantiles: tuple[float, float],
) -> None:
    """Learn the bounds of a column of numbers or days."""
    kinds = (DATE,) if kind == DAY else (WHOLE, FRACTION)
    numbers = DistinctNumbers(*column.counts.numbers(kinds))
    cells = max(1.0, sum(float(column.kinds[index]) for index in kinds))
    limits = find_range(
        numbers, _spend(column, looks), precision, min(cells, rows), quantiles, whole=kind != NUMBER
    )
    counts = limits.counts
    both = (limits.low, limits.high) == (0.0, 1.0) and len(counts) == 2
    if kind == WHOLE_NUMBER and both and min(counts) > _SURE * limits.deviation:
        kind = YES_NO
    elif kind == WHOLE_NUMBER and 0.5 * rows < limits.high - limits.low < 4 * rows:
        kind = IDENTIFIER if _all_different(column, looks, cells, looks.left) else kind
    column.facts = ColumnFacts(kind, limits, deviation=limits.deviation)


def _all_different(column: _Column, looks: Looks, cells: float, share: float) -> bool:
    """Return whether clearly few cells repeat another one.

    In doubt they do: a model loses more by a number that is left out than by one too many.
    """
    precision = min((40 / cells) ** 2, _DISTINCT_SHARE * share)
    noisy, deviation = _spend(column, looks)(column.counts.firsts_and_repeats(), precision)
    firsts, repeats = (float(count) for count in noisy)
    return bool(repeats + _CLEAR * deviation < _REPEATS * (firsts + repeats))


def _learn_names(
    columns: Sequence[_Column], looks: Looks, level: float, rows: float, spread: float
) -> None:
    """Learn names column by column; what clear columns leave goes to the others at the end."""
    if not columns:
        return
    share = looks.left / (len(columns) * (1 + _DISTINCT_SHARE))
    needed = (level + _FOUND) / math.sqrt(share)  # rows of a name that is found with 99 %
    unclear = []
    for column in columns:
        cells = rows - max(0.0, float(column.kinds[GAP]))
        for part in _NAME_LOOKS:
            deviation = _name_look(column, looks, part * share - column.precision, level)
            rest = cells - sum(column.found.values())
            doubt = math.sqrt(spread**2 + len(column.found) * deviation**2)
            if rest + _CLEAR * doubt < needed:
                break
        else:
            column.unique = not column.found and _all_different(column, looks, rows, share)
            if not column.unique:
                unclear.append(column)
    for position, column in enumerate(unclear):
        _name_look(column, looks, looks.left / (len(unclear) - position) / _ROUNDING, level)


def _name_look(column: _Column, looks: Looks, precision: float, level: float) -> float:
    """Look at the names that occur; those above the threshold are released."""
    before = looks.used
    noisy, deviation = looks.named(column.names, precision)
    gained = deviation**-2 if looks.used > before else 0.0
    column.used += looks.used - before
    known = column.precision
    column.precision = known + gained
    if not column.precision:
        return math.inf
    for name, value in noisy.items():
        old = column.estimates.get(name, 0.0)
        column.estimates[name] = (old * known + value * gained) / column.precision
    deviation = 1 / math.sqrt(column.precision)
    threshold = 1 + level * deviation * (1 + 2**-14)  # more than two steps of the lattice
    for name, value in column.estimates.items():
        if value >= threshold or name in column.found:
            column.found[name] = value
    return deviation


def _facts(column: _Column, kind: str) -> ColumnFacts:
    """Return the facts of a column that was looked at."""
    if column.facts is not None:
        return column.facts
    order = sorted(column.found, key=lambda name: (-column.found[name], name))
    categories = {name: column.found[name] for name in order}
    deviation = 1 / math.sqrt(column.precision) if column.precision else column.deviation
    kind = IDENTIFIER if column.unique else kind
    return ColumnFacts(kind, None, categories, deviation=deviation)


_LISTS = {YES_NO: "booleans", TEXT: "texts"}
_BY_COLUMN = {
    NUMBER: ("feature_bounds", "bounds"),
    WHOLE_NUMBER: ("feature_bounds", "bounds"),
    DAY: ("dates", "bounds"),
    CATEGORY: ("categories", "categories"),
}
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_KEYS = ("kind", "bounds", "categories", "missing")
_HEAD = ("rows", "user", "max_rows_per_user", "source", "epsilon", "delta")


@dataclass(frozen=True)
class StatedFacts:
    """Facts about columns in plain types, as a file states them.

    ``columns`` has ``kind`` and, where the column has them, ``bounds``, ``categories`` and
    ``missing`` by the name of the column. ``head`` is the table ``[facts]``.
    """

    columns: Mapping[str, Mapping[str, Any]]
    head: Mapping[str, Any] = field(default_factory=dict)

    def bounds(self, column: str) -> tuple[float, float] | None:
        """Return the bounds of a column of numbers; None if there are none."""
        facts = self.columns.get(column, {})
        if facts.get("kind") not in (NUMBER, WHOLE_NUMBER, YES_NO):
            return None
        return tuple(facts["bounds"]) if "bounds" in facts else None

    def names(self, column: str) -> list[str] | None:
        """Return the categories of a column; None if there are none."""
        names = self.columns.get(column, {}).get("categories")
        return list(names) if names else None

    def data_settings(self, target: str | None = None) -> dict[str, Any]:
        """Return the facts as the ``[data]`` table of a tuning job.

        Columns that cannot be features (identifiers, categories of which no name was found) are
        left out of ``features``, which is there only if a target is named.
        """
        settings: dict[str, Any] = {}
        features = []
        for name, facts in self.columns.items():
            kind = facts["kind"]
            if name == target:
                settings |= _target_settings(facts)
            elif kind in _LISTS:
                settings.setdefault(_LISTS[kind], []).append(name)
                features.append(name)
            elif kind in _BY_COLUMN and facts.get(_BY_COLUMN[kind][1]):
                key, fact = _BY_COLUMN[kind]
                settings.setdefault(key, {})[name] = facts[fact]
                features.append(name)
            if name in features and "missing" in facts:
                settings.setdefault("missing", {})[name] = facts["missing"]
        return settings if target is None else {"target": target, "features": features} | settings

    def to_toml(self) -> str:
        """Return the facts as TOML."""
        lines = ['# Values outside bounds are clipped; names that are not listed are "other".']
        lines += ["[facts]", *_entries(self.head)]
        for name, facts in self.columns.items():
            lines += ["", f"[columns.{toml_value(name)}]", *_entries(facts)]
        return "\n".join(lines) + "\n"


def _target_settings(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the column to predict."""
    if facts["kind"] in (NUMBER, WHOLE_NUMBER) and "bounds" in facts:
        return {"target_bounds": list(facts["bounds"])}
    names = facts.get("categories", ())
    return {"classes": sorted(names)} if len(names) > 1 else {}


def _entries(table: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table in TOML; what is None is left out."""
    return [f"{key} = {toml_value(value)}" for key, value in table.items() if value is not None]


def toml_key(name: str) -> str:
    """Return a name as a TOML key."""
    return name if _BARE.fullmatch(name) else toml_value(name)


def toml_value(value: Any, where: str = "facts") -> str:
    """Return a value of a setting as TOML; ``where`` names it in errors."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        inner = (f"{toml_key(key)} = {toml_value(one, where)}" for key, one in value.items())
        return "{ " + ", ".join(inner) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(member, where) for member in value) + "]"
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    raise InvalidInput(where, type(value).__name__, "a file takes numbers, texts, lists and tables")


def job_toml(settings: Mapping[str, Any], comment: str) -> str:
    """Return settings of ``[data]`` as TOML."""
    lines = [f"# {comment}", "[data]"]
    for key, value in settings.items():
        if isinstance(value, Mapping):
            lines += [f"{key}.{toml_value(name)} = {toml_value(v)}" for name, v in value.items()]
        else:
            lines.append(f"{key} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def read_facts(path: str | Path) -> StatedFacts:
    """Read a file of facts: TOML, or the certificate if it ends in .json."""
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(
            "facts", str(path), "there is no such file; expost describe --out writes one"
        )
    try:
        text = read_small(file, "facts")
        parsed = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("facts", str(path), f"not a file of facts: {error}") from None
    return stated_facts(parsed)


def stated_facts(document: Any) -> StatedFacts:
    """Check facts that were written down: the tables of a file, or a certificate."""
    if isinstance(document, Mapping) and document.get("kind") == "facts":
        document = _of_certificate(document)
    tables = document if isinstance(document, Mapping) else {}
    columns, head = tables.get("columns"), tables.get("facts", {})
    if not isinstance(columns, Mapping) or not columns or not isinstance(head, Mapping):
        raise InvalidInput(
            "facts", "this file", 'give tables as [columns.age] with kind = "number"'
        )
    cap = head.get("max_rows_per_user")
    if cap is not None and not (type(cap) is int and cap > 0):
        raise InvalidInput("facts.max_rows_per_user", cap, "give a whole number from 1 on")
    checked = {str(name): _checked(str(name), facts) for name, facts in columns.items()}
    return StatedFacts(checked, {key: head[key] for key in _HEAD if key in head})


def _of_certificate(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a certificate of facts says as the tables of a file."""
    try:
        facts = document["facts"]
        columns = {}
        for name, column in facts["columns"].items():
            columns[name] = {key: column[key] for key in _KEYS if key in column}
            listed = column.get("categories")
            if listed is not None:
                columns[name]["categories"] = [entry["name"] for entry in listed]
            elif column["kind"] == YES_NO:  # of these numbers
                columns[name]["categories"] = ["0", "1"]
        head = {key: facts[key] for key in _HEAD if facts.get(key) is not None}
    except (KeyError, TypeError, AttributeError):
        raise InvalidInput("facts", "this file", "it is no certificate of facts") from None
    return {"columns": columns, "facts": head}


def _checked(name: str, facts: Any) -> dict[str, Any]:
    """Check the facts of one column."""
    field_name = f"columns.{name}"
    if not isinstance(facts, Mapping) or facts.get("kind") not in KINDS:
        raise InvalidInput(field_name, facts, f"give a kind: {', '.join(KINDS)}")
    for key in facts:
        if key not in _KEYS:
            raise InvalidInput(
                f"{field_name}.{key}", facts[key], f"the keys are {', '.join(_KEYS)}"
            )
    if "bounds" in facts and not _is_pair(facts["bounds"], facts["kind"] == DAY):
        raise InvalidInput(f"{field_name}.bounds", facts["bounds"], "give [low, high]; low < high")
    names = facts.get("categories", [])
    texts = isinstance(names, list) and all(isinstance(label, str) for label in names)
    if not texts or len(set(names)) < len(names):
        raise InvalidInput(f"{field_name}.categories", names, "list different texts")
    return dict(facts)


def _is_pair(bounds: Any, days: bool) -> bool:
    """Return whether bounds are two numbers, or two dates, in ascending order."""
    if not isinstance(bounds, list) or len(bounds) != 2:
        return False
    if days:
        try:
            first, last = (date.fromisoformat(str(end)) for end in bounds)
        except ValueError:
            return False
        return first < last
    numbers = all(type(end) in (int, float) and math.isfinite(end) for end in bounds)
    return numbers and bounds[0] < bounds[1]


def with_facts(data: Mapping[str, Any], stated: StatedFacts) -> dict[str, Any]:
    """Return the ``[data]`` table of a job with facts for what it does not state.

    Features are the columns that the facts list and those that the job states something about.
    """
    learned = stated.data_settings(data.get("target"))
    filled = {key: value for key, value in data.items() if key != "facts" and value is not None}
    own = _about(filled)
    features = filled.get("features") or [*learned.get("features", ()), *own]
    wanted = {*features} if data.get("target") or "features" in filled else {*stated.columns}
    for key in ("feature_bounds", "categories", "dates", "missing"):
        known = filled.get(key, {})
        taken = known if key == "missing" else own
        if isinstance(known, Mapping):
            facts = learned.get(key, {})
            added = {name: facts[name] for name in facts if name in wanted and name not in taken}
            filled |= {key: {**added, **known}} if added else {}
    for key in ("booleans", "texts"):
        added_names = [n for n in learned.get(key, ()) if n in wanted and n not in own]
        if added_names:
            filled[key] = [*filled.get(key, ()), *added_names]
    if not {"classes", "target_bounds"} & {*filled}:
        filled |= {key: learned[key] for key in ("classes", "target_bounds") if key in learned}
    if data.get("target") and "features" not in filled:
        filled["features"] = list(dict.fromkeys(features))
    return filled


def _about(data: Mapping[str, Any]) -> list[str]:
    """Return the columns that a job states facts about."""
    tables = (data.get(key, {}) for key in ("feature_bounds", "categories", "dates"))
    named = [name for table in tables if isinstance(table, Mapping) for name in table]
    return [*named, *data.get("booleans", ()), *data.get("texts", ())]
