"""Something to audit: candidates that keep their promises, and a mechanism that does not.

Two neighbouring data sets first (``python examples/audit_me.py`` writes them), then::

    expost audit examples/audit_me.py:candidates --data with.npz --neighbour without.npz --runs 5000 --overhead 0.5
    expost audit examples/audit_me.py:careless --data with.npz --neighbour without.npz --runs 5000
"""

from __future__ import annotations

from typing import Any

import numpy as np

from expost import Candidate, DiscreteLaplace, Estimate, PureDP, Query, RandomDropping, Randomness

visits = Query(
    lambda rows: int(rows.sum()), sensitivity=3
)  # nobody is counted more than three times

candidates = [
    Candidate(DiscreteLaplace(visits, epsilon), {"epsilon": epsilon}) for epsilon in (0.5, 1.0, 2.0)
]
selection = (RandomDropping(overhead=0.5), candidates)


def careless(rows: Any, randomness: Randomness) -> Estimate | list[Estimate]:
    """Forgets that a person may visit three times: noise for one visit."""
    return DiscreteLaplace(Query(lambda rows: int(rows.sum())), 1.0)(rows, randomness)


careless.guarantee = PureDP(1.0)  # type: ignore[attr-defined]


def large(answer: Estimate) -> bool:
    """An event: the answer is above the true count of the smaller data set."""
    return float(answer) > 200


def main() -> None:
    rows = np.full(101, 2)
    rows[-1] = 3
    np.savez("with.npz", rows=rows)
    np.savez("without.npz", rows=rows[:-1])
    print("wrote with.npz and without.npz")


if __name__ == "__main__":
    main()
