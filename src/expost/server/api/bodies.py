"""The bodies of HTTP requests: strict types, limits on lengths and sizes, no unknown fields.

:class:`Question` is derived from :class:`.CountRequest` and ``TuneRequest``.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    create_model,
)

from expost.analytics.request import CountRequest, request_settings
from expost.server.jobs.datasets import RULES
from expost.tuning.request.tune_request import table_schema


def _storable(text: str) -> str:
    """Refuse a text that PostgreSQL and the ledger cannot store."""
    if "\x00" in text:
        raise ValueError("a text without the character NUL")
    return text


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    """Refuse a table that cannot be stored as JSON: NaN, infinities, halves of characters."""
    try:
        json.dumps(table, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ValueError("finite numbers and valid texts") from None
    return table


_Stored = AfterValidator(_storable)
Name = Annotated[str, StringConstraints(min_length=1, max_length=64), _Stored]
Text = Annotated[str, StringConstraints(max_length=1000), _Stored]
Word = Annotated[str, StringConstraints(min_length=1, max_length=200), _Stored]
Positive = Annotated[float, Field(gt=0, lt=1e12, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Table = Annotated[dict[Word, Any], Field(max_length=20), AfterValidator(_plain)]


class Body(BaseModel):
    """A body without unknown fields, whose texts and numbers are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def fields(self) -> tuple[Any, ...]:
        """The values of the fields, in their order: what an action is called with."""
        return tuple(self.model_dump().values())


_TYPES: dict[str, Any] = {
    "kind": Literal["count", "sum", "mean", "quantile", "query", "tune", "errors"],
    "column": Word,
    "by": list[Word],
    "where": list[Text],
    "keys": list[Word | list[Word]],
    "max_groups_per_user": int,
    "max_rows_per_user": int,
}


def _fields() -> dict[str, Any]:
    """The settings of a request that analysts may set, with their limits; ``kind`` is required."""
    fields: dict[str, Any] = {}
    for name, (hint, setting) in request_settings(CountRequest).items():
        if setting.analysts:
            limited: Any = Annotated[_TYPES.get(name, hint), Field(**setting.limits)]
            default = ... if name == "kind" else None
            optional = limited if name == "kind" else limited | None
            fields[name] = (optional, Field(default, description=setting.help))
    return fields


class Question(create_model("Question", __base__=Body, **_fields())):  # type: ignore[misc]
    """What is asked, without what the owner of the data set states."""

    dataset: Name
    size: Count | None = None
    # quantiles and queries
    at: Annotated[list[Share], Field(min_length=1, max_length=99)] | None = None
    within_rank: Annotated[float, Field(ge=1e-6, lt=0.5)] | None = None
    sql: Annotated[str, StringConstraints(min_length=1, max_length=20_000), _Stored] | None = None
    # errors of a model by subgroup: the request that released it
    release: Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")] | None = None
    # tuning: the tables of a job, checked by expost.tuning
    model: Annotated[Table, WithJsonSchema(table_schema("model"))] | None = None
    search: Annotated[Table, WithJsonSchema(table_schema("search"))] | None = None
    goal: Annotated[Table, WithJsonSchema(table_schema("goal"))] | None = None
    privacy: Annotated[Table, WithJsonSchema(table_schema("privacy"))] | None = None

    def asked(self) -> dict[str, Any]:
        """The fields that were given."""
        given: dict[str, Any] = self.model_dump(exclude_none=True, exclude_unset=True)
        return given


class Ask(Body):
    """A question that is to be answered."""

    question: Question
    memo: Text = ""


class PlanLevels(Body):
    """The levels of a tuning job."""

    epsilons: Annotated[list[Positive], Field(min_length=1, max_length=50)]
    configurations: Annotated[int, Field(ge=1, le=100_000)]
    delta: Share | None = None
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    attempts: Annotated[int, Field(ge=1, le=100)] | None = None


class Dataset(Body):
    """A data set and what is publicly known about it."""

    name: Name
    kind: Literal["table", "rows"] = "table"
    description: Text = ""
    budget: Name
    source: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    table: Word | None = None
    delimiter: Annotated[str, StringConstraints(min_length=1, max_length=1)] | None = None
    user: Word | None = None
    groups: dict[Word, Annotated[list[Word], Field(max_length=100_000)] | None] = {}
    values: dict[Word, Annotated[list[Finite], Field(min_length=2, max_length=2)] | None] = {}
    filters: Annotated[list[Word], Field(max_length=200)] = []
    public_tables: Annotated[
        dict[Word, Annotated[str, StringConstraints(min_length=1, max_length=2000)]],
        Field(max_length=50),
    ] = {}
    max_groups_per_user: Count | None = None
    max_rows_per_user: Count | None = None
    typical_group: Count | None = None
    delta: Share | None = None
    largest_epsilon: Positive | None = None
    data: Annotated[dict[Word, Any], Field(max_length=30), AfterValidator(_plain)] = {}
    facts: Annotated[dict[Word, Any], AfterValidator(_plain)] | None = None
    learn_facts: Positive | None = None
    askers: Annotated[list[Word], Field(max_length=1000)] | None = None
    approval_above: Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)] | None = None
    approval_days: Annotated[float, Field(gt=0, le=366)] | None = None

    def fields(self) -> tuple[Any, ...]:
        """What was stated, as one argument."""
        return (self.stated(),)

    def stated(self) -> dict[str, Any]:
        """The fields that were given; of the rules also those that are to end (None)."""
        given: dict[str, Any] = self.model_dump(exclude_none=True, exclude_unset=True)
        ended = {name: None for name in RULES if name in self.model_fields_set}
        return ended | given


class NewBudget(Body):
    """A budget, with caps per analyst."""

    name: Name
    kind: Literal["pure", "approx", "zcdp", "renyi"] = "pure"
    epsilon: Positive
    delta: Share | None = None
    caps: Annotated[dict[Name, Positive], Field(max_length=1000)] = {}
    renews: Literal["day", "week", "month", "quarter", "year"] | None = None
    neighbours: Word = "add-remove"


class Change(Body):
    """Another limit, or a cap of one analyst."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=1000), _Stored]
    epsilon: Positive | None = None
    delta: Share | None = None
    analyst: Annotated[str, StringConstraints(max_length=64), _Stored] = ""


class NewPerson(Body):
    """A person and their role."""

    name: Name
    role: Literal["owner", "analyst", "auditor"]


class PersonProfile(Body):
    """The groups of a person, and the address of their mail."""

    groups: Annotated[list[Word], Field(max_length=200)] = []
    mail: Annotated[str, StringConstraints(max_length=254), _Stored] = ""


class Decision(Body):
    """Why a question is approved or declined."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=1000), _Stored]


class NewToken(Body):
    """A token for a person."""

    person: Name
    days: Annotated[float, Field(gt=0, le=366)] = 90
    note: Annotated[str, StringConstraints(max_length=200), _Stored] = ""


class Begin(Body):
    """A token with which a session begins; without one the proxy's headers are used."""

    token: Annotated[str, StringConstraints(max_length=200)] | None = None


class First(Body):
    """The first owner."""

    link: Annotated[str, StringConstraints(max_length=100)]
    name: Name
