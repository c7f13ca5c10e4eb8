"""What a user sees if no cap is given: groups answered within 5 %, their price, and are they right?

``python -m scripts.chosen_caps --runs 4 --json`` asks rows, sums, persons and means of made-up
tables by ``expost.query`` with its defaults. A line per table, question and ε: groups answered, how
many of them are within 5 % of the value that the table has *without* caps, the mean of ε spent, and
the mean error of what was answered (``bias``). Beside it

- ``oracle``: the groups that one Laplace histogram answers whose cap was chosen with the table in
  view, if what the cap removes from each group is known for nothing;
- ``guessed``: the groups that look answered in one Laplace histogram with a guessed cap (10 rows of
  a person in all, or 10 median amounts; 3 groups), and how many of them are right.

Neither is private, or says what it does not know.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import expost
from expost import SimulationRandomness

WITHIN, CONFIDENCE = 0.05, 0.9
GUESSED_ROWS, GUESSED_GROUPS = 10, 3
MOST_VALUE = 2000  # public bound of an amount
QUESTIONS = {
    "rows": "COUNT(*)",
    "sum": "SUM(v)",
    "persons": "COUNT(DISTINCT u)",
    "mean": "AVG(v)",
}


def table(
    rows: Any, groups: int, generator: np.random.Generator, *, favourites: int = 4, skew: float = 0
) -> pa.Table:
    """Persons with these numbers of rows, in some favourite groups; amounts are log-normal."""
    people = len(rows)
    users = np.repeat(np.arange(people), rows)
    sizes = 1 / np.arange(1, groups + 1) ** skew
    liked = generator.choice(groups, (people, favourites), p=sizes / sizes.sum())
    chosen = liked[users, generator.integers(0, favourites, len(users))]
    amounts = np.minimum(generator.lognormal(3.0, 0.8, len(users)), MOST_VALUE)
    return pa.table({"u": users, "g": chosen, "v": amounts})


def light(people: int, generator: np.random.Generator) -> Any:
    """Rows per person: six on average, nobody with very many."""
    return generator.geometric(1 / 6, people)


def log_normal(people: int, generator: np.random.Generator) -> Any:
    """Rows per person: six on average, a hundredth with more than 45."""
    return np.ceil(generator.lognormal(1.0, 1.2, people)).astype(np.int64)


def pareto(people: int, generator: np.random.Generator) -> Any:
    """Rows per person: three on average, with a tail of index 1.5."""
    return np.minimum(np.ceil(generator.pareto(1.5, people) + 0.5), 10_000).astype(np.int64)


def bots(people: int, generator: np.random.Generator) -> Any:
    """One row per person; one in 400 has a hundred."""
    return np.where(generator.random(people) < 1 / 400, 100, 1)


def machines(people: int, generator: np.random.Generator) -> Any:
    """One row per person; ten have 5,000: no private answer can tell them."""
    return np.where(np.arange(people) < 10, 5000, 1)


def seasonal(people: int, generator: np.random.Generator) -> pa.Table:
    """Twelve months: a person comes in some of them, more often in summer."""
    season = 1 + 0.6 * np.sin(np.arange(12) / 12 * 2 * np.pi)
    active = generator.random((people, 12)) < generator.beta(1, 2, people)[:, None] * season / 2
    visits = np.where(active, generator.geometric(1 / 2, (people, 12)), 0)
    users, months = np.nonzero(visits)
    numbers = visits[users, months]
    users, months = np.repeat(users, numbers), np.repeat(months, numbers)
    amounts = np.minimum(generator.lognormal(3.0, 0.8, len(users)), MOST_VALUE)
    return pa.table({"u": users, "g": months, "v": amounts})


def tables() -> Iterator[tuple[str, int, pa.Table]]:
    """Name, number of groups and table."""
    for name, groups, people, law, more in (
        ("light, 10 groups", 10, 20_000, light, {}),
        ("light, 3 uneven groups", 3, 20_000, light, {"skew": 2.0, "favourites": 2}),
        ("light, 100 groups", 100, 60_000, light, {"skew": 0.7}),
        ("log-normal, 20 groups", 20, 30_000, log_normal, {}),
        ("log-normal, 1 group", 1, 20_000, log_normal, {}),
        ("Pareto 1.5, 10 groups", 10, 30_000, pareto, {}),
        ("Pareto 1.5, 1 group", 1, 30_000, pareto, {}),
        ("bots, 5 groups", 5, 50_000, bots, {}),
        ("machines, 5 groups", 5, 50_000, machines, {}),
        ("one row per person, 10 groups", 10, 20_000, lambda n, _: np.ones(n, np.int64), {}),
    ):
        generator = np.random.default_rng(people + groups)
        yield name, groups, table(law(people, generator), groups, generator, **more)
    yield "seasonal, 12 months", 12, seasonal(20_000, np.random.default_rng(12))


def truths(kind: str, data: pa.Table, groups: int) -> Any:
    """The values of all groups without caps."""
    users, names, values = (data[name].to_numpy() for name in "ugv")
    if kind == "persons":
        names = np.unique(np.stack([users, names]), axis=1)[1]
    sums = np.bincount(names, values if kind in ("sum", "mean") else None, minlength=groups)
    return sums / np.bincount(names, minlength=groups) if kind == "mean" else sums


def pairs(kind: str, data: pa.Table, groups: int) -> tuple[Any, Any, Any]:
    """Users, groups and values of all pairs of them."""
    users, names, values = (data[name].to_numpy() for name in "ugv")
    keys, where = np.unique(users * groups + names, return_inverse=True)
    sums = np.bincount(where, values if kind == "sum" else None)
    return keys // groups, keys % groups, np.ones(len(keys)) if kind == "persons" else sums


def capped(kind: str, data: pa.Table, groups: int, cap: float) -> Any:
    """The values of all groups if a person adds at most ``cap`` to all of them together."""
    users, names, values = pairs(kind, data, groups)
    whole = np.bincount(users, values)
    return np.bincount(names, values * np.minimum(1, cap / whole[users]), minlength=groups)


def histogram(kind: str, data: pa.Table, groups: int, epsilon: float) -> dict[str, float]:
    """The groups that one Laplace histogram answers, with the best cap and with a guessed one."""
    truth, users = truths(kind, data, groups), pairs(kind, data, groups)
    largest = np.bincount(users[0], users[2]).max()
    noise = math.log(1 / (1 - CONFIDENCE)) / epsilon  # half-width of an interval for a cap of 1
    best = 0
    for cap in np.geomspace(np.median(users[2]), largest, 60):
        error = truth - capped(kind, data, groups, cap) + noise * cap
        best = max(best, int((error <= WITHIN * truth).sum()))
    unit = float(np.median(data["v"].to_numpy())) if kind == "sum" else 1
    cap = GUESSED_GROUPS if kind == "persons" else GUESSED_ROWS * unit
    generator, runs = np.random.default_rng(0), 50
    noisy = capped(kind, data, groups, cap) + generator.laplace(0, cap / epsilon, (runs, groups))
    looks = noise * cap <= WITHIN * noisy
    right = looks & (abs(noisy - truth) <= WITHIN * truth)
    return {
        "oracle": best,
        "guessed": round(float(looks.sum() / runs), 1),
        "guessed_right": round(float(right.sum() / runs), 1),
    }


def answer(kind: str, data: pa.Table, groups: int, epsilon: float, seed: int) -> Any:
    """Ask as anybody would: nothing is said of caps."""
    grouped = ("g, ", " GROUP BY g") if groups > 1 else ("", "")
    text = f"SELECT {grouped[0]}{QUESTIONS[kind]} AS x FROM t{grouped[1]}"
    asked: dict[str, Any] = {"source": {"t": data}, "user": "u", "epsilon": epsilon}
    asked |= {"within": WITHIN, "confidence": CONFIDENCE}
    if groups > 1:
        asked["keys"] = list(range(groups))
    if kind in ("sum", "mean"):
        asked["bounds"] = {"v": (0, MOST_VALUE)}
    coins = SimulationRandomness(seed)
    return expost.query(text, **asked, simulation=True, randomness=coins)


def measure(
    runs: int, epsilons: list[float], chosen: str, kinds: list[str]
) -> Iterator[dict[str, Any]]:
    """One line per table, question and ε."""
    for name, groups, data in tables():
        if chosen not in name:
            continue
        for kind in kinds:
            truth = truths(kind, data, groups)
            for epsilon in epsilons:
                answered, right, spent, errors = 0, 0, 0.0, []
                for seed in range(runs):
                    told = answer(kind, data, groups, epsilon, seed)
                    spent += told.spent
                    for one in told.parts[0].answers:
                        real = truth[int(one.group) if groups > 1 else 0]
                        errors.append(one.estimate / real - 1)
                        answered += 1
                        right += abs(errors[-1]) <= WITHIN
                line = {
                    "table": name,
                    "question": kind,
                    "epsilon": epsilon,
                    "asked": groups,
                    "answered": round(answered / runs, 2),
                    "right": round(right / runs, 2),
                    "spent": round(spent / runs, 3),
                    "bias": round(float(np.mean(errors)), 4) if errors else None,
                }
                simple = kind != "mean"
                yield line | (histogram(kind, data, groups, epsilon) if simple else {})


def main() -> None:
    """Print one line per question."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=4)
    options.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    options.add_argument("--tables", default="", help="only those whose name has this text")
    options.add_argument("--questions", nargs="+", default=list(QUESTIONS))
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    rows = []
    for line in measure(asked.runs, asked.epsilon, asked.tables, asked.questions):
        rows.append(line)
        text = "{table:30} {question:8} ε = {epsilon:<4g} {answered:6} of {asked:3}, right {right}"
        text += ", ε {spent}, bias {bias}"
        others = ""
        if "oracle" in line:
            others = " | oracle {oracle}, guessed {guessed} ({guessed_right} right)"
        shown = (text + others).format(**line)
        print(shown, file=sys.stderr if asked.json else sys.stdout, flush=True)
    if asked.json:
        command = f"python -m scripts.chosen_caps --runs {asked.runs} --json"
        facts = {"command": command, "within": WITHIN, "confidence": CONFIDENCE, "runs": asked.runs}
        print(json.dumps(facts | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
