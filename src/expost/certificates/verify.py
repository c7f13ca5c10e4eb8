"""Is a certificate right? Its charge is computed again and compared with model and ledger.

:func:`verify_certificate` is behind ``expost certificate verify``, the server's pages and Python.
What each check shows:

* charge: it is what the library computes for this outcome of the grid (or of the answers of
  a count) in the certificate, and so is the worst case;
* signature: nobody changed the document since the owner of the key signed it;
* model: the model file is the one that was released;
* ledger: the ledger has an entry for this release, with the same charges, source, outcome, amount
  and certificate.

Tests: ``tests/cli/test_verify_cli.py``, ``tests/tuning/test_verification.py``,
``tests/certificates/``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from expost.budget.ledger import Ledger
from expost.budget.ledger_rows import RESERVE, SETTLE, Entry, digest, document_digest
from expost.budget.signing import load_public, signature_problem
from expost.certificates.document import (
    COUNT,
    FACTS,
    QUANTILE,
    QUERY,
    TUNING,
    Record,
    charges_of_grid,
    composed,
    grids_of,
    in_epsilon_delta,
    made_records,
    read_certificate,
    rebuild,
    unit_of_job,
    worst_in_turn,
)
from expost.errors import ExpostError, InvalidRelease
from expost.facts.describe import facts_price_problems, total_problems
from expost.privacy.charges import Charges, ShareCharges
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.guarantees import ApproxDP, Guarantee, RenyiDP, guarantee_from_dict
from expost.selection.above_threshold import Tell
from expost.selection.held_out import SHARES

_ROUNDING = Fraction(1, 2**48)  # sums of rounded numbers are compared up to this part
_UNREADABLE = (
    *(ExpostError, KeyError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError),
    RecursionError,
)


def verify_certificate(
    document: Record,
    *,
    key: str | Path | None = None,
    ledger: Ledger | str | Path | None = None,
    model: str | Path | None = None,
) -> list[str]:
    """Return what is wrong with a certificate; an empty list if nothing was found.

    Parameters
    ----------
    document : mapping
        The certificate (:func:`read_certificate`).
    key : str or Path, optional
        File of the public key that must have signed it. A signature is checked in any case.
    ledger : Ledger, str or Path, optional
        The ledger that was charged.
    model : str or Path, optional
        The model file.

    Returns
    -------
    list of str
        The problems; each begins with the name of the check that found it.
    """
    checks = run_checks(document, key=key, ledger=ledger, model=model)
    return list(verdict_of(document, checks)["problems"])


def run_checks(
    document: Record,
    *,
    key: str | Path | None = None,
    ledger: Ledger | str | Path | None = None,
    model: str | Path | None = None,
) -> dict[str, list[str]]:
    """Return the problems that each check found; without an argument its check is not made."""
    checks = {"charge": list(_price_problems(document))}
    if "signature" in document or key is not None:
        wrong = signature_problem(document, None if key is None else load_public(key))
        checks["signature"] = [] if wrong is None else [wrong]
    if model is not None:
        checks["model"] = list(_model_problems(document, Path(model)))
    if ledger is not None:
        opened = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger, read_only=True)
        checks["ledger"] = list(_ledger_problems(document, opened))
    return checks


def verdict_of(document: Record, checks: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return what the checks say, as the command and the server's interface write it."""
    problems = [f"{name}: {text}" for name, texts in checks.items() for text in texts]
    return {
        "valid": not problems,
        "checked": sorted(checks),
        "problems": problems,
        "not_checked": _unchecked(document, checks),
    }


def _unchecked(document: Record, checked: Collection[str]) -> list[str]:
    """Return what the checks that were made do not cover, and what would cover it."""
    left, value = [], document.get("value")
    if "signature" not in checked:
        without = "signature: there is none, so whoever can write the file can change "
        if document.get("kind") == TUNING:
            left.append(
                f"{without}what no other check covers: columns, bounds, categories, classes, "
                "numbers of rows, goal, confidence, certified score, date"
            )
        elif "ledger" not in checked:
            left.append(f"{without}all that the charge does not depend on")
        else:
            left.append(
                "signature: there is none. The ledger's digest shows whether the certificate was "
                "changed, unless the ledger was changed with it. It does not cover a released "
                "value that JSON cannot hold, such as a model"
            )
    if "model" not in checked and isinstance(value, Mapping) and "sha256" in value:
        left.append("model: pass --model FILE to compare the file with the hash")
    if "ledger" not in checked:
        left.append(
            "ledger: pass --ledger FILE to compare it with the entries that the certificate names"
            if document.get("ledger")
            else "ledger: the certificate names no entry: nothing shows that a budget was charged"
        )
    return left


def _price_problems(document: Record) -> Iterator[str]:
    """Yield why the charge of a certificate cannot be right."""
    try:
        kind = read_certificate(document)["kind"]
        checks = {COUNT: _count_problems, FACTS: _facts_problems, TUNING: _tuning_problems}
        checks |= {QUANTILE: _quantile_problems, QUERY: _query_problems}
        yield from checks.get(kind, _selection_problems)(document)
    except KeyError as error:
        yield f"the key {str(error.args[0])!r} is missing"
    except InvalidRelease as error:
        yield str(error)
    except _UNREADABLE:
        yield "the charge cannot be read"


def _charge(charges: Charges, index: int | None) -> Guarantee:
    """Return the charge of an outcome."""
    if index is not None and not 0 <= index < len(charges):
        raise InvalidRelease("index", index, "the charges have no such outcome")
    return charges.nothing if index is None else charges[index]


def _selection_problems(document: Record) -> Iterator[str]:
    """Yield how a certificate differs from what its grid costs."""
    charges = charges_of_grid(document["grid"])
    if _charge(charges, document["index"]) != guarantee_from_dict(document["spent"]):
        yield "the charge is not that of the outcome"
    if charges.worst_case != guarantee_from_dict(document["worst_case"]):
        yield "the worst case is not that of the charges"
    selector, candidates = rebuild(document["grid"])
    if selector.settings() != document["selector"]:
        yield "the settings are not those of the grid"
    if selector._theorem(candidates) != document["theorem"]:
        yield "the theorem is not that of the grid"


def _count_problems(document: Record) -> Iterator[str]:
    """Yield how the charge of a count differs from what its answers cost.

    The charge is the sum of the m largest group costs (the largest one, if a cap is on all groups
    together) and of the shares for caps, for what they remove and for finding groups
    (docs/counting.md, What it costs).
    """
    yield from _source_problems(document)
    yield from _bought_problems(document, document["guarantee"])
    answers = [*document["answers"], *document["unanswered"]]
    yield from _answers_problems(document, _most_expensive(answers, _charged(document)))


def _quantile_problems(document: Record) -> Iterator[str]:
    """Yield how the charge of quantiles differs from what their groups cost.

    The charge is the sum of the m largest group costs and of the shares for caps and groups
    (docs/quantiles.md, What it costs). Every answer states what its group cost.
    """
    yield from _source_problems(document)
    costs = [{"spent": cost} for cost in document["public"]["group_costs"]]
    answers = [*document["answers"], *document["unanswered"], *document["histogram"]]
    if not {answer["spent"] for answer in answers} <= {cost["spent"] for cost in costs}:
        yield "an answer states another cost than its group has"
    yield from _answers_problems(document, _most_expensive(costs, document["max_groups_per_user"]))


def _query_problems(document: Record) -> Iterator[str]:
    """Yield how the charge of a query differs from what its parts cost.

    The charge is the sum over the parts, each with its m largest group costs and its share for
    what the caps removed, and of the shares for caps and groups (docs/query.md, What it costs).
    """
    yield from _source_problems(document)
    needed, most = Fraction(0), document["max_groups_per_user"]
    for part in document["parts"]:
        costs = _group_costs([*part["answers"], *part["unanswered"]])
        if any(len(group) > 1 for group in costs):
            yield f"two answers of {part['of']} state different costs of their group"
        # A part may be looked at without the cap.
        capped = {"max_groups_per_user": most} | part
        cost = _most_expensive([{"spent": max(group)} for group in costs], _charged(capped))
        cost += Fraction(part["share_of_dropped"])
        stated = Fraction(part["spent"])
        if not cost * (1 - _ROUNDING) <= stated <= cost * (1 + _ROUNDING):
            yield f"the charge of {part['of']} is not that of its answers"
        needed += cost
    yield from _answers_problems(document, needed)


def _group_costs(answers: Sequence[Record]) -> list[set[float]]:
    """Return the costs that the answers of each group state; quantiles of a group share one."""
    costs: dict[str, set[float]] = {}
    for answer in answers:
        costs.setdefault(json.dumps(answer["group"]), set()).add(answer["spent"])
    return list(costs.values())


def _charged(record: Record) -> int | None:
    """Return how many groups are charged: m, or one if a cap is on all groups together."""
    in_all = "in_all_groups" in (record.get("dropped_share") or {})
    return 1 if in_all else record["max_groups_per_user"]


def _most_expensive(answers: Sequence[Record], most: int | None) -> Fraction:
    """Return the sum of the m largest group costs."""
    costs = sorted((Fraction(answer["spent"]) for answer in answers), reverse=True)
    return sum(costs if most is None else costs[:most], Fraction(0))


def _answers_problems(document: Record, needed: Fraction) -> Iterator[str]:
    """Yield how the charge differs from what the answers cost, with the shares of the total."""
    (unit,), public = document["spent"], document["public"]
    charges = Charges.from_dict(document["charges"])
    price = _charge(charges, document["index"])
    if price.as_dict() != document["charged"]:
        yield "the charge is not that of the outcome"
    needed += sum((Fraction(share) for share in public["shares"].values()), Fraction(0))
    paid = Fraction(public.get("paid_before", 0))  # by an earlier question, for the same path
    needed, doubt = needed - paid, _ROUNDING * paid
    spent, total = Fraction(document["spent"][unit]), Fraction(public["total"])
    if Fraction(document["worst_case"][unit]) != total or needed > total * (1 + _ROUNDING) + doubt:
        yield "the worst case is not that of the request"
    step = Fraction(0)
    if isinstance(charges, ShareCharges):
        step = total / charges.parts
        if price.size != spent or charges.worst_case.size != total:
            yield "the charge is not that of the outcome"
    elif charges.worst_case.as_dict() != document["guarantee"]:
        yield "the worst case is not that of the request"
    # The shares in the certificate are rounded, so that their sum is known up to rounding only.
    least, largest = needed * (1 - _ROUNDING) - doubt, needed * (1 + _ROUNDING) + doubt
    if not least <= spent <= largest + step:
        yield "the charge is not that of the answers"
    stated = guarantee_from_dict(document["guarantee"])
    pure, pair = stated.as_pure(), stated.as_approx()
    if unit == "epsilon":
        right = pure is not None and Fraction(pure.epsilon) >= total * (1 - _ROUNDING)
    elif pair is None or pure is not None:
        right = False
    else:  # half of δ pays for finding groups privately
        delta = pair.delta if public["keys"] == "listed" else pair.delta / 2
        right = Fraction(gaussian_for(pair.epsilon, delta).rho) >= total * (1 - _ROUNDING)
    if not right:
        yield "the guarantee is not that of the total"


def _facts_problems(document: Record) -> Iterator[str]:
    """Yield how the charge of facts differs from what their noise costs."""
    yield from _source_problems(document)
    yield from facts_price_problems(document)


def _source_problems(document: Record) -> Iterator[str]:
    """Yield whether a count or facts name another source than their entry of the ledger."""
    source = (document["ledger"] or {"source": document["source"]})["source"]
    if document["source"] != (source["name"] if isinstance(source, Mapping) else source):
        yield "it names another source than its entry of the ledger"


def _tuning_problems(document: Record) -> Iterator[str]:
    """Yield why the charge of a tuning job cannot be right."""
    requests, terms = document["requests"], document["tuning"]
    planned = [number for number, length in requests["planned"] for _ in range(length)]
    if not planned or not requests["made"]:
        raise InvalidRelease("requests", "the certificate's", "no request is listed")
    charges = [charges_of_grid(grid) for grid in grids_of(requests)]
    spent = []
    for index, record in enumerate(requests["made"]):
        number = planned[min(index, len(planned) - 1)]
        if record is None:  # a crash lost its outcome
            spent.append(charges[number].worst_case)
            continue
        if record["grid"] != number:
            yield f"attempt {index + 1} used another grid than the planned one"
        price = _charge(charges[number], record["index"])
        if price != guarantee_from_dict(record["spent"]):
            yield f"the charge of attempt {index + 1} is not that of its outcome"
        if charges[number].worst_case != guarantee_from_dict(record["worst_case"]):
            yield f"the worst case of attempt {index + 1} is not that of its grid"
        spent.append(price)
    if composed(spent) != guarantee_from_dict(document["spent"]):
        yield "the charge is not the sum of the charges of the attempts"
    worst = worst_in_turn([charges[number] for number in planned]).at_worst(composed(spent))
    if worst != guarantee_from_dict(document["worst_case"]):
        yield "the worst case is not that of the planned attempts, made one after another"
    listed = [*terms["attempts"], *filter(None, [terms.get("told")])]
    if [attempt["spent"] for attempt in listed] != [charge.as_dict() for charge in spent]:
        yield "the charges that are listed for the attempts are not theirs"
    pair = job_epsilon_delta(composed(spent), document)
    if (pair.epsilon, pair.delta) != (terms["spent"]["epsilon"], terms["spent"]["delta"]):
        yield "the stated ε and δ are not those of the charge"
    yield from _bought_problems(document, terms["spent"])
    if "facts" in document and document["facts"]["guarantee"]["neighbours"] != terms["neighbours"]:
        yield "the facts have another neighbouring relation than the tuning"
    yield from _level_problems(document)
    yield from _outcome_problems(document)
    yield from _person_problems(document)
    stated = document["params"].get("features")
    record = terms.get("features", {"record": stated}) or {}  # scikit-learn's searches have none
    if isinstance(stated, Mapping) and stated != record.get("record"):
        yield "the features are not those of the candidate that was released"


def _bought_problems(document: Record, spent: Record) -> Iterator[str]:
    """Yield why facts that were bought, or the total with them, cannot be right."""
    if "facts" in document or "total" in document:
        yield from _source_problems(document["facts"])
        yield from total_problems(document, spent)


def job_epsilon_delta(charge: Guarantee, document: Record) -> ApproxDP:
    """Return what a charge of a tuning job means in (ε, δ), by the terms of its certificate."""
    requests, terms = document["requests"], document["tuning"]
    sizes = [sum(length for _, length in grid["candidates"]) for grid in requests["grids"]]
    looks = sum(sizes[number] * length for number, length in requests["planned"])
    return in_epsilon_delta(charge, terms["spent"]["delta"], terms["converted_at_order"], looks)


def _person_problems(document: Record) -> Iterator[str]:
    """Yield why a job cannot protect persons, if it says so: it counted or sampled rows."""
    if unit_of_job(document["tuning"]) == "row":
        return
    for grid in document["requests"]["grids"]:
        if grid["selector"]["name"] == Tell.name:
            continue
        counts = grid["selector"].get("held_out")
        if grid["selector"].get("training") is None or (counts and counts["steps"] % SHARES):
            yield "it says that it protects persons, but a request protects rows only"
    if "facts" in document and document["facts"]["facts"]["user"] is None:
        yield "it says that it protects persons, but its facts protect rows only"


def _level_problems(document: Record) -> Iterator[str]:
    """Yield whether the level of a released model is not what its accountant certifies.

    Only guarantees with a profile name a level; the profile is computed again.
    """
    terms = document["tuning"]
    for record in filter(None, made_records(document)):
        grid, level = record["grid"], record["params"].get("epsilon")
        if grid is None or level is None or record["index"] is None:
            continue
        kinds = [kind for kind, length in grid["candidates"] for _ in range(length)]
        number, *_ = grid["levels"][kinds[record["index"]]]
        stated = guarantee_from_dict(grid["guarantees"][number])
        if not isinstance(stated, RenyiDP) or stated.profile is None:
            continue
        if stated.profile.accountant not in (terms.get("accountant") or "").split("; "):
            yield "the accountant is not that of the guarantees"
        # The level is that of the training; the score is on other rows.
        training = getattr(stated.profile, "parts", (stated.profile,))[0]
        if not float(training.delta(level)) <= terms["privacy"]["delta"]:
            yield "the released model is not (ε, δ)-DP at the level that it names"


def _outcome_problems(document: Record) -> Iterator[str]:
    """Yield whether what is released is not what one of the attempts released."""
    terms, keys = document["tuning"], ("outcome", "params", "index", "passed", "simulated")
    records = [record for record in document["requests"]["made"] if record is not None]
    asked = [record for record in records if record["selector"]["name"] != Tell.name]
    same = [
        record
        for record in asked
        if all(document[key] == record[key] for key in (*keys, "selector"))
        and document["score"] in (record["score"], *_bound(terms, record))
    ]
    if records and not same:
        yield "what was released is not what one of the attempts released"
    elif records and not any(document["theorem"].startswith(record["theorem"]) for record in same):
        yield "the theorem is not that of the attempt that was released"
    paid = [record["ledger"] for record in records if record["ledger"] is not None]
    if document["ledger"] != (paid or None):
        yield "it names other entries of a ledger than its attempts"
    if terms["neighbours"] != document["spent"]["neighbours"]:
        yield "the neighbouring relation is not that of the charge"
    listed = [attempt for attempt in terms["attempts"] if "outcome" not in attempt]
    if [(attempt["params"], attempt["passed"]) for attempt in listed] != [
        (record["params"], record["passed"]) for record in asked
    ]:
        yield "the attempts that are listed are not those that were made"


def _bound(terms: Record, record: Record) -> list[float]:
    """Return the bound on the score that replaces a count of held-out rows, if one was compared."""
    if record["selector"].get("held_out") is None or terms["confidence"] is None:
        return []
    sign = 1.0 if terms["goal"]["larger_is_better"] else -1.0
    return [sign * terms["confidence"]["bound_on_scoring_rows"]]


def _model_problems(document: Record, model: Path) -> Iterator[str]:
    """Yield why a model file is not the one of a certificate."""
    value = document.get("value")
    stated = value.get("sha256") if isinstance(value, Mapping) else None
    if stated is None:
        yield "the certificate does not hold the hash of a model"
    elif not model.is_file() or hashlib.sha256(model.read_bytes()).hexdigest() != stated:
        yield "the file is not the model that was released"


@dataclass(frozen=True)
class _Claim:
    """What a certificate says about one request, and its charges, computed again."""

    charges: Charges
    index: int | None
    ledger: Record | None
    source: Any
    records: tuple[Record, ...]  # a ledger may hold the digest of any of these

    @property
    def price(self) -> Guarantee:
        return _charge(self.charges, self.index)


def _claims(document: Record) -> list[_Claim]:
    """Return the claims of a certificate: one, or one per attempt of a tuning job."""
    records: list[Any] = made_records(document) if document.get("kind") == TUNING else [document]
    if document.get("kind") != FACTS:
        records.append(document.get("facts"))  # which were bought
    return [_claim(record) for record in records if record is not None]


def _claim(record: Record) -> _Claim:
    """Return what the certificate of one request claims."""
    stated, entry = record["kind"] in (COUNT, QUANTILE, QUERY, FACTS), record["ledger"]
    charges = Charges.from_dict(record["charges"]) if stated else charges_of_grid(record["grid"])
    source = entry.get("source") if isinstance(entry, Mapping) else None
    records = (record, {**record, "value": None})  # JSON may not hold the value
    return _Claim(charges, record["index"], entry, source, records)


def _ledger_problems(document: Record, ledger: Ledger) -> Iterator[str]:
    """Yield how a certificate and the ledger that it names differ."""
    try:
        claims = _claims(document)
    except _UNREADABLE:
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


def _entry_problems(claim: _Claim, ledger: Ledger, entries: list[Entry]) -> Iterator[str]:
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
    stated = {"budget": reserve.budget, "analyst": reserve.analyst, "date": reserve.time[:10]}
    yield from (
        f"the ledger has another {name}"
        for name, value in stated.items()
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
    known = [document_digest(record, "certificate") for record in claim.records]
    if release is not None and release not in known:
        yield "the ledger settled another certificate"
    try:
        amount = ledger.standing(reserve.budget).filter.budget.coordinates(claim.price)
    except _UNREADABLE:
        yield "the charge cannot be compared with that of the ledger"
        return
    if [str(number) for number in amount] != settle.facts.get("spent"):
        yield "the ledger charged another amount"
