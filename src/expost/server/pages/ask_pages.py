"""Data sets, the price of a question, and asking.

The price comes from public facts. The form of a question is sent by GET, so that it works without
JavaScript; the script of the page fetches the same address while the slider moves. What is asked is
the question as it was priced, with its ε.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response

from expost.errors import InvalidInput
from expost.server.api import routes
from expost.server.api.access import Server, priced
from expost.server.jobs.error_questions import ERRORS
from expost.server.pages.amounts import plain_text
from expost.server.pages.rendering import (
    Form,
    Me,
    Sender,
    check_fields,
    go,
    new_key,
    no_thousands,
    page,
    real,
    reals,
    split_field,
    text,
    whole_field,
)
from expost.server.people.accounts import ALLOWED, Person
from expost.server.problems import ServerProblem, Unavailable
from expost.server.service import Service
from expost.tuning.model.subgroup_errors import PLUS_MINUS
from expost.tuning.request.defaults import as_toml
from expost.tuning.request.metrics import LOSSES
from expost.tuning.request.tune_request import KEYS, MAX_EPSILON, parsed, tables_of

router = APIRouter()
Fields = dict[str, Any]


@router.get("/datasets")
def datasets_page(server: Server, me: Me) -> Response:
    """List the data sets, and what is left for each."""
    return page("datasets.html", me, datasets=server.datasets(me))


@router.get("/datasets/{name}")
def dataset(server: Server, me: Me, name: str) -> Response:
    """Show the public facts of one data set."""
    return page("dataset.html", me, dataset=server.dataset(me, name))


@router.get("/ask/{name}")
async def ask_page(request: Request, server: Server, me: Me, name: str) -> Response:
    """Show the form of a question and, from the plan, its price."""
    return await priced(request, _ask_page, server, me, name, request.query_params)


def _ask_page(server: Service, me: Person, name: str, given: QueryParams) -> Response:
    facts = server.dataset(me, name)
    tuned = facts["kind"] == "rows" and given.get("kind") != ERRORS
    fill = job_fields(facts, given) if tuned else question_fields(facts, given)
    form = "ask_tune.html" if tuned else "ask_errors.html" if fill["release"] else "ask.html"
    price, problem, question = None, None, None
    if me.role in ALLOWED["price"]:
        try:
            asked = job_of_fields(facts, fill) if tuned else question_of(facts, fill)
            question = check_fields(routes.Question, asked).asked()
            price = server.price(me, question)
            if not tuned:  # what is asked is what was priced, also if facts change meanwhile
                question["epsilon"] = price["question"]["epsilon"]
        except (InvalidInput, ServerProblem) as error:
            problem = error
    return page(
        form,
        me,
        fields=form_fields(),
        advanced=tuned and any(fill[name] for name, key in FORM.items() if not key.first),
        dataset=facts,
        fill=fill,
        price=price,
        problem=problem,
        question=json.dumps(question),
        copies=copies_of(question) if question else [],
        key=new_key(),
    )


@router.post("/ask/{name}")
async def send_question(
    request: Request, server: Server, me: Sender, form: Form, name: str
) -> Response:
    """Ask a question that was priced."""
    question = _priced_question(form)
    if question["dataset"] != name:
        raise InvalidInput("dataset", "another one", "ask from the page of the data set")
    memo = check_fields(routes.Ask, {"question": question, "memo": text(form, "memo")}).memo
    view = await priced(request, server.ask, me, question, text(form, "key"), memo)
    return go(f"/requests/{view['id']}")


def _priced_question(form: FormData) -> dict[str, Any]:
    """The question of the form, checked as a body of the API."""
    try:
        given = json.loads(text(form, "question"))
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise InvalidInput("question", "this text", "reload the page, then ask again")
    return check_fields(routes.Question, given).asked()


@router.get("/plan")
async def plan_page(request: Request, server: Server, me: Me) -> Response:
    """Show the chance and the price of a tuning job from its levels."""
    return await priced(request, _plan_page, server, me, request.query_params)


def _plan_page(server: Service, me: Person, given: QueryParams) -> Response:
    fill = {
        name: given.get(name, default)
        for name, default in {
            "epsilons": "0.5, 1, 2",
            "configurations": "12",
            "delta": "1e-6",
            "repeats": "1",
            "attempts": "",
        }.items()
    }
    job, problem = None, None
    try:
        asked = {
            "epsilons": reals(fill, "epsilons"),
            "configurations": whole_field(fill, "configurations"),
            "delta": real(fill, "delta"),
            "repeats": whole_field(fill, "repeats"),
            "attempts": whole_field(fill, "attempts"),
        }
        job = server.plan(me, check_fields(routes.PlanLevels, asked).model_dump())
    except (InvalidInput, Unavailable) as error:
        problem = error
    return page("plan.html", me, fill=fill, plan=job, problem=problem)


def copies_of(question: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a question as calls of curl, of Python and of the command, for this server."""
    body = json.dumps({"question": question}, ensure_ascii=False).replace("'", "'\\''")
    kind, given = (
        question["kind"],
        {k: v for k, v in question.items() if k not in ("dataset", "kind")},
    )
    curl = (
        'curl -H "Authorization: Bearer $EXPOST_TOKEN" -H "Content-Type: application/json" \\\n'
        f"  -H \"Idempotency-Key: $(uuidgen)\" SERVER/api/requests -d '{body}'"
    )
    connected = 'import os, expost\nserver = expost.connect("SERVER", os.environ["EXPOST_TOKEN"])\n'
    if kind == "tune":
        call = f"server.tune({question['dataset']!r}, {given!r})"
    else:
        rest = {name: value for name, value in given.items() if name not in ("column", "sql")}
        first = question.get("sql") or question.get("column")
        first = rest.pop("release", first)
        called = "" if first is None else f", {first!r}"
        words = "".join(f", {name}={value!r}" for name, value in rest.items())
        method = "subgroup_errors" if kind == ERRORS else kind
        call = f"server.{method}({question['dataset']!r}{called}{words})"
    copies = [("curl", curl), ("Python", connected + call)]
    if kind in ("query", "quantile", ERRORS):  # the command asks a server for the other kinds only
        return copies
    return [*copies, ("Command line", _command(question, given))]


def _command(question: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """A question as a call of the command; what it reads from a file is written first."""
    asked = f"expost --server SERVER {{}} {shlex.quote(question['dataset'])}"
    if question["kind"] == "tune":
        job = as_toml({name: dict(table) for name, table in given.items()}).strip()
        return f"{_written('job.toml', job)}{asked.format('tune')} job.toml"
    words, first = [asked.format("count")], ""
    if question["kind"] != "count":
        words += [f"--{question['kind']}", shlex.quote(question["column"])]
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if name == "keys":
            lines = io.StringIO()
            parts = [key if isinstance(key, list) else [key] for key in value]
            csv.writer(lines, lineterminator="\n").writerows(parts)
            first = _written("keys.txt", lines.getvalue().removesuffix("\n"))
            words += [option, "keys.txt"]
        elif value is True:
            words.append(option)
        elif name != "column" and value is not False:
            listed = value if isinstance(value, list) else [value]
            words += [f"{option} {shlex.quote(str(part))}" for part in listed]
    return first + " ".join(words)


def _written(name: str, text: str) -> str:
    """A command of a shell that writes a file; no line of the text ends it."""
    end = "END"
    while end in text.splitlines():
        end += "D"
    return f"cat > {name} <<'{end}'\n{text}\n{end}\n"


def question_fields(facts: Mapping[str, Any], given: QueryParams) -> Fields:
    """Return the fields of a question about a table: what was given, else defaults."""
    if facts["kind"] == "rows":
        return _error_fields(facts, given)
    kind = given.get("kind", "count")
    usual = {"mean": "absolute", "quantile": "rank"}.get(kind, "percent")
    unit = usual if kind == "quantile" else given.get("unit", usual)
    unit = "percent" if unit == "rank" and kind != "quantile" else unit
    column = given.get("column") or next(iter(facts["values"]), "")
    asked = "kind" in given
    first = [name for name, keys in facts["groups"].items() if keys is not None][:1]
    ranges = error_ranges(facts, kind, column)
    default = {"percent": "10", "rank": "2"}.get(unit, f"{ranges['absolute'][1] / 20:.2g}")
    return {
        "kind": kind,
        "by": given.getlist("by") if asked else first,
        "column": column,
        "unit": unit,
        "error": given.get("error") or default,
        "where": given.get("where", ""),
        "keys": given.get("keys", ""),
        "private_keys": given.get("private_keys", ""),
        "count_rows": given.get("count_rows", ""),
        "confidence": given.get("confidence") or "90",
        "size": given.get("size") or str(facts["typical_group"]),
        "ranges": ranges,
        "at": given.get("at") or "0.25, 0.5, 0.75",
        "sql": given.get("sql", ""),
        "release": "",
    }


def _error_fields(facts: Mapping[str, Any], given: QueryParams) -> Fields:
    """The fields of a question for the errors of a model: what was given, else defaults."""
    usual = {"error": f"{PLUS_MINUS:g}", "confidence": "90"}
    names = ("release", "error", "confidence", "size", "keys")
    fields: Fields = {name: given.get(name) or usual.get(name, "") for name in names}
    known = [name for name, keys in (facts.get("groups") or {}).items() if keys is not None]
    return fields | {"kind": ERRORS, "unit": "absolute", "by": given.getlist("by") or known[:1]}


def error_ranges(facts: Mapping[str, Any], kind: str, column: str) -> dict[str, list[float]]:
    """Return the ends of the slider for errors in per cent and in units."""
    size = facts["typical_group"]
    low, high = facts["values"].get(column, (0.0, 1.0))
    whole_scale = {"mean": (high - low) / 2, "sum": size * max(abs(low), abs(high))}
    most = whole_scale.get(kind, float(size))
    return {"percent": [0.5, 100.0], "rank": [0.1, 49.0], "absolute": [most / 1000, most]}


def question_of(facts: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return the question that the fields mean."""
    kind = fields["kind"]
    error = real(fields, "error")
    if error is None or error <= 0:
        raise InvalidInput("error", error, "give a number > 0")
    wanted = {"percent": {"within": error / 100}, "rank": {"within_rank": error / 100}}
    asked: dict[str, Any] = {"dataset": facts["name"], "kind": kind}
    asked |= wanted.get(fields["unit"], {"plus_minus": error})
    if kind == ERRORS:
        keys = {"keys": _keys(fields, 1)} if text(fields, "keys") else {}
        named = {"release": fields["release"], "by": list(fields["by"])}
        return asked | _details(fields) | named | keys
    if kind == "query":
        return asked | _details(fields) | {"sql": fields["sql"].replace("\r\n", "\n")}
    if kind == "quantile":
        asked["at"] = reals(fields, "at")
    asked["by"] = list(fields["by"])
    conditions = [line.strip() for line in fields["where"].splitlines() if line.strip()]
    if conditions:
        asked["where"] = conditions
    if kind != "count":
        asked["column"] = fields["column"]
    if fields["count_rows"] and kind == "count":
        asked["count_rows"] = True
    if asked["by"] and fields["private_keys"]:
        asked["private_keys"] = True
    elif asked["by"] and text(fields, "keys"):
        asked["keys"] = _keys(fields, len(asked["by"]))
    return asked | _details(fields)


def _details(fields: Fields) -> dict[str, Any]:
    """The confidence and the size of a group that must reach the error."""
    confidence = real(fields, "confidence")
    sure = {} if confidence is None else {"confidence": confidence / 100}
    return sure | {"size": whole_field(fields, "size")}


def _keys(fields: Fields, columns: int) -> list[Any]:
    """One group per line; with several columns a line is one of a CSV file."""
    lines = [line.strip() for line in fields["keys"].splitlines() if line.strip()]
    if columns == 1:
        return lines
    split = [[part.strip() for part in row] for row in csv.reader(lines, skipinitialspace=True)]
    if any(len(parts) != columns for parts in split):
        raise InvalidInput("keys", "a line", f"give {columns} values in each line, with commas")
    return split


FORM = {name: key for name, key in KEYS.items() if key.label}
"""The settings of a tuning job that the form asks for."""


def form_fields() -> list[dict[str, Any]]:
    """Return what the form of a tuning job asks for, from the settings of a request."""
    fields = []
    for name, key in FORM.items():
        schema = key.kind.schema
        choices = schema.get("enum") or schema.get("anyOf", [{}])[0].get("enum")
        fields.append({"name": name, "label": key.label, "first": key.first, "choices": choices})
    return fields


def job_fields(facts: Mapping[str, Any], given: QueryParams) -> Fields:
    """Return the fields of a tuning job: what was given, else defaults."""
    regression = "target_bounds" in (facts.get("tuning") or {})
    metric = given.get("metric") or ("mse" if regression else "accuracy")
    most = min(MAX_EPSILON, facts.get("largest_epsilon") or MAX_EPSILON)
    usual = {"metric": metric, "confidence": "0.9", "max_epsilon": f"{most:g}"}
    if metric not in LOSSES and not given.get("at_most"):
        usual["at_least"] = "0.8"
    return {name: given.get(name, usual.get(name, "")) for name in FORM}


def job_of_fields(facts: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return the tuning job that the fields mean; an empty field has its default."""
    given = {name: parsed(name, text(fields, name) or None) for name in FORM}
    tables = {table: keys for table, keys in tables_of(given).items() if keys}
    return {"dataset": facts["name"], "kind": "tune", **tables}


def fields_again(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the form for the question of a request, to ask it differently."""
    asked = view["question"]
    if view["kind"] == "tune":
        given = {
            name: (asked.get(key.table) or {}).get(key.name or name) for name, key in FORM.items()
        }
        return {name: plain_text(value) for name, value in given.items() if value is not None}
    if view["kind"] == ERRORS:
        told = {name: str(asked[name]) for name in ("release", "size")}
        told |= {
            "confidence": f"{100 * asked['confidence']:g}",
            "error": f"{asked['plus_minus']:g}",
        }
        return told | {"kind": ERRORS, "by": list(asked["by"])}
    percent, ranked = asked["within"] is not None, view["kind"] == "quantile"
    if ranked:
        given = {"at": ", ".join(map(str, asked["at"]))}
        asked = asked | {"within": asked["within_rank"]}
        percent = True
    else:
        given = {"sql": asked["sql"]} if view["kind"] == "query" else {}
    return given | {
        "kind": view["kind"],
        "by": list(asked["by"]),
        "column": asked["column"] or "",
        "unit": "rank" if ranked else "percent" if percent else "absolute",
        "error": f"{100 * asked['within']:g}" if percent else f"{asked['plus_minus']:g}",
        "where": "\n".join(asked["where"]),
        "confidence": f"{100 * asked['confidence']:g}",
        "size": str(asked["size"]),
        "count_rows": "1" if asked["count_rows"] else "",
        "private_keys": "1" if asked["private_keys"] else "",
    }


def blocks(fields: Mapping[str, Any], name: str) -> dict[str, list[str] | None]:
    """Return columns with their keys: a column, below it one key per line, then an empty line.

    A column without keys below it means None: its keys are not public.
    """
    listed: dict[str, list[str] | None] = {}
    for block in re.split(r"\n[ \t]*\n", text(fields, name).replace("\r\n", "\n")):
        written = [line.strip() for line in block.splitlines() if line.strip()]
        if not written:
            continue
        column, _, rest = written[0].partition(":")
        if rest.strip() or column.strip() in listed:
            raise InvalidInput(
                name,
                written[0][:40],
                "write the column, below it one key per line, then an empty line",
            )
        listed[column.strip()] = written[1:] or None
    return listed


def block_text(groups: Mapping[str, list[str] | None]) -> str:
    """Return columns and keys as :func:`blocks` reads them."""
    return "\n\n".join("\n".join([column, *(keys or ())]) for column, keys in groups.items())


def lines(fields: Mapping[str, Any], name: str) -> dict[str, list[str] | None]:
    """Return lines such as "spend: 0, 200" as a dict; a line without a colon means None."""
    lists: dict[str, list[str] | None] = {}
    for line in text(fields, name).splitlines():
        column, colon, rest = line.partition(":")
        if column.strip():
            given = {name: no_thousands(name, rest)}
            lists[column.strip()] = split_field(given, name) if colon else None
    return lists
