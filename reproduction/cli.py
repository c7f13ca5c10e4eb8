"""The commands of ``python -m reproduction``. Tests: ``tests/reproduction``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from expost import plots
from expost.cli.output import Json, notes, show
from expost.errors import InvalidInput
from expost.tuning.request.tune_request import parsed
from reproduction import analysts as everyday
from reproduction import causal_language as language
from reproduction import facts as facts_about_adult
from reproduction import figure1 as figure_one
from reproduction import least_epsilon as least
from reproduction import networks as module_tasks
from reproduction import reach as reach_comparison
from reproduction import tightness as tightness_page
from reproduction.counting import tables as counting_tables
from reproduction.table3 import table as table_three
from reproduction.table3.bank import Bank
from reproduction.table3.tasks import GRID, LEVELS, TableTask, task_named

_SYNTHETIC = ",".join(counting_tables.SYNTHETIC)

app = typer.Typer(
    help="Recompute the paper's tables and figures.", no_args_is_help=True, add_completion=False
)

Datasets = Annotated[
    str,
    typer.Option(
        help="Comma-separated data sets: S8000, S16000, S32000, S64000, S128000 (synthetic), "
        "msweb, reddit2008 (real)."
    ),
]
Trials = Annotated[int, typer.Option(help="Number of independent trials.", min=1)]
Jobs = Annotated[int, typer.Option(help="Number of processes.", min=1)]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the real data files, or the file itself. Default: ../shared/data, if "
        "it exists."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the simulation, a whole number ≥ 0.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Write a figure to this file (.png, .pdf, .svg).")
]


@app.callback()
def experiments() -> None:
    """Recompute the paper's tables and figures."""


@app.command()
def figure1(plot: Plot = None, as_json: Json = False) -> None:
    """Figure 1: mean and standard deviation of the number of runs.

    Compares Algorithm 3 with Papernot–Steinke, next to the paper's coordinates. Takes a second.
    """
    plots.check_path(plot)
    if plot is not None:
        draw_figure1(plot)
        notes.print(f"figure: {plot}")
    show(figure_one.as_dict(), as_json=as_json, render=_render_figure1)


@app.command()
def table1(
    datasets: Datasets = _SYNTHETIC,
    trials: Trials = 1000,
    jobs: Jobs = 1,
    data: Data = None,
    seed: Seed = 20130,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Table 1: counts within 10 % under a total ε of 10.

    Six mechanisms, next to the numbers printed in the paper.
    """
    _counting_table(1, datasets, trials, jobs, data, seed, plot, as_json)


@app.command()
def table2(
    datasets: Datasets = _SYNTHETIC,
    trials: Trials = 1000,
    jobs: Jobs = 1,
    data: Data = None,
    seed: Seed = 20130,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Table 2: counts within 10 % under a total (ε, δ) of (10, 1e-6).

    Five Gaussian mechanisms, next to the numbers printed in the paper.
    """
    _counting_table(2, datasets, trials, jobs, data, seed, plot, as_json)


@app.command()
def reach(
    bank: Annotated[Path, typer.Option(help="Bank of trainings (JSON).")],
    levels: Annotated[str, typer.Option(help="Levels: 0.1,0.2 or 0.1:1.0:0.1.")] = "0.1:1.0:0.1",
    bars: Annotated[str, typer.Option(help="Bars, separated by commas.")] = "0.6,0.85,0.9",
    trials: Trials = 400,
    curves: Annotated[str, typer.Option(help="gaussian or dpsgd.")] = "gaussian",
    data: Data = None,
    seed: Seed = 15183,
    as_json: Json = False,
) -> None:
    """What it costs to reach a bar, by method, at a total δ of 1e-6.

    Compares the planned attempts of ``expost tune`` (reach) with Algorithm 3 repeated 20 times,
    doubling and Brownian noise. One schedule serves all bars.
    """
    trained = Bank.load(bank)
    task = task_named(trained.task)
    shared = Path("../shared/data")
    folder = data or (shared if all((shared / name).is_file() for name in task.files) else None)
    if folder is None:
        notes.print("Brownian noise is left out, because it needs the data: pass --data")
    document = reach_comparison.reach_table(
        trained,
        parsed("epsilons", levels),
        parsed("epsilons", bars),
        trials,
        curves=curves,
        seed=seed,
        data=folder,
    )
    show(document, as_json=as_json, render=lambda console: _render_reach(console, document))


def _render_reach(console: Console, document: dict[str, Any]) -> None:
    table = Table(title=f"Reaching a bar, total δ = {document['delta']:g}", title_justify="left")
    for heading in ("bar", "method", "ε (mean)", "± s.e.", "passed", "runs"):
        table.add_column(heading, justify="right")
    for row in document["rows"]:
        table.add_row(
            f"{row['bar']:g}",
            row["method"],
            f"{row['mean_epsilon']:.3f}",
            f"{row['standard_error']:.3f}",
            f"{100 * row['passed']:.4g} %",
            f"{row['runs']:.0f}",
        )
    console.print(table)


@app.command()
def table3(
    task: Annotated[
        str,
        typer.Option(
            help="mnist, gisette, twitter or twitter-blog. The last two use substitute data: "
            "see docs/reproduction.md."
        ),
    ],
    trials: Trials = 100,
    bank: Annotated[
        Path | None,
        typer.Option(help="Bank of trainings (JSON). Default: docs/results/bank_TASK.json."),
    ] = None,
    data: Data = None,
    device: Annotated[
        str, typer.Option(help="Device that trains a bank if there is none: cpu or cuda.")
    ] = "cpu",
    repeats: Annotated[
        int,
        typer.Option(help="Trainings per setting and level, if a bank is trained.", min=1),
    ] = 1,
    seed: Seed = 20130,
    as_json: Json = False,
) -> None:
    """Table 3: what it costs to train a model that passes a bar.

    Compares Algorithm 3, doubling and Brownian noise, next to the numbers printed in the paper.
    Trials draw from a bank of trainings; if there is none, one is trained from --data.
    """
    chosen = task_named(task)
    shared = Path("../shared/data")
    folder = data or (shared if all((shared / name).is_file() for name in chosen.files) else None)
    if folder is None:
        notes.print(
            "Brownian noise is left out, because it needs the data: pass --data with "
            f"{', '.join(chosen.files)}"
        )
    else:
        chosen.paths(folder)  # raise an error now, not after the first rows
    trained = _bank(chosen, bank, data, device, repeats)
    document = table_three.table3(
        task, trained, trials, seed=seed, data=folder, say=lambda line: notes.print(line)
    )
    show(document, as_json=as_json, render=lambda console: _render_table3(console, document))


@app.command()
def tightness(
    longer: Annotated[
        bool, typer.Option("--longer", help="Search ten times as long, and record the gain.")
    ] = False,
    render: Annotated[
        bool,
        typer.Option(
            "--render", help="Only redraw the figure and tables from the committed results."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """How tight the charges are: a search for counterexamples (about 90 seconds).

    Writes docs/results/tightness.json, docs/figures/tightness.png and the tables of
    docs/tightness.md.
    """
    record = tightness_page.compute(more=longer, render=render)
    violated = sum(row["violated"] for row in [*record["points"], *record["others"]])
    summary = {"points": len(record["points"]), "violated": violated}
    text = f"{summary['points']} points, {violated} violated"
    show(summary, as_json=as_json, render=lambda console: console.print(text))


@app.command(name="least-epsilon")
def least_epsilon(
    task: Annotated[str, typer.Option(help="One of " + ", ".join(least.TASKS) + ".")],
    scoring: Annotated[
        str,
        typer.Option(help="public: exact, on rows that need no protection; private: held-out."),
    ] = "public",
    runs: Annotated[int, typer.Option(help="Number of runs of expost.", min=1)] = 20,
    methods: Annotated[
        str, typer.Option(help="Comma-separated: " + ", ".join(least.METHODS) + ".")
    ] = ",".join(least.METHODS),
    bars: Annotated[str | None, typer.Option(help="Bars, separated by commas.")] = None,
    data: Data = None,
    jobs: Jobs = 2,
    seed: Seed = 15183,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Let diffprivlib and Opacus train what their committed accuracies lack: hours.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """The least ε that reaches each bar, by method, at a total δ of 1e-6.

    expost runs with its defaults, the same for all bars; it needs the task's files of data. The
    rows of other methods are the committed ones.
    """
    document = least.least_epsilon(
        task,
        scoring,
        data or Path("../shared/data"),
        methods=[name.strip() for name in methods.split(",") if name.strip()],
        bars=None if bars is None else parsed("epsilons", bars),
        runs=runs,
        seed=seed,
        jobs=jobs,
        fresh=fresh,
    )
    for note in document["notes"]:
        notes.print(note)
    show(document, as_json=as_json, render=lambda console: _render_least(console, document))


@app.command()
def networks(
    tasks: Annotated[
        str, typer.Option(help="Comma-separated: " + ", ".join(module_tasks.TASKS) + ".")
    ] = ",".join(module_tasks.TASKS),
    runs: Annotated[int, typer.Option(help="Number of runs of a task.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="The longest time of a run.", min=1)] = 600,
    data: Data = None,
    seed: Seed = 15183,
    into: Annotated[
        Path | None, typer.Option(help="Replace the rows of these tasks in this JSON file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What networks cost: progressive training of modules to a goal, with defaults."""
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    folder = data or Path("../shared/data")
    document = module_tasks.networks(names, folder, runs=runs, seed=seed, seconds=seconds)
    if into is not None:
        module_tasks.write(into, document)
    show(document, as_json=as_json, render=lambda console: _render_networks(console, document))


def _render_networks(console: Console, document: dict[str, Any]) -> None:
    """Print what each network cost."""
    table = Table(title="Progressive training of networks", title_justify="left")
    for heading in ("task", "goal", "scoring", "ε (mean)", "largest", "passed", "runs"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for row in document["rows"]:
        numbers = [
            "–" if row[name] is None else f"{row[name]:.3g}"
            for name in ("epsilon", "largest", "passed", "runs")
        ]
        table.add_row(row["task"], f"{row['goal']:g}", row["scoring"], *numbers)
    console.print(table)


@app.command(name="causal-language")
def causal_language(
    methods: Annotated[
        str, typer.Option(help="Separated by semicolons: " + "; ".join(language.METHODS) + ".")
    ] = ";".join(language.METHODS[:2]),
    runs: Annotated[int, typer.Option(help="Number of runs.", min=1)] = 3,
    jobs: Jobs = 2,
    seed: Seed = 15183,
    into: Annotated[Path | None, typer.Option(help="Write the result to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """A causal language model fine-tuned to the loss that Opacus reaches at ε = 8.

    The search of Opacus over 20 settings is free; that of expost is part of what it is charged.
    """
    names = [name.strip() for name in methods.split(";") if name.strip()]
    document = language.causal_language(names, runs=runs, seed=seed, jobs=jobs)
    if into is not None:
        text = json.dumps(document, indent=1, ensure_ascii=False)
        into.write_text(text + "\n", encoding="utf-8")
    show(document, as_json=as_json, render=lambda console: _render_language(console, document))


def _render_language(console: Console, document: dict[str, Any]) -> None:
    """Print what each method was charged."""
    best = ", ".join(f"{loss:.3f}" for loss in document["opacus"]["best"])
    table = Table(
        title=f"To the loss of Opacus at ε = {document['opacus']['epsilon']:g} ({best}), "
        f"δ = {document['delta']:g}",
        title_justify="left",
    )
    for heading in ("method", "ε (mean)", "95 %", "passed", "runs"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in document["methods"]:
        numbers = [f"{row[name]:.3g}" for name in ("epsilon", "quantile_95", "passed")]
        table.add_row(row["method"], *numbers, str(len(row["runs"])))
    console.print(table)


def _render_least(console: Console, document: dict[str, Any]) -> None:
    """Print the least ε of each method."""
    table = Table(
        title=f"Least ε, {document['task']}, {document['scoring']} scoring, total "
        f"δ = {document['delta']:g} ({document['runs']} runs)",
        title_justify="left",
    )
    for heading in ("bar", "method", "ε (mean)", "± s.e.", "passed"):
        table.add_column(heading, justify="right")
    for row in document["rows"]:
        table.add_row(
            f"{row['bar']:g}",
            row["method"],
            f"{row['mean_epsilon']:.4f}",
            f"{row['standard_error']:.4f}",
            f"{100 * row['passed']:.4g} %",
        )
    console.print(table)


def _bank(task: TableTask, bank: Path | None, data: Path | None, device: str, repeats: int) -> Bank:
    """Load the given bank or the one in the repository, or train one from the given data."""
    stored = bank or Path("docs/results") / f"bank_{task.name}.json"
    if bank is not None or stored.is_file():
        return Bank.load(stored)
    if data is None:
        raise InvalidInput(
            "bank",
            "none",
            "pass --bank FILE (docs/results has ours; reproduction/table3/make_bank.py trains "
            f"one), or --data with {task.files[0]} to train one now",
        )
    from reproduction.table3.bank_builder import Builder, empty_bank

    split = task.load(data)
    fresh = empty_bank(task, split, GRID, task.sha256(data), device)
    builder = Builder(
        task,
        split,
        fresh,
        save=lambda filled: None,
        device=device,
        say=lambda line: notes.print(line),
    )
    builder.build(LEVELS, repeats)
    return fresh


def _render_table3(console: Console, document: dict[str, Any]) -> None:
    """Print Table 3 for one task."""
    console.print(
        f"Table 3, {document['title']} ({document['exactness']}; "
        f"{document['trials']} trials, δ = {document['delta']:g})"
    )
    for bar, start in dict.fromkeys((row["bar"], row["levels_from"]) for row in document["rows"]):
        table = Table(
            title=f"bar {bar:g} ({document['metric']}), levels from {start:g}", title_justify="left"
        )
        for heading in ("mechanism", "charge", "ε′", "mean ε", "±", "pass", "paper"):
            table.add_column(
                heading,
                justify="left" if heading in ("mechanism", "charge") else "right",
                no_wrap=True,
            )
        for row in document["rows"]:
            if (row["bar"], row["levels_from"]) == (bar, start):
                table.add_row(*_cells(row), style="red" if row["guarantee"] == "none" else None)
        console.print(table)
    console.print("no-dropping: a diagnostic that has no privacy guarantee.", style="red")
    console.print("doubling: the best of several run-count distributions, chosen in hindsight.")
    if document["exactness"] != "exact":
        console.print(f"Not the paper's data ({document['exactness']}).")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of Table 3 as text."""
    return (
        row["mechanism"],
        row["charge"],
        "–" if row["overhead"] is None else f"{row['overhead']:.3g}",
        f"{row['mean']:.3f}",
        "–" if row["se"] is None else f"{row['se']:.3f}",
        f"{row['pass_rate']:.2f}",
        "–" if row["paper"] is None else f"{row['paper']:g}",
    )


def _counting_table(
    number: int,
    datasets: str,
    trials: int,
    jobs: int,
    data: Path | None,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Compute and show Table 1 or 2."""
    plots.check_path(plot)
    names = [name.strip() for name in datasets.split(",") if name.strip()]
    rows = counting_tables.table(number, names, trials, seed=seed, folder=data, jobs=jobs)
    if plot is not None:
        draw_counting(number, rows, plot)
        notes.print(f"figure: {plot}")
    document = {
        "table": number,
        "trials": trials,
        "seed": seed,
        "rows": [vars(row) for row in rows],
    }
    show(document, as_json=as_json, render=lambda console: _render_counting(console, number, rows))


def _render_counting(
    console: Console, number: int, rows: list[counting_tables.CountingRow]
) -> None:
    """Print Table 1 or 2."""
    table = Table(
        title=f"Table {number}: counts answered within 10 % ({rows[0].trials} trials)",
        title_justify="left",
    )
    for heading in ("data", "mechanism", "answers", "±", "precision", "paper", "precision"):
        table.add_column(
            heading, justify="left" if heading in ("data", "mechanism") else "right", no_wrap=True
        )
    for row in rows:
        paper = (
            ("–", "–")
            if row.paper_answers is None
            else (f"{row.paper_answers:g}", f"{row.paper_precision:g}")
        )
        table.add_row(
            row.dataset,
            row.mechanism,
            f"{row.answers_mean:.2f}",
            f"{row.answers_sd:.2f}",
            "–" if row.precision_mean is None else f"{row.precision_mean:.3f}",
            *paper,
            style=None if row.private else "red",
        )
    console.print(table)
    console.print(
        "no-dropping: reproduces the paper's column, but has no privacy guarantee.", style="red"
    )


def draw_counting(number: int, rows: list[counting_tables.CountingRow], path: Path) -> None:
    """Draw the answers by mechanism and data set, and the paper's numbers as crosses."""
    drawn, (axes,) = plots.figure(1, width=8)
    names = list(dict.fromkeys(row.dataset for row in rows))
    mechanisms = list(dict.fromkeys(row.mechanism for row in rows))
    width = 0.8 / len(mechanisms)
    for place, mechanism in enumerate(mechanisms):
        chosen = [row for row in rows if row.mechanism == mechanism]
        centres = [
            names.index(row.dataset) + (place - len(mechanisms) / 2 + 0.5) * width for row in chosen
        ]
        colour = "#9b2226" if not chosen[0].private else plots.INK[place % len(plots.INK)]
        label = mechanism if chosen[0].private else f"{mechanism} (no guarantee)"
        axes.bar(
            centres,
            [row.answers_mean for row in chosen],
            width * 0.9,
            color=colour,
            alpha=0.85,
            label=label,
        )
        printed = [
            (x, row.paper_answers)
            for x, row in zip(centres, chosen, strict=True)
            if row.paper_answers is not None
        ]
        if printed:
            axes.plot(*zip(*printed, strict=True), "kx", markersize=5)
    axes.plot([], [], "kx", markersize=5, label="as printed in the paper")
    axes.set(
        yscale="log", xticks=range(len(names)), xticklabels=names, ylabel="answers within 10 %"
    )
    axes.set_title(f"Table {number}", loc="left")
    axes.legend(fontsize=7, ncols=2)
    plots.save(drawn, path)


def _render_figure1(console: Console) -> None:
    """Print both curves of Figure 1."""
    for name, curve in figure_one.points().items():
        table = Table(
            title=f"{name}: number of runs (ε = {figure_one.EPSILON}, ε′ = {figure_one.OVERHEAD})",
            title_justify="left",
        )
        for heading in (
            "copies" if name == "random-dropping" else "γ",
            "mean",
            "sd",
            "paper's mean",
            "paper's sd",
        ):
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
    """Draw both curves of Figure 1, and the paper's coordinates as crosses."""
    drawn, (axes,) = plots.figure(1)
    labels = {
        "random-dropping": "random dropping (Algorithm 3)",
        "repeat-and-select": "Papernot–Steinke, η = 0.1",
    }
    for colour, (name, curve) in zip(plots.INK, figure_one.points().items(), strict=False):
        axes.plot(
            [p.mean for p in curve],
            [p.deviation for p in curve],
            "o-",
            color=colour,
            markersize=4,
            label=labels[name],
        )
        paper = [(p.paper_mean, p.paper_deviation) for p in curve]
        axes.plot(
            *zip(*paper, strict=True),
            "x",
            color=colour,
            markersize=7,
            label="as printed in the paper",
        )
    axes.set(xlabel="expected number of runs", ylabel="standard deviation")
    axes.set_title("Number of runs, ε = 0.1, ε′ = 0.01", loc="left")
    axes.legend(fontsize=8)
    plots.save(drawn, path)


@app.command()
def facts(
    data: Data = None,
    trials: Trials = 200,
    tunings: Annotated[int, typer.Option(help="Number of tunings per goal.", min=0)] = 50,
    as_json: Json = False,
) -> None:
    """Facts about Adult: how often they are right, and what a tuning that buys them costs."""
    path = facts_about_adult.adult(data)
    described = [
        facts_about_adult.facts_table(path, epsilon, trials) for epsilon in facts_about_adult.GOALS
    ]
    tuned = [facts_about_adult.tune_table(path, goal, tunings) for goal in (0.83, 0.8) if tunings]
    document = {"describe": described, "tune": tuned}

    def render(console: Console) -> None:
        for rows in (described, tuned):
            if rows:
                table = Table(*rows[0])
                for row in rows:
                    table.add_row(
                        *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values())
                    )
                console.print(table)

    show(document, as_json=as_json, render=render)


@app.command()
def analysts(
    tasks: Annotated[str, typer.Option(help="Comma-separated tasks.")] = ",".join(everyday.TASKS),
    runs: Annotated[int, typer.Option(help="Runs per row.", min=1)] = 20,
    as_json: Json = False,
) -> None:
    """Everyday questions: what is answered and right, and what it costs."""
    rows = everyday.analyst_rows(tasks.split(","), runs)

    def render(console: Console) -> None:
        table = Table("task", "method", "ε", "spent", "answered", "right", "coverage")
        for row in rows:
            numbers = (row[name] for name in ("epsilon", "spent", "answered", "right", "coverage"))
            table.add_row(
                row["task"], row["method"], *("–" if n is None else f"{n:.4g}" for n in numbers)
            )
        console.print(table)

    show({"rows": rows}, as_json=as_json, render=render)
