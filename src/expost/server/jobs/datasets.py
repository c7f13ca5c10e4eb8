"""Data sets: where the rows are, and what is publicly known about them.

Everything but the source may be shown to analysts. Bounds, keys, classes and the number of rows are
facts that the owner writes down. The columns are read from the header or the schema when a data set
is registered; of rows that models are tuned on, places are counted unless their number is secret.
Tests: ``tests/server/test_service.py``.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import sqlalchemy as sql

from expost.errors import ExpostError, InvalidInput
from expost.files import is_database
from expost.server import audit_log
from expost.server.database import ServerDatabase, dataset_versions, datasets
from expost.server.people.accounts import check_group, check_name
from expost.server.problems import Conflict, NotFound
from expost.tables.sources import open_source
from expost.tuning.request.settings import DataSettings
from expost.tuning.request.tune_request import TuneRequest
from expost.tuning.rows.job_tables import files_of, head_and_places, head_as_dict, read_head

TABLE, ROWS = "table", "rows"
MOST_KEYS = 100_000
APPROVAL_DAYS = 7.0
ALL = "*"
RULES = ("askers", "approval_above", "approval_days")
"""Who may ask, and what an owner approves: kept when facts are changed without a word on them."""
_HIDDEN = ("source", "table", "delimiter", "data", "head", "places", "askers", "public_tables")


_SECRETS: dict[str, str] = {}
_HOSTS: dict[str, Sequence[str]] = {}
_NAMED = re.compile(r"\$\{([A-Za-z0-9_]{1,64})\}")
_PASSWORD = "password"
_SECRET_KEYS = re.compile(r"pass|pwd|secret|token|credential", re.IGNORECASE)
# A URL in which all programs see the same host, and that names no other host.
_PLAIN_URL = re.compile(
    r"[a-z][a-z0-9+.-]*://[^/?#@\[\]\\]*@(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])"
    r"(?P<port>:[0-9]{1,5})?(/[^?#\\@]*)?(\?(?P<query>[^#\\@]*))?"
)
_PLAIN_KEYS = (
    "sslmode",
    "sslrootcert",
    "connect_timeout",
    "schema",
    "charset",
    "warehouse",
    "role",
)


def keep_secrets(secrets: Mapping[str, str], hosts: Mapping[str, Sequence[str]]) -> None:
    """Keep the passwords of sources for this process, and the hosts that each may be sent to."""
    _SECRETS.update(secrets)
    _HOSTS.update(hosts)


def source_with_secrets(source: str) -> str:
    """Return a source as it is opened: each ${NAME} is a secret of the file or the environment.

    Only EXPOST_SOURCE_NAME is looked up there, so that no other secret can be sent anywhere. A
    secret is sent to hosts that the settings list for it: owners write URLs, administrators files.
    """
    named = _NAMED.findall(source) if is_database(source) else []
    for name in named:
        _check_host(name, source)

    def secret(match: re.Match[str]) -> str:
        name = match[1]
        text = os.environ.get(f"EXPOST_SOURCE_{name}") or _SECRETS.get(name)
        if text is None:
            valid = f"set EXPOST_SOURCE_{name}, or {name} under [sources] in secrets.toml"
            raise InvalidInput("source", match[0], valid)
        return quote(text, safe="")

    return _NAMED.sub(secret, source) if named else source


def _check_host(name: str, source: str) -> None:
    """Refuse to send a secret to a host that is not listed for it; no host is quoted."""
    plain = _PLAIN_URL.fullmatch(_NAMED.sub("secret-by-name", source))
    keys = parse_qsl(plain["query"] or "", keep_blank_values=True) if plain else []
    if plain is None or any(key not in _PLAIN_KEYS for key, _ in keys):
        valid = "write scheme://user:${NAME}@host/database, with one host; of options, these: "
        raise InvalidInput("source", f"${{{name}}}", valid + ", ".join(_PLAIN_KEYS))
    host = plain["host"].lower()
    if not {host, f"{host}{plain['port'] or ''}"} & {*_HOSTS.get(name, ())}:
        valid = f"the administrator lists the hosts of {name} under [sources] in settings.toml"
        raise InvalidInput("source", f"${{{name}}}, for this host", valid)


def _check_source(source: str) -> None:
    """Refuse a password in the URL of a source, which is stored and shown to owners."""
    if not is_database(source) or "://" not in source:
        return
    parts = urlsplit(_NAMED.sub("secret-by-name", source))
    given = [(_PASSWORD, parts.password or ""), *parse_qsl(parts.query)]
    hidden = [text for key, text in given if _SECRET_KEYS.search(key)]
    if any(text not in ("", "secret-by-name") for text in hidden):
        valid = "write ${NAME} for the password, and set EXPOST_SOURCE_NAME or secrets.toml"
        raise InvalidInput("source", "a password in the URL", valid)


_NAMED_SET = sql.select(datasets).where(datasets.c.name == sql.bindparam("name"))


class Datasets:
    """The data sets of a server."""

    def __init__(self, store: ServerDatabase) -> None:
        self._store = store

    def listed(self, *, retired: bool = False) -> list[dict[str, Any]]:
        """Return the data sets that may be asked about, or all of them, with their sources."""
        query = sql.select(datasets).order_by(datasets.c.name)
        if not retired:
            query = query.where(datasets.c.retired.is_(False))
        return [_facts(row["document"]) for row in self._store.rows(query)]

    def get(
        self, name: str, *, retired: bool = False, version: int | None = None
    ) -> dict[str, Any]:
        """Return a data set with its source: as it is now, or as it was when it was asked about."""
        row = self._store.row(_NAMED_SET, name=name)
        if row is None or (row["retired"] and not retired):
            raise NotFound("there is no such data set", "dataset")
        document = _facts(row["document"])
        if version is None or version == document["version"]:
            return document
        before = self._store.row(
            sql.select(dataset_versions).where(
                dataset_versions.c.name == name, dataset_versions.c.version == version
            )
        )
        if before is None:
            raise NotFound("there is no such version of the data set", "dataset")
        return _facts(before["document"])

    def check_name(self, name: str) -> None:
        """Refuse a name that another data set has."""
        if self._store.row(sql.select(datasets.c.name).where(datasets.c.name == name)) is not None:
            raise Conflict("there is a data set with this name already", "name", "another name")

    def change(self, document: Mapping[str, Any], by: str) -> None:
        """Replace the facts of a data set; what was asked before keeps the facts of its time."""
        name, version = document["name"], document["version"]

        def work(connection: sql.Connection) -> None:
            present = connection.execute(
                sql.select(datasets.c.document).where(
                    datasets.c.name == name, datasets.c.retired.is_(False)
                )
            ).first()
            if present is None or json.loads(present.document)["version"] != version - 1:
                raise Conflict("the facts were changed meanwhile", "name", "read them again")
            old = {"name": name, "version": version - 1, "document": present.document}
            connection.execute(dataset_versions.insert().values(**old))
            text = json.dumps(document, ensure_ascii=False)
            connection.execute(
                datasets.update().where(datasets.c.name == name).values(document=text)
            )
            audit_log.record(connection, by, "change data set", _recorded(document))

        self._store.write(work)

    def add(self, document: Mapping[str, Any], by: str) -> None:
        """Register a data set, whose facts were checked."""

        def work(connection: sql.Connection) -> None:
            same = sql.select(datasets.c.name).where(datasets.c.name == document["name"])
            if connection.execute(same).first():
                raise Conflict("there is a data set with this name already", "name", "another name")
            connection.execute(
                datasets.insert().values(
                    name=document["name"],
                    document=json.dumps(document, ensure_ascii=False),
                    created=time.time(),
                    retired=False,
                )
            )
            audit_log.record(connection, by, "register data set", _recorded(document))

        self._store.write(work)

    def retire(self, name: str, by: str) -> None:
        """Take a data set away: nothing more may be asked. Requests and entries stay."""

        def work(connection: sql.Connection) -> None:
            changed = connection.execute(
                datasets.update()
                .where(datasets.c.name == name, datasets.c.retired.is_(False))
                .values(retired=True)
            )
            if not changed.rowcount:
                raise NotFound("there is no such data set", "dataset")
            audit_log.record(connection, by, "retire data set", {"name": name})

        self._store.write(work)


@lru_cache(maxsize=64)
def _parsed(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text)
    return document


def _facts(text: str) -> dict[str, Any]:
    """The document of a data set: a copy whose parts nobody changes."""
    return dict(_parsed(text))


def public_facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what analysts may see of a data set: no source."""
    return {key: value for key, value in document.items() if key not in _HIDDEN}


def _recorded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the public facts for the log; of facts that were bought it has the charge."""
    shown = public_facts(document) | {"askers": document["askers"]}
    return shown | ({"bought": shown["bought"]["charged"]} if "bought" in shown else {})


def check_dataset(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a data set, checked against its header; no row is read."""
    name = check_name(str(facts["name"]))
    kind = facts.get("kind", TABLE)
    if kind not in (TABLE, ROWS):
        raise InvalidInput("kind", kind, "give 'table' (counts, sums, means) or 'rows' (tuning)")
    document: dict[str, Any] = {
        "name": name,
        "version": int(facts.get("version") or 1),
        "kind": kind,
        "description": str(facts.get("description") or ""),
        "budget": check_name(str(facts["budget"]), "budget"),
        "source": facts.get("source"),
        **({"bought": facts["bought"]} if "bought" in facts else {}),
        "askers": _askers(facts.get("askers")),
        "approval_above": _threshold(facts.get("approval_above")),
        "approval_days": _positive(facts.get("approval_days"), "approval_days") or APPROVAL_DAYS,
    }
    if kind == ROWS:
        return document | _rows_facts(facts)
    return document | _table_facts(facts)


def _table_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a table that is counted."""
    user = facts.get("user")
    if not user or not facts.get("source"):
        missing = "user" if facts.get("source") else "source"
        raise InvalidInput(missing, None, "a table needs its source and the column of the person")
    _check_source(str(facts["source"]))
    groups = _groups(facts)
    values = {str(column): _bounds(column, b) for column, b in (facts.get("values") or {}).items()}
    filters = [str(column) for column in facts.get("filters") or ()]
    used = list(dict.fromkeys([str(user), *groups, *values, *filters]))
    types = table_columns(facts, used)
    require_distinct(types, used)
    columns = {name: _kind(kind) for name, kind in types.items()}
    absent = [name for name in used if name not in columns]
    if absent:
        raise InvalidInput("columns", absent[0], "the table has no such column")
    most = facts.get("max_groups_per_user")
    rows = facts.get("max_rows_per_user")  # None: chosen privately by every question
    for field, number in (("max_groups_per_user", most), ("max_rows_per_user", rows)):
        if number is not None and (not isinstance(number, int) or number < 1):
            raise InvalidInput(field, number, "give a whole number from 1 on")
    return {
        "table": facts.get("table"),
        "delimiter": facts.get("delimiter"),
        "user": str(user),
        "groups": groups,
        "values": values,
        "filters": filters,
        "columns": {name: columns[name] for name in used},
        "types": {name: str(types[name].copy(nullable=True)) for name in used},
        **_public_tables(facts),
        "max_groups_per_user": most,
        "max_rows_per_user": rows,
        "typical_group": int(facts.get("typical_group") or 1000),
        "delta": _delta(facts.get("delta")),
        "largest_epsilon": _positive(facts.get("largest_epsilon"), "largest_epsilon"),
    }


def _rows_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of rows that models are tuned on: the ``[data]`` table of a tuning job."""
    data = dict(facts.get("data") or {})
    if facts.get("source"):
        data["path"] = str(facts["source"])
    if not ("path" in data or "name" in data):
        raise InvalidInput("source", None, "rows need a file, or the name of a built-in data set")
    shown = {key: value for key, value in data.items() if key not in ("path", "public_test")}
    groups = _groups(facts)
    if groups:
        check_columns("groups", data, tuple(groups))
    return {
        "data": data,
        **({} if "name" in data else head_of(data)),  # a built-in data set is public
        "tuning": shown,
        "groups": groups,
        "delta": _delta(facts.get("delta")),
        "largest_epsilon": _positive(facts.get("largest_epsilon"), "largest_epsilon"),
    }


def head_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of rows and their number (or that of persons), on which prices depend.

    No row is kept. With a stated number the actual one is secret, otherwise public (zero-out).
    """
    request = TuneRequest.read({"data": data})
    settings = DataSettings(
        target=request.target,
        features=request.features,
        delimiter=request.delimiter,
        user=request.user,
    )
    if is_database(request.path):
        raise InvalidInput("source", "a database", "rows that models are tuned on are a file")
    source = request.name or Path(str(request.path))
    head, places = head_and_places(source, settings)
    return {"head": head_as_dict(head), "places": request.rows or places}


def file_of_rows(data: Mapping[str, Any]) -> tuple[Path, DataSettings]:
    """Return the file of rows, and how it is read: its target, persons and delimiter."""
    request = TuneRequest.read({"data": dict(data)})
    only = {name: getattr(request, name) for name in ("target", "user", "delimiter")}
    return Path(str(request.path)), DataSettings(**only)


def check_columns(field: str, data: Mapping[str, Any], columns: tuple[str, ...]) -> None:
    """Refuse columns that a file of rows does not have, from its header."""
    if "name" in data or str(data["path"]).endswith(".npz"):
        raise InvalidInput(field, columns[0], "errors by subgroup need a file with named columns")
    path, settings = file_of_rows(data)
    apart = {settings.target, settings.user} & {*columns}
    if apart:
        raise InvalidInput(field, min(map(str, apart)), "it is the target, or tells persons apart")
    if not files_of(path):
        raise InvalidInput("source", path.name, "there is no such file")
    read_head(path, replace(settings, features=tuple(dict.fromkeys(columns))))


def _public_tables(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The public tables that a query may join, and their columns."""
    sources = {
        str(name): str(location) for name, location in (facts.get("public_tables") or {}).items()
    }
    for location in sources.values():
        _check_source(location)
    opened = {
        name: table_columns(
            {"source": location, "table": name if is_database(location) else None}, []
        )
        for name, location in sources.items()
    }
    if str(facts["name"]).lower() in {name.lower() for name in sources}:
        raise InvalidInput("public_tables", facts["name"], "this is the name of the data set")
    return {
        "public_tables": sources,
        "public_columns": {name: list(columns) for name, columns in opened.items()},
    }


def require_distinct(columns: Iterable[str], listed: Iterable[str]) -> None:
    """Refuse a table in which a listed column has a twin: a query could mean the other one.

    SQL does not tell ``City`` from ``city``, and only one of them is what the owner listed.
    """
    named = {str(name).lower(): str(name) for name in listed}
    for name in columns:
        if named.get(name.lower(), name) != name:
            raise InvalidInput("columns", name, "another column has this name but for capitals")


def table_columns(facts: Mapping[str, Any], used: list[str]) -> dict[str, Any]:
    """Return the columns of a table and their types, from its header or schema."""
    try:
        opened = open_source(
            source_with_secrets(str(facts["source"])),
            facts.get("table"),
            delimiter=facts.get("delimiter"),
            columns=used,
        )
        schema = opened.schema()
        return {str(name): kind for name, kind in schema.items()}
    except ExpostError:
        raise
    except Exception as error:
        raise InvalidInput(
            "source", "the table", f"cannot be opened: {type(error).__name__}"
        ) from None


def _kind(kind: Any) -> str:
    """The kind of a column in words."""
    if kind.is_boolean():
        return "boolean"
    return "number" if kind.is_numeric() else "text"


def _groups(facts: Mapping[str, Any]) -> dict[str, list[str] | None]:
    """The columns of groups, each with its public keys or None."""
    return {
        str(column): None if keys is None else _keys(column, keys)
        for column, keys in (facts.get("groups") or {}).items()
    }


def _keys(column: object, keys: Any) -> list[str]:
    if not isinstance(keys, (list, tuple)) or not keys or len(keys) > MOST_KEYS:
        raise InvalidInput("groups", column, f"list 1 to {MOST_KEYS} public keys, or null")
    listed = [str(key) for key in keys]
    if len(set(listed)) != len(listed):
        raise InvalidInput("groups", column, "name each key once")
    return listed


def _bounds(column: object, bounds: Any) -> list[float]:
    pair = list(bounds) if isinstance(bounds, (list, tuple)) else []
    if len(pair) != 2 or not all(isinstance(end, (int, float)) for end in pair):
        raise InvalidInput("values", column, "give a lower and an upper bound")
    low, high = map(float, pair)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput("values", column, "the lower bound must be below the upper one")
    return [low, high]


def _askers(given: Any) -> list[str] | None:
    """Who may ask: names of people, and names of groups after an @; None is everybody."""
    if given is None or list(given) == [ALL]:
        return None
    listed = list(dict.fromkeys(str(asker) for asker in given))
    if not listed:
        raise InvalidInput("askers", "nobody", "name people and @groups, or give * for everybody")
    for asker in listed:
        if asker.startswith("@"):
            check_group(asker[1:], "askers")
        else:
            check_name(asker, "askers")
    return listed


def _positive(value: Any, field: str) -> float | None:
    if value is not None and not 0 < float(value) < math.inf:
        raise InvalidInput(field, value, "give a number > 0")
    return None if value is None else float(value)


def _threshold(value: Any) -> float | None:
    if value is not None and not 0 <= float(value) < math.inf:
        raise InvalidInput("approval_above", value, "give an ε, or 0 for every question")
    return None if value is None else float(value)


def require_delta(facts: Mapping[str, Any], given: float | None, field: str) -> None:
    """Refuse a δ above the owner's: the ε of a price is at that δ, and a larger one buys more."""
    most = facts.get("delta")
    if given is not None and most is not None and given > most:
        raise InvalidInput(field, given, f"the owner allows at most {most:g}")


def _delta(value: Any) -> float | None:
    if value is not None and not 0 < float(value) < 1:
        raise InvalidInput("delta", value, "give 0 < delta < 1")
    return None if value is None else float(value)


def dataset_keys(document: Mapping[str, Any], by: list[str]) -> list[Any] | None:
    """Return the public keys of some columns: one per group, a tuple for several columns."""
    lists = [document["groups"][column] for column in by]
    if not lists or any(keys is None for keys in lists):
        return None
    if math.prod(map(len, lists)) > MOST_KEYS:
        raise InvalidInput("by", by, f"there would be more than {MOST_KEYS} groups; list your own")
    return list(lists[0]) if len(lists) == 1 else list(product(*lists))
