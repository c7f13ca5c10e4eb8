"""Files of facts: what ``expost describe --out facts.toml`` writes, and ``--facts`` reads.

A file has a table ``[facts]`` (rows, the user column, the cap of rows per person, the charge) and
one table per column: its kind, bounds, categories, and what stands for an empty cell. People may
edit it or write one by hand. A certificate of facts (JSON) has the same content. What a file holds
is public: released facts, or what somebody stated.
Tests: ``tests/facts/test_facts_file.py``.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from expost.errors import InvalidInput
from expost.facts.mechanism import (
    CATEGORY,
    DAY,
    KINDS,
    NUMBER,
    TEXT,
    WHOLE_NUMBER,
    YES_NO,
)
from expost.files import read_small

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
