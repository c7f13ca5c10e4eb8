"""The evidence pack: thirteen points of NIST SP 800-226 answered from the record of a release.

Each point has an answer and the part of the record that it comes from, or says that the record does
not cover it; nothing is invented. The pack also holds the record of OpenDP's deployments registry,
a record of disclosure control (SATRE 3.3.09), and the certificates.

Others can verify its documents without expost: canonical JSON (RFC 8785) in a DSSE envelope. The
payload is an in-toto statement: which files it is about (their SHA-256), and the document. What is
signed with Ed25519 is the pre-authentication encoding of DSSE, which names the type and both
lengths. Tests: ``tests/certificates/test_self_assessment.py``, ``test_envelope.py``.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from expost._version import __version__
from expost.budget.signing import SigningKey
from expost.certificates.document import TUNING, Record, document_text
from expost.certificates.officer_report import registry, report
from expost.errors import InvalidInput
from expost.files import spreadsheet_cell

CERTIFICATE_TYPE = "urn:expost:certificate:v1"
ASSESSMENT_TYPE = "urn:expost:self-assessment:v1"
NOT_COVERED = "not covered"
POINTS = (
    "Guarantee",
    "Unit of privacy",
    "Neighbouring data sets",
    "Correctness",
    "Preprocessing and tuning",
    "Utility",
    "Error by subgroup",
    "Budget over time",
    "Trust model",
    "Floating point and randomness",
    "Side channels",
    "Access",
    "Data collection",
)


def assessment(release: Record, verdict: Record) -> dict[str, Any]:
    """Return the thirteen points of one release.

    ``release`` has the ``certificate``; what it may have besides is the ``request``, the public
    ``facts`` of its data set, its ``budget``, its ``result`` and, of a model, ``subgroups``: the
    certificate of its errors. ``verdict`` is that of
    :func:`expost.certificates.verify.verdict_of`.
    """
    document = _report(release)
    sections = {section["heading"]: section for section in document["sections"]}
    text = {heading: section["text"] for heading, section in sections.items()}
    who = dict(sections["Who is protected"]["rows"])
    asked = "request" in release
    answers: dict[str, tuple[str | None, str]] = {
        "Guarantee": (text["How much protection"], "certificate: guarantee, charged, worst_case"),
        "Unit of privacy": (who.get("unit of privacy"), "certificate: guarantee"),
        "Neighbouring data sets": (text["Who is protected"], "certificate: guarantee.neighbours"),
        "Correctness": (_correctness(release["certificate"], verdict), "computed from the record"),
        "Preprocessing and tuning": (text["Preprocessing and tuning"], "certificate: public"),
        "Utility": (text["Accuracy and bias"], "certificate: query, or tuning.goal"),
        "Error by subgroup": (
            _by_subgroup(release),
            "certificate of the errors" if "subgroups" in release else "certificate: answers",
        ),
        "Budget over time": (_budget(release), "ledger: the budget's standing"),
        "Trust model": (text["Trust, access and records"] if asked else None, "server"),
        "Floating point and randomness": (
            text["Mechanism and theorem"] + " " + text["Implementation and side channels"],
            f"expost {__version__}",
        ),
        "Side channels": (
            text["Implementation and side channels"] if asked else None,
            "server: results at ticks",
        ),
        "Access": (_access(release), "request"),
        "Data collection": (None, "the curator describes it"),
    }
    points = [
        {
            "point": number,
            "title": title,
            "answer": answers[title][0] or NOT_COVERED,
            "covered": bool(answers[title][0]),
            "source": answers[title][1],
        }
        for number, title in enumerate(POINTS, start=1)
    ]
    return {
        "release": document["id"],
        "title": document["title"],
        "date": document["date"],
        "simulated": document["simulated"],
        "valid": verdict["valid"],
        "points": points,
    }


def _report(release: Record) -> dict[str, Any]:
    """The officer's report of a release; what is not on record has empty stand-ins."""
    certificate = release["certificate"]
    tuned = certificate["kind"] == TUNING
    query = certificate.get("query", {})
    request = {
        "id": _identity(certificate),
        "person": "",
        "created": None,
        "published": _date(certificate),
        "memo": "",
        "kind": "tune" if tuned else query.get("kind", certificate["kind"]),
    }
    facts = {"name": str(certificate.get("source") or "a table"), "user": query.get("user")}
    budget = {"budget": {}, "name": "", "kind": ""}
    return report(
        {"certificate": certificate, "request": request | dict(release.get("request") or {})},
        facts | dict(release.get("facts") or {}),
        release.get("budget") or budget,
    )


def _identity(certificate: Record) -> str:
    """Return the first ledger entry of a certificate, or else a digest of it."""
    paid = _paid(certificate)
    digest = hashlib.sha256(document_text(certificate).encode()).hexdigest()[:32]
    return str(paid.get("reservation") or digest)


def _paid(certificate: Record) -> Record:
    ledger = certificate.get("ledger")
    first = ledger[0] if isinstance(ledger, list) and ledger else ledger
    return first if isinstance(first, Mapping) else {}


def _date(certificate: Record) -> str | None:
    return str(_paid(certificate).get("date") or "") or None


def _correctness(certificate: Record, verdict: Record) -> str:
    """What was computed again, and what was not."""
    problems = [str(problem) for problem in verdict["problems"]]
    outcome = "wrong: " + "; ".join(problems) if problems else "correct"
    text = f"By {certificate['theorem']}. Computed again from the certificate: {outcome}."
    left = list(verdict.get("not_checked") or ())
    return text + (f" Not checked: {'; '.join(left)}." if left else "")


def _by_subgroup(release: Record) -> str | None:
    """How errors differ between the groups of a count, a sum or a mean, or those of a model."""
    measured = release.get("subgroups")
    if measured is not None:
        return _of_model(measured)
    result = release.get("result") or release["certificate"]
    answers = [*result.get("answers", ()), *result.get("unanswered", ())]
    known = [
        ((float(answer["high"]) - float(answer["low"])) / 2, answer["group"])
        for answer in answers
        if answer.get("low") is not None and answer.get("high") is not None
    ]
    if len(known) < 2:
        return None
    known.sort(key=lambda pair: (pair[0], str(pair[1])))
    wide = [f"{group} ± {width:.4g}" for width, group in reversed(known[-5:])]
    return (
        f"Half-widths of the intervals of {len(known)} public groups run from {known[0][0]:.4g} to "
        f"{known[-1][0]:.4g}. The widest: {', '.join(wide)}. They are part of the release and cost "
        "nothing more."
    )


def _of_model(measured: Record) -> str:
    """The average errors that ``expost.subgroup_errors`` measured, from their certificate."""
    answers = [*measured["answers"], *measured["unanswered"]]
    told = [
        f"{answer['group']} {answer['estimate']:.3g} ({answer['low']:.3g} to {answer['high']:.3g})"
        if answer.get("low") is not None
        else f"{answer['group']} not measured"
        for answer in answers
    ]
    ((unit, spent),) = measured["spent"].items()
    return (
        f"Average error of the model in {len(answers)} public subgroups, each with its interval: "
        f"{', '.join(told)}. Measured for an extra {unit} of {spent:.4g}."
    )


def _budget(release: Record) -> str | None:
    """What the budget of a release allows and has spent."""
    standing = release.get("budget")
    if not standing:
        return None
    return (
        f"Budget {standing['name']!r} ({standing['kind']}): limit {_amounts(standing['budget'])}, "
        f"spent {_amounts(standing['settled'])}, held {_amounts(standing['held'])}, left "
        f"{_amounts(standing['remaining'])}. Every charge is an entry of a hash-chained ledger."
    )


def _amounts(value: Any) -> str:
    """An amount of a budget in words: its numbers with their names."""
    if not isinstance(value, Mapping):
        return f"{float(value):.6g}"
    return ", ".join(
        f"{name} {number:.6g}" for name, number in value.items() if isinstance(number, (int, float))
    )


def _access(release: Record) -> str | None:
    request = release.get("request")
    if not request:
        return None
    purpose = request["memo"] or "none stated"
    return (
        f"Asked by {request['person']} on {str(request['created'])[:10]}, published on "
        f"{str(request['published'])[:10]}. Purpose: {purpose}. Analysts see their own releases; "
        "owners and auditors see all of them; nobody is shown rows."
    )


_FILE_NAME = re.compile("[0-9a-f]{1,64}")
_COLUMNS = (
    *("output", "date", "requested by", "data set", "purpose", "kind of output", "control"),
    *("parameters", "check", "decision", "decided by", "certificate sha256"),
)


def disclosure_record(releases: Sequence[Record], points: Sequence[Record]) -> str:
    """Return one line per output: who asked, what left, which control applied, who decided."""
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(_COLUMNS)
    for release, judged in zip(releases, points, strict=True):
        certificate, request = release["certificate"], release.get("request") or {}
        document = _report(release)
        approval = request.get("approval") or {}
        row = [
            judged["release"],
            judged["date"],
            request.get("person", ""),
            document["dataset"],
            request.get("memo", ""),
            document["kind"],
            "differential privacy: " + str(certificate["theorem"]),
            f"epsilon {document['facts']['epsilon']:g}, delta {document['facts']['delta']:g}",
            "certificate verified" if judged["valid"] else "certificate NOT valid",
            "released",
            approval.get("by") or "the budget, automatically",
            hashlib.sha256(_certificate_file(certificate)).hexdigest(),
        ]
        writer.writerow([spreadsheet_cell(cell) for cell in row])
    return lines.getvalue()


def _certificate_file(certificate: Record) -> bytes:
    return (document_text(certificate) + "\n").encode()


def _file_name(release: str, content: bytes, files: Mapping[str, bytes]) -> str:
    """Return the id of a release, or a digest where the id is no name of a file, or is taken.

    A certificate is given by others: an id such as "../../x" would name a file elsewhere.
    """
    plain = _FILE_NAME.fullmatch(release) and f"certificates/{release}.json" not in files
    return release if plain else hashlib.sha256(content).hexdigest()[:32]


def evidence_files(
    releases: Sequence[Record], verdicts: Sequence[Record], key: SigningKey | None = None
) -> dict[str, bytes]:
    """Return the files of an evidence pack by name; with a key also their signed envelopes."""
    points = [
        assessment(release, verdict) for release, verdict in zip(releases, verdicts, strict=True)
    ]
    document = {"kind": "self-assessment", "after": "NIST SP 800-226", "releases": points}
    files: dict[str, bytes] = {
        "assessment.json": canonical_json(document) + b"\n",
        "assessment.html": assessment_page(points).encode(),
        "disclosure-control.csv": disclosure_record(releases, points).encode(),
    }
    for release, judged in zip(releases, points, strict=True):
        content = _certificate_file(release["certificate"])
        name = _file_name(judged["release"], content, files)
        files[f"certificates/{name}.json"] = content
        files[f"registry/{name}.yaml"] = registry(_report(release)).encode()
        if key is not None:
            about = {f"{name}.json": content}
            signed = envelope(release["certificate"], CERTIFICATE_TYPE, about, key)
            files[f"certificates/{name}.dsse.json"] = canonical_json(signed) + b"\n"
    if key is not None:
        signed = envelope(document, ASSESSMENT_TYPE, dict(files), key)
        files["assessment.dsse.json"] = canonical_json(signed) + b"\n"
    return files


_STYLE = """
body { font: 11pt/1.45 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
  color: #1d2423; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; } caption { text-align: left; font-weight: 600; }
th, td { text-align: left; vertical-align: top; border-top: 1px solid #d8dddb; padding: .4rem; }
th { width: 11rem; } td { overflow-wrap: anywhere; } .source { color: #56605e; font-size: .85em; }
.open { color: #9b2c1f; font-weight: 600; } .sign td { height: 2.4rem; }
@media print { section { break-inside: auto; } .sign { break-inside: avoid; } }
"""


def assessment_page(points: Sequence[Record]) -> str:
    """Return the self-assessment as one page that an officer can print and sign."""
    told = html.escape
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Self-assessment</title><style>{_STYLE}</style></head><body><main>",
        "<h1>Self-assessment after NIST SP 800-226</h1>",
        f"<p>Generated by expost {told(__version__)} from the records of {len(points)} "
        f"release{'s' if len(points) != 1 else ''}. “Not covered” means that the record says "
        "nothing: the curator adds it.</p>",
    ]
    for judged in points:
        parts.append(f"<section><h2>{told(judged['title'])}</h2>")
        if judged["simulated"]:
            parts.append('<p class="open">Simulated: this release protects nobody.</p>')
        parts.append(f"<table><caption>{told(judged['release'])}</caption><tbody>")
        for point in judged["points"]:
            style = "" if point["covered"] else ' class="open"'
            parts.append(
                f'<tr><th scope="row">{point["point"]}. {told(point["title"])}</th>'
                f"<td{style}>{told(point['answer'])}"
                f'<div class="source">{told(point["source"])}</div></td></tr>'
            )
        parts.append("</tbody></table></section>")
    fields = ("Name", "Role", "Decision and remarks", "Date", "Signature")
    rows = "".join(f'<tr><th scope="row">{field}</th><td></td></tr>' for field in fields)
    parts.append('<h2>Officer</h2><table class="sign"><caption>To be filled in by the officer')
    parts.append(f"</caption><tbody>{rows}</tbody></table></main></body></html>")
    return "\n".join(parts) + "\n"


PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_LARGEST = 2**53


def canonical_json(value: Any) -> bytes:
    """Return a JSON document in the form of RFC 8785: one text for each document.

    Numbers are written as ECMAScript writes them, keys are sorted by UTF-16 code units. Whole
    numbers beyond 2⁵³ are refused, because other readers would round them.
    """
    return _text(value).encode("utf-8")


def _text(value: Any) -> str:
    """A value as canonical text."""
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        if abs(value) > _LARGEST:
            raise InvalidInput("document", "a whole number", "RFC 8785 has numbers up to 2^53")
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        members = sorted(value.items(), key=lambda item: str(item[0]).encode("utf-16-be"))
        return "{" + ",".join(f"{_text(str(key))}:{_text(member)}" for key, member in members) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_text, value)) + "]"
    raise InvalidInput("document", type(value).__name__, "give a JSON document")


def _number(value: float) -> str:
    """A float as ECMAScript's Number.toString writes it: the shortest digits that mean it."""
    if not math.isfinite(value):
        raise InvalidInput("document", "NaN or infinity", "give finite numbers")
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text, point = "".join(map(str, digits)), len(digits) + int(exponent)  # 0.text × 10^point
    if 0 < point <= 21:
        shown = text.ljust(point, "0") if len(text) <= point else f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        shown = "0." + "0" * -point + text
    else:
        head = text if len(text) == 1 else f"{text[0]}.{text[1:]}"
        shown = f"{head}e{point - 1:+d}"
    return "-" * sign + shown


def signed_bytes(payload: bytes, kind: str = PAYLOAD_TYPE) -> bytes:
    """Return what a DSSE signature covers."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def envelope(
    predicate: Mapping[str, Any], kind: str, files: Mapping[str, bytes], key: SigningKey
) -> dict[str, Any]:
    """Return a signed in-toto statement about files.

    ``kind`` is the URI of the predicate's type; ``files`` are the subjects by name.
    """
    subjects = [
        {"name": name, "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
        for name, content in sorted(files.items())
    ]
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": subjects,
        "predicateType": kind,
        "predicate": predicate,
    }
    payload = canonical_json(statement)
    signature = key.sign_bytes(signed_bytes(payload))
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode("ascii"),
        "signatures": [
            {"keyid": key.fingerprint, "sig": base64.b64encode(signature).decode("ascii")}
        ],
    }
