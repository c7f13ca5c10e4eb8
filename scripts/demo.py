"""What ``make demo`` shows: a goal, what reaching it cost, and the score without privacy.

Handwritten digits come with scikit-learn; Adult is shown too where ../shared/data has it.
"""

from __future__ import annotations

import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from reproduction.least_epsilon import ADULT_FACTS, Problem, problem_of
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import expost

ADULT = Path(__file__).parent.parent.parent / "shared" / "data" / "adult.csv"


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


def show(title: str, goal: float, rows: Any, y: Any = None, **facts: Any) -> None:
    """Tune once, with fresh randomness, and print the bill."""
    problem = problem_of(rows, y, at_least=goal, **facts)
    trained, scored = problem.rows.places, problem.rows.score_places
    print(f"\n{title}: {trained:,} rows train, {scored:,} rows score; all of them are private.")
    print(f"  the goal              {goal:.0%} right answers")
    began = time.perf_counter()
    result = expost.tune(rows, y, at_least=goal, **facts)
    seconds = time.perf_counter() - began
    if result.passed:
        print(f"  reached               yes, with 90 % confidence, after {seconds:.0f} s")
    else:
        print(f"  reached               no, after {seconds:.0f} s")
    spent = result.spent.epsilon
    print(f"  what it cost          ε = {spent:.2g}")
    print(f"                        {meaning(spent)}")
    print(f"  {'':<21} {bill(spent)}")
    print(f"  without any privacy   {without_privacy(problem):.1%} right answers")


def bill(spent: float) -> str:
    """Draw a cost on a scale from 0 to 4, which is the most that a job may cost by default."""
    filled = max(1, min(40, math.ceil(spent * 10)))
    return f"0 |{'#' * filled}{'.' * (40 - filled)}| 4, the most it was allowed to cost"


def meaning(epsilon: float) -> str:
    """Say what ε means for one person, for someone who guesses with even odds beforehand."""
    right = math.ceil(100 * math.exp(epsilon) / (1 + math.exp(epsilon)))
    return f"(a guess whether a person took part is right in 50 % of the cases, now in {right} %)"


def main() -> None:
    """Show the digits, and Adult where it is found."""
    warnings.simplefilter("ignore")
    print("You say how good the model must be; expost finds out how little privacy that costs.")
    digits = load_digits()
    pictures = digits.images
    show("Handwritten digits", 0.8, pictures, digits.target, classes=10, feature_bounds=[0, 16])
    if ADULT.is_file():
        show("Census income", 0.83, ADULT, **ADULT_FACTS)
    print("\nYour own table: expost tune rows.csv --target COLUMN --at-least 0.8")


if __name__ == "__main__":
    main()
