"""What makes two queries the same question: public facts of the request, and public tables.

Two spellings of one SELECT are the same where :func:`.normal_form` says so. What public tables hold
is part of the question, by a digest; a private table is not opened, and stands here with its name.
Tests: ``tests/analytics/test_queries_asked_before.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from expost.analytics.asked_before import plain_settings, source_identity, without_errors
from expost.analytics.sql_parser import normal_form, parse_question
from expost.analytics.sql_question import checked_caps
from expost.analytics.sql_tables import Tables, mentioned_columns, public_digest

_USUAL = {"confidence": 0.9, "max_groups_per_user": "auto"}


def query_question(text: str, asked: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what makes two queries the same, and what makes two of them have one path."""
    question = parse_question(text)
    given = {name: value for name, value in asked.items() if value is not None}
    if "plus_minus" not in given:
        given.setdefault("within", 0.1)
    tables, wanted = Tables(given.pop("source", None)), mentioned_columns(question)
    caps = checked_caps(question, given)
    sources = []
    for name in (question.table, *(join.name for join in question.joins)):
        data, table = tables.find(name)
        sources.append([source_identity(data), table])
    public = [
        public_digest(join, tables, question.table, wanted)
        for join in question.joins
        if join.name.lower() not in caps
    ]
    settings = plain_settings(_USUAL | given)
    document = {
        "kind": "query",
        "asked": normal_form(question),
        "settings": settings,
        "sources": sources,
        "public": public,
    }
    return document, document | {"settings": without_errors(settings)}
