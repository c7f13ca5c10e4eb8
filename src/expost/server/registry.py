"""A release in the fields of OpenDP's registry of deployments, as YAML.

The fields and their order are those of the registry's records in 2026: a product, the variant of
differential privacy, the privacy loss, the deployment model, accounting, implementation, and who
wrote the record. What the desk cannot know is marked for the curator.
Tests: ``tests/server/test_documents.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")  # not texts in YAML
_OPEN = "to be filled in by the curator"


def registry(document: Mapping[str, Any]) -> str:
    """Return a report in the fields of OpenDP's deployments registry, as YAML."""
    told = {each["heading"]: each for each in document["sections"]}
    text = {heading: each["text"] for heading, each in told.items()}
    numbers, tuned = document["facts"], document["kind"] == "tune"
    who = told["Who is protected"]
    basic = {
        "name": document["title"],
        "data_curators": [{"data_curator_name": _OPEN, "data_curator_type": "Other"}],
        "intended_use": _row(told["What was released"], "purpose"),
        "data_product_type": "Machine learning model" if tuned else "Summary statistics",
        "data_product_region": _OPEN,
        "description": text["What was released"],
        "publication_date": document["date"],
        "data_product_sector": _OPEN,
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
        "justification": _row(told["Mechanism and theorem"], "theorem"),
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
                    + _row(told["Trust, access and records"], "ledger entry"),
                    "registry_authors": [_OPEN],
                },
            },
        }
    )


def _parameters(numbers: Mapping[str, Any]) -> dict[str, float]:
    """What the question could cost at most; the parameters of a guarantee hold before it runs."""
    found = {"epsilon": numbers["epsilon"]}
    if numbers["delta"]:
        found["delta"] = numbers["delta"]
    if numbers["unit"] == "rho":
        found["rho"] = numbers["worst_case"]
    return found


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
