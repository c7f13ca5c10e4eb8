"""What ``expost certificate verify`` checks: price, model and ledger entries of a certificate.

The price is computed again with the code that priced the request: for a selection and for each
attempt of a tuning job from the grid in the certificate, for a count from its answers. A ledger
entry must hold the digests of the same charges, source and release, and the same outcome and
amount. Tests: ``tests/cli/test_verify_cli.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from expost.analytics import certificate as counts
from expost.budget.hash_chain import RESERVE, SETTLE, Entry, canonical, digest
from expost.budget.ledger import Ledger
from expost.budget.requests import document_digest
from expost.errors import ExpostError, InvalidRelease
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee, guarantee_from_dict
from expost.selection.price_again import charges_of, rebuild
from expost.tuning import evidence as tuning

_UNREADABLE = (ExpostError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class Claim:
    """What a certificate says about one request, and the prices computed again.

    Parameters
    ----------
    charges : Charges
        The charge of every outcome.
    index : int or None
        The outcome.
    ledger : mapping or None
        What the certificate says about the ledger entry.
    source : mapping or None
        The public description of the source.
    records : tuple of mapping
        The documents of which the ledger may hold the digest.
    """

    charges: Charges
    index: int | None
    ledger: Mapping[str, Any] | None
    source: Any = None
    records: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def price(self) -> Guarantee:
        """The charge of the outcome."""
        return self.charges.nothing if self.index is None else self.charges[self.index]


def claims_of(document: Mapping[str, Any]) -> list[Claim]:
    """Return the claims of a certificate: one, or one per attempt of a tuning job."""
    kind = document.get("kind")
    if kind == counts.KIND:
        charges = Charges.from_dict(document["charges"])
        described = counts.source_of(document["source"], document["query"])
        return [Claim(charges, document["index"], document["ledger"], described, (document,))]
    if kind == tuning.KIND:
        return [
            Claim(_priced(made["grid"]), made["index"], made["ledger"], *_recorded(made))
            for made in tuning.made_records(document)
            if made is not None
        ]
    return [
        Claim(
            _priced(document["grid"]), document["index"], document["ledger"], *_recorded(document)
        )
    ]


def _priced(grid: Any) -> Charges:
    """The charges of a grid, computed once; a job may repeat its grid."""
    if grid is None:
        raise InvalidRelease("grid", None, "without it the charge cannot be computed again")
    return _priced_text(canonical(grid))


@lru_cache(maxsize=64)
def _priced_text(grid: str) -> Charges:
    return charges_of(json.loads(grid))


def _recorded(document: Mapping[str, Any]) -> tuple[Any, tuple[Mapping[str, Any], ...]]:
    """The source and the documents of a selection: with its value, and without it."""
    evidence = document["ledger"]
    source = evidence.get("source") if isinstance(evidence, Mapping) else None
    return source, (document, {**document, "value": None})


def price_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the charge of a certificate cannot be right."""
    try:
        kind = document.get("kind")
        if kind == counts.KIND:
            yield from counts.price_problems(counts.check_certificate(document))
        elif kind == tuning.KIND:
            yield from tuning.price_problems(document, _priced)
        elif kind == "selection":
            yield from _selection_problems(document)
        else:
            yield "the file is not a certificate"
    except KeyError as error:
        yield f"the key {str(error.args[0])!r} is missing"
    except InvalidRelease as error:
        yield str(error)
    except (*_UNREADABLE, RecursionError):
        yield "the charge cannot be read"


def _selection_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield how a certificate differs from what its grid costs."""
    (claim,) = claims_of(document)
    if claim.index is not None and not 0 <= claim.index < len(claim.charges):
        yield "the charge is not the price of the outcome"
        return
    if claim.price != guarantee_from_dict(document["spent"]):
        yield "the charge is not the price of the outcome"
    if claim.charges.worst_case != guarantee_from_dict(document["worst_case"]):
        yield "the worst case is not that of the charges"
    selector, candidates = rebuild(document["grid"])
    if selector.settings() != document["selector"]:
        yield "the settings are not those of the grid"
    if selector._theorem(candidates) != document["theorem"]:
        yield "the theorem is not that of the grid"


def model_problems(document: Mapping[str, Any], model: Path) -> Iterator[str]:
    """Yield why a model file is not the one of a certificate."""
    value = document.get("value")
    wanted = value.get("sha256") if isinstance(value, Mapping) else None
    if wanted is None:
        yield "the certificate does not hold the hash of a model"
    elif not model.is_file() or hashlib.sha256(model.read_bytes()).hexdigest() != wanted:
        yield "the file is not the model that was released"


def unchecked(document: Mapping[str, Any], checked: Collection[str]) -> list[str]:
    """Return what the checks that were made do not cover, and what would cover it.

    Parameters
    ----------
    document : mapping
        The certificate.
    checked : collection of str
        Names of the checks that were made.
    """
    found, value = [], document.get("value")
    if "signature" not in checked:
        if document.get("kind") == tuning.KIND:
            found.append(
                "signature: there is none, so whoever can write the file can change what no other "
                "check covers: columns, bounds, categories, classes, numbers of rows, bar, "
                "confidence, certified score, date"
            )
        elif "ledger" not in checked:
            found.append(
                "signature: there is none, so whoever can write the file can change all that the "
                "price does not depend on"
            )
        else:
            found.append(
                "signature: there is none; the digest in the ledger covers the certificate, except "
                "a value that JSON cannot hold"
            )
    if "model" not in checked and isinstance(value, Mapping) and "sha256" in value:
        found.append("model: pass --model FILE to compare the file with the hash")
    if "ledger" not in checked:
        entries = document.get("ledger")
        found.append(
            "ledger: pass --ledger FILE to compare it with the entries that the certificate names"
            if entries
            else "ledger: the certificate names no entry, so nothing shows that a budget paid"
        )
    return found


def ledger_problems(document: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    """Yield how a certificate and the ledger that it names differ."""
    try:
        claims = claims_of(document)
    except (KeyError, *_UNREADABLE, RecursionError):
        yield "the charges cannot be computed again, and not be compared with those of the ledger"
        return
    if not claims or any(not isinstance(claim.ledger, Mapping) for claim in claims):
        yield "the certificate names no entry of a ledger"
        return
    used = [str(claim.ledger.get("reservation")) for claim in claims if claim.ledger is not None]
    if len(set(used)) < len(used):
        yield "it names one reservation several times"
    entries: dict[str, list[Entry]] = {name: [] for name in used}
    for entry in ledger.entries():
        if entry.reservation in entries:
            entries[entry.reservation].append(entry)
    for claim, name in zip(claims, used, strict=True):
        yield from _entry_problems(claim, ledger, entries[name])


def _entry_problems(claim: Claim, ledger: Ledger, entries: list[Entry]) -> Iterator[str]:
    """Yield how one request and its entries differ."""
    assert claim.ledger is not None
    if claim.ledger.get("ledger") != ledger.identity:
        yield "it names another ledger"
        return
    reserve = next((entry for entry in entries if entry.action == RESERVE), None)
    settle = next((entry for entry in entries if entry.action == SETTLE), None)
    if reserve is None:
        yield "the ledger has no such reservation"
        return
    told = {"budget": reserve.budget, "analyst": reserve.analyst, "date": reserve.time[:10]}
    yield from (
        f"the ledger has another {name}"
        for name, value in told.items()
        if claim.ledger.get(name) != value
    )
    if reserve.facts.get("charges") != digest(claim.charges.as_dict()):
        yield "the ledger recorded other charges (another grid, or another rule)"
    source = reserve.facts.get("source")
    if source is not None and source != document_digest(claim.source, "source"):
        yield "the ledger recorded another source"
    if settle is None:
        yield "the ledger did not settle this reservation"
        return
    if settle.facts.get("outcome") != ("nothing" if claim.index is None else str(claim.index)):
        yield "the ledger settled another outcome"
    release = settle.facts.get("release")
    if release is not None and release not in [
        document_digest(each, "certificate") for each in claim.records
    ]:
        yield "the ledger settled another certificate"
    yield from _amount_problems(claim, ledger, reserve.budget, settle)


def _amount_problems(claim: Claim, ledger: Ledger, budget: str, settle: Entry) -> Iterator[str]:
    """Yield whether the ledger charged another amount than the price."""
    try:
        amount = ledger.standing(budget).filter.budget.coordinates(claim.price)
    except _UNREADABLE:
        yield "the charge cannot be compared with that of the ledger"
        return
    if [str(each) for each in amount] != settle.facts.get("spent"):
        yield "the ledger charged another amount"
