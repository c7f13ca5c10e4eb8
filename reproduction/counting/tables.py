"""Tables 1 and 2: how many thread counts each mechanism answers to 10 % under a total budget.

Simulations in floating point. Threads are asked in order, largest first. The paper's σ-rule accepts
a count. When the budget cannot pay the next charge, the run ends. All trials run side by side in
arrays. Where the paper's text and numbers disagree, the numbers are followed: the synthetic density
is x^{−0.75}, and σ is the scale parameter (1/ε for Laplace). docs/reproduction.md explains both
findings. Tests: ``tests/reproduction/test_counting_tables.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.rationals import count_of
from reproduction.counting.common import Generator, Result
from reproduction.counting.table1_mechanisms import PURE
from reproduction.counting.table2_mechanisms import APPROXIMATE

THREADS = 300
SYNTHETIC = ("S8000", "S16000", "S32000", "S64000", "S128000")
_CHUNK = 200  # trials in memory at once

PAPER_1 = {
    "doubling": {
        "S8000": (14.77, 0.911),
        "S16000": (22.47, 0.912),
        "S32000": (33.96, 0.910),
        "S64000": (50.90, 0.909),
        "S128000": (76.09, 0.909),
    },
    "noise-reduction": {
        "S8000": (2.22, 0.999),
        "S16000": (4.47, 0.999),
        "S32000": (8.12, 0.998),
        "S64000": (15.14, 0.998),
        "S128000": (27.68, 0.997),
    },
    "no-dropping": {
        "S8000": (20.37, 0.912),
        "S16000": (30.63, 0.911),
        "S32000": (45.74, 0.905),
        "S64000": (68.39, 0.911),
        "S128000": (102.1, 0.912),
    },
}
PAPER_2 = {
    "doubling": {
        "S8000": (17.20, 0.969),
        "S16000": (30.75, 0.971),
        "S32000": (54.74, 0.973),
        "S64000": (96.95, 0.974),
        "S128000": (173.6, 0.980),
    },
    "brownian": {
        "S8000": (28.63, 0.974),
        "S16000": (50.44, 0.973),
        "S32000": (88.58, 0.974),
        "S64000": (154.8, 0.975),
        "S128000": (269.7, 0.977),
    },
    "no-dropping": {
        "S8000": (6.694, 0.970),
        "S16000": (11.97, 0.972),
        "S32000": (20.61, 0.971),
        "S64000": (33.84, 0.973),
        "S128000": (52.33, 0.970),
    },
}


@dataclass(frozen=True)
class CountingRow:
    """The results of a mechanism on a data set.

    ``private`` is False for the diagnostic that drops nothing and has no guarantee.
    """

    dataset: str
    mechanism: str
    private: bool
    trials: int
    answers_mean: float
    answers_sd: float
    precision_mean: float | None
    precision_sd: float | None
    paper_answers: float | None
    paper_precision: float | None


def synthetic(name: str, trials: int, generator: Generator) -> Floats:
    """Return synthetic thread sizes (trials × threads), largest first."""
    weights = np.arange(1, THREADS + 1) ** -0.75
    sizes = generator.multinomial(int(name[1:]), weights / weights.sum(), size=trials).astype(float)
    return -np.sort(-sizes, axis=1)


def real(name: str, folder: Path) -> Floats:
    """Return the sizes of a real data set, largest first."""
    files = {"msweb": "msweb_user_area.npz", "reddit2008": "reddit_2008_new_users_by_subreddit.npz"}
    path = folder if folder.is_file() else folder / files[name]
    if not path.is_file():
        raise InvalidInput(
            "data",
            str(path),
            f"no such file; {name} is read from an .npz file with an array unique_users",
        )
    with np.load(path, allow_pickle=False) as archive:
        return np.sort(archive["unique_users"].astype(float))[::-1]


def table(
    number: int,
    datasets: Sequence[str],
    trials: int,
    seed: int = 20130,
    folder: Path | None = None,
    jobs: int = 1,
) -> list[CountingRow]:
    """Return all rows of Table 1 or 2 for these data sets."""
    known = (*SYNTHETIC, "msweb", "reddit2008")
    unknown = [name for name in datasets if name not in known]
    if unknown or not datasets:
        raise InvalidInput("datasets", unknown, "choose from " + ", ".join(known))
    count_of(seed, "seed", at_least=0)
    mechanisms = PURE if number == 1 else APPROXIMATE
    tasks = [
        (number, name, mechanism, trials, seed, folder)
        for name in datasets
        for mechanism in mechanisms
    ]
    if jobs <= 1:
        return [_row(*task) for task in tasks]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(_row_of, tasks))


def _row_of(task: tuple[int, str, str, int, int, Path | None]) -> CountingRow:
    """Compute one row in a worker process."""
    return _row(*task)


def _row(
    number: int, dataset: str, mechanism: str, trials: int, seed: int, folder: Path | None
) -> CountingRow:
    """Simulate one mechanism on one data set."""
    run = (PURE if number == 1 else APPROXIMATE)[mechanism]
    generator = np.random.default_rng([seed, number, _order(dataset), _order(mechanism)])
    sizes = None if dataset in SYNTHETIC else real(dataset, folder or Path("../shared/data"))
    parts = []
    for size in _chunks(trials):
        truth = (
            synthetic(dataset, size, generator)
            if sizes is None
            else np.broadcast_to(sizes, (size, len(sizes))).copy()
        )
        parts.append(run(truth, generator))
    result = Result.join(parts)
    made = result.answers > 0
    precision = result.right[made] / result.answers[made]
    printed = (PAPER_1 if number == 1 else PAPER_2).get(mechanism, {}).get(dataset)
    return CountingRow(
        dataset=dataset,
        mechanism=mechanism,
        private=mechanism != "no-dropping",
        trials=trials,
        answers_mean=float(result.answers.mean()),
        answers_sd=float(result.answers.std()),
        precision_mean=float(precision.mean()) if made.any() else None,
        precision_sd=float(precision.std()) if made.any() else None,
        paper_answers=None if printed is None else printed[0],
        paper_precision=None if printed is None else printed[1],
    )


def _chunks(trials: int) -> Iterator[int]:
    """Divide the trials into chunks that fit into memory."""
    for start in range(0, trials, _CHUNK):
        yield min(_CHUNK, trials - start)


def _order(name: str) -> int:
    """Return a number for a name, as part of a seed."""
    return int.from_bytes(name.encode(), "little") % 2**31
