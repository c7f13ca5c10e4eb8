"""Audit five broken mechanisms and their correct versions (``python -m scripts.audit``).

Writes docs/results/audit.json, docs/figures/audit.png and the tables of docs/audit.md. The broken
mechanisms are those of the tests (``tests/audit/suspects.py``).
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from tests.audit.suspects import Suspect, suspects

from expost import plots
from expost.audit import audit, runs_needed
from scripts.fill_documents import fill

DOCS = Path(__file__).parent.parent / "docs"
SEED, CONFIDENCE, PILOT = 20130, 0.99, 0.2
LOSSES, CHANCES, SHARE = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0), (0.5, 0.1, 0.01), 0.8
BOUNDS = 16  # bounds that share the error, for a mechanism whose outputs fall into two cells


def examined(suspect: Suspect) -> dict[str, Any]:
    """Return a short report: the outcome that is furthest above, or closest to, its claim."""
    report = audit(
        suspect.subject,
        suspect.data,
        suspect.neighbour,
        runs=suspect.runs,
        confidence=CONFIDENCE,
        pilot=PILOT,
        simulation_seed=SEED,
        **suspect.options,
    )
    worst = max(report.outcomes, key=lambda each: each.tightness or 0.0)
    return (
        {"verdict": report.verdict, "runs": report.runs, "delta": report.delta}
        | worst.as_dict()
        | {"runs": report.runs}
    )


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw each broken mechanism next to its correct version."""
    drawn, (axes,) = plots.figure(1, width=9, height=4.2)
    audits = [each[version] for each in rows for version in ("broken", "honest")]
    plots.draw_bars(
        axes, [each["claimed"] for each in audits], [each["lower_bound"] for each in audits]
    )
    axes.set_xticks(range(len(audits)), ["broken", "honest"] * len(rows), fontsize=8)
    for place, row in enumerate(rows):
        words = row["name"].replace(" + ", "\u00a0+\u00a0").split(" ")
        half = math.ceil(len(words) / 2)
        label = " ".join(words[:half]) + "\n" + " ".join(words[half:])
        axes.annotate(
            label,
            (2 * place + 0.5, 0.98),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    axes.set(ylabel="ε of the outcome closest to its claim", ylim=(0, 1.3 * axes.get_ylim()[1]))
    axes.grid(axis="x", visible=False)
    axes.set_title(f"Claimed and measured, {CONFIDENCE:g} confidence", loc="left")
    plots.save(drawn, path)


def caught(rows: list[dict[str, Any]]) -> str:
    """Tabulate the audits."""
    lines = [
        "| suspect | claimed ε | broken: at least | runs | verdict "
        "| honest: claimed | at least | runs | verdict |"
    ]
    lines.append("|---" * 9 + "|")
    for row in rows:
        broken, honest = row["broken"], row["honest"]
        cells = [
            f"{broken['claimed']:.3g}",
            f"**{broken['lower_bound']:.3g}**",
            str(broken["runs"]),
            broken["verdict"],
        ]
        cells += [
            f"{honest['claimed']:.3g}",
            f"{honest['lower_bound']:.3g}",
            str(honest["runs"]),
            honest["verdict"],
        ]
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def needed() -> list[dict[str, float]]:
    """Return the runs on each data set, with pilot, that show a share of a true loss."""
    return [
        {
            "loss": loss,
            "chance": chance,
            "runs": math.ceil(
                runs_needed(loss, SHARE * loss, chance, comparisons=BOUNDS) / (1 - PILOT)
            ),
        }
        for loss in LOSSES
        for chance in CHANCES
    ]


def needed_table(rows: list[dict[str, float]]) -> str:
    """Tabulate the runs needed."""
    lines = [
        "| real loss ε | " + " | ".join(f"event of chance {chance:g}" for chance in CHANCES) + " |"
    ]
    lines.append("|---" * (len(CHANCES) + 1) + "|")
    for loss in LOSSES:
        figures = [float(f"{row['runs']:.2g}") for row in rows if row["loss"] == loss]
        lines.append(f"| {loss:g} | " + " | ".join(f"{figure:,.0f}" for figure in figures) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the audits and write the results, the figure and the tables."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            {"name": name, "broken": examined(broken), "honest": examined(honest)}
            for name, (broken, honest) in suspects(Path(folder)).items()
        ]
    document = {"confidence": CONFIDENCE, "seed": SEED, "suspects": rows, "needed": needed()}
    (DOCS / "results" / "audit.json").write_text(
        json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    picture(rows, DOCS / "figures" / "audit.png")
    fill(DOCS / "audit.md", "caught", caught(rows))
    fill(DOCS / "audit.md", "needed", needed_table(document["needed"]))


if __name__ == "__main__":
    main()
