"""What ``make demo`` shows: a goal, what reaching it cost, and what it costs otherwise.

Handwritten digits come with scikit-learn; Adult is shown too where ../shared/data has it. What a
fixed ε costs with other libraries was measured beforehand (docs/results/fixed_epsilon.json).
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from reproduction.fixed_epsilon import SETTINGS, Accuracies
from reproduction.least_tasks import ADULT_FACTS, DELTA, Problem, problem_of
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import expost
from expost import plots

ROOT = Path(__file__).parent.parent
ADULT = ROOT.parent / "shared" / "data" / "adult.csv"
PICTURE = Path("out") / "demo.png"
OTHERS = {"opacus": "Opacus", "diffprivlib": "diffprivlib"}


@dataclass(frozen=True)
class Shown:
    """What the picture needs of one table."""

    title: str
    goal: float
    costs: dict[str, float]


def without_privacy(problem: Problem) -> float:
    """Return the score of the same kind of model, trained and scored without any noise."""
    assert problem.recipe.features is not None
    rows = problem.rows
    train, test = (
        problem.recipe.features.transform_cells(np.asarray(X).reshape(len(X), -1))
        for X in (rows.X, rows.score_X)
    )
    model = LogisticRegression(C=30.0, max_iter=300).fit(train, rows.y)
    return float(model.score(test, rows.score_y))


def fixed(task: str, goal: float) -> dict[str, float | None]:
    """Return the least fixed ε of other libraries; None if they did not reach the goal."""
    found: dict[str, float | None] = {}
    for method, name in OTHERS.items():
        rows = Accuracies.load(task, method).rows([goal]) if task in SETTINGS else []
        found[name] = rows[0]["mean_epsilon"] if rows else None
    return found


def show(task: str, title: str, goal: float, rows: Any, y: Any = None, **facts: Any) -> Shown:
    """Tune once, with fresh randomness, and print the bill."""
    facts["delta"] = DELTA  # as the others had
    problem = problem_of(rows, y, at_least=goal, **facts)
    trained, scored = problem.rows.places, problem.rows.score_places
    print(f"\n{title}: {trained:,} rows train, {scored:,} rows score; all of them are private.")
    print(f"  the goal                {goal:.0%} right answers")
    began = time.perf_counter()
    result = expost.tune(rows, y, at_least=goal, **facts)
    seconds = time.perf_counter() - began
    verdict = "yes, with 90 % confidence" if result.passed else "no"
    print(f"  reached                 {verdict}, after {seconds:.0f} s")
    spent = result.spent.epsilon
    print(f"  what it cost            ε = {spent:.2g}")
    print(f"                          {meaning(spent)}")
    costs = {"expost": spent} if result.passed else {}
    for number, (name, epsilon) in enumerate(fixed(task, goal).items()):
        label = "" if number else "a fixed ε would cost"
        words = "not reached" if epsilon is None else f"ε = {epsilon:g}"
        print(f"  {label:<23} {words} with {name}")
        if epsilon is not None:
            costs[name] = epsilon
    print(f"  without any privacy     {without_privacy(problem):.1%} right answers")
    return Shown(title, goal, costs)


def meaning(epsilon: float) -> str:
    """Say what ε means for one person, for someone who guesses with even odds beforehand."""
    right = math.ceil(100 * math.exp(epsilon) / (1 + math.exp(epsilon)))
    return f"(guessing who took part is right in at most {right} % of the cases; 50 % without it)"


def draw(tables: list[Shown], path: Path) -> None:
    """Draw what the goals cost, by library."""
    drawn, axes = plots.figure(len(tables), width=4.4, height=2.6)
    for table, axis in zip(tables, axes, strict=True):
        names = list(reversed(table.costs))
        epsilons = [table.costs[name] for name in names]
        colours = [plots.INK[0] if name == "expost" else "#999999" for name in names]
        axis.scatter(epsilons, names, color=colours, s=90, zorder=3)
        for name, epsilon in zip(names, epsilons, strict=True):
            axis.annotate(
                f"{epsilon:.2g}", (epsilon, name), (8, 0), textcoords="offset points", va="center"
            )
        axis.set(xscale="log", xlim=(min(epsilons) / 3, max(epsilons) * 3), ylim=(-0.6, 2.6))
        axis.set_xticks([], minor=True)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_xlabel("privacy cost ε (less is better)")
        axis.set_title(f"{table.title}: {table.goal:.0%} right answers", loc="left", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    plots.save(drawn, path)


def main() -> None:
    """Show the digits, and Adult where it is found."""
    warnings.simplefilter("ignore")
    print("You say how good the model must be; expost finds out how little privacy that costs.")
    digits = load_digits()
    facts = {"classes": 10, "feature_bounds": [0, 16]}
    tables = [show("digits", "Handwritten digits", 0.8, digits.images, digits.target, **facts)]
    if ADULT.is_file():
        tables.append(show("adult", "Census income", 0.83, ADULT, **ADULT_FACTS))
    print(
        "\nA fixed ε is chosen before training. Those above are the least that reach the goal in 19"
    )
    print("of 20 trials, measured beforehand; the search for them and all their scores were free.")
    draw(tables, PICTURE)
    print(f"\nThe picture: {PICTURE}")
    print("Your own table: expost tune rows.csv --target COLUMN --at-least 0.8")


if __name__ == "__main__":
    main()
