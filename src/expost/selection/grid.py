"""What a certificate says about a selection: its public grid, and a description of its source.

The grid is everything that the price depends on, so that the charges can be computed again from it
(:mod:`expost.certificates.document`). It holds the selector with its settings as exact numbers, and
for each candidate its guarantee, its copies and its drop rate. Equal ones are stored once. It holds
no mechanisms, parameters or data.
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
from expost.selection.held_out import GaussianCounts, HeldOut

OWN = "expost."  # the price of a selector that is defined elsewhere cannot be computed again


def grid_of(selector: Any, candidates: Sequence[Candidate]) -> dict[str, Any] | None:
    """Return the grid of a selection in plain JSON types."""
    settings = {setting.name: getattr(selector, setting.name) for setting in fields(selector)}
    laws = [value for value in settings.values() if is_dataclass(value)]
    if not all(type(part).__module__.startswith(OWN) for part in (selector, *laws)):
        return None
    guarantees: dict[Guarantee, int] = {}
    # Look up guarantees by identity first: hashing a long curve for each candidate would be slow.
    known: dict[int, int] = {}
    levels: dict[tuple[int, int, Any], int] = {}
    level_of = []
    for candidate in candidates:
        number = known.get(id(candidate.guarantee))
        if number is None:
            number = guarantees.setdefault(candidate.guarantee, len(guarantees))
            known[id(candidate.guarantee)] = number
        level = (number, candidate.repeats, candidate.drop_rate)
        level_of.append(levels.setdefault(level, len(levels)))
    return {
        "selector": {"name": selector.name}
        | {name: written(value) for name, value in settings.items()},
        "mechanisms": _kind([candidate.mechanism for candidate in candidates]),
        "guarantees": [guarantee.as_dict() for guarantee in guarantees],
        "levels": [[number, repeats, written(rate)] for number, repeats, rate in levels],
        "candidates": [[level, len(list(run))] for level, run in groupby(level_of)],
    }


def data_description(data: Any) -> dict[str, Any]:
    """Return a public description of data: its type, and the names of its columns if it has any."""
    kind = type(data)
    description: dict[str, Any] = {"kind": f"{kind.__module__}.{kind.__qualname__}"}
    columns = getattr(data, "columns", None)
    names = list(columns) if isinstance(columns, Iterable) else []
    if names and all(isinstance(name, str) for name in names):
        description["columns"] = names
    return description


def written(value: Any) -> Any:
    """Return a setting in plain JSON types; rationals and decimals stay exact."""
    if isinstance(value, (Fraction, Decimal)):
        return {"exact": str(Fraction(value))}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [written(part) for part in value]
    if callable(value):  # a rule of the caller's, of which only the name is public
        return getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, HeldOut):  # its rates follow from the guarantees
        names: Iterable[str] = ("thresholds", "steps", "monotone")
    elif isinstance(value, GaussianCounts):  # so do its deviations
        names = ("thresholds", "steps")
    elif is_dataclass(value):
        names = [setting.name for setting in fields(value)]
    else:
        return value
    law = type(value).__name__
    return {"law": law} | {name: written(getattr(value, name)) for name in names}


def _kind(mechanisms: Sequence[Any]) -> str:
    """The kind of the mechanisms, as far as a price depends on it."""
    if all(isinstance(mechanism, Query) for mechanism in mechanisms):
        return "queries"
    laws = {m.law if isinstance(m, DiscreteNoise) else "any" for m in mechanisms}
    return laws.pop() if len(laws) == 1 else "any"
