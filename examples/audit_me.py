"""Audit candidates that keep their guarantees, and a mechanism that does not.

First write two neighbouring data sets::

    python examples/audit_me.py

Then audit::

    expost audit examples/audit_me.py:candidates --data with.npz --neighbour without.npz \\
        --runs 5000 --overhead 0.5
    expost audit examples/audit_me.py:careless --data with.npz --neighbour without.npz \\
        --runs 5000
"""

from __future__ import annotations

from typing import Any

import numpy as np

from expost import Candidate, DiscreteLaplace, Estimate, PureDP, Query, RandomDropping, Randomness

# One person is counted at most three times.
visits = Query(lambda rows: int(rows.sum()), sensitivity=3)

candidates = [
    Candidate(DiscreteLaplace(visits, epsilon), {"epsilon": epsilon}) for epsilon in (0.5, 1.0, 2.0)
]
selection = (RandomDropping(overhead=0.5), candidates)


def careless(rows: Any, randomness: Randomness) -> Estimate | list[Estimate]:
    """Add noise for one visit, although one person may visit three times."""
    return DiscreteLaplace(Query(lambda rows: int(rows.sum())), 1.0)(rows, randomness)


careless.guarantee = PureDP(1.0)  # type: ignore[attr-defined]


def large(answer: Estimate) -> bool:
    """Return whether the answer is above the true count of the smaller data set (an event)."""
    return float(answer) > 200


def main() -> None:
    """Write two neighbouring data sets."""
    rows = np.full(101, 2)
    rows[-1] = 3
    np.savez("with.npz", rows=rows)
    np.savez("without.npz", rows=rows[:-1])
    print("wrote with.npz and without.npz")


if __name__ == "__main__":
    main()
