"""Facts that a tuning job buys because nobody stated them: ``privacy.learn_facts``.

The facts and the tuning read the same rows, so their charges add up: a tenth of the job's δ and ε =
``learn_facts`` are for the facts, the rest of ``max_epsilon`` for the tuning. Facts that are stated
are not bought. A job in a folder keeps its facts there, so that a job that continues after a crash
does not buy them again. A blank row counts nowhere, so the guarantee of the facts holds for both
neighbouring relations of tuning (docs/theory.md, "Facts about the data"). With ``data.user`` a
person counts with one row, and the facts protect persons, too.
Tests: ``tests/tuning/test_learned_facts.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.budget.charging import Account
from expost.errors import InvalidInput
from expost.facts.describe import (
    QUANTILES,
    Facts,
    facts_charges,
    facts_price_problems,
    plan,
    price_of,
    released,
)
from expost.facts.readings import array_counts
from expost.files import read_small
from expost.privacy.guarantees import ApproxDP
from expost.randomness.source import Randomness
from expost.tuning.request.defaults import NeededFacts, missing_facts
from expost.tuning.request.settings import DataSettings, Settings, read_settings
from expost.tuning.request.tune_request import MAX_EPSILON, TuneRequest
from expost.tuning.rows.job_columns import person_codes
from expost.tuning.rows.job_tables import Table, can_stream, given_table, read_head, read_source

FILE = "facts.json"
"""The facts of a job, in its folder."""
_DELTA = 0.1  # of the job's δ
_DATA_KEYS = (
    *("feature_bounds", "categories", "booleans", "dates", "texts", "missing", "features"),
    *("classes", "target_bounds"),
)
_TARGET = "the target"  # its name where targets are an array
_PERSONS = "\0persons"  # no column of a table has this name


@dataclass(frozen=True)
class LearnedFacts:
    """What was bought: settings of ``[data]``, and the certificate."""

    settings: Mapping[str, Any]
    certificate: Mapping[str, Any]

    @property
    def charge(self) -> ApproxDP:
        """What the facts cost."""
        charged = self.certificate["charged"]
        return ApproxDP(charged["epsilon"], charged["delta"], charged["neighbours"])


def keywords_with(
    given: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return keywords of a job with what was learned, so that its defaults can be made anew."""
    data, privacy = tables["data"], tables["privacy"]
    learned = {key: data[key] for key in _DATA_KEYS if key in data}
    limits = {key: privacy[key] for key in ("delta", "max_epsilon") if key in privacy}
    return {key: value for key, value in given.items() if key != "learn_facts"} | learned | limits


def delta_of_facts(delta: float) -> float:
    """Return the part of a job's δ that its facts have."""
    return delta * _DELTA


def wanted_of(request: TuneRequest) -> float | None:
    """Return the ε for facts that a job asks for; refuse one that leaves nothing for tuning."""
    wanted = request.learn_facts
    if wanted is None:
        return None
    most = MAX_EPSILON if request.max_epsilon is None else request.max_epsilon
    if wanted >= most:
        request.refuse("learn_facts", f"give less than max_epsilon = {most:g}, which covers both")
    return wanted


def facts_plan(config: Any, X: Any = None, y: Any = None) -> dict[str, Any] | None:
    """Return what the facts of a job cost and can find; None if it lacks none. Nothing is charged.

    Only names and types of columns are used.
    """
    request = TuneRequest.read(config)
    epsilon = wanted_of(request)
    if epsilon is None:
        return None
    settings = _without_facts(request, X is not None or y is not None)[1]
    _, columns, _ = _needed(settings.data, (X, y, None), head=True)
    if not columns:
        return None
    planned = plan(epsilon, delta_of_facts(settings.privacy.delta), len(columns))
    return planned | {"names": list(columns), "max_epsilon": settings.privacy.max_epsilon}


def learn_missing(
    config: Any,
    rows: tuple[Any, Any, Any],
    account: Account,
    randomness: Randomness,
    folder: Path | None,
) -> tuple[Any, LearnedFacts | None]:
    """Return the job with the facts that it lacks, bought; the job as it is if it lacks none.

    ``rows``: features, targets and persons, where they are passed.
    """
    request = TuneRequest.read(config)
    epsilon = wanted_of(request)
    if epsilon is None:
        return config, None
    tables, settings = _without_facts(request, rows[0] is not None or rows[1] is not None)
    data, privacy, delta = settings.data, tables["privacy"], settings.privacy.delta
    needed, columns, users = _needed(data, rows)
    learned = None
    if columns:
        kept = None if folder is None else folder / FILE
        if kept is not None and kept.exists():
            learned = _kept(kept, list(columns))
        else:
            # classes are names, also where they are written as numbers
            named = (data.target or _TARGET,) if needed.classes else ()
            learned = _bought(epsilon, delta, data, (columns, users, named), account, randomness)
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(
                    json.dumps(
                        {"settings": learned.settings, "certificate": learned.certificate}, indent=2
                    ),
                    encoding="utf-8",
                )
        _fill(tables, learned.settings, needed, list(columns), data)
        left = privacy.get("max_epsilon", MAX_EPSILON) - learned.charge.epsilon
        privacy["max_epsilon"] = left
        privacy["delta"] = delta - learned.charge.delta
        if not left > 0 or not privacy["delta"] > 0:
            request.refuse("learn_facts", "facts that were bought before leave nothing of the rest")
    return tables, learned


def _without_facts(request: TuneRequest, given: bool) -> tuple[dict[str, Any], Settings]:
    """Return the tables of a job that buys no facts, with paths from anywhere, and its settings."""
    tables = {name: dict(values) for name, values in request.tables.items()}
    tables["privacy"].pop("learn_facts")
    for key in ("path", "public_test"):
        if key in tables.get("data", {}):
            tables["data"][key] = str(request.folder / tables["data"][key])
    return tables, read_settings(tables, given_data=given)


def _needed(
    data: DataSettings, rows: tuple[Any, Any, Any], *, head: bool = False
) -> tuple[NeededFacts, dict[str, Array], Array | None]:
    """Return the facts that are missing, the columns to learn them from, and the persons."""
    source = data.name or data.path
    X, y, groups = rows
    if X is not None or y is not None:
        table: Table = given_table(X, y, data, groups)
    else:
        assert source is not None
        only_head = head and isinstance(source, Path) and can_stream(source)
        table = read_head(source, data) if only_head else read_source(source, data)  # type: ignore[arg-type]
    needed = missing_facts(data, table.names, types=table.types, target=table.targets is not None)
    if needed.target:
        raise InvalidInput("target", None, "name the column to predict")
    block = isinstance(table.cells, np.ndarray)
    cells = list(table.cells.T) if block else list(table.cells)  # type: ignore[union-attr]
    columns: dict[str, Array] = {}
    if table.names is None and needed.bounds:
        columns = {str(index): column for index, column in enumerate(cells)}
    elif table.names is not None:
        named = zip(table.names, cells, strict=True)
        columns = {name: column for name, column in named if name in needed.columns}
    if (needed.classes or needed.target_bounds) and table.targets is not None:
        columns[data.target or _TARGET] = np.asarray(table.targets)
    return needed, columns, table.users


def _bought(
    epsilon: float,
    delta: float,
    data: DataSettings,
    cells: tuple[Mapping[str, Array], Array | None, tuple[str, ...]],
    account: Account,
    randomness: Randomness,
) -> LearnedFacts:
    """Reserve the charge, learn the facts of columns and persons, and settle."""
    columns, users, named = cells
    who = None if users is None else _PERSONS
    everything = dict(columns)
    if users is not None:  # the persons of the job: 1 and "1.0" are one
        codes, names = person_codes(users)
        everything[_PERSONS] = np.array([*names, None], dtype=object)[codes]
    price = price_of(epsilon, delta_of_facts(delta), len(columns))
    name = data.name or (data.path.name if data.path is not None else "rows")
    asked = {"kind": "facts", "columns": list(columns)}
    charges = facts_charges(price, data.relation)
    with account.reserve(charges, request=asked, source=name) as reserved:
        certificate = None
        try:
            facts: Facts = released(
                replace(array_counts(everything, who, randomness), named=named),
                price,
                QUANTILES,
                name,
                data.user,
                randomness,
                ledger=reserved.evidence(),
                neighbours=data.relation,
            )
            certificate = facts.certificate()
        finally:
            reserved.settle(0, certificate)
    return LearnedFacts(facts.data_settings(data.target or _TARGET), certificate)


def _kept(path: Path, columns: list[str]) -> LearnedFacts:
    """Read the facts of a job that continues."""
    try:
        record = json.loads(read_small(path, "facts"))
        problems = list(facts_price_problems(record["certificate"]))
        learned = LearnedFacts(record["settings"], record["certificate"])
        if list(record["certificate"]["facts"]["columns"]) != columns:
            problems.append("other columns")
    except (ValueError, KeyError, TypeError):
        problems = ["unreadable"]
    if problems:
        raise InvalidInput(
            "out", str(path), "it holds facts of another job, or is damaged; give another folder"
        )
    return learned


def _fill(
    tables: dict[str, dict[str, Any]],
    learned: Mapping[str, Any],
    needed: NeededFacts,
    columns: list[str],
    data: DataSettings,
) -> None:
    """Write learned facts into the tables of a job; what is stated stays."""
    given = tables.setdefault("data", {})
    for key in ("classes", "target_bounds"):
        if getattr(needed, key):
            if key not in learned:
                raise InvalidInput(
                    key, None, "they could not be learned at this price; state them, or pay more"
                )
            given[key] = list(learned[key])
    if needed.bounds:
        pairs = learned.get("feature_bounds", {})
        given["feature_bounds"] = [
            list(pairs.get(name, (0.0, 1.0))) for name in columns if name.isdigit()
        ]
        return
    for key in ("feature_bounds", "categories", "dates", "missing"):
        extra = {name: value for name, value in learned.get(key, {}).items() if name in columns}
        if extra:
            given[key] = {**extra, **given.get(key, {})}
    for key in ("booleans", "texts"):
        if key in learned:
            given[key] = [*given.get(key, ()), *learned[key]]
    unused = {*needed.columns} - {*learned["features"]}
    if unused:  # identifiers, and categories of which no name was found
        names = [*needed.columns] if data.features is None else [*data.features]
        stated = [name for name in _stated(given) if name not in names and name != data.target]
        given["features"] = [name for name in [*names, *stated] if name not in unused]


def _stated(given: Mapping[str, Any]) -> list[str]:
    """Return the columns about which facts are stated."""
    names = [
        name for key in ("feature_bounds", "categories", "dates") for name in given.get(key, {})
    ]
    return list(dict.fromkeys([*names, *given.get("booleans", ()), *given.get("texts", ())]))
