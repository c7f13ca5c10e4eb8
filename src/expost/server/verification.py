"""Does a release say what the ledger says? Tests: ``tests/server/test_service.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from expost.budget.hash_chain import RESERVE, SETTLE
from expost.budget.ledger import Ledger
from expost.budget.requests import document_digest


def release_problems(release: Mapping[str, Any], ledger: Ledger) -> list[str]:
    """Return how a certificate and the ledger differ, one line per problem."""
    certificate = release["certificate"]
    found = certificate.get("ledger")
    evidence = found if isinstance(found, list) else [found]
    if not evidence or evidence[0] is None:
        return ["the certificate names no entry of the ledger"]
    entries = {(each.reservation, each.action): each for each in ledger.entries()}
    return [
        problem for told in evidence for problem in _problems(certificate, told, ledger, entries)
    ]


def _problems(
    certificate: Mapping[str, Any],
    told: Mapping[str, Any],
    ledger: Ledger,
    entries: Mapping[tuple[str, str], Any],
) -> Iterator[str]:
    if told["ledger"] != ledger.identity:
        yield "the certificate names another ledger"
        return
    reserve = entries.get((told["reservation"], RESERVE))
    settle = entries.get((told["reservation"], SETTLE))
    if reserve is None:
        yield "the ledger has no such reservation"
        return
    for name in ("budget", "analyst"):
        if told.get(name) != getattr(reserve, name):
            yield f"the ledger has another {name}"
    if settle is None:
        yield "the ledger did not settle this reservation"
        return
    digest = settle.facts.get("release")
    whole = certificate.get("kind") != "tuning"  # an attempt settles its own part of a job
    if whole and digest is not None and digest != document_digest(certificate, "certificate"):
        yield "the ledger settled another certificate"
