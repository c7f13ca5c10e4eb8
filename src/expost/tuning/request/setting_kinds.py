"""What a setting of a tuning job may be: read from TOML or Python, from a text, and as JSON Schema.

A :class:`Kind` is the one description of a value. A job file and keywords are checked with
``read``; options of the command line and fields of a form are texts, which ``parse`` turns into
values first; editors use ``schema``. Nothing here reads data. Tests:
``tests/tuning/test_request.py``, ``tests/tuning/test_settings.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

from expost.errors import InvalidInput
from expost.features import Features
from expost.features.texts_and_pictures import picture_shape
from expost.selection.candidate import MOST_REPEATS
from expost.tables.cells import label_text
from expost.tuning.rows.job_columns import CHOICES, Choice, is_choice

_NUMBER = {"type": "number"}
_MOST_LEVELS = 1000


class Unfit(ValueError):
    """A value that a setting cannot have; the text says what would be valid."""


@dataclass(frozen=True)
class Kind:
    """One kind of value. ``valid`` says what is valid, ``read`` returns a checked value.

    ``parse`` reads a text, and ``option`` is the type of the option on the command line: texts of a
    ``list[str]`` are repeated.
    """

    valid: str
    read: Callable[[Any], Any]
    schema: Mapping[str, Any]
    parse: Callable[[str], Any] = str
    option: Any = str

    def check(self, value: Any) -> Any:
        """Return the value in plain types; raise :class:`Unfit` if it is not of this kind."""
        try:
            return self.read(value)
        except Unfit:
            raise
        except (TypeError, ValueError, OverflowError):
            raise Unfit(self.valid) from None

    def saying(self, valid: str) -> Kind:
        """Return this kind with other words for what is valid."""
        return replace(self, valid=valid)


def is_number(value: object) -> bool:
    """Return whether ``value`` is a finite real number and not a bool."""
    try:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
    except OverflowError:  # an integer beyond the range of floats
        return False


def is_pair(pair: Any) -> bool:
    """Return whether ``pair`` is two ascending numbers with a finite difference."""
    if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(is_number, pair))):
        return False
    return 0 < float(pair[1]) - float(pair[0]) < math.inf


def public_choice(choice: Choice | None) -> Any:
    """Return a choice as a certificate states it: its name, or its record."""
    return choice.as_dict() if isinstance(choice, Features) else choice


def _need(fits: bool) -> None:
    if not fits:
        raise ValueError


def _listed(value: Any) -> list[Any]:
    """A list as a list; one that is not empty and repeats nothing."""
    _need(isinstance(value, (list, tuple)) and bool(value))
    return list(value)


def _array(items: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": dict(items), "minItems": 1, **more}


def _or_one(items: Mapping[str, Any]) -> dict[str, Any]:
    """A list, or one value that stands for a list of one."""
    return {"anyOf": [dict(items), _array(items, uniqueItems=True)]}


def number(
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    valid: str | None = None,
) -> Kind:
    """Return finite numbers between two ends: ``least`` and ``most``, or without the end itself."""
    ends = {"minimum": least, "maximum": most, "exclusiveMinimum": above, "exclusiveMaximum": below}
    limits = {word: end for word, end in ends.items() if math.isfinite(end)}

    def read(value: Any) -> float:
        if not is_number(value):
            raise Unfit("give a finite number" if valid is None else valid)
        _need(least <= value <= most and above < value < below)
        return float(value)

    return Kind(valid or "give a finite number", read, _NUMBER | limits, float, float)


def whole(most: int = MOST_REPEATS) -> Kind:
    """Return whole numbers from 1 on."""
    named = f" and ≤ {most}" if most < MOST_REPEATS else ""

    def read(value: Any) -> int:
        _need(isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most)
        return int(value)

    schema = {"type": "integer", "minimum": 1, "maximum": most}
    return Kind(f"give an integer ≥ 1{named}", read, schema, int, int)


def choice(*words: str) -> Kind:
    """Return one of some texts."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise Unfit("give a string")
        _need(value in words)
        return value

    return Kind("give one of " + ", ".join(words), read, {"enum": list(words)})


def _text(value: Any) -> str:
    _need(isinstance(value, str))
    return str(value)


def _flag(value: Any) -> bool:
    _need(isinstance(value, bool))
    return bool(value)


TEXT = Kind("give a string", _text, {"type": "string"})
FLAG = Kind("give true or false", _flag, {"type": "boolean"}, bool, bool)


def comma_separated(text: str) -> list[str]:
    """Return texts that are separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers_of(text: str) -> list[float]:
    """Return numbers that are separated by commas."""
    return [float(part) for part in text.split(",") if part.strip()]


def levels_of(text: str) -> list[float]:
    """Return levels from ``0.1,0.2`` or ``first:last:step``."""
    if ":" not in text:
        return numbers_of(text)
    first, last, step = (float(part) for part in text.split(":"))
    count = round((last - first) / step) if step else _MOST_LEVELS
    if count >= _MOST_LEVELS:
        raise Unfit(f"give at most {_MOST_LEVELS} numbers, like 0.1,0.2,0.4 or first:last:step")
    return [round(first + step * index, 12) for index in range(count + 1)]


def positives(*, ascending: str = "", most: float = math.inf) -> Kind:
    """Return lists of different numbers above 0; a single number is a list of one."""

    def read(value: Any) -> tuple[float, ...]:
        listed = _listed([value] if is_number(value) else value)
        _need(all(is_number(one) and 0 < one <= most for one in listed))
        if len(set(listed)) < len(listed):
            raise Unfit("give each number once; for copies of candidates use privacy.repeats")
        if ascending and sorted(listed) != listed:
            raise Unfit(ascending)
        return tuple(listed)

    schema = _or_one({"type": "number", "exclusiveMinimum": 0})
    return Kind("give a list of finite numbers > 0", read, schema, levels_of)


def different(one: Callable[[Any], Any], items: Mapping[str, Any], valid: str) -> Kind:
    """Return lists of different values, each of which ``one`` reads; one value is a list of one."""

    def read(value: Any) -> tuple[Any, ...]:
        listed = list(value) if isinstance(value, (list, tuple)) else [value]
        try:
            checked = [one(part) for part in listed]
        except (TypeError, ValueError):
            raise Unfit(valid) from None
        _need(0 < len(checked) == len({repr(public_choice(part)) for part in checked}))
        return tuple(checked)

    return Kind(valid, read, _or_one(items), comma_separated)


def words_from(choices: Sequence[str]) -> Kind:
    """Return lists of different texts from some."""
    valid = "give a list of different texts from " + ", ".join(choices)
    return different(choice(*choices).check, {"enum": list(choices)}, valid)


def _names(value: Any) -> tuple[str, ...]:
    listed = _listed(value)
    _need(all(isinstance(name, str) for name in listed) and len(set(listed)) == len(listed))
    return tuple(listed)


_COLUMNS = _array({"type": "string"}, uniqueItems=True)
NAMES = Kind("give a list of column names", _names, _COLUMNS, comma_separated)
SEVERAL_NAMES = replace(NAMES, option=list[str])
FEATURES = replace(NAMES, parse=lambda text: text if text in CHOICES else comma_separated(text))


def bounds_of(text: str) -> list[float]:
    """Return LOW:HIGH as a pair."""
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise Unfit("give LOW:HIGH, for example 0:120") from None
    return [low, high]


def _pair(value: Any) -> tuple[float, float]:
    _need(is_pair(value))
    return float(value[0]), float(value[1])


_TWO_NUMBERS = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
PAIR = Kind("give two numbers [low, high] with low < high", _pair, _TWO_NUMBERS, bounds_of)


def by_column(
    one: Kind, valid: str, example: str, parse_one: Callable[[str], Any] | None = None
) -> Kind:
    """Return tables by column name; ``valid`` names a column as ``{}``."""

    def read(value: Any) -> dict[str, Any]:
        _need(isinstance(value, Mapping) and all(isinstance(name, str) for name in value))
        checked = {}
        for column, fact in value.items():
            try:
                checked[column] = one.read(fact)
            except (TypeError, ValueError):
                raise Unfit(valid.format(repr(column))) from None
        return checked

    def parse(text: str) -> tuple[str, Any]:
        column, sign, fact = text.partition("=")
        if not (column and sign and fact):
            raise Unfit(f"give COLUMN=…, for example {example}")
        return column, (parse_one or one.parse)(fact)

    schema = {"type": "object", "additionalProperties": dict(one.schema)}
    words = "give a table by column name, e.g. { age = … }"
    return Kind(words, read, schema, parse, list[str])


def _bounds(value: Any) -> Any:
    if isinstance(value, Mapping):
        return BOUNDS_BY_COLUMN.check(value)
    flat = isinstance(value, (list, tuple)) and bool(value) and all(map(is_number, value))
    return tuple(_pair(pair) for pair in _listed([value] if flat else value))


BOUNDS_BY_COLUMN = by_column(PAIR, "give [low, high] with low < high for {}", "age=0:120")
BOUNDS = Kind(
    "give [low, high] with low < high for all features, a list of such pairs, one per feature, or "
    "a table of pairs by column name",
    _bounds,
    {"anyOf": [_TWO_NUMBERS, _array(_TWO_NUMBERS), BOUNDS_BY_COLUMN.schema]},
    bounds_of,
)


def _labels(value: Any, least: int = 1) -> tuple[Any, ...]:
    listed = _listed(value)
    _need(len(listed) >= least)
    _need(all(isinstance(label, (str, int, float, bool)) for label in listed))
    texts = [label_text(label) for label in listed]
    _need(None not in texts and len(set(texts)) == len(texts))
    return tuple(listed)


def _classes(value: Any) -> int | tuple[Any, ...]:
    if isinstance(value, (list, tuple)):
        return _labels(value, 2)
    _need(isinstance(value, int) and not isinstance(value, bool) and value >= 2)
    return int(value)


_LABELS = _array({"type": ["string", "number", "boolean"]}, uniqueItems=True)
CLASSES = Kind(
    "give the number of classes (labels 0, 1, …) or the list of labels; both must be public "
    "knowledge",
    _classes,
    {"anyOf": [{"type": "integer", "minimum": 2}, {**_LABELS, "minItems": 2}]},
    lambda text: int(text) if text.strip().isdecimal() else comma_separated(text),
)
CATEGORIES = by_column(
    Kind("", _labels, _LABELS, comma_separated),
    "give the list of different public categories of {}",
    "city=Bern,Zug",
)


def iso_day(value: Any) -> str | None:
    """Return a day as ISO text, or None."""
    if isinstance(value, datetime):
        return value.date().isoformat()
    if isinstance(value, date):
        return value.isoformat()
    try:
        return date.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        return None


def _days(value: Any) -> tuple[str, str]:
    first, last = (iso_day(day) for day in _listed(value))
    _need(first is not None and last is not None and first < last)
    return str(first), str(last)


def _days_of(text: str) -> list[str]:
    parts = text.split(":")
    if len(parts) != 2:
        raise Unfit("give FIRST:LAST, for example 1900-01-01:2026-12-31")
    return parts


_DAY = {"type": "string", "format": "date"}
DATES = by_column(
    Kind("", _days, {"type": "array", "items": _DAY, "minItems": 2, "maxItems": 2}),
    'give the first and the last day of {}: ["2000-01-01", "2026-12-31"]',
    "born=1900-01-01:2026-12-31",
    _days_of,
)


def _fill_of(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


FILLS = by_column(
    Kind(
        "",
        lambda fill: iso_day(fill) if isinstance(fill, date) else fill,
        {"type": ["string", "number", "boolean"]},
    ),
    "give a public value or indicator for {}",
    "age=40",
    _fill_of,
)


def _shape(value: Any) -> tuple[int, ...]:
    try:
        return picture_shape(value)
    except InvalidInput as error:
        raise Unfit(error.valid) from None


_SIZES = _array({"type": "integer", "minimum": 1})
SHAPE = Kind("", _shape, {"anyOf": [{"type": "string"}, {**_SIZES, "minItems": 2}]})


def _input_shape(value: Any) -> tuple[int, ...]:
    listed = _listed(value)
    _need(all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in listed))
    return tuple(listed)


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise Unfit("give whole numbers, for example 1,28,28") from None


INPUT_SHAPE = Kind(
    "give the shape of one example, e.g. [1, 28, 28]", _input_shape, _SIZES, _whole_numbers
)


def _delimiter(value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit("give a string")
    _need(len(value) == 1 and value not in '"\r\n')
    return value


DELIMITER = Kind("give one character, such as ; or a tab", _delimiter, {"type": "string"})


def _feature_map(value: Any) -> Any:
    _need(is_choice(value))
    return value


_MAP = {"anyOf": [{"enum": list(CHOICES)}, {"type": "object"}]}
FEATURE_MAP = Kind('give "auto", "plain", or a table that describes features', _feature_map, _MAP)
FEATURE_MAPS = different(
    _feature_map,
    _MAP,
    'give a list of different choices: "auto", "plain", or tables that describe features',
)


def _class_weights(value: Any) -> tuple[float, ...]:
    listed = _listed(value)
    _need(all(is_number(weight) and weight > 0 for weight in listed))
    return tuple(map(float, listed))


CLASS_WEIGHTS = different(
    _class_weights,
    _array({"type": "number", "exclusiveMinimum": 0}),
    "give a list of different lists with one number > 0 per class, in the order of data.classes, "
    "e.g. [[1, 1], [1, 5]]; they are public and must not be computed from the labels",
)


def _shares(value: Any) -> tuple[float, ...]:
    listed = _listed(value)
    _need(len(listed) >= 2 and all(is_number(share) and share > 0 for share in listed))
    _need(abs(math.fsum(listed) - 1) <= 1e-6)
    return tuple(map(float, listed))


def _shares_of(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise Unfit("give shares, for example 0.9,0.1") from None


CLASS_SHARES = Kind(
    "give one share > 0 per class, in the order of data.classes; they sum to 1",
    _shares,
    {**_array({"type": "number", "exclusiveMinimum": 0}), "minItems": 2},
    _shares_of,
)


def word_or(word: str, kind: Kind, valid: str) -> Kind:
    """Return a word, or another kind of value."""

    def read(value: Any) -> Any:
        return value if value == word and isinstance(value, str) else kind.read(value)

    schema = {"anyOf": [{"const": word}, dict(kind.schema)]}
    return Kind(valid, read, schema, lambda text: text if text == word else kind.parse(text))


def code_or(words: Sequence[str], what: str) -> Kind:
    """Return one of some words, or code: a name ``module:name``, or a callable in Python."""

    def read(value: Any) -> Any:
        if callable(value):
            return value
        if not isinstance(value, str):
            raise Unfit("give a string")
        module, _, name = value.rpartition(":")
        _need(value in words or bool(module.strip() and name.strip()))
        return value

    valid = f'give one of {", ".join(words)}; or "module:name" or "file.py:name"{what}'
    return Kind(valid, read, {"anyOf": [{"enum": list(words)}, {"type": "string"}]})


def _module(value: Any) -> Any:
    if callable(value):
        return value
    module, _, name = _text(value).rpartition(":")
    _need(bool(module.strip() and name.strip()))
    return value


def _modules(value: Any) -> tuple[Any, ...]:
    listed = tuple(map(_module, _listed(value)))
    _need(bool(listed) and len(set(map(repr, listed))) == len(listed))
    return listed


MODULES = Kind(
    'give a list of different names "module:name" or "file.py:name" of functions or classes that '
    "make a torch module; or, in Python, of these",
    _modules,
    {"type": "array", "items": {"type": "string"}, "minItems": 1},
)


def _plain(value: Any) -> bool:
    """Return whether a value can be written in a certificate."""
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    return isinstance(value, (bool, str)) or is_number(value)


def _arguments(value: Any) -> dict[str, Any]:
    _need(isinstance(value, Mapping))
    _need(all(isinstance(key, str) and _plain(part) for key, part in value.items()))
    return dict(value)


ARGUMENTS = Kind(
    "give a table of numbers, texts, true or false and lists of them, e.g. {width = 64}; they are "
    "public",
    _arguments,
    {"type": "object"},
)


def _argument_lists(value: Any) -> dict[str, tuple[Any, ...]]:
    lists = _arguments(value)
    _need(bool(lists) and all(isinstance(part, (list, tuple)) and part for part in lists.values()))
    _need(all(len(set(map(repr, part))) == len(part) for part in lists.values()))
    return {name: tuple(part) for name, part in lists.items()}


ARGUMENT_LISTS = Kind(
    "give a table of lists of different values, e.g. {width = [64, 128]}; they are public",
    _argument_lists,
    {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}},
)
