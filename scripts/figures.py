"""Draw figures of the README and the docs (``python -m scripts.figures``, ``make figures``).

The audit and the tightness figures are drawn by ``scripts.audit`` and ``reproduction tightness``.
"""

from __future__ import annotations

from pathlib import Path

from reproduction.cli import draw_figure1

from expost import plots
from expost.cli.plan import draw
from expost.selection.plan import Plan, plan

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


def main() -> None:
    """Draw the figures."""
    FIGURES.mkdir(exist_ok=True)
    job = plan([round(0.1 * level, 1) for level in range(1, 11)], 162, delta=1e-6, overhead=0.05)
    charges(FIGURES / "charges.png", job)
    draw(job, FIGURES / "plan.png")
    draw_figure1(FIGURES / "figure1.png")


if __name__ == "__main__":
    main()
