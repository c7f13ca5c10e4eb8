"""What ``expost tune`` shows: the plan of a job, and its result.

Tests: ``tests/cli/test_tune_cli.py``, ``tests/cli/test_tune_plan.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from expost.cli.certificate_words import method_words
from expost.cli.output import shown_up
from expost.cli.reach_table import duration, few_digits, reach_table
from expost.cli.tuning_words import bound_text
from expost.rationals import charge_text
from expost.tuning.certificate import Tuned
from expost.tuning.forecast import Forecast
from expost.tuning.job_folder import CERTIFICATE, PICTURE


def announce(console: Console, job: Forecast, twice_the_holdout: str = "") -> None:
    """Print the forecast: first the chance of passing, then the price, then the details.

    ``twice_the_holdout`` says how to score on twice as many rows.
    """
    for text in job.warnings:
        console.print(f"[yellow]warning:[/yellow] {text}", highlight=False)
    for text in job.reasons:
        console.print(text, highlight=False)
    if job.reasons:
        console.print(
            f"[bold]Plan[/bold]: {_up_to(job.attempts, 'request')}.\n{_to_start(job)}",
            highlight=False,
        )
        return
    if job.schedule is None:
        console.print(
            f"[bold]Plan[/bold]: one request over {len(job.candidates)} candidates, "
            f"{few_digits(job.expected_runs)} runs expected, about {duration(job.seconds)}.\n"
            f"ε: {charge_text(job.epsilon(job.charges[0]), 3)} for the first level, "
            f"{charge_text(job.worst_case.epsilon, 3)} at worst (δ = {job.delta:g}).",
            highlight=False,
        )
        return
    console.print(reach_table(job.reach, job.pace))
    misses = [job.epsilon(each.charges.nothing) for each in job.steps]
    console.print(
        f"[bold]Plan[/bold]: {_up_to(job.attempts, 'attempt')}, over {len(job.candidates)} "
        f"candidates.\n{_misses(misses, job.all_missed.epsilon)}\n{_to_start(job)}",
        highlight=False,
    )
    if job.margin:
        how = f" ({twice_the_holdout})" if twice_the_holdout else ""
        console.print(
            f"To pass, a noisy score must clear the bar by {job.margin:.3g} (at the first level); "
            f"{2 * job.scoring_rows} scoring rows instead of {job.scoring_rows}{how} would halve "
            "that.",
            highlight=False,
        )


def _up_to(number: int, noun: str) -> str:
    """Return how many attempts or requests a job may make."""
    return f"one {noun}" if number == 1 else f"up to {number} {noun}s, until one passes"


def _misses(prices: Sequence[float], together: float) -> str:
    """Return what misses cost."""
    if len(prices) == 1:
        return f"A miss costs ε = {charge_text(prices[0], 3)}."
    first, last = charge_text(prices[0], 3), charge_text(prices[-1], 3)
    return (
        f"A miss costs ε = {first} (first attempt) to {last} (last), and "
        f"{charge_text(together, 3)} if every attempt misses."
    )


def _to_start(job: Forecast) -> str:
    """Return what a budget must hold for the first request, and the worst case of all."""
    needed, worst = shown_up(job.needed_to_start.epsilon), shown_up(job.worst_case.epsilon)
    if job.attempts == 1:
        return f"Needed to start: ε = {needed}, the worst case (δ = {job.delta:g})."
    return (
        f"Needed to start: ε = {needed}, the worst case of the first one; what it does not cost "
        f"goes back. All together cost at most ε = {worst} (δ = {job.delta:g}, total)."
    )


def render(console: Console, result: Tuned, folder: Path) -> None:
    """Print the result as a table."""
    goal = result.details["goal"]
    larger = goal["larger_is_better"]
    wanted = (
        "the best score"
        if goal["bar"] is None
        else f"{goal['metric']} {'≥' if larger else '≤'} {goal['bar']:g}"
    )
    if not result.passed:
        missed = "The bar was missed" if goal["bar"] is not None else "Every training failed"
        console.print(
            f"[bold red]{missed}[/bold red]: no model was released. "
            f"Paid: ε = {shown_up(result.spent.epsilon)} at δ = {result.spent.delta:g}."
        )
    table = Table(title=f"Tuned: {wanted}", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    if goal["bar"] is not None:
        table.add_row("passed", "[green]yes[/green]" if result.passed else "[red]no[/red]")
    _render_model(table, result, larger)
    if result.forecast.attempts > 1:
        table.add_row("attempts", f"{len(result.attempts)} of at most {result.forecast.attempts}")
    table.add_row(
        "ε spent",
        f"[bold green]{shown_up(result.spent.epsilon)}[/bold green] at δ = {result.spent.delta:g}, "
        "tuning included",
    )
    table.add_row("ε at worst", shown_up(result.worst_case.epsilon))
    _render_comparison(table, result)
    relation = result.details["neighbours"]
    table.add_row("neighbours", f"{relation}: {result.details['neighbours_in_words']}")
    how = method_words({"selector": result.release.selector}, verbose=True)
    table.add_row("method", f"{how} (theorems: expost certificate FILE --verbose)")
    console.print(table)
    if not result.passed and goal["bar"] is not None:
        console.print(
            "What to do: lower the bar, add levels or settings, or score on more rows (--holdout, "
            "or holdout in [data]): the margin shrinks with their number. A further run is charged "
            "in addition.",
            highlight=False,
            markup=False,
        )
    if result.details["budget_refused_another_attempt"]:
        console.print("The budget refused another attempt.")
    if result.model_path is not None:
        console.print(f"Model: {result.model_path}  (expost.load_model)")
    picture = f"; picture: {folder / PICTURE}" if (folder / PICTURE).exists() else ""
    console.print(f"Certificate: {folder / CERTIFICATE}{picture}", soft_wrap=True)


def _render_model(table: Table, result: Tuned, larger: bool) -> None:
    """Add the released model's setting, score and confidence bounds."""
    if result.model is None or result.score is None:
        return
    settings = ", ".join(f"{key} = {value:g}" for key, value in result.params.items())
    table.add_row("setting", settings)
    sign, noise = (1 if larger else -1), result.details["score_noise"]
    spread = f" ± {noise:.3f} (noise of the private score)" if noise else ""
    table.add_row(result.details["goal"]["metric"], f"{sign * result.score:.3f}{spread}")
    if result.bounds is not None:
        population = result.bounds.on_population
        side = "at least" if larger else "at most"
        certain = bound_text(sign * result.bounds.on_scoring_rows, larger)
        said = f"{side} {certain} on the scoring rows"
        if population is not None:
            said += f"; {side} {bound_text(sign * population, larger)} on new rows of the same "
            said += "population"
        asked = result.details["goal"]["confidence"]
        if result.bounds.confidence > asked:
            said += (
                f" ({100 * asked:g} % holds for the whole job, whose ways of training share the "
                f"other {100 * (1 - asked):g} %)"
            )
        table.add_row(f"with {100 * result.bounds.confidence:g} % confidence", said)


def _render_comparison(table: Table, result: Tuned) -> None:
    """Add the costs of two other methods."""
    if result.comparison is None:
        return
    theirs = result.comparison["papernot_steinke"]
    known = result.comparison["papernot_steinke_level"]
    table.add_row("Papernot–Steinke", f"{theirs:.3f}  ({known:.3f} had the level been known)")
    table.add_row(
        "every setting",
        f"{result.comparison['naive_composition']:.3f}  (composition up to this level)",
    )
