"""What a certificate says about a selection: its public grid, and a description of its source.

The grid is everything that the price depends on, so that the charges can be computed again from it
(:mod:`expost.selection.price_again`). It holds the selector with its settings as exact numbers, and
for each candidate its promise, its copies and its drop rate. Equal promises and equal candidates
are stored once. It holds no mechanisms, parameters or data.
Tests: ``tests/selection/test_grid.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from typing import Any

import numpy as np

from expost.mechanisms.discrete_noise import DiscreteNoise, Query
from expost.privacy.guarantees import Guarantee
from expost.selection.candidate import Candidate
from expost.selection.held_out import HeldOut

OWN = "expost."  # the price of a selector that is defined elsewhere cannot be computed again


def grid_of(selector: Any, candidates: Sequence[Candidate]) -> dict[str, Any] | None:
    """Return the grid of a selection in plain JSON types.

    Parameters
    ----------
    selector : Selector
        The selector.
    candidates : sequence of Candidate
        The checked candidates.

    Returns
    -------
    dict or None
        ``selector`` (name and settings), ``mechanisms`` (the kind that the price depends on),
        ``promises``, ``levels`` (promise, repeats and drop rate of each distinct candidate) and
        ``candidates`` (runs of equal levels as [level, length]). None for a selector or a law that
        this package does not define.
    """
    settings = {each.name: getattr(selector, each.name) for each in fields(selector)}
    laws = [value for value in settings.values() if is_dataclass(value)]
    if not all(type(each).__module__.startswith(OWN) for each in (selector, *laws)):
        return None
    promises: dict[Guarantee, int] = {}
    # Look up promises by identity first: hashing a long curve for each candidate would be slow.
    known: dict[int, int] = {}
    levels: dict[tuple[int, int, Any], int] = {}
    places = []
    for each in candidates:
        number = known.get(id(each.guarantee))
        if number is None:
            number = promises.setdefault(each.guarantee, len(promises))
            known[id(each.guarantee)] = number
        places.append(levels.setdefault((number, each.repeats, each.drop_rate), len(levels)))
    return {
        "selector": {"name": selector.name}
        | {name: written(value) for name, value in settings.items()},
        "mechanisms": _kind([each.mechanism for each in candidates]),
        "promises": [each.as_dict() for each in promises],
        "levels": [[number, repeats, written(rate)] for number, repeats, rate in levels],
        "candidates": [[level, len(list(run))] for level, run in groupby(places)],
    }


def source_of(data: Any) -> dict[str, Any]:
    """Return a public description of data: its type, and the names of its columns if it has any."""
    kind = type(data)
    found: dict[str, Any] = {"kind": f"{kind.__module__}.{kind.__qualname__}"}
    columns = getattr(data, "columns", None)
    names = list(columns) if isinstance(columns, Iterable) else []
    if names and all(isinstance(name, str) for name in names):
        found["columns"] = names
    return found


def written(value: Any) -> Any:
    """Return a setting in plain JSON types; rationals and decimals stay exact."""
    if isinstance(value, (Fraction, Decimal)):
        return {"exact": str(Fraction(value))}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [written(each) for each in value]
    if callable(value):  # a rule of the caller's, of which only the name is public
        return getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, HeldOut):  # its rates follow from the promises
        names: Iterable[str] = ("stages", "thresholds", "steps", "monotone")
    elif is_dataclass(value):
        names = [each.name for each in fields(value)]
    else:
        return value
    law = type(value).__name__
    return {"law": law} | {name: written(getattr(value, name)) for name in names}


def _kind(mechanisms: Sequence[Any]) -> str:
    """The kind of the mechanisms, as far as a price depends on it."""
    if all(isinstance(each, Query) for each in mechanisms):
        return "queries"
    laws = {each.law if isinstance(each, DiscreteNoise) else "any" for each in mechanisms}
    return laws.pop() if len(laws) == 1 else "any"
