"""``expost plan``: what a tuning job would cost, before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost import plots
from expost.cli.output import Json, notes, show, shown_up
from expost.cli.tune_output import few_digits, reach_table
from expost.selection.attempt_planner import GoalPlan
from expost.selection.plan import Plan, plan_levels
from expost.tuning.request.tune_request import parsed


def plan_command(
    epsilons: Annotated[
        str, typer.Option(help="Privacy levels, ascending: 0.1,0.2,0.4 or 0.1:1.0:0.1.")
    ],
    configurations: Annotated[int, typer.Option(help="Settings to tune over at each level.")],
    delta: Annotated[float, typer.Option(help="δ of the levels and of the charges.")] = 1e-6,
    overhead: Annotated[
        float | None,
        typer.Option(
            help="ε′ as a fraction of the first level's drop rate; recommended if left out."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Copies of each setting.")] = 1,
    sampling_rate: Annotated[
        float | None, typer.Option(help="DP-SGD levels: chance of an example to be in a batch.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="DP-SGD levels: epochs of a training.")
    ] = None,
    target_charge: Annotated[
        float | None, typer.Option(help="Find the overhead that charges the first level this much.")
    ] = None,
    max_runs: Annotated[
        int | None, typer.Option(help="Drop more until 99 % of draws make at most this many runs.")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option(help="The most attempts to reach a goal; planned if left out.")
    ] = None,
    expected_shares: Annotated[
        str | None,
        typer.Option(
            help="Shares of the settings that may pass, e.g. 0.2,0.05; default: a spread."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write a figure: charge against overhead, and the number of runs."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan a tuning job: chance of passing, total ε, runs; then charges by level. Reads no data."""
    plots.check_path(plot)
    levels = parsed("epsilons", epsilons)
    plan = plan_levels(
        levels,
        configurations,
        delta=delta,
        overhead=overhead,
        repeats=repeats,
        sampling_rate=sampling_rate,
        epochs=epochs,
        target_charge=target_charge,
        max_runs=max_runs,
    )
    plan = plan.to_goal(attempts, parsed("expected_shares", expected_shares))
    goal = plan.goal
    assert goal is not None
    if plot is not None:
        plots.draw_reach(plot, goal.reach, delta=delta)
        notes.print(f"figure: {plot}")
    show(plan.as_dict(), as_json=as_json, render=lambda console: _render(console, plan, goal))


def _render(console: Console, job: Plan, goal: GoalPlan) -> None:
    console.print(reach_table(goal.reach))
    console.print(
        f"Up to {len(goal.schedule)} attempts until one passes, δ = {job.delta:g} in total. A miss "
        f"costs ε = {shown_up(goal.misses[0])} (first) to {shown_up(goal.misses[-1])} (last); "
        f"all attempts together at worst {shown_up(goal.worst_case, 2)}."
    )
    table = Table(
        title="ε of releasing a winner of each level, in one request", title_justify="left"
    )
    for heading in ("level ε", "to a goal", "best of all", "paper", "P–S", "compose"):
        table.add_column(heading, justify="right")
    to_a_goal = [None] * (len(job.levels) - len(goal.first_charges)) + goal.first_charges
    for level, charge in zip(job.levels, to_a_goal, strict=True):
        table.add_row(
            f"{level.epsilon:g}",
            "–" if charge is None else Text(shown_up(charge), "bold"),
            shown_up(level.charge),
            shown_up(level.charge_paper),
            shown_up(level.charge_repeat_and_select),
            shown_up(level.charge_composition, 2),
        )
    console.print(table)
    runs = job.as_dict()["runs"]
    how = " (recommended)" if job.recommended else ""
    console.print(
        f"Best of all (Algorithm 3, overhead {job.overhead:g}{how}): "
        f"{few_digits(job.counts.mean)} runs expected, 90 % ≤ {runs['p90']}, at most {runs['max']}."
    )
    if job.minimum_drop_level:
        console.print(
            "To stay within the wanted number of runs: "
            f"minimum_drop_level = {job.minimum_drop_level}."
        )
    console.print(
        "to a goal: in the first attempt (Algorithm 2). best of all: without a goal. paper: the "
        "published bound for it. P–S: Papernot–Steinke tuning of this level alone with as many "
        "expected runs. compose: running every setting of the level.",
        style="dim",
    )
