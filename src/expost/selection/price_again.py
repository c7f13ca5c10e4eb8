"""Compute the charges of a selection again from the grid in its certificate.

The grid is priced with the code that priced the selection, so a certificate whose charge was
changed no longer matches its grid. That the grid is the one that ran is shown by a signature or by
the ledger, which stores the digest of the charges.
Tests: ``tests/selection/test_grid.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from fractions import Fraction
from typing import Any

from expost.errors import ExpostError, InvalidRelease
from expost.mechanisms.discrete_noise import DiscreteGaussian, DiscreteLaplace, Query
from expost.privacy.charges import Charges
from expost.privacy.guarantees import guarantee_from_dict
from expost.selection.candidate import Candidate
from expost.selection.grid import OWN
from expost.selection.held_out import HeldOut, Stages, rates_of
from expost.selection.noise_path import NoisePath, PathLevel, PathSearch
from expost.selection.repeat_and_select import Poisson, RunCount, TruncatedNegativeBinomial
from expost.selection.selector import Selector

_LAWS: dict[str, type[RunCount | Stages]] = {
    law.__name__: law for law in (TruncatedNegativeBinomial, Poisson, Stages)
}
_MOST_CANDIDATES = 10_000_000


def charges_of(grid: Mapping[str, Any]) -> Charges:
    """Return what each outcome of a selection costs, computed from the grid in its certificate.

    Parameters
    ----------
    grid : mapping
        The key ``grid`` of a certificate.

    Returns
    -------
    Charges
        The charge of every outcome.

    Raises
    ------
    InvalidRelease
        The grid cannot be read, or no theorem covers it.
    """
    selector, candidates = rebuild(grid)
    with _readable():
        return selector.charges(candidates)


def rebuild(grid: Mapping[str, Any]) -> tuple[Selector, list[Candidate]]:
    """Return the selector of a grid, and candidates that can be priced and not run.

    Parameters
    ----------
    grid : mapping
        The key ``grid`` of a certificate.

    Raises
    ------
    InvalidRelease
        The grid cannot be read.
    """
    with _readable():
        candidates = list(_candidates(grid))
        return _selector(grid["selector"], candidates), candidates


@contextmanager
def _readable() -> Iterator[None]:
    """Turn what a damaged grid raises into an InvalidRelease."""
    try:
        yield
    except KeyError as error:
        raise InvalidRelease("grid", str(error.args[0]), "this key is missing") from None
    except ExpostError as error:
        raise InvalidRelease("grid", "the certificate's", str(error)) from None
    except (ValueError, TypeError, IndexError, AttributeError, ArithmeticError):
        raise InvalidRelease("grid", "the certificate's", "it cannot be read") from None


def _candidates(grid: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield candidates that can be priced and not run."""
    promises = [guarantee_from_dict(each) for each in grid["promises"]]
    kind = "path" if grid["selector"]["name"] == PathSearch.name else grid["mechanisms"]
    levels = []
    for promise, repeats, drop_rate in grid["levels"]:
        given = promises[promise]
        mechanism = _mechanism(kind, given)
        own = getattr(mechanism, "guarantee", None)
        if own not in (None, given):
            raise InvalidRelease("grid", "a promise", "it is not that of its mechanism")
        levels.append(
            Candidate(
                mechanism,
                repeats=repeats,
                guarantee=given if own is None else None,  # type: ignore[arg-type]
                drop_rate=_read(drop_rate),
            )
        )
    if sum(length for _, length in grid["candidates"]) > _MOST_CANDIDATES:
        raise InvalidRelease("grid", "candidates", f"give at most {_MOST_CANDIDATES}")
    for level, length in grid["candidates"]:
        yield from [levels[level]] * length


def _mechanism(kind: str, promise: Any) -> Any:
    """Return a mechanism of the kind that the price depends on; it is never run."""
    if kind == "queries":
        return Query(never_run)
    if kind == "laplace":
        return DiscreteLaplace(Query(never_run), promise.epsilon, promise.neighbours)
    if kind == "gaussian":
        return DiscreteGaussian(Query(never_run), promise.rho, promise.neighbours)
    if kind == "path":  # sensitivity and dimension do not enter the price
        return PathLevel(NoisePath(never_run, 1, never_run, 1, promise.neighbours), promise)
    if kind != "any":
        raise InvalidRelease("mechanisms", kind, "give queries, laplace, gaussian or any")
    return never_run


def never_run(*_: Any) -> Any:
    """Stand for a mechanism that is priced and never called."""
    raise AssertionError("a grid is priced, not run")


def _selector(settings: Mapping[str, Any], candidates: Sequence[Candidate]) -> Selector:
    """Return the selector with these settings."""
    values = {
        name: _read(value) if name != "held_out" else _held_out(value, candidates)
        for name, value in settings.items()
        if name != "name"
    }
    for kind in _kinds(Selector):
        same = kind.name == settings["name"]
        if same and {each.name for each in fields(kind)} == set(values):  # type: ignore[arg-type]
            return kind(**values)
    raise InvalidRelease("selector", settings["name"], "this version knows no such selector")


def _kinds(base: Any) -> Iterator[type[Selector]]:
    """Yield the selectors of this package."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith(OWN) and hasattr(kind, "name"):
            yield kind
        yield from _kinds(kind)


def _held_out(terms: Mapping[str, Any] | None, candidates: Sequence[Candidate]) -> HeldOut | None:
    """Return the rule of held-out rows; its rates follow from the candidates' levels."""
    if terms is None:
        return None
    stages, thresholds = _read(terms["stages"]), _read(terms["thresholds"])
    levels = [float(candidate.guarantee.size) for candidate in candidates]
    rates = rates_of(levels, stages, terms["monotone"])
    return HeldOut(never_run, stages, thresholds, terms["steps"], terms["monotone"], rates=rates)


def _read(value: Any) -> Any:
    """Return a setting from its JSON form."""
    if isinstance(value, list):
        return tuple(_read(each) for each in value)
    if isinstance(value, Mapping):
        if "exact" in value:
            return Fraction(value["exact"])
        law = dict(value)
        return _LAWS[law.pop("law")](**{name: _read(each) for name, each in law.items()})
    return value
