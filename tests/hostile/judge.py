"""The judgements: what leaves a door must not exceed the claim.

``same_as_tame``
    Exact. Everything that leaves (value, charge, index, exception, files, ledger) is the same as
    if every hostile act were the plainest failure, for each seed and on both data sets. So the law
    is a post-processing of a law that the theorems cover, and nothing is left to statistics.
``within_claim``
    By many runs on both data sets with :func:`expost.audit.audit`. An exception that leaves the
    door ends the audit, and with it the test.
``one_person_apart``
    Exact. Private values, before noise for their sensitivity is added, differ by no more than it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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


def one_person_apart(pairs: list[tuple[Any, Any]], sensitivity: Any, most: int | None) -> None:
    """Fail if private values change in more than ``most`` places, or by more than the sensitivity.

    Several pairs of arrays (the two sums of a mean) are counted together, place by place.
    """
    changes = [
        np.abs(np.atleast_1d(a).astype(object) - np.atleast_1d(b).astype(object))
        for a, b in pairs
        if a is not None
    ]
    total = np.sum(changes, axis=0)
    assert sensitivity is None or max(total) <= sensitivity, total
    assert most is None or np.count_nonzero(total) <= most, total
