"""How often answers called "within 10 %" are, next to the truth without caps: skewed tables.

``python -m scripts.capped_truth --runs 10 --json`` asks for rows, sums and persons of made-up
tables with few very active persons, and of one whose persons are in many groups, with every cap
chosen privately. It prints a line per question: groups asked, groups answered, and how many
answers are within the error of the value that the table has *without* caps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import expost
from expost import SimulationRandomness

WITHIN, CONFIDENCE = 0.1, 0.9
AUTO = {"max_groups_per_user": "auto", "max_rows_per_user": "auto"}


def rows_per_person(tail: str, people: int, generator: np.random.Generator) -> Any:
    """Whole numbers from 1 to 10,000 with a tail of the given kind."""
    drawn = {
        "light": lambda: generator.geometric(1 / 6, people),
        "log-normal": lambda: np.ceil(generator.lognormal(1.0, 1.2, people)),
        "Pareto 2": lambda: np.ceil(2 * (1 + generator.pareto(2.0, people))),
        "bots": lambda: np.where(generator.random(people) < 0.005, 100, 1),
        "Pareto 1.5": lambda: np.ceil(1 + generator.pareto(1.5, people)),
    }[tail]()
    return np.minimum(drawn, 10_000).astype(np.int64)


def second_group(people: int, groups: int, generator: np.random.Generator) -> pa.Table:
    """Persons with one row each; a few have another one, all of these in the last group."""
    few = people // 60
    users = np.concatenate([np.arange(people), np.arange(few)])
    chosen = generator.integers(0, groups - 1, people)
    names = np.concatenate([chosen, np.full(few, groups - 1)])
    return pa.table({"u": users, "g": names, "v": np.ones(len(users))})


def table(
    tail: str, people: int, groups: int, generator: np.random.Generator, favourites: int = 4
) -> pa.Table:
    """Persons with some favourite groups of uneven sizes; amounts are log-normal."""
    if tail == "second":
        return second_group(people, groups, generator)
    users = np.repeat(np.arange(people), rows_per_person(tail, people, generator))
    sizes = 1 / np.arange(1, groups + 1) ** 0.7
    liked = generator.choice(groups, (people, favourites), p=sizes / sizes.sum())
    return pa.table(
        {
            "u": users,
            "g": liked[users, generator.integers(0, favourites, len(users))],
            "v": np.minimum(generator.lognormal(2.5, 1.0, len(users)), 5000.0),
        }
    )


TABLES: dict[str, tuple[Any, ...]] = {
    "light, 20,000 persons, 10 groups": ("light", 20_000, 10),
    "log-normal, 20,000 persons, 1 group": ("log-normal", 20_000, 1),
    "log-normal, 20,000 persons, 20 groups": ("log-normal", 20_000, 20),
    "log-normal, 200,000 persons, 20 groups": ("log-normal", 200_000, 20),
    "Pareto 2, 50,000 persons, 10 groups": ("Pareto 2", 50_000, 10),
    "Pareto 2, 50,000 persons, 200 groups": ("Pareto 2", 50_000, 200),
    "Pareto 1.5, 50,000 persons, 10 groups": ("Pareto 1.5", 50_000, 10),
    "bots, 50,000 persons, 10 groups": ("bots", 50_000, 10),
    "light, 20,000 persons, 12 groups, up to 24 choices": ("light", 20_000, 12, 24),
    "a second group for few, 50,000 persons, 10 groups": ("second", 50_000, 10),
}


def answer(kind: str, data: pa.Table, groups: int, epsilon: float, seed: int) -> Any:
    """Ask as anybody would, with every cap chosen privately."""
    asked: dict[str, Any] = {"by": "g", "keys": [str(group) for group in range(groups)]}
    asked |= {"user": "u", "epsilon": epsilon, "within": WITHIN, "confidence": CONFIDENCE}
    asked |= {"simulation": True, "randomness": SimulationRandomness(seed)}
    if kind == "rows":
        return expost.count(data, count_rows=True, **AUTO, **asked)
    asked["max_groups_per_user"] = "auto"
    if kind == "sum":
        return expost.sum(data, "v", bounds=(0, 5000), grid=1, **asked)
    return expost.count(data, **asked)


def truths(kind: str, data: pa.Table, groups: int) -> Any:
    """The values of all groups without caps."""
    users, names = data["u"].to_numpy(), data["g"].to_numpy()
    if kind == "persons":
        names = np.unique(np.stack([users, names]), axis=1)[1]
    weights = data["v"].to_numpy() if kind == "sum" else None
    return np.bincount(names, weights, minlength=groups)


def measure(runs: int, epsilons: list[float], chosen: str) -> Iterator[dict[str, Any]]:
    """One line per table, question and ε."""
    for name, (tail, people, groups, *favourites) in TABLES.items():
        if chosen not in name:
            continue
        generator = np.random.default_rng(people + groups)
        data = table(tail, people, groups, generator, *favourites)
        for kind in ("rows", "sum", "persons"):
            truth = truths(kind, data, groups)
            for epsilon in epsilons:
                answered, right = 0, 0
                for seed in range(runs):
                    told = answer(kind, data, groups, epsilon, seed).answers
                    answered += len(told)
                    right += sum(
                        bool(
                            abs(one.estimate - truth[int(one.group)])
                            <= WITHIN * truth[int(one.group)]
                        )
                        for one in told
                    )
                yield {
                    "table": name,
                    "question": kind,
                    "epsilon": epsilon,
                    "asked": runs * groups,
                    "answered": answered,
                    "right": right,
                }


def main() -> None:
    """Print one line per question."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    options.add_argument("--tables", default="", help="only those whose name has this text")
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    rows = []
    for line in measure(asked.runs, asked.epsilon, asked.tables):
        rows.append(line)
        share = f"{line['right'] / line['answered']:.3f}" if line["answered"] else "–"
        text = "{table:40} {question:8} ε = {epsilon:g}: {answered} of {asked} answered, "
        shown = text.format(**line) + f"right: {share}"
        print(shown, file=sys.stderr if asked.json else sys.stdout, flush=True)
    if asked.json:
        command = f"python -m scripts.capped_truth --runs {asked.runs} --json"
        facts = {"command": command, "within": WITHIN, "confidence": CONFIDENCE, "runs": asked.runs}
        print(json.dumps(facts | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
