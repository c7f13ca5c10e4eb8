"""The certificate that a selection returns: the winner, its charge, and the theorem behind it.

A certificate contains nothing that a selection keeps secret: no drop level, coins, run counts,
timings or losing outputs. It contains the public grid, from which its charge can be computed again
(``expost certificate verify``), and can be signed (``expost certificate sign``).

The grid is everything that the charges depend on (:mod:`expost.certificates.document` computes them
again). It holds the selector with its settings as exact numbers, and for each candidate its
guarantee, its copies and its drop rate. Equal ones are stored once. It holds no mechanisms,
parameters or data.

Tests: ``tests/contracts/test_selectors.py``, ``tests/contracts/test_secrets.py``,
``tests/selection/test_grid.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from expost._version import __version__
from expost.errors import InvalidInput, InvalidRelease
from expost.files import read_small
from expost.html_tables import html_summary
from expost.mechanisms import FAILED, NOTHING, DiscreteNoise, Query
from expost.privacy.guarantees import Guarantee, guarantee_from_dict
from expost.selection.candidate import Candidate, numbered_guarantees
from expost.selection.held_out import GaussianCounts, HeldOut

SCHEMA = 2

_OUTCOMES: dict[str, Any] = {"nothing": NOTHING, "failed": FAILED}


@dataclass(frozen=True)
class Release:
    """The certificate of a selection. All of it may be published.

    Parameters
    ----------
    value : object
        The winner's output, ``NOTHING``, or ``FAILED``. An output that did not reach the goal is
        called *missed* in the certificate.
    params : mapping
        The winner's public settings.
    index : int or None
        The winner's index in the list of candidates; None for ``NOTHING``.
    score : float or None
        The winner's score, if it has one.
    passed : bool or None
        Whether the goal was reached; None if there was no goal.
    spent : Guarantee
        The charge of this outcome. A Rényi or zCDP charge must be converted at an order that was
        fixed before the outcome was known (``delta=`` on the selector does this correctly), never
        at the order that looks best afterwards.
    worst_case : Guarantee
        The largest charge that any outcome could have had.
    theorem : str
        The result that the claim rests on.
    selector : mapping
        The selector's public settings.
    simulated : bool
        True if seeded randomness was used. Then nothing is guaranteed.
    ledger : mapping or None
        The ledger entry that paid: ledger, budget, analyst, reservation, date and the public
        description of the source.
    grid : mapping or None
        Everything that the charges depend on (:mod:`expost.selection.release`); None for a selector
        that this package does not define.
    """

    value: Any
    params: Mapping[str, Any]
    index: int | None
    score: float | None
    passed: bool | None
    spent: Guarantee
    worst_case: Guarantee
    theorem: str
    selector: Mapping[str, Any]
    simulated: bool = False
    ledger: Mapping[str, Any] | None = field(default=None, compare=False)
    grid: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    def _repr_html_(self) -> str:
        """Return the certificate for a notebook."""
        facts = {
            "value": _outcome(self.value),
            "parameters": dict(self.params),
            "score": self.score,
            "goal reached": self.passed,
            "spent": self.spent,
            "worst case": self.worst_case,
            "theorem": self.theorem,
            "selector": self.selector.get("name"),
            "simulated (not private)": self.simulated,
        }
        return html_summary("Release", facts)

    def as_dict(self, encode: Callable[[Any], Any] | None = None) -> dict[str, Any]:
        """Return the certificate in plain JSON types.

        Parameters
        ----------
        encode : callable, optional
            Turns the value into something that JSON can hold. By default only plain values and
            NumPy arrays and numbers are accepted.

        Raises
        ------
        InvalidRelease
            JSON cannot hold the value, a setting, or a parameter.
        """
        outcome = _sentinel(self.value) or ("missed" if self.passed is False else "value")
        value = None if outcome in _OUTCOMES else (encode or plain_json)(self.value)
        return {
            "expost": __version__,
            "schema": SCHEMA,
            "kind": "selection",
            "outcome": outcome,
            "value": value,
            "params": plain_json(dict(self.params), "params"),
            "index": self.index,
            "score": self.score
            if self.score is None or math.isfinite(self.score)
            else str(self.score),
            "passed": self.passed,
            "spent": self.spent.as_dict(),
            "worst_case": self.worst_case.as_dict(),
            "theorem": self.theorem,
            "selector": plain_json(dict(self.selector), "selector"),
            "simulated": self.simulated,
            "ledger": None if self.ledger is None else dict(self.ledger),
            "grid": None if self.grid is None else dict(self.grid),
        }

    def record(self) -> dict[str, Any] | None:
        """Return the certificate whose digest the ledger stores.

        It is :meth:`as_dict`, without the value if JSON cannot hold that; None if JSON cannot hold
        the parameters.
        """
        for encode in (None, lambda value: None):
            try:
                return self.as_dict(encode)
            except (InvalidRelease, RecursionError):
                continue
        return None

    def to_json(self, encode: Callable[[Any], Any] | None = None) -> str:
        """Return the certificate as JSON text; see :meth:`as_dict` for ``encode``."""
        return json.dumps(self.as_dict(encode), indent=2, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, decode: Callable[[Any], Any] | None = None) -> Release:
        """Read a certificate from the text that :meth:`to_json` wrote.

        Parameters
        ----------
        text : str
            The JSON text.
        decode : callable, optional
            The inverse of ``encode`` in :meth:`to_json`.

        Raises
        ------
        InvalidRelease
            The text is not a certificate that this version can read.
        """
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            # The content is not quoted: the file may be anything.
            raise InvalidRelease("certificate", "the file", f"not JSON ({error})") from None
        return cls.from_dict(record, decode)

    @classmethod
    def from_dict(cls, record: Any, decode: Callable[[Any], Any] | None = None) -> Release:
        """Read a certificate from what :meth:`as_dict` returned; see :meth:`from_json`."""
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            schema = record.get("schema") if isinstance(record, dict) else None
            raise InvalidRelease(
                "schema", schema, f"this version reads certificates of schema {SCHEMA}"
            )
        try:
            outcome = _checked(record, "outcome", str)
            value = (
                (decode(record["value"]) if decode else record["value"])
                if outcome in ("value", "missed")
                else _OUTCOMES[outcome]
            )
            release = cls(
                value=value,
                params=_checked(record, "params", dict),
                index=_checked(record, "index", int, None),
                score=_score(record),
                passed=_checked(record, "passed", bool, None),
                spent=guarantee_from_dict(_checked(record, "spent", dict)),
                worst_case=guarantee_from_dict(_checked(record, "worst_case", dict)),
                theorem=_checked(record, "theorem", str),
                selector=_checked(record, "selector", dict),
                simulated=_checked(record, "simulated", bool),
                ledger=_mapping(record, "ledger"),
                grid=_mapping(record, "grid"),
            )
            _consistent(release, outcome)
            return release
        except RecursionError:
            raise InvalidRelease("certificate", "the file", "it is nested too deeply") from None
        except KeyError as error:
            raise InvalidRelease(
                "certificate", error.args[0], "this key is missing or unknown"
            ) from None
        except InvalidInput as error:
            if isinstance(error, InvalidRelease):
                raise
            raise InvalidRelease(error.field, error.value, error.valid) from None

    def save(self, path: str | Path, encode: Callable[[Any], Any] | None = None) -> None:
        """Write the certificate to a file; see :meth:`as_dict` for ``encode``."""
        Path(path).write_text(self.to_json(encode) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, decode: Callable[[Any], Any] | None = None) -> Release:
        """Read a certificate from a file; see :meth:`from_json` for ``decode``."""
        return cls.from_json(read_small(path, "path"), decode)


def _mapping(record: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """Return a part of a certificate that may be missing, or that other kinds write differently."""
    part = record.get(key)
    return part if isinstance(part, dict) else None


def _score(record: Mapping[str, Any]) -> float | None:
    """Return the score of a record; infinity is written as text because JSON has none."""
    if record["score"] in ("inf", "-inf"):
        return float(record["score"])
    score = _checked(record, "score", int, float, None)
    try:
        number = None if score is None else float(score)
    except OverflowError:
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise InvalidRelease("score", score, 'give a finite number, "inf" or "-inf"')
    return number


def _consistent(release: Release, outcome: str) -> None:
    """Refuse what no selection writes: a charge above its worst case, or a miss that passed.

    A charge that was made smaller is found by ``expost certificate verify``.
    """
    if not release.spent <= release.worst_case:
        raise InvalidRelease("spent", release.spent, "no outcome costs more than the worst case")
    if (outcome == "missed") != (release.passed is False and outcome not in _OUTCOMES):
        raise InvalidRelease("outcome", outcome, "missed is an output with passed = false")


def _checked(record: Mapping[str, Any], key: str, *types: type | None) -> Any:
    """Return ``record[key]`` if it has one of the types; None stands for null."""
    value = record[key]
    for kind in types:
        if (
            value is None
            if kind is None
            else isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        ):
            return value
    names = " or ".join("null" if kind is None else kind.__name__ for kind in types)
    raise InvalidRelease(key, value, f"expected {names}")


def plain_json(value: Any, name: str = "value") -> Any:
    """Return ``value`` in plain JSON types, or raise an error that says what to do."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        return plain_json(value.tolist(), name)
    if hasattr(value, "as_dict"):
        return plain_json(value.as_dict(), name)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain_json(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item, f"{name}[{index}]") for index, item in enumerate(value)]
    raise InvalidRelease(
        name, type(value).__name__, "JSON cannot hold it; pass encode=… to convert it"
    )


def _sentinel(value: Any) -> str | None:
    """Return the name of a value that stands for an outcome without an output."""
    return next((name for name, outcome in _OUTCOMES.items() if value is outcome), None)


def _outcome(value: Any) -> str:
    """Name a released value: its own text if it is a number or a text, else its type."""
    if name := _sentinel(value):
        return name
    return str(value) if isinstance(value, (int, float, str)) else type(value).__name__


OWN = "expost."  # the charges of a selector that is defined elsewhere cannot be computed again


def grid_of(selector: Any, candidates: Sequence[Candidate]) -> dict[str, Any] | None:
    """Return the grid of a selection in plain JSON types."""
    settings = {setting.name: getattr(selector, setting.name) for setting in fields(selector)}
    laws = [value for value in settings.values() if is_dataclass(value)]
    if not all(type(part).__module__.startswith(OWN) for part in (selector, *laws)):
        return None
    guarantees, numbers = numbered_guarantees(candidates)
    levels: dict[tuple[int, int, Any], int] = {}
    level_of = [
        levels.setdefault((number, candidate.repeats, candidate.drop_rate), len(levels))
        for candidate, number in zip(candidates, numbers, strict=True)
    ]
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
    """The kind of the mechanisms, as far as a charge depends on it."""
    if all(isinstance(mechanism, Query) for mechanism in mechanisms):
        return "queries"
    laws = {m.law if isinstance(m, DiscreteNoise) else "any" for m in mechanisms}
    return laws.pop() if len(laws) == 1 else "any"
