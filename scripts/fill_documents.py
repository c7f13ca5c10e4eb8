"""Write tables of the documents from docs/results/*.json (``python -m scripts.fill_documents``).

The documents are docs/reproduction.md, docs/counting.md and benchmarks/README.md.
Tests: ``tests/test_figures.py``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"


def rendered(number: int) -> str:
    """Tabulate answers (precision) of Table 1 or 2, with the paper's number in brackets."""
    rows = json.loads((DOCS / "results" / f"table{number}.json").read_text(encoding="utf-8"))[
        "rows"
    ]
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    lines = ["| mechanism | " + " | ".join(datasets) + " |", "|---" * (len(datasets) + 1) + "|"]
    for mechanism in dict.fromkeys(row["mechanism"] for row in rows):
        chosen = {row["dataset"]: row for row in rows if row["mechanism"] == mechanism}
        name = mechanism if chosen[datasets[0]]["private"] else f"{mechanism} (**no guarantee**)"
        lines.append(
            "| " + " | ".join([name, *(cell(chosen[dataset]) for dataset in datasets)]) + " |"
        )
    return "\n".join(lines)


def cell(row: dict[str, float | None]) -> str:
    """Return a cell of Table 1 or 2."""
    precision = row["precision_mean"]
    text = f"{row['answers_mean']:.2f}" + ("" if precision is None else f" ({precision:.3f})")
    return text if row["paper_answers"] is None else f"{text} [{row['paper_answers']:g}]"


def coverage() -> str:
    """Tabulate the factor and the measured coverage by noise and ratio."""
    rows = json.loads((DOCS / "results" / "coverage.json").read_text(encoding="utf-8"))["rows"]
    lines = ["| noise | ratio | factor | coverage | without the factor |", "|---|---|---|---|---|"]
    for row in rows:
        numbers = f"{row['ratio']:.3g} | {row['factor']:.3f} | {row['coverage']:.3f}"
        lines.append(f"| {row['law']} | {numbers} | {row['naive_coverage']:.3f} |")
    return "\n".join(lines)


def comparison() -> str:
    """Groups answered and right, by ``expost count`` and by one capped histogram."""
    path = DOCS / "results" / "counting_comparison.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    lines = ["| what | noise | answered | of them right | spent |", "|---|---|---|---|---|"]
    for row in rows:
        numbers = f"{row['answered']:.1f} | {row['right']:.1f} | {row['spent']:.3g}"
        lines.append(f"| {row['what']} | {row['noise']} | {numbers} |")
    return "\n".join(lines)


def table3(task: str) -> str:
    """Tabulate mean ex-post ε and pass rate of one task of Table 3, by bar and first level."""
    rows = json.loads((DOCS / "results" / f"table3_{task}.json").read_text(encoding="utf-8"))[
        "rows"
    ]
    starts = list(dict.fromkeys((row["bar"], row["levels_from"]) for row in rows))
    headings = [f"bar {bar:g}, levels from {start:g}" for bar, start in starts]
    lines = ["| mechanism | " + " | ".join(headings) + " |", "|---" * (len(starts) + 1) + "|"]
    for name in dict.fromkeys(map(table3_name, rows)):
        chosen = {(row["bar"], row["levels_from"]): row for row in rows if table3_name(row) == name}
        cells = [table3_cell(chosen[start]) if start in chosen else "–" for start in starts]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


REACH_METHODS = ("reach", "auto", "random-dropping", "doubling", "brownian")
REACH_AIMS = {
    0.6: "≤ 0.205, ≤ 80 runs",
    0.85: "≤ 0.235, ≤ 120 runs",
    0.9: "≤ 0.46, ≤ 300 runs",
    0.92: "≤ 0.79, ≤ 400 runs",
    0.94: "≤ 1.16, ≤ 500 runs",
}
"""What the row ``reach`` was meant to stay below, with Gaussian curves; passes ≥ 99 %."""


def reach(name: str) -> str:
    """Tabulate mean ε, pass rate and runs of each method by bar.

    With Gaussian curves there is a column of what ``reach`` was meant to stay below.
    """
    document = json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))
    rows, aims = document["rows"], REACH_AIMS if document["curves"] == "gaussian" else {}
    cells = {(row["bar"], row["method"]): reach_cell(row) for row in rows}
    methods = [each for each in REACH_METHODS if any(row["method"] == each for row in rows)]
    heads = ["bar", *(["aim of reach"] if aims else []), *methods]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for bar in dict.fromkeys(row["bar"] for row in rows):
        texts = [cells.get((bar, method), "–") for method in methods]
        aim = [aims.get(bar, "–")] if aims else []
        lines.append("| " + " | ".join([f"{bar:g}", *aim, *texts]) + " |")
    return "\n".join(lines)


def reach_cell(row: dict[str, Any]) -> str:
    """Return a cell of the table on reaching a bar."""
    epsilon = f"{row['mean_epsilon']:.3f} ± {row['standard_error']:.3f}"
    return f"{epsilon}, passes {100 * row['passed']:.3g} %, {row['runs']:.0f} runs"


def table3_name(row: dict[str, str]) -> str:
    """Return the name of a mechanism of Table 3."""
    if row["mechanism"] == "random-dropping":
        return f"random-dropping, {row['note'].split(':')[0]}, charge `{row['charge']}`"
    return (
        f"{row['mechanism']} (**no guarantee**)" if row["guarantee"] == "none" else row["mechanism"]
    )


def table3_cell(row: dict[str, float]) -> str:
    """Return a cell of Table 3."""
    passed = "" if row["pass_rate"] == 1 else f", passes {row['pass_rate']:.0%}"
    paper = "" if row["paper"] is None else f" [{row['paper']:g}]"
    return f"{row['mean']:.3f} ± {row['se']:.3f}{paper}{passed}"


def benchmarks(name: str) -> str:
    """Tabulate the rows that ``python -m benchmarks`` (or ``benchmarks.fleet``) wrote.

    The rows of the fleet have their own table.
    """
    rows = json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))
    plain, fleet = (
        [row for row in rows if bool(row.get("floor")) == wanted] for wanted in (False, True)
    )
    between = f"\n\n<!-- measured by: make bench (docs/results/{name}.json) -->\n"
    return between.join(part for part in (plain_table(plain), fleet_table(fleet)) if part)


def plain_table(rows: list[dict[str, Any]]) -> str:
    """Tabulate the rows of all benchmarks but the fleet."""
    if not rows:
        return ""
    lines = ["| what | expost | against | peer | ratio | target |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = (
            row["what"],
            readable(row["seconds"]),
            row["peer"],
            readable(row["peer_seconds"]),
            ratio(row),
            row["target"],
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def fleet_table(rows: list[dict[str, Any]]) -> str:
    """Tabulate one line per fleet.

    Time and CPU time per example, the least work, and the ratio to each way to run Opacus.
    """
    if not rows:
        return ""
    fleets: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        peer = re.sub(r"\d+ processes", "a process per core", row["peer"])
        fleets.setdefault(row["what"].removesuffix(", an example"), {})[peer] = row
    peers = list(dict.fromkeys(peer for fleet in fleets.values() for peer in fleet))
    floor = "must cost | of peak FLOP/s | of peak bytes/s"
    against = " | ".join(f"× {peer}" for peer in peers)
    lines = [f"| an example of | expost | CPU | {floor} | {against} | target |"]
    lines.append("|---" * (7 + len(peers)) + "|")
    for what, fleet in fleets.items():
        first = next(iter(fleet.values()))
        least = first["floor"]
        cost = f"{least['flops']:,.0f} FLOP, {least['bytes']:,.0f} B"
        times = f"{readable(first['seconds'])} | {readable(first['cpu_seconds'])}"
        shares = f"{least['of_flops']:.0%} | {least['of_bytes']:.0%}"
        against = " | ".join(versus(fleet.get(peer)) for peer in peers)
        lines.append(f"| {what} | {times} | {cost} | {shares} | {against} | {first['target']} |")
    return "\n".join(lines)


def versus(row: dict[str, Any] | None) -> str:
    """Return the ratio of wall times, and that of CPU times."""
    if row is None:
        return "–"
    cpu = (
        ""
        if not row["peer_cpu_seconds"]
        else f" (CPU {times(row['peer_cpu_seconds'] / row['cpu_seconds'])})"
    )
    return f"{ratio(row)}{cpu}"


def ratio(row: dict[str, Any]) -> str:
    """Return the ratio of a row as text."""
    return "–" if row["ratio"] is None else times(row["ratio"])


def times(number: float) -> str:
    """Format a ratio."""
    return f"{number:,.0f}×" if number >= 100 else f"{number:.3g}×"


def readable(seconds: float | None) -> str:
    """Format seconds with a suitable unit."""
    if seconds is None:
        return "–"
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"


def noise_reduction() -> str:
    """Return what noise reduction and its rivals cost, by table and bar."""
    path = DOCS / "results" / "noise_reduction.json"
    lines = ["| table | bar | way | mean ε | passes |", "|---|---|---|---|---|"]
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        lines.append(
            f"| {row['task']} | {row['bar']:g} | {row['mechanism']} | {row['mean']:.3f} ± "
            f"{row['se']:.3f} | {row['pass_rate']:.0%} of {row['trials']} |"
        )
    return "\n".join(lines)


LEAST_AIMS: dict[str, tuple[float, ...]] = {
    "mnist-public": (0.014, 0.030, 0.040, 0.050, 0.080, 0.120, 0.32),
    "mnist-private": (0.019, 0.037, 0.058, 0.080, 0.175, 0.34, 1.0),
    "adult-public": (0.040, 0.042, 0.045, 0.050, 0.075, 0.30),
    "adult-private": (0.046, 0.050, 0.062, 0.072, 0.17, 0.55),
}
"""What expost was meant to stay below, by bar."""


def least_epsilon(name: str) -> str:
    """Tabulate mean ε and pass rate by bar, and what was aimed at."""
    path = DOCS / "results" / "least_epsilon.json"
    rows = json.loads(path.read_text(encoding="utf-8"))[name]["rows"]
    bars = list(dict.fromkeys(row["bar"] for row in rows))
    lines = ["| | " + " | ".join(f"{bar:g}" for bar in bars) + " |", "|---" * (len(bars) + 1) + "|"]
    for method in dict.fromkeys(row["method"] for row in rows):
        chosen = {row["bar"]: row for row in rows if row["method"] == method}
        cells = [least_cell(chosen[bar]) if bar in chosen else "–" for bar in bars]
        lines.append("| " + " | ".join([method, *cells]) + " |")
    aims = [f"≤ {aim:g}" for aim in LEAST_AIMS[name]]
    lines.append("| " + " | ".join(["aim of expost", *aims]) + " |")
    expost = [row for row in rows if row["method"] == "expost"]
    kept = [row["mean_epsilon"] <= aim for row, aim in zip(expost, LEAST_AIMS[name], strict=True)]
    lines.append(
        "| " + " | ".join(["aim kept", *("yes" if met else "**no**" for met in kept)]) + " |"
    )
    return "\n".join(lines)


def least_cell(row: dict[str, Any]) -> str:
    """Return a cell of the tables of the least ε."""
    passed = "" if row["passed"] == 1 else f", passes {row['passed']:.0%}"
    return f"{row['mean_epsilon']:.4f} ± {row['standard_error']:.4f}{passed}"


def fill(page: Path, marker: str, content: str) -> None:
    """Replace the text between a marker and its end."""
    text = page.read_text(encoding="utf-8")
    block = f"<!-- {marker} -->\n{content}\n<!-- end -->"
    page.write_text(
        re.sub(rf"<!-- {marker} -->.*?<!-- end -->", lambda _: block, text, flags=re.DOTALL),
        encoding="utf-8",
    )


def main() -> None:
    """Write all tables."""
    fill(DOCS / "reproduction.md", "table1", rendered(1))
    fill(DOCS / "reproduction.md", "table2", rendered(2))
    for task in ("mnist", "gisette", "twitter", "twitter-blog"):
        fill(DOCS / "reproduction.md", f"table3-{task}", table3(task))
    for name in ("reach_mnist", "reach_mnist_dpsgd"):
        if (DOCS / "results" / f"{name}.json").exists():
            fill(DOCS / "reproduction.md", name.replace("_", "-"), reach(name))
    if (DOCS / "results" / "noise_reduction.json").exists():
        fill(DOCS / "noise-reduction.md", "noise-reduction-table", noise_reduction())
    for task in json.loads((DOCS / "results" / "least_epsilon.json").read_text(encoding="utf-8")):
        fill(DOCS / "least-epsilon.md", f"least-{task}", least_epsilon(task))
    fill(DOCS / "counting.md", "coverage", coverage())
    fill(DOCS / "counting.md", "comparison", comparison())
    fill(DOCS.parent / "benchmarks" / "README.md", "bench", benchmarks("bench"))
    for marker, name in (
        ("grid", "fleet_grid"),
        ("fleet", "fleet_cpu"),
        ("cuda", "fleet_cuda"),
        ("modules-cuda", "modules_cuda"),
    ):
        if (DOCS / "results" / f"{name}.json").exists():
            fill(DOCS.parent / "benchmarks" / "README.md", marker, benchmarks(name))


if __name__ == "__main__":
    main()
