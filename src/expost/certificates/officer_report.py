"""A release in words for privacy officers.

The sections follow the questions of NIST SP 800-226: who is protected (unit of privacy and
neighbouring relation), how much (ε and δ), by which mechanism and theorem, how releases compose,
accuracy and bias, what happens before noise is added, implementation and side channels, trust and
access, and the collection of the data. Everything is computed from the certificate, whose own words
(:mod:`expost.certificates.words`) are part of the report, the public facts of the data set and the
terms of the budget. Two pairs (ε, δ) are told apart: what the question could cost at most, which
holds before it runs and was reserved, and what this release cost, which holds for what was released
(ex-post privacy) and is at most the first.

:func:`registry` writes a release in the fields of OpenDP's registry of deployments, as YAML. The
fields and their order are those of the registry's records in 2026. What the server cannot know is
marked for the curator. Tests: ``tests/server/test_documents.py``.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from expost._version import __version__
from expost.certificates.document import (
    TUNING,
    Record,
    certainty_text,
    person_words,
    protected_words,
    unit_of_job,
)
from expost.certificates.verify import job_epsilon_delta
from expost.certificates.words import (
    UNITS,
    bounds_words,
    certificate_words,
    certified_words,
    method_words,
    result_words,
    score_words,
    side_words,
)
from expost.files import spreadsheet_cell
from expost.privacy.guarantees import ApproxDP, guarantee_from_dict, persons_words
from expost.rationals import charge_text

_KINDS = {"count": "counts of persons", "rows": "counts of rows", "sum": "sums", "mean": "means"}
_KINDS |= {"tune": "a trained model", "quantile": "quantiles", "query": "answers to a query"}
_KINDS |= {"errors": "errors of a model by subgroup"}
_VARIANTS = {"pure": "Pure DP", "approx": "Approximate DP", "zcdp": "Zero-concentrated DP"}
_VARIANTS |= {"renyi": "Renyi DP"}
_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")  # not texts in YAML
_OPEN = "to be filled in by the curator"


def report(release: Record, facts: Record, budget: Record) -> dict[str, Any]:
    """Return a one-page report as a title, a list of sections, and the words of the certificate."""
    request, certificate = release["request"], release["certificate"]
    tuned = certificate["kind"] == TUNING
    numbers = _job_numbers(certificate) if tuned else _count_numbers(certificate)
    sections = [
        _what_model(certificate, request) if tuned else _what_counts(certificate, request),
        _who(certificate, facts, tuned),
        _how_much(numbers, unit_of_job(certificate["tuning"]) if tuned else None),
        _mechanism(certificate, tuned),
        _composition(budget),
        _accuracy_of_model(certificate) if tuned else _accuracy_of_counts(certificate),
        _preparation_of_model(certificate) if tuned else _preparation_of_counts(certificate),
        _implementation(tuned),
        _governance(request, certificate),
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
        "words": [[name, list(lines)] for name, lines in certificate_words(certificate)],
    }


def _section(heading: str, text: str, **rows: Any) -> dict[str, Any]:
    shown = [[name.replace("_", " "), value] for name, value in rows.items() if value is not None]
    return {"heading": heading, "text": text, "rows": shown}


def _job_numbers(certificate: Record) -> dict[str, Any]:
    """The privacy parameters of a tuning job: before it ran, and of this release."""
    spent = certificate.get("total", certificate["tuning"]["spent"])
    worst = job_epsilon_delta(guarantee_from_dict(certificate["worst_case"]), certificate)
    if "facts" in certificate:  # facts that the job bought
        bought = certificate["facts"]["charged"]
        worst = worst + ApproxDP(bought["epsilon"], bought["delta"], worst.neighbours)
    return {
        "unit": "epsilon",
        "spent": spent["epsilon"],
        "worst_case": worst.epsilon,
        "epsilon": worst.epsilon,
        "delta": worst.delta,
        "this_release": {"epsilon": spent["epsilon"], "delta": spent["delta"]},
        "charged": dict(spent),
        "variant": "Approximate DP",
        "neighbours": certificate["tuning"]["neighbours"],
    }


def _count_numbers(certificate: Record) -> dict[str, Any]:
    """The privacy parameters of a question before it ran, and of this release."""
    guarantee, charged = certificate["guarantee"], certificate["charged"]
    ((unit, spent),) = certificate["spent"].items()
    ((_, worst),) = certificate["worst_case"].items()
    whole = {"epsilon": guarantee["epsilon"], "delta": guarantee.get("delta", 0.0)}
    pure = unit == "epsilon" and not whole["delta"]
    return {
        "unit": unit,
        "spent": spent,
        "worst_case": worst,
        **whole,
        # What ρ was spent has no ε of its own here: then the pair of the whole question is told.
        "this_release": {"epsilon": spent, "delta": 0.0} if pure else whole,
        "charged": dict(charged),
        "variant": _VARIANTS.get(charged["kind"], "Custom"),
        "neighbours": guarantee["neighbours"],
    }


def _what_model(certificate: Record, request: Record) -> dict[str, Any]:
    goal = certificate["tuning"]["goal"]
    wanted = f"with the best {certified_words(goal)}"
    if goal["value"] is not None:
        wanted = f"whose {certified_words(goal)} is {side_words(goal)} {goal['value']:g}"
    text = f"A search for a model {wanted}. Released: {result_words(certificate)}."
    return _section("What was released", text, purpose=request["memo"] or None)


def _what_counts(certificate: Record, request: Record) -> dict[str, Any]:
    said = _said(certificate)
    asked = said["question"]
    text = f"{asked[0].upper()}{asked[1:]}, {said['error']}. {said['answers']}."
    return _section("What was released", text, purpose=request["memo"] or None)


def _said(certificate: Record) -> dict[str, str]:
    """The rows of a certificate in words."""
    return {name: "; ".join(lines) for name, lines in certificate_words(certificate)}


def _who(certificate: Record, facts: Record, tuned: bool) -> dict[str, Any]:
    if tuned:
        job = certificate["tuning"]
        relation, by_row = job["neighbours"], unit_of_job(job) == "row"
        text = protected_words(relation, job["data"])
        return _section(
            "Who is protected",
            f"{text[0].upper()}{text[1:]}" + " Their ε add up." * by_row,
            unit_of_privacy="one row" if by_row else "one person with all their rows",
            relation=relation,
        )
    text = persons_words(certificate["max_groups_per_user"])
    # Of errors of a model, the facts are those of the rows that it was tuned on.
    column = facts["user"] if "user" in facts else facts["tuning"].get("user")
    known = "Each row is a person" if column is None else f"A person is recognised by {column!r}"
    return _section(
        "Who is protected",
        f"{text[0].upper()}{text[1:]}. {known}. Two data sets are neighbours if one has all rows "
        "of a person and the other has none of them.",
        unit_of_privacy="one person with all their rows",
        relation="add or remove one person",
    )


def answers_csv(release: Record) -> str:
    """Return the answers of a release as CSV, one line per group.

    A group whose name a spreadsheet would read as a formula gets an apostrophe before it.
    """
    result, question = release["result"], release["request"]["question"]
    stream = io.StringIO()
    table = csv.writer(stream)
    if "rows" in result:  # of a query
        names = list(dict.fromkeys(name for row in result["rows"] for name in row))
        table.writerow(list(map(spreadsheet_cell, names)))
        for row in result["rows"]:
            table.writerow([spreadsheet_cell(row.get(name)) for name in names])
        return stream.getvalue()
    names = list(question["by"]) or ["group"]
    ranks = ["at"] if question.get("at") else []
    measured = [*ranks, "estimate", "low", "high"]
    table.writerow([*map(spreadsheet_cell, names), *measured, "error_reached"])
    for reached, rows in (("yes", result["answers"]), ("no", result["unanswered"])):
        for answer in rows:
            key = answer["group"]
            parts = key if isinstance(key, (list, tuple)) else ["all" if key is None else key]
            numbers = [answer[name] for name in measured]
            table.writerow([*map(spreadsheet_cell, parts), *numbers, reached])
    return stream.getvalue()


def meaning_of(epsilon: float, delta: float, *, ex_post: bool = False, unit: str = "person") -> str:
    """Return what (ε, δ) means for a person or row; ``ex_post`` for an ε of what was released."""
    factor = math.exp(epsilon) if epsilon < 50 else math.inf
    factor_text = charge_text(factor * (1 - 1e-12), 3)  # e^ln 3 is a little more than 3
    what = "what was released" if ex_post else "every outcome"
    return (
        f"Whatever somebody concludes from this release, they could have concluded it almost as "
        f"well without the data of one {unit}: {what} is at most {factor_text} times as likely "
        f"with them as without, and the other way round. In other words, "
        f"{person_words(epsilon, delta, unit)}."
    )


def _how_much(numbers: Record, protected: str | None = None) -> dict[str, Any]:
    """The charge and what it means; ``protected``: whom a tuning job protects."""
    unit, tuned = UNITS[numbers["unit"]], protected is not None
    here, before = numbers["this_release"], numbers["epsilon"]
    less = here["epsilon"] < before
    text = meaning_of(
        here["epsilon"], here["delta"] or 0.0, ex_post=less, unit=protected or "person"
    )
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
    return _section(
        "How much protection",
        text,
        epsilon_of_this_release=here["epsilon"],
        epsilon_of_the_question=before,
        delta=numbers["delta"] or 0,
        charged=", ".join(
            f"{UNITS[name]} = {charge_text(amount)}" for name, amount in charged.items()
        ),
        reserved_before_it_ran=None if tuned else f"{unit} = {charge_text(numbers['worst_case'])}",
        variant=numbers["variant"],
    )


def _mechanism(certificate: Record, tuned: bool) -> dict[str, Any]:
    text = "; ".join(method_words(certificate))
    entropy = "Noise is drawn from the operating system's entropy"
    entropy += ". Losing models were never released." if tuned else ", exactly."
    return _section(
        "Mechanism and theorem",
        f"{text[0].upper()}{text[1:]}. {entropy}",
        theorem=certificate["theorem"],
    )


def _composition(budget: Record) -> dict[str, Any]:
    limit = budget["budget"]
    terms = ", ".join(
        f"{UNITS[name]} = {limit[name]:g}" for name in ("epsilon", "rho", "delta") if name in limit
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


def _accuracy_of_model(certificate: Record) -> dict[str, Any]:
    job = certificate["tuning"]
    noisy = job["privacy"]["scoring"] == "private"
    passed = certificate["outcome"] == "value"
    return _section(
        "Accuracy and bias",
        f"The score that was compared with the goal is {'noisy' if noisy else 'exact'}. Rows that "
        "are rare in the data are learned less well: look at the errors of small groups before the "
        "model is used.",
        score=certified_words(job["goal"]),
        noisy_score=score_words(job) if passed else None,
        certified=bounds_words(job) if passed else None,
    )


def _accuracy_of_counts(certificate: Record) -> dict[str, Any]:
    query, dropped = certificate["query"], certificate.get("dropped_share")
    text = (
        "Each answer has an interval that contains the exact value with the stated confidence, "
        "noise included. Groups that did not reach the error have wider intervals; small groups "
        "are the first. "
    )
    if dropped is not None and query.get("by") and certificate["max_groups_per_user"]:
        text += (
            "Persons in more groups than the cap count in some of them only, which lowers counts "
            "and sums; the intervals do not include this. "
        )
    rows = certificate["public"].get("max_rows_per_user")
    if dropped is not None and "in_all_groups" in dropped:
        text += (
            f"One person adds at most {dropped['in_all_groups']:,.6g} to all groups together. What "
            "this removes is estimated; a group is called answered only if the error of that and "
            "noise together are within the error. "
        )
    elif rows is not None:
        text += (
            f"Of one person at most {rows} rows count in a group. The intervals leave out what "
            "this removes, but a group is called answered only if both together are within the "
            "error. "
        )
    if query.get("column"):
        text += "Values outside of the bounds count as the bound, which is a bias as well."
    share = None
    if dropped is not None and dropped["high"] < 1:
        share = f"{dropped['low']:.1%} to {dropped['high']:.1%}"
    return _section(
        "Accuracy and bias",
        text.strip(),
        answers=_said(certificate)["answers"],
        error=_said(certificate)["error"],
        share_left_out_by_the_caps=share,
    )


def _preparation_of_model(certificate: Record) -> dict[str, Any]:
    return _section(
        "Preprocessing and tuning",
        "Features are clipped to public bounds; classes are public. The search over settings, "
        "every attempt and the private score are included in ε and δ.",
        tuning_included="yes",
        attempts=len(certificate["tuning"]["attempts"]),
    )


def _preparation_of_counts(certificate: Record) -> dict[str, Any]:
    public, bounds = certificate["public"], certificate["query"].get("bounds")
    return _section(
        "Preprocessing and tuning",
        "Rows without a person or a group are left out. Values are clipped to public bounds. "
        f"Groups are {public['keys']}. Nothing was tuned on the data.",
        bounds=None if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}",
        rows_per_person_and_group=public.get("max_rows_per_user"),
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


def _governance(request: Record, certificate: Record) -> dict[str, Any]:
    ledger = certificate.get("ledger")
    first = ledger[0] if isinstance(ledger, list) and ledger else ledger
    return _section(
        "Trust, access and records",
        "The server is trusted with the data; analysts are not, and their questions share one "
        "budget, so that they gain nothing by working together. People receive releases only. "
        "Each request is recorded, priced and reserved in a hash-chained ledger before it runs. "
        "Whoever administers the machine can read the data.",
        asked_by=request["person"],
        asked=_moment(request["created"]),
        published=_moment(request["published"]),
        ledger_entry=None if not first else first.get("reservation"),
        deployment_model="central",
    )


def _collection(facts: Record) -> dict[str, Any]:
    return _section(
        "Data collection and security",
        "Differential privacy protects what is released, not how the data are collected, stored "
        "and transported. The curator describes this part.",
        data_set=facts["name"],
        description=facts.get("description") or None,
    )


def registry(document: Record) -> str:
    """Return a report in the fields of OpenDP's deployments registry, as YAML."""
    sections = {section["heading"]: section for section in document["sections"]}
    text = {heading: section["text"] for heading, section in sections.items()}
    numbers, tuned = document["facts"], document["kind"] == "tune"
    who = sections["Who is protected"]
    basic = {
        "name": document["title"],
        "data_curators": [_OPEN],
        "intended_use": _row(sections["What was released"], "purpose"),
        "data_product_type": "Machine learning model" if tuned else "Summary statistics",
        "data_product_region": _OPEN,
        "description": text["What was released"],
        "publication_date": document["date"],
    }
    variant = {
        "variant_name": numbers["variant"],
        "data_domain": f"data set {document['dataset']}",
        "unprotected_quantities": "None. Bounds, groups, caps and the settings of a search are "
        "public facts that were stated without the data.",
    }
    loss = {
        "privacy_unit": _row(who, "unit of privacy"),
        "privacy_unit_details": who["text"],
        "privacy_parameters": _parameters(numbers),
        "privacy_parameters_details": text["How much protection"],
    }
    model = {
        "model_name": "Central",
        "model_name_details": text["Trust, access and records"],
        "actors": "Owners register data sets and open budgets; analysts ask and receive releases; "
        "auditors read the ledger and verify. Analysts and readers of a release are possible "
        "adversaries with any other knowledge.",
        "release_type": "Many releases",
        "release_type_details": text["Composition"],
        "data_source_type": "Static",
        "access_type": "Interactive",
        "access_type_details": text["Composition"],
    }
    accounting = {
        "post_processing": text["Accuracy and bias"],
        "composition": text["Composition"],
    }
    implementation = {
        "preprocessing_and_hyperparameter_tuning": text["Preprocessing and tuning"],
        "mechanisms": text["Mechanism and theorem"]
        + " "
        + text["Implementation and side channels"],
        "justification": _row(sections["Mechanism and theorem"], "theorem"),
    }
    return to_yaml(
        {
            "url_slug": f"expost-{document['id']}",
            "status": "Draft",
            "tier": 3,
            "deployment": {
                "basic": basic,
                "dp_variant": variant,
                "privacy_loss": loss,
                "deployment_model": model,
                "accounting": accounting,
                "implementation": implementation,
                "administrative": {
                    "sources": f"Certificate of release {document['id']}, ledger entry "
                    + _row(sections["Trust, access and records"], "ledger entry"),
                    "registry_authors": [_OPEN],
                },
            },
        }
    )


def _parameters(numbers: Record) -> dict[str, float]:
    """What the question could cost at most; the parameters of a guarantee hold before it runs."""
    parameters = {"epsilon": numbers["epsilon"]}
    if numbers["delta"]:
        parameters["delta"] = numbers["delta"]
    if numbers["unit"] == "rho":
        parameters["rho"] = numbers["worst_case"]
    return parameters


def _row(section: Record, name: str) -> str:
    return str(next((value for key, value in section["rows"] if key == name), ""))


def to_yaml(value: Any, depth: int = 0) -> str:
    """Return plain data as YAML; texts are JSON strings, which YAML reads as they are."""
    pad = "  " * depth
    if isinstance(value, Mapping):
        lines = []
        for key, part in value.items():
            nested = isinstance(part, (Mapping, list, tuple)) and part
            inner = "\n" + to_yaml(part, depth + 1) if nested else " " + _scalar(part) + "\n"
            lines.append(f"{pad}{_scalar(str(key), key=True)}:{inner}")
        return "".join(lines)
    if isinstance(value, Sequence) and not isinstance(value, str):
        lines = []
        for part in value:
            if isinstance(part, Mapping) and part:
                lines.append(f"{pad}- " + to_yaml(part, depth + 1).lstrip(" "))
            else:
                lines.append(f"{pad}- {_scalar(part)}\n")
        return "".join(lines)
    return f"{pad}{_scalar(value)}\n"


def _scalar(value: Any, *, key: bool = False) -> str:
    """A scalar as JSON, which is YAML; plain words as keys stay as they are."""
    if key and value.isascii() and value.isidentifier() and value.lower() not in _WORDS:
        return str(value)
    if isinstance(value, float):
        digits, _, exponent = json.dumps(value, allow_nan=False).partition("e")
        point = digits if "." in digits else f"{digits}.0"  # else YAML 1.1 reads a text
        return f"{point}e{exponent}" if exponent else point
    # JSON leaves these as they are, but YAML takes some of them for line breaks.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    hidden = ("\x7f", *map(chr, range(0x80, 0xA0)), "\u2028", "\u2029", "\ufeff")
    for letter in hidden:
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text
