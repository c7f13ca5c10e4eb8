"""The requests of a tuning job in its certificate, so that its price can be computed again.

A certificate holds under ``requests``: ``grids``, the distinct grids of the planned requests
(:mod:`expost.selection.grid`), with numbers in place of their promises; ``promises``, the distinct
promises of all grids; ``planned``, the number of the grid of each planned request, in runs
as [grid, length]; and ``made``, the certificate of each request that was made, without its value
and with the number of its grid. A request whose outcome a crash lost is None: it is charged at its
worst case. Tests: ``tests/tuning/test_evidence.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from expost.budget.hash_chain import canonical
from expost.errors import InvalidRelease
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee, RenyiDP, guarantee_from_dict
from expost.selection.grid import grid_of
from expost.selection.release import Release
from expost.tuning.data_settings import DataSettings
from expost.tuning.forecast import composed
from expost.tuning.run_attempts import Step

KIND = "tuning"


def described_source(data: DataSettings) -> dict[str, Any]:
    """Return the public description of the rows whose digest a ledger stores."""
    kind = "file" if data.path is not None else "arrays" if data.name is None else "data set"
    return {
        "kind": kind,
        "name": data.path.name if data.path is not None else data.name,
        "columns": None if data.features is None else list(data.features),
        "target": data.target,
    }


def request_records(steps: Sequence[Step], releases: Sequence[Release | None]) -> dict[str, Any]:
    """Return what a certificate says about the requests of a job."""
    numbers: dict[str, int] = {}
    grids: list[Any] = []
    planned = []
    for step in steps:
        grid = grid_of(step.selector, step.candidates)
        text = canonical(grid)
        if text not in numbers:
            numbers[text] = len(grids)
            grids.append(grid)
        planned.append(numbers[text])
    made: list[dict[str, Any] | None] = []
    for place, release in enumerate(releases):
        record = None if release is None else release.as_dict(encode=lambda value: None)
        if record is not None:
            record["grid"] = planned[min(place, len(planned) - 1)]
        made.append(record)
    runs = [[number, len(list(run))] for number, run in groupby(planned)]
    return {**_shared(grids), "planned": runs, "made": made}


def _shared(grids: Sequence[Any]) -> dict[str, Any]:
    """Return grids whose promises are stored once for all of them."""
    numbers: dict[str, int] = {}
    promises: list[Any] = []
    found: list[Any] = []
    for grid in grids:
        if grid is None:  # of a selector that this package does not define
            found.append(None)
            continue
        places = []
        for promise in grid["promises"]:
            text = canonical(promise)
            if text not in numbers:
                numbers[text] = len(promises)
                promises.append(promise)
            places.append(numbers[text])
        found.append({**grid, "promises": places})
    return {"promises": promises, "grids": found}


def grids_of(requests: Mapping[str, Any]) -> list[Any]:
    """Return the grids of a certificate, each with its promises.

    A file may also state the promises in the grids themselves.
    """
    shared = requests.get("promises", [])
    return [
        grid
        if grid is None
        else {
            **grid,
            "promises": [shared[p] if isinstance(p, int) else p for p in grid["promises"]],
        }
        for grid in requests["grids"]
    ]


def made_records(document: Mapping[str, Any]) -> list[dict[str, Any] | None]:
    """Return the certificates of the requests that were made, each with its grid."""
    requests = document["requests"]
    grids = grids_of(requests)
    return [
        None if made is None else {**made, "grid": grids[made["grid"]]} for made in requests["made"]
    ]


def price_problems(document: Mapping[str, Any], priced: Callable[[Any], Charges]) -> Iterator[str]:
    """Yield why the charge of a tuning certificate cannot be right.

    Parameters
    ----------
    document : mapping
        The certificate.
    priced : callable
        Computes the charges of a grid.
    """
    requests, details = document["requests"], document["tuning"]
    planned = [number for number, length in requests["planned"] for _ in range(length)]
    if not planned or not requests["made"]:
        raise InvalidRelease("requests", "the certificate's", "no request is listed")
    charges = [priced(grid) for grid in grids_of(requests)]
    spent = []
    for place, made in enumerate(requests["made"]):
        number = planned[min(place, len(planned) - 1)]
        prices = charges[number]
        if made is None:
            spent.append(prices.worst_case)
            continue
        if made["grid"] != number:
            yield f"attempt {place + 1} used another grid than the planned one"
        price = prices.nothing if made["index"] is None else prices[int(made["index"])]
        if price != guarantee_from_dict(made["spent"]):
            yield f"the charge of attempt {place + 1} is not the price of its outcome"
        if prices.worst_case != guarantee_from_dict(made["worst_case"]):
            yield f"the worst case of attempt {place + 1} is not that of its grid"
        spent.append(price)
    most = max(len(planned), len(spent))
    worst = [charges[planned[min(place, len(planned) - 1)]].worst_case for place in range(most)]
    if composed(spent) != guarantee_from_dict(document["spent"]):
        yield "the charge is not the sum of the charges of the attempts"
    if composed(worst) != guarantee_from_dict(document["worst_case"]):
        yield "the worst case is not the sum of the worst cases of the planned attempts"
    told = [each["spent"] for each in details["attempts"]]
    if told != [each.as_dict() for each in spent]:
        yield "the charges that are listed for the attempts are not their prices"
    yield from _converted(composed(spent), details)
    yield from _calibrated(requests, details)
    yield from _chosen(document)


def _converted(spent: Guarantee, details: Mapping[str, Any]) -> Iterator[str]:
    """Yield whether (ε, δ) is not what the charge gives at the job's order."""
    pair = spent.as_approx()
    if pair is None:
        curve, order = spent.as_renyi(), details["converted_at_order"]
        if curve is None or order is None:
            raise InvalidRelease("spent", "the certificate's", "it is no charge of a tuning job")
        pair = curve.on([order]).to_approx(details["spent"]["delta"])
    if (pair.epsilon, pair.delta) != (details["spent"]["epsilon"], details["spent"]["delta"]):
        yield "the stated ε and δ are not those of the charge"


def _calibrated(requests: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[str]:
    """Yield whether the level of a released model is not what its accountant certifies.

    Only promises with a profile name a level; the profile is computed again.
    """
    grids = grids_of(requests)
    for made in requests["made"]:
        grid = None if made is None else grids[made["grid"]]
        level = None if made is None else made["params"].get("epsilon")
        if grid is None or level is None or made["index"] is None:
            continue
        kinds = [kind for kind, length in grid["candidates"] for _ in range(length)]
        promise = guarantee_from_dict(grid["promises"][grid["levels"][kinds[made["index"]]][0]])
        if not isinstance(promise, RenyiDP) or promise.profile is None:
            continue
        if promise.profile.accountant not in (details.get("accountant") or "").split("; "):
            yield "the accountant is not that of the promises"
        # The level is that of the training; the score is on other rows.
        training = getattr(promise.profile, "parts", (promise.profile,))[0]
        if not float(training.delta(level)) <= details["privacy"]["delta"]:
            yield "the released model is not (ε, δ)-DP at the level that it names"


def _bound(details: Mapping[str, Any], made: Mapping[str, Any]) -> list[float]:
    """Return the bound on the score that replaces a count of held-out rows, if one was compared."""
    if made["selector"].get("held_out") is None or details["confidence"] is None:
        return []
    sign = 1.0 if details["goal"]["larger_is_better"] else -1.0
    return [sign * details["confidence"]["bound_on_scoring_rows"]]


def _chosen(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield whether what is released is not what one of the attempts released."""
    keys = ("outcome", "params", "index", "passed", "simulated", "selector")
    shown = {key: document[key] for key in keys}
    made = [each for each in document["requests"]["made"] if each is not None]
    same = [
        each
        for each in made
        if shown == {key: each[key] for key in keys}
        and document["score"] in (each["score"], *_bound(document["tuning"], each))
    ]
    if made and not same:
        yield "what was released is not what one of the attempts released"
    elif made and not any(document["theorem"].startswith(each["theorem"]) for each in same):
        yield "the theorem is not that of the attempt that was released"
    details = document["tuning"]
    paid = [each["ledger"] for each in made if each["ledger"] is not None]
    if document["ledger"] != (paid or None):
        yield "it names other entries of a ledger than its attempts"
    if details["neighbours"] != document["spent"]["neighbours"]:
        yield "the neighbouring relation is not that of the charge"
    told = [each for each in details["attempts"] if "outcome" not in each]
    if [(each["params"], each["passed"]) for each in told] != [
        (each["params"], each["passed"]) for each in made
    ]:
        yield "the attempts that are listed are not those that were made"
