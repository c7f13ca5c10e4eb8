"""A release in words for privacy officers, and in the fields of OpenDP's deployments registry.

The sections follow the questions of NIST SP 800-226: who is protected (unit of privacy and
neighbouring relation), how much (ε and δ), by which mechanism and theorem, how releases compose,
what happens before noise is added, and how data and access are governed. Everything is computed
from the certificate, the public facts of the data set and the terms of the budget.
Tests: ``tests/server/test_documents.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

_UNITS = {"epsilon": "ε", "rho": "ρ"}
_KINDS = {"count": "counts of persons", "rows": "counts of rows", "sum": "sums", "mean": "means"}
_KINDS |= {"tune": "a trained model"}
_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")  # not texts in YAML


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
        _how_much(numbers),
        _mechanism(certificate, tuned),
        _composition(budget),
        _preprocessing(release, facts, tuned),
        _governance(request, certificate, facts),
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
    """The privacy parameters: what was spent, the worst case, and what is guaranteed."""
    certificate = release["certificate"]
    if tuned:
        spent, worst = release["result"]["spent"], certificate["worst_case"]
        return {
            "unit": "epsilon",
            "spent": spent["epsilon"],
            "epsilon": spent["epsilon"],
            "delta": spent["delta"],
            "worst_case": worst.get("epsilon"),
            "variant": "Approximate DP",
            "neighbours": "add-remove",
        }
    guarantee = certificate["guarantee"]
    ((unit, spent_amount),) = _amount(certificate["spent"]).items()
    ((_, worst_amount),) = _amount(certificate["worst_case"]).items()
    return {
        "unit": unit,
        "spent": spent_amount,
        "epsilon": guarantee.get("epsilon"),
        "delta": guarantee.get("delta", 0.0),
        "worst_case": worst_amount,
        "variant": "Pure DP" if not guarantee.get("delta") else "Zero-concentrated DP",
        "neighbours": guarantee.get("neighbours", "add-remove"),
    }


def _amount(charge: Mapping[str, Any]) -> dict[str, float]:
    """The ε or ρ of a charge."""
    return {name: float(charge[name]) for name in ("rho", "epsilon") if name in charge}


def _what(release: Mapping[str, Any], facts: Mapping[str, Any], tuned: bool) -> dict[str, Any]:
    request, question = release["request"], release["request"]["question"]
    if tuned:
        goal = release["result"]["goal"]
        bar = "the best score" if goal["bar"] is None else f"{goal['metric']} of {goal['bar']:g}"
        text = f"A model was searched that reaches {bar}. " + (
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
        return _section(
            "Who is protected",
            "One row of the training and scoring data. Two data sets are neighbours if one has a "
            "person's row and the other has none in its place.",
            unit_of_privacy="one row",
            relation=release["certificate"]["tuning"].get("neighbours", "add-remove"),
        )
    most = release["certificate"]["max_groups_per_user"]
    limit = "any number of groups" if most is None else f"at most {most} group(s)"
    return _section(
        "Who is protected",
        f"One person with all their rows; a person is recognised by the column {facts['user']!r} "
        f"and counts in {limit}. Two data sets are neighbours if one has all rows of a person and "
        "the other has none of them.",
        unit_of_privacy="one person with all their rows",
        relation="add or remove one person",
    )


def in_words(epsilon: float, delta: float) -> str:
    """Return what (ε, δ) means for one person."""
    factor = math.exp(epsilon) if epsilon < 50 else math.inf
    after = 100 * factor / (1 + factor) if math.isfinite(factor) else 100.0
    text = (
        f"Whatever somebody concludes from this release, they could have concluded it almost as "
        f"well without the person's data: no event becomes more than {factor:.3g} times as likely. "
        f"Somebody who thinks it equally likely that a person is in the data or not can be at most "
        f"{after:.1f} % certain afterwards."
    )
    if delta:
        text += f" This may fail with a probability of at most {delta:.2g}."
    return text


def _how_much(numbers: Mapping[str, Any]) -> dict[str, Any]:
    unit = _UNITS[numbers["unit"]]
    return _section(
        "How much protection",
        in_words(numbers["epsilon"], numbers["delta"] or 0.0),
        epsilon=numbers["epsilon"],
        delta=numbers["delta"] or 0,
        spent=f"{unit} = {numbers['spent']:.6g}",
        reserved_before_it_ran=f"{unit} = {numbers['worst_case']:.6g}",
        variant=numbers["variant"],
    )


def _mechanism(certificate: Mapping[str, Any], tuned: bool) -> dict[str, Any]:
    if tuned:
        text = (
            "Models were trained by DP-SGD with noise drawn from the operating system's entropy, "
            "and chosen by random dropping. Losing models were never released."
        )
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


def _governance(
    request: Mapping[str, Any], certificate: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, Any]:
    ledger = certificate.get("ledger")
    first = ledger[0] if isinstance(ledger, list) and ledger else ledger
    return _section(
        "Access and records",
        "The data stay at the desk; people receive releases only. Each request is recorded, priced "
        "and reserved in a hash-chained ledger before it runs. Results become visible at fixed "
        "times, so that durations tell less.",
        asked_by=request["person"],
        asked=request["created"],
        published=request["published"],
        ledger_entry=None if not first else first.get("reservation"),
        deployment_model="central",
    )


def registry(document: Mapping[str, Any]) -> str:
    """Return a report in the fields of OpenDP's deployments registry, as YAML."""
    sections = {each["heading"]: each for each in document["sections"]}
    numbers = document["facts"]
    who = sections["Who is protected"]
    tuned = document["kind"] == "tune"
    parameters = {"epsilon": numbers["epsilon"]}
    if numbers["delta"]:
        parameters["delta"] = numbers["delta"]
    return to_yaml(
        {
            "url_slug": f"expost-{document['id']}",
            "deployment": {
                "basic": {
                    "name": document["title"],
                    "data_curators": [
                        {"data_curator_name": "to be filled in", "data_curator_type": "Other"}
                    ],
                    "description": sections["What was released"]["text"],
                    "intended_use": _row(sections["What was released"], "purpose"),
                    "data_product_type": "Machine learning model"
                    if tuned
                    else "Summary statistics",
                    "data_product_region": "to be filled in",
                    "data_product_sector": "to be filled in",
                    "publication_date": document["date"],
                },
                "dp_variant": {
                    "variant_name": numbers["variant"],
                    "data_domain": f"data set {document['dataset']}",
                },
                "privacy_loss": {
                    "privacy_unit": _row(who, "unit of privacy"),
                    "privacy_unit_details": who["text"],
                    "privacy_parameters": parameters,
                    "privacy_parameters_details": sections["How much protection"]["text"],
                },
                "deployment_model": {
                    "model_name": "Central",
                    "release_type": "Multiple releases",
                    "release_type_details": sections["Composition"]["text"],
                    "data_source_type": "Static",
                    "access_type": "Interactive",
                    "access_type_details": sections["Access and records"]["text"],
                },
                "implementation": {
                    "preprocessing_and_hyperparameter_tuning": sections["Preprocessing and tuning"][
                        "text"
                    ],
                    "mechanisms": sections["Mechanism and theorem"]["text"],
                    "justification": _row(sections["Mechanism and theorem"], "theorem"),
                },
                "administrative": {"status": "Draft", "tier": 3},
            },
        }
    )


def _row(section: Mapping[str, Any], name: str) -> str:
    return str(next((value for key, value in section["rows"] if key == name), ""))


def to_yaml(value: Any, depth: int = 0) -> str:
    """Return plain data as YAML; texts are JSON strings, which YAML reads as they are."""
    pad = "  " * depth
    if isinstance(value, Mapping):
        lines = []
        for key, each in value.items():
            nested = isinstance(each, (Mapping, list, tuple)) and each
            inner = "\n" + to_yaml(each, depth + 1) if nested else " " + _scalar(each) + "\n"
            lines.append(f"{pad}{_scalar(str(key), key=True)}:{inner}")
        return "".join(lines)
    if isinstance(value, Sequence) and not isinstance(value, str):
        lines = []
        for each in value:
            if isinstance(each, Mapping) and each:
                lines.append(f"{pad}- " + to_yaml(each, depth + 1).lstrip(" "))
            else:
                lines.append(f"{pad}- {_scalar(each)}\n")
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
