"""``expost plan``: what a tuning job would cost, before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from expost import plots
from expost.cli.output import Json, notes, show
from expost.errors import InvalidInput
from expost.selection.plan import OVERHEADS, Plan, charges_at
from expost.selection.plan import plan as make_plan

_MOST_LEVELS = 1000


def plan(
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
    plot: Annotated[
        Path | None,
        typer.Option(help="Write a figure: charge against overhead, and the number of runs."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan a tuning job: charges by level, expected runs, chances. Touches no data."""
    plots.check_path(plot)
    job = make_plan(
        parse_levels(epsilons),
        configurations,
        delta=delta,
        overhead=overhead,
        repeats=repeats,
        sampling_rate=sampling_rate,
        epochs=epochs,
        target_charge=target_charge,
        max_runs=max_runs,
    )
    if plot is not None:
        draw(job, plot)
        notes.print(f"figure: {plot}")
    show(job.as_dict(), as_json=as_json, render=lambda console: _render(console, job))


def parse_levels(text: str) -> list[float]:
    """Levels from ``0.1,0.2`` or ``first:last:step``."""
    try:
        if ":" in text:
            first, last, step = (float(part) for part in text.split(":"))
            count = round((last - first) / step)
            if count >= _MOST_LEVELS:
                raise OverflowError
            return [round(first + step * place, 12) for place in range(count + 1)]
        return [float(part) for part in text.split(",") if part.strip()]
    except (ValueError, ZeroDivisionError, OverflowError):
        valid = f"give at most {_MOST_LEVELS} numbers, like 0.1,0.2,0.4 or first:last:step"
        raise InvalidInput("epsilons", text, valid) from None


def _render(console: Console, job: Plan) -> None:
    facts = job.as_dict()
    how = " (recommended)" if job.recommended else ""
    console.print(
        f"[bold]Plan[/bold]: {len(job.levels)} levels × {job.configurations} settings × {job.repeats} copies, δ = {job.delta:g}, "
        f"overhead {job.overhead:g}{how} of the first drop rate (ε′ = {facts['overhead_epsilon']:.3g})"
    )
    table = Table(
        title="What releasing a winner of each level would cost (ε at this δ)", title_justify="left"
    )
    for heading in ("level ε", "expost", "paper", "P–S", "compose", "keep", "order", "shift"):
        table.add_column(heading, justify="right")
    for level in job.levels:
        table.add_row(
            f"{level.epsilon:g}",
            f"[bold]{level.charge:.3f}[/bold]",
            f"{level.charge_paper:.3f}",
            f"{level.charge_repeat_and_select:.3f}",
            f"{level.charge_composition:.2f}",
            f"{100 * level.keep_probability:.2g} %",
            f"{level.order:g}",
            f"{level.shift:.3g}",
        )
    console.print(table)
    runs = facts["runs"]
    console.print(
        f"Runs: {facts['expected_runs']:.3g} expected; median {runs['p50']}, 90 % ≤ {runs['p90']}, 99 % ≤ {runs['p99']}, "
        f"at most {runs['max']}.\n"
        f"A draw keeps nothing with chance {job.counts.nothing:.3g} and is then repeated, free; "
        f"the cheapest level runs at least once with chance {job.cheapest_runs:.3g}."
    )
    if job.minimum_drop_level:
        console.print(
            f"To stay within the wanted number of runs: minimum_drop_level = {job.minimum_drop_level}."
        )
    console.print(
        "[dim]paper: its bound as published. P–S: Papernot–Steinke tuning of this level alone with as many expected runs. "
        "compose: running every setting of the level. keep: chance of a copy in one draw.[/dim]"
    )


def draw(job: Plan, path: Path) -> None:
    """Left: charge against overhead for up to four levels. Right: how likely more than n runs are."""
    drawn, (left, right) = plots.figure(2)
    shown = np.unique(
        np.linspace(0, len(job.levels) - 1, min(4, len(job.levels))).round().astype(int)
    )
    fractions = sorted({*OVERHEADS[::2], job.overhead})
    sharp, paper = zip(*(charges_at(job, fraction) for fraction in fractions), strict=True)
    for colour, place in zip(plots.INK, shown, strict=False):
        label = f"level ε = {job.levels[place].epsilon:g}"
        left.plot(fractions, [row[place] for row in sharp], color=colour, label=label)
        left.plot(
            fractions, [row[place] for row in paper], color=colour, linestyle=":", linewidth=1
        )
    left.plot([], [], color="grey", linestyle=":", label="the paper's bound")
    left.axvline(job.overhead, color="black", linewidth=0.8, alpha=0.5)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="overhead ε′ / first drop rate",
        ylabel=f"charge ε at δ = {job.delta:g}",
    )
    left.set_title("What a winner costs", loc="left")
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("{x:g}")
    left.tick_params(axis="y", which="minor", labelsize=7)
    left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    survival = np.maximum(1 - job.counts.cumulative, 1e-6)
    start = np.maximum(job.counts.values, 0.8)
    right.step(start, survival, where="post", color=plots.INK[0])
    for chance, style in ((0.5, "-"), (0.9, "--"), (0.99, ":")):
        runs = job.counts.quantile(chance)
        right.axvline(
            runs, color=plots.INK[1], linestyle=style, linewidth=1, label=f"{chance:.0%} ≤ {runs}"
        )
    right.set(
        xscale="log",
        yscale="log",
        ylim=(1e-4, 1.2),
        xlabel="number of runs n",
        ylabel="chance of more than n runs",
    )
    right.set_title("How many runs to expect", loc="left")
    right.legend(fontsize=8)
    plots.save(drawn, path)
