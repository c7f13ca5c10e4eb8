"""Draw figures of the README and the docs (``python -m scripts.figures``, ``make figures``).

The audit and the tightness figures are drawn by ``scripts.audit`` and ``reproduction tightness``.
"""

from __future__ import annotations

import math
from pathlib import Path

from reproduction.cli import draw_figure1

from expost import plots
from expost.selection.plan import Plan, plan_levels

FIGURES = Path(__file__).parent.parent / "docs" / "figures"


def charges(path: Path, job: Plan) -> None:
    """Draw the charge of a winner at each level, by the paper's bound and by ours."""
    drawn, (axes,) = plots.figure(1, width=6)
    levels = [level.epsilon for level in job.levels]
    series = [
        ("paper, as published", "charge_paper", "s:"),
        ("expost (sharp)", "charge", "o-"),
        ("Papernot–Steinke, that level alone", "charge_repeat_and_select", "^--"),
    ]
    for colour, (label, key, style) in zip(plots.INK, series, strict=False):
        axes.plot(
            levels,
            [getattr(level, key) for level in job.levels],
            style,
            color=colour,
            label=label,
            markersize=4,
        )
    axes.set(xlabel="ε of the winner's level", ylabel=f"charge ε at δ = {job.delta:g}")
    axes.set_title("What a winner costs, before and after", loc="left")
    axes.legend(fontsize=8)
    plots.save(drawn, path)


def certainty(path: Path) -> None:
    """The largest certainty of an observer who starts at one half: e^ε / (1 + e^ε)."""
    drawn, (axes,) = plots.figure(1, width=6.4, height=3.2)
    epsilons = [step / 50 for step in range(301)]
    axes.plot(epsilons, [100 * sure(each) for each in epsilons], color=plots.INK[0])
    for epsilon in (0.1, 1.0, 3.0):
        axes.plot([epsilon], [100 * sure(epsilon)], "o", color=plots.INK[3], markersize=5)
        axes.annotate(
            f"ε = {epsilon:g}: {math.ceil(1000 * sure(epsilon)) / 10:g} %",
            (epsilon, 100 * sure(epsilon)),
            xytext=(8, -10 if epsilon > 0.5 else -20),
            textcoords="offset points",
            fontsize=8,
        )
    axes.axhline(50, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="ε", ylabel="certainty at most, in %", xlim=(0, 6), ylim=(42, 102))
    axes.set_title("What an observer can conclude about one person, starting at 50 %", loc="left")
    plots.save(drawn, path)


def sure(epsilon: float) -> float:
    """Posterior chance at the limit of ε-DP, from even odds."""
    return 1 / (1 + math.exp(-epsilon))


def main() -> None:
    """Draw the figures."""
    FIGURES.mkdir(exist_ok=True)
    epsilons = [round(0.1 * level, 1) for level in range(1, 11)]
    job = plan_levels(epsilons, 162, delta=1e-6, overhead=0.05)
    charges(FIGURES / "charges.png", job)
    certainty(FIGURES / "certainty.png")
    goal = job.to_goal().goal
    assert goal is not None
    plots.draw_reach(FIGURES / "plan.png", goal.reach, delta=1e-6)
    draw_figure1(FIGURES / "figure1.png")


if __name__ == "__main__":
    main()
