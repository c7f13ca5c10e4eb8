"""The judgements: what leaves a door must not exceed the claim.

``same_as_tame``
    Exact. Everything that leaves (value, charge, index, exception, files, ledger) is the same as
    if every hostile act were the plainest failure, for each seed and on both data sets. So the law
    is a post-processing of a law that the theorems cover, and nothing is left to statistics.
``within_claim``
    By many runs on both data sets with :func:`expost.audit.audit`. An exception that leaves the
    door ends the audit, and with it the test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from expost.audit import audit


def everything(call: Callable[[], Any], folder: Path | None = None, ledger: Any = None) -> Any:
    """All that leaves one call: the release or the exception, the files, and the ledger."""
    try:
        release = call()
        left: Any = ("released", release.to_json(encode=repr))
    except Exception as error:  # an exception leaves the door, too
        left = ("raised", type(error).__name__, str(error))
    files = [] if folder is None else sorted(path.name for path in folder.iterdir())
    if ledger is None:
        return left, files
    entries = [entry.action for entry in ledger.entries()]
    return left, files, entries, ledger.standing().as_dict()["settled"]


def same_as_tame(hostile: Callable[[int], Any], tame: Callable[[int], Any], seeds: int) -> None:
    """Compare what leaves for each seed; both functions return :func:`everything`."""
    for seed in range(seeds):
        assert hostile(seed) == tame(seed), seed


def within_claim(subject: Any, data: Any, neighbour: Any, **options: Any) -> None:
    """Fail if the audit finds that the claim is violated."""
    options = {"runs": 300, "confidence": 0.999, "simulation_seed": 1, **options}
    report = audit(subject, data, neighbour, **options)
    assert not report.violated, str(report)
