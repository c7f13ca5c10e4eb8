"""Forms of questions: fields with their defaults, and the question that they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import QueryParams

from expost.errors import InvalidInput
from expost.server.pages.rendering import listed, real, reals, text, whole

Fields = dict[str, Any]


def question_fields(facts: Mapping[str, Any], given: QueryParams) -> Fields:
    """Return the fields of a count, sum or mean: what was given, else defaults."""
    kind = given.get("kind", "count")
    unit = given.get("unit", "absolute" if kind == "mean" else "percent")
    column = given.get("column") or next(iter(facts["values"]), "")
    asked = "kind" in given
    first = [name for name, keys in facts["groups"].items() if keys is not None][:1]
    ranges = error_ranges(facts, kind, column)
    default = "10" if unit == "percent" else f"{ranges['absolute'][1] / 20:.2g}"
    return {
        "kind": kind,
        "by": given.getlist("by") if asked else first,
        "column": column,
        "unit": unit,
        "error": given.get("error") or default,
        "where": given.get("where", ""),
        "keys": given.get("keys", ""),
        "private_keys": given.get("private_keys", ""),
        "rows": given.get("rows", ""),
        "confidence": given.get("confidence") or "90",
        "size": given.get("size") or str(facts["typical_group"]),
        "ranges": ranges,
    }


def error_ranges(facts: Mapping[str, Any], kind: str, column: str) -> dict[str, list[float]]:
    """Return the ends of the slider for errors in per cent and in units."""
    size = facts["typical_group"]
    low, high = facts["values"].get(column, (0.0, 1.0))
    whole_scale = {"mean": (high - low) / 2, "sum": size * max(abs(low), abs(high))}
    most = whole_scale.get(kind, float(size))
    return {"percent": [0.5, 100.0], "absolute": [most / 1000, most]}


def question(facts: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return the question that the fields mean."""
    kind = fields["kind"]
    error = real(fields, "error")
    if error is None or error <= 0:
        raise InvalidInput("error", error, "give a number > 0")
    asked: dict[str, Any] = {"dataset": facts["name"], "kind": kind, "by": list(fields["by"])}
    asked |= {"within": error / 100} if fields["unit"] == "percent" else {"plus_minus": error}
    conditions = [line.strip() for line in fields["where"].splitlines() if line.strip()]
    if conditions:
        asked["where"] = conditions
    if kind != "count":
        asked["column"] = fields["column"]
    if fields["rows"] and kind == "count":
        asked["rows"] = True
    if asked["by"] and fields["private_keys"]:
        asked["private_keys"] = True
    elif asked["by"] and text(fields, "keys"):
        asked["keys"] = _keys(fields, len(asked["by"]))
    confidence = real(fields, "confidence")
    if confidence is not None:
        asked["confidence"] = confidence / 100
    asked["size"] = whole(fields, "size")
    return asked


def _keys(fields: Fields, columns: int) -> list[Any]:
    """One group per line; with several columns, the parts of a line are separated by commas."""
    lines = [line.strip() for line in fields["keys"].splitlines() if line.strip()]
    if columns == 1:
        return lines
    split = [[part.strip() for part in line.split(",")] for line in lines]
    if any(len(parts) != columns for parts in split):
        raise InvalidInput("keys", "a line", f"give {columns} values in each line, with commas")
    return split


_LISTS = ("epsilons", "learning_rates", "epochs", "batch_sizes", "clips")
_JOB = {
    "model": "softmax",
    "epsilons": "0.5, 1, 2",
    "learning_rates": "1, 2",
    "epochs": "5",
    "batch_sizes": "256",
    "clips": "1",
    "metric": "accuracy",
    "bar": "80",
    "confidence": "90",
    "loss_bound": "",
    "attempts": "",
}


def job_fields(facts: Mapping[str, Any], given: QueryParams) -> Fields:
    """Return the fields of a tuning job: what was given, else defaults."""
    return {name: given.get(name, default) for name, default in _JOB.items()}


def job(facts: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return the tuning job that the fields mean."""
    bar = real(fields, "bar")
    if bar is None:
        raise InvalidInput("bar", None, "give the score that the model must reach")
    confidence = real(fields, "confidence")
    goal: dict[str, Any] = {"metric": fields["metric"]}
    goal |= {"at_least": bar / 100} if fields["metric"] == "accuracy" else {"at_most": bar}
    if confidence is not None:
        goal["confidence"] = confidence / 100
    if text(fields, "loss_bound"):
        goal["loss_bound"] = real(fields, "loss_bound")
    search = {name: reals(fields, name) for name in _LISTS}
    asked: dict[str, Any] = {
        "dataset": facts["name"],
        "kind": "tune",
        "model": {"kind": fields["model"]},
        "search": search,
        "goal": goal,
    }
    attempts = whole(fields, "attempts")
    if attempts is not None:
        asked["privacy"] = {"attempts": attempts}
    return asked


def again(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the form for the question of a request, to ask it differently."""
    asked = view["question"]
    if view["kind"] == "tune":
        goal, search = asked["goal"], asked["search"]
        bar = goal.get("at_least")
        return {
            "model": asked["model"]["kind"],
            **{
                name: ", ".join(f"{each:g}" for each in search[name])
                for name in _LISTS
                if isinstance(search.get(name), list)
            },
            "metric": goal.get("metric", "accuracy"),
            "bar": f"{100 * bar:g}" if bar is not None else goal.get("at_most") or "",
            "confidence": f"{100 * goal.get('confidence', 0.9):g}",
            "loss_bound": f"{goal['loss_bound']:g}" if "loss_bound" in goal else "",
            "attempts": (asked.get("privacy") or {}).get("attempts", ""),
        }
    percent = asked["within"] is not None
    return {
        "kind": view["kind"],
        "by": list(asked["by"]),
        "column": asked["column"] or "",
        "unit": "percent" if percent else "absolute",
        "error": f"{100 * asked['within']:g}" if percent else f"{asked['plus_minus']:g}",
        "where": "\n".join(asked["where"]),
        "confidence": f"{100 * asked['confidence']:g}",
        "size": str(asked["size"]),
        "rows": "1" if asked["rows"] else "",
        "private_keys": "1" if asked["private_keys"] else "",
    }


def lines(fields: Mapping[str, Any], name: str) -> dict[str, list[str] | None]:
    """Return lines such as "city: Bern, Graz" as a dict; a line without a colon means None."""
    found: dict[str, list[str] | None] = {}
    for line in text(fields, name).splitlines():
        column, colon, rest = line.partition(":")
        if column.strip():
            found[column.strip()] = listed({name: rest}, name) if colon else None
    return found
