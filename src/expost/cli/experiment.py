"""``expost experiment``: the paper's tables and figures, recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from expost import plots
from expost.cli.output import Json, notes, show
from expost.experiments import figure1 as figure_one

app = typer.Typer(help="The paper's tables and figures, recomputed.", no_args_is_help=True)

Plot = Annotated[Path | None, typer.Option("--plot", help="Write a figure to this file (.png, .pdf, .svg).")]


@app.callback()
def experiments() -> None:
    """The paper's tables and figures, recomputed."""


@app.command()
def figure1(plot: Plot = None, as_json: Json = False) -> None:
    """Mean and standard deviation of the number of runs: Algorithm 3 and Papernot–Steinke."""
    plots.check_path(plot)
    if plot is not None:
        draw_figure1(plot)
        notes.print(f"figure: {plot}")
    show(figure_one.as_dict(), as_json=as_json, render=_render_figure1)


def _render_figure1(console: Console) -> None:
    for name, curve in figure_one.points().items():
        table = Table(
            title=f"{name}: number of runs (ε = {figure_one.EPSILON}, ε′ = {figure_one.OVERHEAD})", title_justify="left"
        )
        for heading in ("copies" if name == "random-dropping" else "γ", "mean", "sd", "paper's mean", "paper's sd"):
            table.add_column(heading, justify="right")
        for point in curve:
            table.add_row(
                f"{point.parameter:.4g}",
                f"{point.mean:.3f}",
                f"{point.deviation:.2f}",
                f"{point.paper_mean:.3f}",
                f"{point.paper_deviation:.2f}",
            )
        console.print(table)


def draw_figure1(path: Path) -> None:
    """Both curves, and the paper's coordinates as crosses."""
    drawn, (axes,) = plots.figure(1)
    labels = {"random-dropping": "random dropping (Algorithm 3)", "repeat-and-select": "Papernot–Steinke, η = 0.1"}
    for colour, (name, curve) in zip(plots.INK, figure_one.points().items(), strict=False):
        axes.plot([p.mean for p in curve], [p.deviation for p in curve], "o-", color=colour, markersize=4, label=labels[name])
        paper = [(p.paper_mean, p.paper_deviation) for p in curve]
        axes.plot(*zip(*paper, strict=True), "x", color=colour, markersize=7, label="as printed in the paper")
    axes.set(xlabel="expected number of runs", ylabel="standard deviation")
    axes.set_title("Number of runs, ε = 0.1, ε′ = 0.01", loc="left")
    axes.legend(fontsize=8)
    plots.save(drawn, path)
