"""Write tables of the documents from docs/results/*.json (``python -m scripts.fill_documents``).

The documents are the README, pages of docs/ and benchmarks/README.md.
Tests: ``tests/test_figures.py``.
"""

from __future__ import annotations

import json
import re
import textwrap
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


def analysts() -> str:
    """Everyday questions, next to one capped histogram and an oracle: what is right, at what ε."""
    path = DOCS / "results" / "analysts.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    lines = ["| task | method | spent | in 95 % of runs | right |", "|---|---|---|---|---|"]
    for row in rows:
        if "spent_95" in row:  # counts; quantiles have a page of their own
            numbers = f"{row['spent']:.3g} | {row['spent_95']:.3g} | {row['right']:.3g}"
            lines.append(f"| {row['task']} | {row['method']} | {numbers} |")
    return "\n".join(lines)


def quantile_tasks() -> str:
    """Five quantiles of 1,000 groups next to one."""
    path = DOCS / "results" / "analysts.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    lines = ["| method | spent | answered | within the error | covered |", "|---|---|---|---|---|"]
    for row in rows:
        if row["task"] == "quantiles-1000":
            told = [row[name] for name in ("answered", "right", "coverage")]
            cells = ["–" if share is None else f"{share:.1%}" for share in told]
            lines.append(f"| {row['method']} | {row['spent']:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def median_tasks() -> str:
    """Medians of 40 groups next to those of others."""
    path = DOCS / "results" / "analysts.json"
    lines = ["| ε | method | mean rank error of medians |", "|---|---|---|"]
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        if row["task"] == "medians-40":
            lines.append(f"| {row['epsilon']:g} | {row['method']} | {row['right']:.2%} |")
    return "\n".join(lines)


def table3(task: str) -> str:
    """Tabulate mean ex-post ε and pass rate of one task of Table 3, by bar and first level."""
    rows = json.loads((DOCS / "results" / f"table3_{task}.json").read_text(encoding="utf-8"))[
        "rows"
    ]
    starts = list(dict.fromkeys((row["bar"], row["levels_from"]) for row in rows))
    headings = [f"goal {bar:g}, levels from {start:g}" for bar, start in starts]
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
    heads = ["goal", *(["aim of reach"] if aims else []), *methods]
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
    """Return what regressions cost, by table, bar and training."""
    path = DOCS / "results" / "noise_reduction.json"
    lines = ["| table | goal | training | mean ε | passes |", "|---|---|---|---|---|"]
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        lines.append(
            f"| {row['task']} | {row['bar']} | {row['mechanism']} | {row['mean']:.3f} ± "
            f"{row['se']:.3f} | {row['pass_rate']:.0%} of {row['trials']} |"
        )
    return "\n".join(lines)


LEAST_AIMS: dict[str, tuple[float, ...]] = {
    "mnist-public": (0.014, 0.030, 0.040, 0.050, 0.080, 0.120, 0.32),
    "mnist-private": (0.019, 0.037, 0.058, 0.080, 0.175, 0.34, 1.0),
    "adult-public": (0.040, 0.042, 0.045, 0.050, 0.075, 0.30),
    "adult-private": (0.046, 0.050, 0.062, 0.072, 0.17, 0.55),
    "mnist-fourier-public": (1.0, 3.0),
    "adult-balanced-private": (0.12,),
    "digits-private": (0.8,),
    "breast-cancer-private": (0.8,),
    "gisette-private": (1.0,),
}
"""What expost was meant to stay below, by bar."""

LEAST_TABLES = ("mnist-public", "mnist-private", "adult-public", "adult-private")
LEAST_NAMES = {
    "random-dropping": "Algorithm 3 as published",
    "reach": "planned attempts on networks",
    "opacus": "Opacus, fixed ε",
    "opacus-features": "the same with expost's features",
    "diffprivlib": "diffprivlib, fixed ε",
    "diffprivlib-features": "the same with expost's features",
}
LEAST_TITLES = {
    "mnist-fourier": "MNIST, 2,000 random Fourier features",
    "adult-balanced": "Adult, balanced accuracy with public shares",
    "digits": "digits",
    "breast-cancer": "breast cancer",
    "gisette": "Gisette",
    "flights": "flights, MSE relative to the variance",
    "blogfeedback": "BlogFeedback, MSE relative to the variance",
}
WORSE_THAN_PUBLIC = 1.6
"""With private scoring the regressions were meant to cost at most so many times as with public."""


def least_results() -> dict[str, Any]:
    """Return the rows of the least ε, by table."""
    path = DOCS / "results" / "least_epsilon.json"
    tables: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return tables


def least_epsilon(name: str) -> str:
    """Tabulate mean ε and pass rate by bar, and what was aimed at."""
    rows = least_results()[name]["rows"]
    bars = list(dict.fromkeys(row["bar"] for row in rows if row["method"] == "expost"))
    lines = ["| | " + " | ".join(f"{bar:g}" for bar in bars) + " |", "|---" * (len(bars) + 1) + "|"]
    present = {row["method"] for row in rows}
    for method in ("expost", *(known for known in LEAST_NAMES if known in present)):
        chosen = {row["bar"]: row for row in rows if row["method"] == method}
        cells = [least_cell(chosen[bar]) if bar in chosen else "–" for bar in bars]
        lines.append("| " + " | ".join([LEAST_NAMES.get(method, method), *cells]) + " |")
    aims = [f"≤ {aim:g}" for aim in LEAST_AIMS[name]]
    lines.append("| " + " | ".join(["aim of expost", *aims]) + " |")
    expost = [row for row in rows if row["method"] == "expost"]
    kept = [row["mean_epsilon"] <= aim for row, aim in zip(expost, LEAST_AIMS[name], strict=True)]
    lines.append(
        "| " + " | ".join(["aim kept", *("yes" if met else "**no**" for met in kept)]) + " |"
    )
    return "\n".join(lines)


def least_cell(row: dict[str, Any]) -> str:
    """Return a cell of the tables of the least ε; a fixed ε has no mean."""
    if row["method"].split("-")[0] in ("opacus", "diffprivlib"):
        return f"{row['mean_epsilon']:g}"
    passed = "" if row["passed"] == 1 else f", passes {row['passed']:.0%}"
    return f"{row['mean_epsilon']:.4f} ± {row['standard_error']:.4f}{passed}"


def least_others() -> str:
    """Tabulate expost on the other tables."""
    tables = least_results()
    lines = [
        "| table | rows are | goal | scoring | ε | passes | aim | kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, table in tables.items():
        if name in LEAST_TABLES:
            continue
        title, scoring = LEAST_TITLES[table["task"]], table["scoring"]
        known = LEAST_AIMS.get(name, ())
        for place, row in enumerate(table["rows"]):
            aim = known[place] if known else None
            words = "–" if aim is None else f"≤ {aim:g}"
            public = tables.get(f"{table['task']}-public")
            if aim is None and scoring == "private" and public is not None:
                aim = WORSE_THAN_PUBLIC * public["rows"][place]["mean_epsilon"]
                words = f"≤ {WORSE_THAN_PUBLIC:g} × public"
            met = aim is not None and row["mean_epsilon"] <= aim and row["passed"] >= 0.99
            kept = "–" if aim is None else "yes" if met else "**no**"
            cells = (
                *(title, table["origin"], f"{row['bar']:g}", scoring),
                f"{row['mean_epsilon']:.3f} ± {row['standard_error']:.3f}",
                *(f"{row['passed']:.0%} of {row['runs']}", words, kept),
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def passed_is_true() -> str:
    """Tabulate how often progressive training passed a model below its bar."""
    path = DOCS / "results" / "passed_is_true.json"
    lines = [
        "| table | goal | jobs | passed | passed below it | all models one row below: passed |",
        "|---|---|---|---|---|---|",
    ]
    for row in json.loads(path.read_text(encoding="utf-8"))["progressive"]:
        near = row["one_row_below"]
        lines.append(
            f"| {row['table']} | {row['bar']:g} | {row['jobs']} | {row['certified']} | "
            f"{row['below_the_bar']} | {near['passed']:.1%} of {near['searches']:,} searches |"
        )
    return "\n".join(lines)


def screen(name: str) -> str:
    """Return a command and what it printed (scripts/screens.py)."""
    shown = json.loads((DOCS / "results" / "screens.json").read_text(encoding="utf-8"))[name]
    command = textwrap.wrap(
        f"$ {shown['command']}", 88, break_on_hyphens=False, subsequent_indent="    "
    )
    folded = " \\\n".join(command)
    return f"```console\n{folded}\n{shown['output']}\n```"


SCREENS = {
    "README.md": ("tune",),
    "docs/index.md": ("tune",),
    "docs/quickstart/data-scientist.md": ("customers",),
    "docs/quickstart/analyst.md": ("count",),
    "docs/quickstart/privacy-officer.md": ("verify", "ledger"),
    "docs/facts.md": ("describe",),
}
"""The screens of each page."""


def facts_results(part: str) -> list[dict[str, Any]]:
    """Return the measurements of facts about Adult: of ``describe`` or of ``tune``."""
    path = DOCS / "results" / "facts.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))[part]
    return rows


def facts_right() -> str:
    """Tabulate how often facts about Adult are right."""
    lines = [
        "| `describe` at | runs | categories from | found | kinds right | bounds inside |",
        "|---|---|---|---|---|---|",
    ]
    for row in facts_results("describe"):
        right = f"{row['categories_found']:.3f} | {row['kinds_right']:.3f}"
        first = f"ε = {row['epsilon']:g} | {row['runs']} | {row['categories_from']:.1%} of the rows"
        lines.append(f"| {first} | {right} | {row['bounds_inside']:.3f} |")
    return "\n".join(lines)


def facts_tuning() -> str:
    """Tabulate what tunings cost that buy their facts."""
    lines = [
        "| accuracy of at least | runs | passed | mean ε in all | largest ε |",
        "|---" * 5 + "|",
    ]
    for row in facts_results("tune"):
        numbers = f"{row['passed']:.2f} | {row['epsilon_mean']:.3f} | {row['epsilon_largest']:.3f}"
        lines.append(f"| {row['at_least']:g} | {row['runs']} | {numbers} |")
    return "\n".join(lines)


def networks() -> str:
    """Tabulate what progressive training of networks costs."""
    path = DOCS / "results" / "networks.json"
    lines = [
        "| network | goal | scoring | mean ε | largest ε | passes | aim |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        star = "" if row["chosen"] else " *"
        aim = "–" if row["aim"] is None else f"≤ {row['aim']:g}"
        late = f", {row['unfinished']} unfinished" if row["unfinished"] else ""
        passes = f"{row['passed']:.0%} of {row['runs']}{late}" if row["runs"] else late[2:]
        costs = [f"{row[key]:.2f}" if row["runs"] else "–" for key in ("epsilon", "largest")]
        cells = (row["what"] + star, f"{row['goal']:g}", row["scoring"], *costs, passes, aim)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def fill(page: Path, marker: str, content: str) -> None:
    """Replace the text between a marker and its end."""
    text = page.read_text(encoding="utf-8")
    block = f"<!-- {marker} -->\n{content}\n<!-- end -->"
    page.write_text(
        re.sub(rf"<!-- {marker} -->.*?<!-- end -->", lambda _: block, text, flags=re.DOTALL),
        encoding="utf-8",
    )


def chosen_caps() -> str:
    """Groups answered without a word about caps, by table, question and ε."""
    path = DOCS / "results" / "chosen_caps.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    levels = sorted({row["epsilon"] for row in rows})
    titles = [f"ε = {level:g}: answered (right), spent" for level in levels]
    lines = ["| " + " | ".join(["table", "question", *titles, "oracle, guessed"]) + " |"]
    lines.append("|---" * (len(levels) + 3) + "|")
    for name, question in dict.fromkeys((row["table"], row["question"]) for row in rows):
        cells = [row for row in rows if (row["table"], row["question"]) == (name, question)]
        shown = [
            f"{row['answered']:.3g} ({row['right']:.3g}) of {row['asked']}, {row['spent']:.2g}"
            for row in sorted(cells, key=lambda row: row["epsilon"])
        ]
        middle = next((row for row in cells if row["epsilon"] == 1), cells[0])
        other = f"{middle['oracle']}, {middle['guessed_right']:.3g}" if "oracle" in middle else "–"
        lines.append("| " + " | ".join([name, question, *shown, other]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Write all tables."""
    for page, names in SCREENS.items():
        for name in names:
            fill(DOCS.parent / page, f"screen-{name}", screen(name))
    fill(DOCS / "reproduction.md", "table1", rendered(1))
    fill(DOCS / "reproduction.md", "table2", rendered(2))
    for task in ("mnist", "gisette", "twitter", "twitter-blog"):
        fill(DOCS / "reproduction.md", f"table3-{task}", table3(task))
    for name in ("reach_mnist", "reach_mnist_dpsgd"):
        if (DOCS / "results" / f"{name}.json").exists():
            fill(DOCS / "reproduction.md", name.replace("_", "-"), reach(name))
    fill(DOCS / "facts.md", "facts-right", facts_right())
    fill(DOCS / "facts.md", "facts-tuning", facts_tuning())
    fill(DOCS / "progressive.md", "networks", networks())
    if (DOCS / "results" / "noise_reduction.json").exists():
        fill(DOCS / "noise-reduction.md", "noise-reduction-table", noise_reduction())
    for table in LEAST_TABLES:
        fill(DOCS / "least-epsilon.md", f"least-{table}", least_epsilon(table))
    fill(DOCS / "least-epsilon.md", "least-others", least_others())
    fill(DOCS / "least-epsilon.md", "passed-is-true", passed_is_true())
    fill(DOCS / "counting.md", "coverage", coverage())
    fill(DOCS / "counting.md", "comparison", comparison())
    fill(DOCS / "counting.md", "chosen-caps", chosen_caps())
    fill(DOCS / "counting.md", "analysts", analysts())
    fill(DOCS / "quantiles.md", "quantile-tasks", quantile_tasks())
    fill(DOCS / "quantiles.md", "median-tasks", median_tasks())
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
