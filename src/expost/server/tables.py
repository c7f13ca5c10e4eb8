"""The tables of a desk. Times are seconds since 1970 (UTC); documents are JSON text."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA = 1

metadata = MetaData()

facts = Table(
    "desk_facts",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

people = Table(
    "desk_people",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("created", Float, nullable=False),
    Column("disabled", Boolean, nullable=False, default=False),
)

tokens = Table(
    "desk_tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("person", String(64), nullable=False, index=True),
    Column("salt", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("note", String(200), nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("revoked", Boolean, nullable=False, default=False),
)

sessions = Table(
    "desk_sessions",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("person", String(64), nullable=False, index=True),
    Column("token", String(32), nullable=True),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
)

links = Table(
    "desk_links",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("expires", Float, nullable=False),
    Column("used", Boolean, nullable=False, default=False),
)

failures = Table(
    "desk_failures",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("place", String(200), nullable=False),
    Column("time", Float, nullable=False),
    Index("desk_failures_place", "place", "time"),
)

datasets = Table(
    "desk_datasets",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("document", Text, nullable=False),
    Column("created", Float, nullable=False),
    Column("retired", Boolean, nullable=False, default=False),
)

requests = Table(
    "desk_requests",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("person", String(64), nullable=False),
    Column("dataset", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("key", String(128), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("question", Text, nullable=False),
    Column("price", Text, nullable=False),
    Column("memo", Text, nullable=False),
    Column("secret", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("created", Float, nullable=False),
    Column("started", Float, nullable=True),
    Column("finished", Float, nullable=True),
    Column("published", Float, nullable=True),
    Column("worker", String(64), nullable=True),
    Column("lease", Float, nullable=False, default=0.0),
    Column("home", String(64), nullable=True),
    Column("tries", Integer, nullable=False, default=0),
    Column("outcome", Text, nullable=True),
    Column("result", Text, nullable=True),
    Column("charge", Text, nullable=True),
    Column("refusal", Text, nullable=True),
    Column("reserved", String(40), nullable=False, default=""),
    UniqueConstraint("person", "key", name="desk_requests_key"),
    Index("desk_requests_state", "state", "lease"),
    Index("desk_requests_person", "person", "created"),
    Index("desk_requests_created", "created"),
)

attempts = Table(
    "desk_attempts",
    metadata,
    Column("reservation", String(64), primary_key=True),
    Column("request", String(32), nullable=False, index=True),
)

models = Table(
    "desk_models",
    metadata,
    Column("request", String(32), primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

acts = Table(
    "desk_acts",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("person", String(64), nullable=False),
    Column("act", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
)
