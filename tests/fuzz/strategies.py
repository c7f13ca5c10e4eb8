"""Nearly correct documents: TOML, CSV, JSON and command-line words with something wrong in them."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.sampled_from(
        [
            0,
            -1,
            1,
            2,
            3,
            0.5,
            -0.0,
            1e-300,
            5e-324,
            1e300,
            1.7976931348623157e308,
            2**31,
            2**63,
            -(2**63),
            10**400,
            1e-6,
            0.999999,
        ]
    ),
    st.floats(),
    st.integers(),
)
TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "nan",
            "inf",
            "-1",
            "0",
            "auto",
            "digits",
            "é",
            "\u202e",
            "a" * 5000,
            "../..",
            "/",
            "%s",
            "[red]",
            "[/x]",
        ]
    ),
    st.text(max_size=20),
)
SCALARS = st.one_of(NUMBERS, TEXTS, st.booleans())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


def toml_value(value: Any) -> str:
    """A value as TOML; numbers beyond its types are written as digits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return (
            ("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
            if not math.isfinite(value)
            else repr(value)
        )
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=True)
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return (
        "{"
        + ", ".join(f"{json.dumps(key)} = {toml_value(each)}" for key, each in value.items())
        + "}"
    )


def toml_text(tables: dict[str, Any]) -> str:
    """A document with one ``[table]`` after another."""
    lines = []
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [f"[{json.dumps(name)}]" if not name.isidentifier() else f"[{name}]"]
            lines += [
                f"{shown} = {toml_value(value)}"
                for key, value in table.items()
                for shown in [key if key.isidentifier() and key.isascii() else json.dumps(key)]
            ]
        else:
            lines.insert(0, f"{name} = {toml_value(table)}")
    return "\n".join(lines) + "\n"


@st.composite
def changed_tables(
    draw: st.DrawFn, tables: dict[str, dict[str, Any]], further: dict[str, list[str]]
) -> dict[str, Any]:
    """Return the tables with one to three changes.

    Another value, another type, an extra or a missing key, or a table that is not a table.
    """
    made: dict[str, Any] = copy.deepcopy(tables)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(tables)))
        if not isinstance(made.get(name), dict):
            continue
        table = made[name]
        how = draw(
            st.sampled_from(
                [
                    "value",
                    "value",
                    "value",
                    "element",
                    "further",
                    "further",
                    "unknown",
                    "drop",
                    "no table",
                    "number",
                ]
            )
        )
        key = draw(st.sampled_from(sorted(table))) if table else "x"
        if how == "value":
            table[key] = draw(VALUES)
        elif how == "number":
            table[key] = draw(NUMBERS)
        elif how == "element" and isinstance(table.get(key), list):
            table[key] = [*table[key], draw(SCALARS)]
        elif how == "further":
            table[draw(st.sampled_from(further[name]))] = draw(VALUES | NUMBERS)
        elif how == "unknown":
            table[draw(TEXTS)] = draw(SCALARS)
        elif how == "drop":
            table.pop(key, None)
        elif how == "no table":
            made[name] = draw(SCALARS)
    return made


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with some cut out, doubled, turned over or put in."""
    made = content
    for _ in range(draw(st.integers(1, 4))):
        first, last = sorted((draw(st.integers(0, len(made))), draw(st.integers(0, len(made)))))
        piece = draw(
            st.sampled_from(
                [
                    b"",
                    b"\x00",
                    b"\xff\xfe",
                    b"\xef\xbb\xbf",
                    b'"',
                    b"\n",
                    b"\r\n",
                    b"[",
                    b"{",
                    b"=",
                    b",",
                    b";",
                    b"\\u0000",
                    b"1979-05-27",
                    b"9" * 5000,
                    b"[" * 3000,
                ]
            )
            | st.binary(max_size=6)
        )
        made = draw(
            st.sampled_from(
                [
                    made[:first] + piece + made[last:],
                    made[:first] + piece + made[first:],
                    made[:last],
                    made[:last] + made[first:],
                ]
            )
        )
    return made


@st.composite
def changed_json(draw: st.DrawFn, record: Any) -> Any:
    """A JSON document with one value, somewhere inside, that is another, gone, or new."""
    made = copy.deepcopy(record)
    for _ in range(draw(st.integers(1, 2))):
        place = made
        while True:
            keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and place[key] and draw(st.booleans()):
                place = place[key]
                continue
            how = draw(st.sampled_from(["value", "value", "drop", "new"]))
            if how == "drop":
                del place[key]
            elif how == "value":
                place[key] = draw(VALUES)
            elif isinstance(place, dict):
                place[draw(TEXTS)] = draw(VALUES)
            else:
                place.append(draw(VALUES))
            break
    return made
