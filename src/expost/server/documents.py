"""A release in words for privacy officers.

The sections follow the questions of NIST SP 800-226: who is protected (unit of privacy and
neighbouring relation), how much (ε and δ), by which mechanism and theorem, how releases compose,
accuracy and bias, what happens before noise is added, implementation and side channels, trust and
access, and the collection of the data. Everything is computed from the certificate, the public
facts of the data set and the terms of the budget. Two pairs (ε, δ) are told apart: what the
question could cost at most, which holds before it runs and was reserved, and what this release
cost, which holds for what was released (ex-post privacy) and is at most the first.
Tests: ``tests/server/test_documents.py``.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import Any

from expost._version import __version__
from expost.privacy.guarantees import ADD_REMOVE, REPLACE, ZERO_OUT, guarantee_from_dict
from expost.rationals import charge_text
from expost.tuning.words import (
    bar_words,
    bounds_words,
    certified_words,
    score_words,
    side_words,
    training_words,
)

_UNITS = {"epsilon": "ε", "rho": "ρ"}
_KINDS = {"count": "counts of persons", "rows": "counts of rows", "sum": "sums", "mean": "means"}
_KINDS |= {"tune": "a trained model"}
_VARIANTS = {"pure": "Pure DP", "approx": "Approximate DP", "zcdp": "Zero-concentrated DP"}
_VARIANTS |= {"renyi": "Renyi DP"}
_RELATIONS = {
    ADD_REMOVE: "Two data sets are neighbours if one has one row more than the other.",
    ZERO_OUT: "Two data sets are neighbours if one has a row where the other has an empty place.",
    REPLACE: "Two data sets are neighbours if one row is another one.",
}


def report(
    release: Mapping[str, Any], facts: Mapping[str, Any], budget: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a one-page report as a title and a list of sections.

    Parameters
    ----------
    release : mapping
        The request, the result and the certificate.
    facts : mapping
        What is publicly known about the data set.
    budget : mapping
        The state of the budget that paid.

    Returns
    -------
    dict
        ``title``, ``id``, ``dataset``, ``date``, ``facts`` (numbers) and ``sections``, each with
        ``heading``, ``text`` and ``rows`` (pairs of name and value).
    """
    request, certificate = release["request"], release["certificate"]
    tuned = request["kind"] == "tune"
    numbers = _numbers(release, tuned)
    sections = [
        _what(release, facts, tuned),
        _who(release, facts, tuned),
        _how_much(numbers, tuned),
        _mechanism(certificate, tuned),
        _composition(budget),
        _accuracy(release, tuned),
        _preprocessing(release, facts, tuned),
        _implementation(tuned),
        _governance(request, certificate, facts),
        _collection(facts),
    ]
    return {
        "title": f"Release {request['id'][:8]}: {_KINDS[request['kind']]} from {facts['name']}",
        "id": request["id"],
        "dataset": facts["name"],
        "kind": request["kind"],
        "date": (request["published"] or "")[:10],
        "facts": numbers,
        "simulated": bool(certificate.get("simulated")),
        "sections": sections,
    }


def _section(heading: str, text: str, **rows: Any) -> dict[str, Any]:
    shown = [[name.replace("_", " "), value] for name, value in rows.items() if value is not None]
    return {"heading": heading, "text": text, "rows": shown}


def _numbers(release: Mapping[str, Any], tuned: bool) -> dict[str, Any]:
    """The privacy parameters: of the question before it ran, and of this release."""
    certificate = release["certificate"]
    if tuned:
        spent = release["result"]["spent"]
        worst = _worst_of_job(certificate)
        return {
            "unit": "epsilon",
            "spent": spent["epsilon"],
            "worst_case": worst["epsilon"],
            "epsilon": worst["epsilon"],
            "delta": worst["delta"],
            "this_release": {"epsilon": spent["epsilon"], "delta": spent["delta"]},
            "charged": dict(spent),
            "variant": "Approximate DP",
            "neighbours": certificate["tuning"].get("neighbours", ADD_REMOVE),
        }
    guarantee, charged = certificate["guarantee"], certificate["charged"]
    ((unit, spent_amount),) = _amount(certificate["spent"]).items()
    ((_, worst_amount),) = _amount(certificate["worst_case"]).items()
    whole = {"epsilon": guarantee["epsilon"], "delta": guarantee.get("delta", 0.0)}
    pure = unit == "epsilon" and not whole["delta"]
    return {
        "unit": unit,
        "spent": spent_amount,
        "worst_case": worst_amount,
        **whole,
        # What ρ was spent has no ε of its own here: then the pair of the whole question is told.
        "this_release": {"epsilon": spent_amount, "delta": 0.0} if pure else whole,
        "charged": dict(charged),
        "variant": _VARIANTS.get(charged["kind"], "Custom"),
        "neighbours": guarantee.get("neighbours", ADD_REMOVE),
    }


def _worst_of_job(certificate: Mapping[str, Any]) -> dict[str, float]:
    """The worst case of a tuning job in (ε, δ); a Rényi charge is converted at the job's order."""
    worst, job = guarantee_from_dict(certificate["worst_case"]), certificate["tuning"]
    pair, curve = worst.as_approx(), worst.as_renyi()
    if pair is None and curve is not None:
        pair = curve.on([job["converted_at_order"]]).to_approx(job["spent"]["delta"])
    assert pair is not None
    return {"epsilon": pair.epsilon, "delta": pair.delta}


def job_words(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a page says about a tuning job, from its record."""
    return {
        "metric": certified_words(job["goal"]),
        "bar": bar_words(job["goal"]),
        "score": score_words(job),
        "certified": bounds_words(job),
        "noisy": job["privacy"]["scoring"] == "private",
    }


def _amount(charge: Mapping[str, Any]) -> dict[str, float]:
    """The ε or ρ of a charge."""
    return {name: float(charge[name]) for name in ("rho", "epsilon") if name in charge}


def _what(release: Mapping[str, Any], facts: Mapping[str, Any], tuned: bool) -> dict[str, Any]:
    request, question = release["request"], release["request"]["question"]
    if tuned:
        goal = release["result"]["goal"]
        wanted = f"with the best {certified_words(goal)}"
        if goal["bar"] is not None:
            wanted = f"whose {certified_words(goal)} is {side_words(goal)} {goal['bar']:g}"
        text = f"A search for a model {wanted}. " + (
            "It was found and released." if release["result"]["passed"] else "None was released."
        )
        return _section("What was released", text, purpose=request["memo"] or None)
    certificate = release["certificate"]
    kind = "rows" if question.get("rows") else question["kind"]
    groups = "in total" if not question["by"] else "by " + ", ".join(question["by"])
    error = (
        f"within {question['within']:.3g} of the value (relative)"
        if question["within"] is not None
        else f"within ± {question['plus_minus']:g}"
    )
    answered, open_ = len(certificate["answers"]), len(certificate["unanswered"])
    text = (
        f"{_KINDS[kind].capitalize()} {groups}, {error}, with {question['confidence']:.0%} "
        f"confidence for each. {answered} of {answered + open_} groups reached this error."
    )
    return _section(
        "What was released",
        text,
        column=question["column"],
        conditions=", ".join(question["where"]) or None,
        purpose=request["memo"] or None,
    )


def _who(release: Mapping[str, Any], facts: Mapping[str, Any], tuned: bool) -> dict[str, Any]:
    if tuned:
        relation = release["certificate"]["tuning"].get("neighbours", ADD_REMOVE)
        return _section(
            "Who is protected",
            f"One row of the training and scoring data. {_RELATIONS[relation]} A person with "
            "several rows is protected less: their ε add up.",
            unit_of_privacy="one row",
            relation=relation,
        )
    most = release["certificate"]["max_groups_per_user"]
    limit = "any number of groups" if most is None else f"at most {most} groups"
    limit = "one group" if most == 1 else limit
    return _section(
        "Who is protected",
        f"One person with all their rows; a person is recognised by the column {facts['user']!r} "
        f"and counts in {limit}. Two data sets are neighbours if one has all rows of a person and "
        "the other has none of them.",
        unit_of_privacy="one person with all their rows",
        relation="add or remove one person",
    )


def answers_csv(release: Mapping[str, Any]) -> str:
    """Return the answers of a release as CSV, one line per group.

    A group whose name a spreadsheet would read as a formula gets an apostrophe before it.
    """
    result, question = release["result"], release["request"]["question"]
    stream = io.StringIO()
    table = csv.writer(stream)
    names = list(question["by"]) or ["group"]
    table.writerow([*map(_cell, names), "estimate", "low", "high", "error_reached"])
    for reached, rows in (("yes", result["answers"]), ("no", result["unanswered"])):
        for each in rows:
            key = each["group"]
            parts = key if isinstance(key, (list, tuple)) else ["all" if key is None else key]
            numbers = [each[name] for name in ("estimate", "low", "high")]
            table.writerow([*map(_cell, parts), *numbers, reached])
    return stream.getvalue()


def _cell(text: Any) -> str:
    """A text that no spreadsheet takes for a formula."""
    written = str(text)
    return f"'{written}" if written.startswith(("=", "+", "-", "@", "\t", "\r")) else written


def in_words(epsilon: float, delta: float, *, ex_post: bool = False) -> str:
    """Return what (ε, δ) means for one person; ``ex_post`` for an ε of what was released."""
    factor, after = _odds(epsilon)
    factor_text = charge_text(factor * (1 - 1e-12), 3)  # e^ln 3 is a little more than 3
    what = "what was released is at most" if ex_post else "every outcome is at most"
    text = (
        f"Whatever somebody concludes from this release, they could have concluded it almost as "
        f"well without the person's data: {what} {factor_text} times as likely with them as "
        "without, and the other way round. "
        f"Somebody who thinks it equally likely that a person is in the data or not can be at most "
        f"{after} % certain afterwards."
    )
    if delta:
        text += f" This may fail with a probability of at most {charge_text(delta, 2)}."
    return text


def _odds(epsilon: float) -> tuple[float, str]:
    """The factor e^ε, and the certainty in per cent of somebody who was undecided, rounded up."""
    factor = math.exp(epsilon) if epsilon < 50 else math.inf
    return factor, certainty_text(epsilon)


def certainty_text(epsilon: float) -> str:
    """Return e^ε/(1 + e^ε) in per cent with one digit, rounded up."""
    certainty = 1 / (1 + math.exp(-min(epsilon, 700.0)))
    return f"{min(math.ceil(1000 * certainty - 1e-9), 1000) / 10:.1f}"


def _how_much(numbers: Mapping[str, Any], tuned: bool = False) -> dict[str, Any]:
    unit = _UNITS[numbers["unit"]]
    here, before = numbers["this_release"], numbers["epsilon"]
    less = here["epsilon"] < before
    text = in_words(here["epsilon"], here["delta"] or 0.0, ex_post=less)
    if less:
        text += (
            f" This is the ε of what was released ({charge_text(here['epsilon'], 3)}), and it was "
            "charged. Before the question ran, it was certain that ε would be at most "
            f"{charge_text(before, 3)} ({certainty_text(before)} %), whatever came out. "
        )
        text += (
            "Each attempt of the search was reserved before it began."
            if tuned
            else "So much was reserved, and the rest was given back."
        )
    else:
        text += " This was certain before the question ran, whatever came out."
    charged = {
        name: numbers["charged"][name]
        for name in ("epsilon", "rho", "delta")
        if numbers["charged"].get(name)
    }
    marks = _UNITS | {"delta": "δ"}
    return _section(
        "How much protection",
        text,
        epsilon_of_this_release=here["epsilon"],
        epsilon_of_the_question=before,
        delta=numbers["delta"] or 0,
        charged=", ".join(f"{marks[name]} = {charge_text(each)}" for name, each in charged.items()),
        reserved_before_it_ran=None if tuned else f"{unit} = {charge_text(numbers['worst_case'])}",
        variant=numbers["variant"],
    )


def _mechanism(certificate: Mapping[str, Any], tuned: bool) -> dict[str, Any]:
    if tuned:
        text = training_words(certificate)
        return _section("Mechanism and theorem", text, theorem=certificate["theorem"])
    noise = {"laplace": "Discrete Laplace", "gaussian": "Discrete Gaussian"}
    law = noise.get(certificate["public"].get("noise", ""), "Discrete")
    text = (
        f"{law} noise on integers, coarse to fine, until the wanted error is reached; only the "
        "finest look is charged. Noise is exact and drawn from the operating system's entropy."
    )
    return _section("Mechanism and theorem", text, theorem=certificate["theorem"])


def _composition(budget: Mapping[str, Any]) -> dict[str, Any]:
    limit = budget["budget"]
    terms = ", ".join(
        f"{_UNITS.get(name, 'δ' if name == 'delta' else name)} = {limit[name]:g}"
        for name in ("epsilon", "rho", "delta")
        if name in limit
    )
    return _section(
        "Composition",
        "The charges of all releases from this budget add up, and requests that would exceed the "
        "limit are refused before any data are read. Charges may depend on earlier answers "
        "(a privacy filter).",
        budget=budget["name"],
        kind=budget["kind"],
        limit=terms or None,
    )


def _accuracy(release: Mapping[str, Any], tuned: bool) -> dict[str, Any]:
    if tuned:
        job = release["certificate"]["tuning"]
        noisy = job["privacy"]["scoring"] == "private"
        text = (
            f"The score that was compared with the bar is {'noisy' if noisy else 'exact'}. Rows "
            "that are rare in the data are learned less well: look at the errors of small groups "
            "before the model is used."
        )
        passed = release["result"]["passed"]
        return _section(
            "Accuracy and bias",
            text,
            score=certified_words(job["goal"]),
            noisy_score=score_words(job) if passed else None,
            certified=bounds_words(job) if passed else None,
        )
    question, certificate = release["request"]["question"], release["certificate"]
    answers = len(certificate["answers"])
    text = (
        "Each answer has an interval that contains the exact value with the stated confidence, "
        "noise included. Groups that did not reach the error have wider intervals; small groups "
        "are the first. "
    )
    dropped = certificate["dropped_share"]
    if dropped is not None and question["by"] and certificate["max_groups_per_user"]:
        text += (
            "Persons in more groups than the cap count in some of them only, which lowers counts "
            "and sums; the intervals do not include this. "
        )
    rows = certificate["public"].get("max_rows_per_user")
    if rows is not None:
        text += (
            f"Of one person at most {rows} rows count in a group. The intervals leave out what "
            "this removes, but a group is called answered only if both together are within the "
            "error. "
        )
    if question["column"]:
        text += "Values outside of the bounds count as the bound, which is a bias as well."
    share = None
    if dropped is not None and dropped["high"] < 1:
        share = f"{dropped['low']:.1%} to {dropped['high']:.1%}"
    return _section(
        "Accuracy and bias",
        text.strip(),
        groups_within_the_error=f"{answers} of {answers + len(certificate['unanswered'])}",
        confidence=f"{question['confidence']:.0%}",
        share_left_out_by_the_caps=share,
    )


def _preprocessing(
    release: Mapping[str, Any], facts: Mapping[str, Any], tuned: bool
) -> dict[str, Any]:
    if tuned:
        return _section(
            "Preprocessing and tuning",
            "Features are clipped to public bounds; classes are public. The search over settings, "
            "every attempt and the private score are included in ε and δ.",
            tuning_included="yes",
            attempts=release["result"]["attempts"],
        )
    question = release["request"]["question"]
    column = question["column"]
    bounds = facts["values"].get(column) if column else None
    certificate = release["certificate"]
    return _section(
        "Preprocessing and tuning",
        "Rows without a person or a group are left out. Values are clipped to public bounds. "
        f"Groups are {certificate['public']['keys']}. Nothing was tuned on the data.",
        bounds=None if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}",
        rows_per_person_and_group=certificate["public"].get("max_rows_per_user"),
        tuning_included="nothing was tuned",
    )


def _implementation(tuned: bool) -> dict[str, Any]:
    text = (
        "Charges are summed as exact fractions and rounded up. Results appear at fixed times, and "
        "a failure does not tell its cause, so that durations and errors tell less; the number of "
        "intervals that a request takes remains visible. "
    )
    text += (
        "Training adds normal noise that is rounded exactly to a public grid, so that low bits of "
        "floating-point numbers do not leak."
        if tuned
        else "Noise is drawn on integers by exact samplers, so that floating-point numbers do not "
        "leak."
    )
    return _section("Implementation and side channels", text, library=f"expost {__version__}")


def _moment(text: str | None) -> str | None:
    return None if text is None else f"{text[:19].replace('T', ' ')} UTC"


def _governance(
    request: Mapping[str, Any], certificate: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, Any]:
    ledger = certificate.get("ledger")
    first = ledger[0] if isinstance(ledger, list) and ledger else ledger
    return _section(
        "Trust, access and records",
        "The desk is trusted with the data; analysts are not, and their questions share one "
        "budget, so that they gain nothing by working together. People receive releases only. "
        "Each request is recorded, priced and reserved in a hash-chained ledger before it runs. "
        "Whoever administers the machine can read the data.",
        asked_by=request["person"],
        asked=_moment(request["created"]),
        published=_moment(request["published"]),
        ledger_entry=None if not first else first.get("reservation"),
        deployment_model="central",
    )


def _collection(facts: Mapping[str, Any]) -> dict[str, Any]:
    return _section(
        "Data collection and security",
        "Differential privacy protects what is released, not how the data are collected, stored "
        "and transported. The curator describes this part.",
        data_set=facts["name"],
        description=facts.get("description") or None,
    )
