"""What people see of requests and releases.

A view says nothing about the data beyond the release: no progress, no duration, no cause of a
failure. Changes become visible at ticks. Tests: ``tests/server/test_views.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from expost.server import queue
from expost.server.charging import last_tick

STATUSES = ("queued", "running", "done", "missed", "no answer", "refused")
_STATUS = {
    queue.RECORDED: "queued",
    queue.QUEUED: "queued",
    queue.RUNNING: "running",
    queue.COMPUTED: "running",
    queue.DONE: "done",
    queue.MISSED: "missed",
    queue.FAILED: "no answer",
    queue.REFUSED: "refused",
}


def moment(seconds: float | None) -> str | None:
    """Return a time as ISO 8601 text in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def status_of(row: Mapping[str, Any], tick: float) -> str:
    """Return the status that is visible at the last tick.

    A request that failed and waits to be tried again is still running: a failure may be due to
    rows, and is told at the end only.
    """
    status = _STATUS[row["state"]]
    if status in ("queued", "running"):
        begun = row["started"] is not None and row["started"] <= last_tick(tick)
        return "running" if begun else "queued"
    return status


def request_view(row: Mapping[str, Any], tick: float) -> dict[str, Any]:
    """Return a request as people see it."""
    question = json.loads(row["question"])
    keys = question.pop("keys", None)
    final = row["state"] in queue.FINAL
    return {
        "id": row["id"],
        "person": row["person"],
        "dataset": row["dataset"],
        "kind": row["kind"],
        "status": status_of(row, tick),
        "created": moment(row["created"]),
        "published": moment(row["published"]) if final else None,
        "memo": row["memo"],
        "question": question | {"groups": None if keys is None else len(keys)},
        "price": json.loads(row["price"]),
        "charge": json.loads(row["charge"]) if final and row["charge"] else None,
        "refusal": json.loads(row["refusal"]) if final and row["refusal"] else None,
        "release": row["state"] in (queue.DONE, queue.MISSED),
    }
