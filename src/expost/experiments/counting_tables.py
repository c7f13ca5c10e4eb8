"""Tables 1 and 2: how many thread counts can be answered to 10 % under a total budget, by mechanism. Simulations, in floating point.

Threads are asked in order, largest first; a count is accepted by the paper's σ-rule; when the budget cannot pay the next charge, the
run ends. All trials run side by side in arrays. Where the paper's text and numbers disagree, the numbers are followed: the synthetic
density is x^{−0.75}, and σ is the scale parameter (1/ε for Laplace). docs/reproduction.md explains the two findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.errors import InvalidInput
from expost.mechanisms.noise_reduction import simulate_gaussian_paths, simulate_laplace_paths
from expost.privacy.guarantees import ZCDP
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.selection.random_dropping import RandomDropping

Floats = npt.NDArray[np.float64]
Generator = np.random.Generator

WITHIN = 0.1
THREADS = 300
PURE_TOTAL, PURE_OVERHEAD = 10.0, 0.001
PURE_GRID = 0.001 * np.sqrt(2.0) ** np.arange(27)
DELTA = 1e-6
ZCDP_TOTAL = (np.sqrt(np.log(1 / DELTA) + 10.0) - np.sqrt(np.log(1 / DELTA))) ** 2  # ρ + 2√(ρ ln(1/δ)) = 10
ZCDP_GRID = 0.0005 * np.sqrt(2.0) ** np.arange(23)
LEAST = (2 + WITHIN) / WITHIN  # the σ-rule accepts ŷ ≥ σ·(2+w)/w
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
class Row:
    """A mechanism on a data set. ``private`` is False for the diagnostic that drops nothing and guarantees nothing."""

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


@dataclass(frozen=True, eq=False)
class Result:
    """Per trial: how many counts were accepted and paid for, and how many of them are right."""

    answers: Floats
    right: Floats

    @classmethod
    def join(cls, parts: Sequence[Result]) -> Result:
        return cls(np.concatenate([part.answers for part in parts]), np.concatenate([part.right for part in parts]))


Mechanism = Callable[[Floats, Generator], Result]
Attempt = tuple[Any, Any, Any, Any, Any]
"""Worst case, cost, level, estimate, good: an array over trials each."""


def synthetic(name: str, trials: int, generator: Generator) -> Floats:
    """Thread sizes (trials × threads), largest first."""
    weights = np.arange(1, THREADS + 1) ** -0.75
    sizes = generator.multinomial(int(name[1:]), weights / weights.sum(), size=trials).astype(float)
    return -np.sort(-sizes, axis=1)


def real(name: str, folder: Path) -> Floats:
    """The sizes of a real table, largest first."""
    files = {"msweb": "msweb_user_area.npz", "reddit2008": "reddit_2008_new_users_by_subreddit.npz"}
    path = folder if folder.is_file() else folder / files[name]
    if not path.is_file():
        raise InvalidInput("data", str(path), f"no such file; the table {name} is read from an .npz with unique_users")
    with np.load(path, allow_pickle=False) as archive:
        return np.sort(archive["unique_users"].astype(float))[::-1]


def table(
    number: int, datasets: Sequence[str], trials: int, seed: int = 20130, folder: Path | None = None, jobs: int = 1
) -> list[Row]:
    """All rows of Table 1 or 2 over these data sets."""
    known = (*SYNTHETIC, "msweb", "reddit2008")
    unknown = [name for name in datasets if name not in known]
    if unknown:
        raise InvalidInput("datasets", unknown, "choose from " + ", ".join(known))
    mechanisms = PURE if number == 1 else APPROXIMATE
    tasks = [(number, name, mechanism, trials, seed, folder) for name in datasets for mechanism in mechanisms]
    if jobs <= 1:
        return [_row(*task) for task in tasks]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(_row_of, tasks))


def _row_of(task: tuple[int, str, str, int, int, Path | None]) -> Row:
    return _row(*task)


def _row(number: int, dataset: str, mechanism: str, trials: int, seed: int, folder: Path | None) -> Row:
    run = (PURE if number == 1 else APPROXIMATE)[mechanism]
    generator = np.random.default_rng([seed, number, _order(dataset), _order(mechanism)])
    sizes = None if dataset in SYNTHETIC else real(dataset, folder or Path("../shared/data"))
    parts = []
    for size in _chunks(trials):
        truth = synthetic(dataset, size, generator) if sizes is None else np.broadcast_to(sizes, (size, len(sizes))).copy()
        parts.append(run(truth, generator))
    result = Result.join(parts)
    made = result.answers > 0
    precision = result.right[made] / result.answers[made]
    printed = (PAPER_1 if number == 1 else PAPER_2).get(mechanism, {}).get(dataset)
    return Row(
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
    for start in range(0, trials, _CHUNK):
        yield min(_CHUNK, trials - start)


def _order(name: str) -> int:
    return int.from_bytes(name.encode(), "little") % 2**31


def _tally(truth: Floats, estimates: Floats, costs: Floats, total: float) -> Result:
    """Count the threads that the budget pays for, in order; a thread that was never accepted has infinite cost."""
    paid = np.cumsum(costs, axis=1) <= total + 1e-12
    right = np.abs(estimates - truth) <= WITHIN * truth
    return Result(paid.sum(axis=1).astype(float), (paid & right).sum(axis=1).astype(float))


def _first_accepted(noisy: Floats, scales: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The first level (axis 0) whose value the σ-rule accepts, and whether there is one."""
    accepted = np.asarray(noisy >= LEAST * scales[:, None, None])
    return np.asarray(accepted.argmax(axis=0)), np.asarray(accepted.any(axis=0))


def _take(noisy: Floats, level: npt.NDArray[np.int64]) -> Floats:
    return np.asarray(np.take_along_axis(noisy, level[None], axis=0)[0])


def _refining(
    truth: Floats, noise: Floats, grid: Floats, scales: Floats, price: Callable[[Any], Floats], total: float
) -> Result:
    noisy = truth + noise.reshape(len(grid), *truth.shape)
    level, found = _first_accepted(noisy, scales)
    return _tally(truth, _take(noisy, level), np.where(found, price(level), np.inf), total)


def doubling_pure(truth: Floats, generator: Generator) -> Result:
    """Fresh noise at each level; all levels looked at are paid for."""
    noise = generator.laplace(0.0, 1.0, (len(PURE_GRID), truth.size)) / PURE_GRID[:, None]
    return _refining(truth, noise, PURE_GRID, 1 / PURE_GRID, lambda level: np.cumsum(PURE_GRID)[level], PURE_TOTAL)


def noise_reduction(truth: Floats, generator: Generator) -> Result:
    """Coupled noise; the last level looked at is paid for."""
    noise = simulate_laplace_paths(list(1 / PURE_GRID), truth.size, generator)
    return _refining(truth, noise, PURE_GRID, 1 / PURE_GRID, lambda level: PURE_GRID[level], PURE_TOTAL)


def no_dropping_pure(truth: Floats, generator: Generator) -> Result:
    """Algorithm 3 with k ≡ 0: the paper's column. Nothing is ever dropped, so the theorem gives no guarantee at all."""
    noise = generator.laplace(0.0, 1.0, (len(PURE_GRID), truth.size)) / PURE_GRID[:, None]
    return _refining(truth, noise, PURE_GRID, 1 / PURE_GRID, lambda level: 2 * PURE_GRID[level] + PURE_OVERHEAD, PURE_TOTAL)


def random_dropping_paper(truth: Floats, generator: Generator) -> Result:
    """Algorithm 3 exactly as parametrised in the paper, k ~ Geom(e^{−0.001}): most threads end with ⊥, free."""
    levels = (len(PURE_GRID), *truth.shape)
    level_drop = generator.geometric(-np.expm1(-PURE_OVERHEAD), truth.shape) - 1
    kept = generator.random(levels) < np.exp(-PURE_GRID[:, None, None] * level_drop)
    noisy = truth + generator.laplace(0.0, 1.0, levels) / PURE_GRID[:, None, None]
    charges = 2 * PURE_GRID + PURE_OVERHEAD
    return _one_shot(truth, kept, noisy, 1 / PURE_GRID[:, None, None], charges, 0.0, PURE_TOTAL)


def _one_shot(truth: Floats, kept: Any, noisy: Floats, scales: Floats, charges: Floats, nothing: float, total: float) -> Result:
    """Each thread once: the cheapest good kept level, else the cheapest kept; the next thread follows whatever happened."""
    good = kept & (noisy >= LEAST * scales)
    winner = np.where(good.any(axis=0), good.argmax(axis=0), kept.argmax(axis=0))
    costs = np.where(kept.any(axis=0), charges[winner], nothing)
    answered = (np.cumsum(costs, axis=1) <= total + 1e-12) & good.any(axis=0)
    right = answered & (np.abs(_take(noisy, winner) - truth) <= WITHIN * truth)
    return Result(answered.sum(axis=1).astype(float), right.sum(axis=1).astype(float))


@dataclass(frozen=True, eq=False)
class Ladder:
    """Levels to try for a thread whose need is guessed from the last answer: costs and noise scales, place by place in a grid."""

    grid: Floats
    scales: Floats
    total: float

    def sequential(
        self,
        truth: Floats,
        generator: Generator,
        attempt: Callable[[Floats, Any, Generator], Attempt],
    ) -> Result:
        """Thread after thread; ``attempt`` tries one, for all trials at once, from the guessed level.

        The first guess is the coarsest level. A failed attempt is paid and followed by another at a finer guess; a good one moves the
        trial on and sets the next guess.
        """
        trials, threads = truth.shape
        guess, left = np.zeros(trials, dtype=int), np.full(trials, self.total)
        thread, answers, right = np.zeros(trials, dtype=int), np.zeros(trials), np.zeros(trials)
        running = np.ones(trials, dtype=bool)
        while running.any():
            sizes = truth[np.arange(trials), np.minimum(thread, threads - 1)]
            worst, cost, level, estimate, good = attempt(sizes, np.clip(guess, 0, len(self.grid) - 1), generator)
            running &= (worst <= left + 1e-12) & (thread < threads)  # the filter looks at the worst case, then pays the cost
            left = np.where(running, left - cost, left)
            won = running & good
            answers += won
            right += won & (np.abs(estimate - sizes) <= WITHIN * sizes)
            thread = np.where(won, thread + 1, thread)
            guess = np.where(won, level, np.where(running, guess + 1, guess))
            running &= guess < len(self.grid)
        return Result(answers, right)


PURE_LADDER = Ladder(PURE_GRID, 1 / PURE_GRID, PURE_TOTAL)


@dataclass(frozen=True)
class Tuning:
    """How an honest run of Algorithm 3 goes about a thread; chosen by scripts/tune_counting.py."""

    overhead: float  # ε′ as a fraction of the first level's rate
    offsets: tuple[int, ...]  # levels tried, counted from the guess
    copies: tuple[int, ...]
    order: float = 32.0  # Rényi order of the filter (Table 2)


PURE_TUNING = Tuning(overhead=0.05, offsets=(0,), copies=(16,))
RENYI_TUNING = Tuning(overhead=0.05, offsets=(0,), copies=(4,))


def random_dropping_pure(truth: Floats, generator: Generator, tuning: Tuning = PURE_TUNING) -> Result:
    """Algorithm 3 with a real guarantee: levels near the guessed need, overhead a fraction of it, drawn again instead of ⊥."""

    def attempt(sizes: Floats, guess: Any, generator: Generator) -> Attempt:
        levels = np.minimum(guess[None] + np.array(tuning.offsets)[:, None], len(PURE_GRID) - 1)
        epsilons = PURE_GRID[levels]
        overhead = tuning.overhead * epsilons[0]
        kept, noisy = _dropped_runs(sizes, epsilons, overhead, 1 / epsilons, np.array(tuning.copies), True, generator)
        return _cheapest_good(kept, noisy, levels, 1 / epsilons, 2 * epsilons + overhead)

    return PURE_LADDER.sequential(truth, generator, attempt)


def _dropped_runs(
    sizes: Floats, rates: Floats, overhead: Floats, scales: Floats, copies: Any, laplace: bool, generator: Generator
) -> tuple[Any, Floats]:
    """Kept copies (levels × copies × trials) given that at least one is, and their noisy counts."""
    most = int(copies.max())
    kept = np.zeros((len(rates), most, len(sizes)), dtype=bool)
    exists = np.arange(most)[None, :, None] < copies[:, None, None]
    empty: Any = np.ones(len(sizes), dtype=bool)
    while empty.any():
        drop = generator.exponential(1.0, len(sizes)) / overhead
        drop = np.floor(drop) if laplace else drop  # Geom(e^{−ε′}) is the floor of Exp(ε′)
        fresh = exists & (generator.random(kept.shape) < np.exp(-rates * drop)[:, None, :])
        kept = np.where(empty, fresh, kept)
        empty = ~kept.any(axis=(0, 1))
    noise = generator.laplace(0.0, 1.0, kept.shape) if laplace else generator.normal(0.0, 1.0, kept.shape)
    return kept, sizes + noise * scales[:, None, :]


def _cheapest_good(kept: Any, noisy: Floats, levels: Any, scales: Floats, charges: Floats) -> Attempt:
    """The first good kept copy by increasing level, else the first kept."""
    good = kept & (noisy >= LEAST * scales[:, None, :])
    flat_kept, flat_good = kept.reshape(-1, kept.shape[-1]), good.reshape(-1, good.shape[-1])
    winner = np.where(flat_good.any(axis=0), flat_good.argmax(axis=0), flat_kept.argmax(axis=0))
    row = winner // kept.shape[1]
    trial = np.arange(kept.shape[-1])
    estimate = noisy.reshape(-1, kept.shape[-1])[winner, trial]
    return charges.max(axis=0), charges[row, trial], levels[row, trial], estimate, flat_good.any(axis=0)


AT_OVERHEAD, AT_LEVELS = 1.0, 2  # threshold noise as fine as the level guessed; levels looked at from there


def above_threshold(truth: Floats, generator: Generator) -> Result:
    """Algorithm 1, monotone: the first level from the guess whose noisy count reaches what the σ-rule needs there; the estimate is free."""

    def attempt(sizes: Floats, guess: Any, generator: Generator) -> Attempt:
        overhead = AT_OVERHEAD * PURE_GRID[guess]
        threshold_noise: Any = np.floor(generator.exponential(1.0, len(sizes)) / overhead)
        cost: Any = overhead.copy()
        level: Any = guess.copy()
        estimate: Any = np.zeros(len(sizes))
        good: Any = np.zeros(len(sizes), dtype=bool)
        for offset in range(AT_LEVELS):
            place: Any = np.minimum(guess + offset, len(PURE_GRID) - 1)
            epsilon = PURE_GRID[place]
            query_noise = np.floor(generator.exponential(1.0, len(sizes)) / epsilon)
            value = sizes + query_noise - threshold_noise
            passes: Any = ~good & (value >= LEAST / epsilon)
            bias = 1 / np.expm1(epsilon) - 1 / np.expm1(overhead)
            cost, level = np.where(passes, epsilon + overhead, cost), np.where(passes, place, level)
            estimate, good = np.where(passes, value - bias, estimate), good | passes
        return PURE_GRID[np.minimum(guess + AT_LEVELS - 1, len(PURE_GRID) - 1)] + overhead, cost, level, estimate, good

    return PURE_LADDER.sequential(truth, generator, attempt)


def doubling_gaussian(truth: Floats, generator: Generator) -> Result:
    """Fresh Gaussian noise at each level; all levels looked at are paid for in zCDP."""
    scales = np.sqrt(0.5 / ZCDP_GRID)
    noise = generator.normal(0.0, 1.0, (len(ZCDP_GRID), truth.size)) * scales[:, None]
    return _refining(truth, noise, ZCDP_GRID, scales, lambda level: np.cumsum(ZCDP_GRID)[level], float(ZCDP_TOTAL))


def brownian(truth: Floats, generator: Generator) -> Result:
    """Coupled Gaussian noise; the last level looked at is paid for."""
    scales = np.sqrt(0.5 / ZCDP_GRID)
    noise = simulate_gaussian_paths(list(scales**2), truth.size, generator)
    return _refining(truth, noise, ZCDP_GRID, scales, lambda level: ZCDP_GRID[level], float(ZCDP_TOTAL))


PUBLISHED_ORDER, PUBLISHED_OVERHEAD = 100.0, 0.001  # not stated in the paper; these come closest to its column


def published_losses() -> tuple[Floats, Floats]:
    """Divergence of each level at that order, and the paper's charge with ℓ = 0 (``theorem:max-score-rdp``)."""
    losses = PUBLISHED_ORDER * ZCDP_GRID
    runs = float((PUBLISHED_OVERHEAD / (PUBLISHED_OVERHEAD + losses)).sum())
    others = np.exp(-losses).sum() - np.exp(-losses)
    return losses, 2 * losses + PUBLISHED_OVERHEAD + (np.log1p(runs) + others) / (PUBLISHED_ORDER - 1)


PUBLISHED_TOTAL = 10.0 - np.log(1 / DELTA) / (PUBLISHED_ORDER - 1)


def no_dropping_gaussian(truth: Floats, generator: Generator) -> Result:
    """Algorithm 3 with x ≡ 0 under Rényi accounting: the paper's column. Carries no guarantee."""
    scales = np.sqrt(0.5 / ZCDP_GRID)
    noise = generator.normal(0.0, 1.0, (len(ZCDP_GRID), truth.size)) * scales[:, None]
    _, charges = published_losses()
    return _refining(truth, noise, ZCDP_GRID, scales, lambda level: charges[level], PUBLISHED_TOTAL)


def random_dropping_paper_gaussian(truth: Floats, generator: Generator) -> Result:
    """Algorithm 3 as parametrised in the paper, with its dropping: x ~ Exp(0.001), and ⊥ charged ln(τ+1)/(α−1)."""
    losses, charges = published_losses()
    runs = float((PUBLISHED_OVERHEAD / (PUBLISHED_OVERHEAD + losses)).sum())
    levels = (len(ZCDP_GRID), *truth.shape)
    drop = generator.exponential(1 / PUBLISHED_OVERHEAD, truth.shape)
    kept = generator.random(levels) < np.exp(-losses[:, None, None] * drop)
    scales = np.sqrt(0.5 / ZCDP_GRID)[:, None, None]
    noisy = truth + generator.normal(0.0, 1.0, levels) * scales
    return _one_shot(truth, kept, noisy, scales, charges, float(np.log1p(runs)) / (PUBLISHED_ORDER - 1), PUBLISHED_TOTAL)


@lru_cache(maxsize=64)
def renyi_charges(place: int, tuning: Tuning) -> tuple[Floats, Floats, float]:
    """Charges at the filter's order, drop rates and ε′ of a thread whose guessed level is ``place``; priced like a real selection."""
    levels = [min(place + offset, len(ZCDP_GRID) - 1) for offset in tuning.offsets]
    rates = np.array([tuning.order * ZCDP_GRID[level] for level in levels])
    overhead = tuning.overhead * float(rates[0])
    candidates = [
        Candidate(_never_run, repeats=copies, guarantee=ZCDP(float(ZCDP_GRID[level])), drop_rate=float(rate))
        for level, copies, rate in zip(levels, tuning.copies, rates, strict=True)
    ]
    table = RandomDropping(overhead=overhead, order=tuning.order).charges(candidates)
    return np.array([float(table[each].size) for each in range(len(levels))]), rates, overhead


def random_dropping_gaussian(truth: Floats, generator: Generator, tuning: Tuning = RENYI_TUNING) -> Result:
    """Algorithm 3 with a real guarantee: sharp Rényi charges under a filter at one order, levels near the guessed need."""
    order = tuning.order
    total = 10.0 - (np.log1p(-1 / order) - (np.log(DELTA) + np.log(order)) / (order - 1))
    tables = [renyi_charges(place, tuning) for place in range(len(ZCDP_GRID))]
    charges, rates = np.array([each[0] for each in tables]), np.array([each[1] for each in tables])
    overheads = np.array([each[2] for each in tables])

    def attempt(sizes: Floats, guess: Any, generator: Generator) -> Attempt:
        levels = np.minimum(guess[None] + np.array(tuning.offsets)[:, None], len(ZCDP_GRID) - 1)
        scales = np.sqrt(0.5 / ZCDP_GRID[levels])
        kept, noisy = _dropped_runs(sizes, rates[guess].T, overheads[guess], scales, np.array(tuning.copies), False, generator)
        return _cheapest_good(kept, noisy, levels, scales, charges[guess].T)

    return Ladder(ZCDP_GRID, np.sqrt(0.5 / ZCDP_GRID), float(total)).sequential(truth, generator, attempt)


def _never_run(data: Any, randomness: Randomness) -> Any:
    raise AssertionError("pricing runs nothing")


PURE: dict[str, Mechanism] = {
    "doubling": doubling_pure,
    "noise-reduction": noise_reduction,
    "above-threshold": above_threshold,
    "random-dropping": random_dropping_pure,
    "random-dropping-paper": random_dropping_paper,
    "no-dropping": no_dropping_pure,
}
APPROXIMATE: dict[str, Mechanism] = {
    "doubling": doubling_gaussian,
    "brownian": brownian,
    "random-dropping": random_dropping_gaussian,
    "random-dropping-paper": random_dropping_paper_gaussian,
    "no-dropping": no_dropping_gaussian,
}
