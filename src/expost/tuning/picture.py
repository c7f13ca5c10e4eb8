"""Where a released model stands between privacy and utility: released and public values only."""

from __future__ import annotations

from pathlib import Path

from expost import plots
from expost.tuning.candidates import deviation_of
from expost.tuning.certificate import Tuned
from expost.tuning.forecast import composed


def draw(result: Tuned, path: Path) -> None:
    """Left: what was charged, could have been, and would have been by others. Right: score against ε, with the bar."""
    drawn, (left, right) = plots.figure(2, width=4.6)
    bars = [
        ("spent", result.spent.epsilon, plots.INK[0]),
        ("worst case", result.worst_case.epsilon, plots.INK[1]),
    ]
    if result.comparison is not None:
        bars.append(("Papernot–Steinke", result.comparison["papernot_steinke"], plots.INK[2]))
        bars.append(("… level known", result.comparison["papernot_steinke_level"], plots.INK[4]))
        bars.append(("every setting", result.comparison["naive_composition"], plots.INK[3]))
    names, values, colours = zip(*bars, strict=True)
    left.barh(names, values, color=colours)
    left.invert_yaxis()
    for place, value in enumerate(values):
        left.annotate(
            f"{value:.3g}",
            (value, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    left.margins(x=0.15)
    left.set(xlabel=f"ε at δ = {result.spent.delta:g}")
    left.set_title("What the model cost, tuning included", loc="left")
    goal = result.details["goal"]
    sign = 1.0 if goal["metric"] == "accuracy" else -1.0
    for count, each in enumerate(result.attempts, start=1):
        release = each.release
        if release is None or release.score is None or release.index is None:
            continue
        so_far = composed([attempt.spent for attempt in result.attempts[:count]], count)
        noise = deviation_of(
            result.forecast.candidates[release.index], result.details["rows"]["scoring"]
        )
        colour = plots.INK[0] if release.passed is not False else plots.INK[1]
        spent = [result.forecast.in_epsilon_delta(so_far).epsilon]
        right.errorbar(
            spent, [sign * release.score], yerr=[2 * noise], fmt="o", color=colour, capsize=3
        )
    if goal["bar"] is not None:
        right.axhline(
            goal["bar"], color="black", linewidth=0.8, linestyle="--", label=f"bar {goal['bar']:g}"
        )
        right.legend(fontsize=8)
    right.set(xlabel="ε spent", ylabel=f"{goal['metric']} (± 2σ of its noise)", xlim=(0, None))
    right.set_title("Released", loc="left")
    plots.save(drawn, path)
