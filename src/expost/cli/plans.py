"""``expost plan``, and what ``expost tune`` shows: plans, what jobs may reach, and their results.

Tests: ``tests/cli/test_plan_cli.py``, ``tests/cli/test_tune_cli.py``,
``tests/cli/test_tune_plan.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost import plots
from expost.certificates.document import person_words, protected_words, unit_of_job
from expost.certificates.words import (
    bounds_words,
    charge_words,
    goal_words,
    method_words,
    score_words,
    settings_words,
    told_words,
)
from expost.cli.output import Json, notes, show, shown_up, visible
from expost.privacy.guarantees import RELATIONS
from expost.rationals import charge_text
from expost.selection.attempt_planner import GoalPlan
from expost.selection.attempts import ReachRow
from expost.selection.plan import Plan, plan_levels
from expost.tuning.model.tuned import Tuned
from expost.tuning.plan.job_plan import TYPICAL_SHARE, JobPlan
from expost.tuning.plan.rehearsal import Pace
from expost.tuning.request.bought_facts import LearnedFacts
from expost.tuning.request.tune_request import parsed
from expost.tuning.runs.run_attempts import CERTIFICATE, PICTURE


def announce(
    console: Console, job: JobPlan, twice_the_holdout: str = "", verbose: bool = True
) -> None:
    """Print the forecast: first the most that it may cost, then the chances, then the details.

    ``twice_the_holdout`` says how to score on twice as many rows.
    """
    for text in job.warnings:
        console.print(Text.assemble(("warning:", "yellow"), f" {text}"))
    console.print(
        Text.assemble(
            ("The job costs at most", "bold"),
            f" ε = {shown_up(job.worst_case.epsilon)} (δ = {charge_text(job.delta)}), whatever "
            f"happens; {_likely(job)}.",
        )
    )
    if not verbose:
        return
    for text in (*job.reasons, *filter(None, [job.left_out])):
        console.print(text, highlight=False)
    if job.tell is not None:
        more = charge_text(job.epsilon(job.tell.charges.worst_case), 3)
        console.print(f"If all miss: a score of the last model for ε = {more}.", highlight=False)
    if job.reasons:
        console.print(_plan(f"{_up_to(job.attempts, 'request')}.\n{_to_start(job)}"))
        return
    if job.schedule is None:
        console.print(
            _plan(
                f"one request over {len(job.candidates)} candidates, "
                f"{few_digits(job.expected_runs)} runs expected, about {duration(job.seconds)}.\n"
                f"ε = {charge_text(job.epsilon(job.charges[0]), 3)} for the first level."
            )
        )
        return
    console.print(reach_table(job.reach, job.pace))
    misses = [job.epsilon(step.charges.nothing) for step in job.steps]
    console.print(
        _plan(
            f"{_up_to(job.attempts, 'attempt')}, over {len(job.candidates)} candidates.\n"
            f"{_misses(misses, job.all_missed.epsilon)}\n{_to_start(job)}"
        )
    )
    if job.margin:
        how = f" ({twice_the_holdout})" if twice_the_holdout else ""
        console.print(
            f"To pass, a noisy score must clear the goal by {job.margin:.3g} (at the first level); "
            f"{2 * job.scoring_rows} scoring rows instead of {job.scoring_rows}{how} would halve "
            "that.",
            highlight=False,
        )


def _likely(job: JobPlan) -> str:
    """Return what a pass costs, as far as public numbers say."""
    typical = [row for row in job.reach if row.share == TYPICAL_SHARE]
    if typical and not job.reasons:
        row = typical[0]
        return f"likely {charge_text(row.epsilon_mean, 2)} if a tenth of the settings pass"
    return f"a pass costs ε = {charge_text(job.epsilon(job.charges[0]), 2)} or more"


def _plan(text: str) -> Text:
    return Text.assemble(("Plan", "bold"), f": {text}")


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


def _to_start(job: JobPlan) -> str:
    """Return what a budget must hold for the first request."""
    needed = shown_up(job.needed_to_start.epsilon)
    which = "the worst case" if job.attempts == 1 else "the worst case of the first one"
    return f"Needed to start: ε = {needed}, {which}; what is unused is returned."


def render(console: Console, result: Tuned, folder: Path, verbose: bool = False) -> None:
    """Print the result: the answer, what it cost, what that means, and where the files are."""
    record = result.record()
    console.print(_answer(result, record))
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column(overflow="fold")
    for name, text in (
        ("score", _scored(record) if result.model is not None else None),
        ("told", told_words(record)),
        ("charge", _charge(result)),
        ("meaning", person_words(result.spent.epsilon, result.spent.delta, unit_of_job(record))),
        ("likely", _was_likely(result)),
        ("what to try", _what_to_try(result)),
    ):
        if text is not None:
            lines.add_row(name, visible(text))
    console.print(lines)
    if verbose:
        console.print(_details(result, record))
    if result.details["budget_refused_another_attempt"]:
        console.print("The budget refused another attempt.")
    if result.model_path is not None:
        name = "Model" if result.passed else "Model that missed"
        console.print(f"{name}: {result.model_path}  (expost.load_model)", soft_wrap=True)
    console.print(f"Certificate: {folder / CERTIFICATE}", soft_wrap=True)
    if (folder / PICTURE).exists():
        console.print(f"Picture: {folder / PICTURE}", soft_wrap=True)


def _answer(result: Tuned, record: Mapping[str, Any]) -> Text:
    """Return whether the goal was reached, and what was released."""
    goal = record["goal"]
    if result.passed and goal["value"] is None:
        return Text.assemble(("Done", "bold green"), ": the best model of one search.")
    if result.passed:
        reached = f": {goal_words(goal)}, with {100 * goal['confidence']:g} % confidence."
        return Text.assemble(("The goal is reached", "bold green"), visible(reached))
    missed = "The goal was missed" if goal["value"] is not None else "Every training failed"
    what = "no model was released"
    if result.model is not None:
        what = "the last model is released as missed, because it is charged"
    wanted = "" if goal["value"] is None else f" ({goal_words(goal)})"
    return Text.assemble((missed, "bold red"), visible(f"{wanted}: {what}."))


def _scored(record: Mapping[str, Any]) -> str | None:
    """Return the score and its certified bounds."""
    score, bounds = score_words(record), bounds_words(record)
    if score is not None and record["privacy"]["scoring"] == "private" and "±" not in score:
        score += ", noisy"
    return "; ".join(text for text in (score, bounds) if text is not None) or None


def _charge(result: Tuned) -> str:
    """Return what was paid, facts included, and what could have been."""
    paid = f"ε = {shown_up(result.spent.epsilon)}, δ = {charge_text(result.spent.delta)}"
    facts = ""
    if result.facts is not None:
        facts = f" (facts: ε = {shown_up(result.facts.charge.epsilon)})"
    return f"{paid} in all{facts}; at most {shown_up(result.worst_case.epsilon)} was possible"


def _was_likely(result: Tuned) -> str | None:
    """Return what the plan gave a job of attempts that missed, and what the miss suggests."""
    typical = [row for row in result.forecast.reach if row.share == TYPICAL_SHARE]
    if result.passed or not typical:
        return None
    chance = math.floor(1000 * typical[-1].p_pass) / 10
    return (
        f"if a tenth of the settings were good enough at ε = {typical[-1].level:g}, a job like "
        f"this would pass in {chance:g} % of cases; a miss suggests that fewer are"
    )


def _what_to_try(result: Tuned) -> str | None:
    """Return advice after a miss, one line each, and what of it is free."""
    if not result.advice:
        return None
    free = "Changing these and looking at --plan is free; another run is charged in addition."
    return "\n".join([*(f"- {line}" for line in result.advice), free])


def _details(result: Tuned, record: Mapping[str, Any]) -> Table:
    """Return the settings, the method and what other methods would have cost."""
    table = Table(title="Details", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    if result.model is not None:
        table.add_row("setting", visible(settings_words(result.params)))
        features = (record.get("features") or {}).get("in_words")
        if features is not None:
            table.add_row("features", visible(features))
    if result.forecast.attempts > 1:
        table.add_row("attempts", f"{len(result.attempts)} of at most {result.forecast.attempts}")
    if result.facts is not None:
        table.add_row("facts", _facts_words(result.facts))
    if result.release.spent.as_approx() is None:  # the budget has another unit
        table.add_row("charged", charge_words(result.release.spent))
    _render_comparison(table, result)
    relation, data = result.details["neighbours"], result.details["data"]
    said = RELATIONS[relation] if data["user"] is None else protected_words(relation, data)
    table.add_row("neighbours", f"{relation}: {visible(said)}")
    (how,) = method_words({"selector": result.release.selector})
    table.add_row("method", f"{how} (theorems: expost certificate FILE --verbose)")
    return table


def _facts_words(facts: LearnedFacts) -> str:
    """Return which facts were bought."""
    columns = facts.certificate["facts"]["columns"]
    return visible(f"{len(columns)} columns (" + ", ".join(columns) + ")")


def _render_comparison(table: Table, result: Tuned) -> None:
    """Add the costs of two other methods."""
    if result.comparison is None:
        return
    theirs = result.comparison["papernot_steinke"]
    known = result.comparison["papernot_steinke_level"]
    every = result.comparison["naive_composition"]
    table.add_row(
        "Papernot–Steinke", f"{shown_up(theirs)}  ({shown_up(known)} had the level been known)"
    )
    table.add_row("every setting", f"{shown_up(every)}  (composition up to this level)")


def reach_table(rows: Sequence[ReachRow], pace: Pace | None = None) -> Table:
    """Return what to expect, level by level, as a table for people."""
    table = Table(
        title="If the settings are good enough: a share passes from this level on",
        title_justify="left",
    )
    headings = (
        "level ε",
        "share",
        "chance of passing",
        "mean total ε",
        "ε (90 %)",
        "runs",
    )
    for heading in (*headings, *(() if pace is None else ("time",))):
        table.add_column(heading, justify="right")
    levels = sorted({row.level for row in rows})
    shown = levels if len(levels) <= 4 else [levels[0], levels[len(levels) // 3], levels[-1]]
    for row in rows:
        if row.level not in shown or row.share not in (0.5, 0.1, 0.02):
            continue
        cells = [
            f"{row.level:g}",
            f"{100 * row.share:g} %",
            f"{100 * row.p_pass:.4g} %" if row.p_pass < 0.9999 else "> 99.99 %",
            f"{row.epsilon_mean:.3g}",
            f"{row.epsilon_p90:.3g}",
            few_digits(row.runs_mean),
        ]
        if pace is not None:
            cells.append(duration(pace.seconds(row.runs_mean)))
        table.add_row(*cells)
    return table


def few_digits(number: float) -> str:
    """Return a number of runs: three digits, and no exponent."""
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


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
