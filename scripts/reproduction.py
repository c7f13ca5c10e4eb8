"""Writes the tables of docs/reproduction.md, docs/counting.md and benchmarks/README.md from docs/results/*.json."""

from __future__ import annotations

import json
import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def rendered(number: int) -> str:
    """A Markdown table of answers (precision), the paper's figure in brackets."""
    rows = json.loads((DOCS / "results" / f"table{number}.json").read_text(encoding="utf-8"))["rows"]
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    lines = ["| mechanism | " + " | ".join(datasets) + " |", "|---" * (len(datasets) + 1) + "|"]
    for mechanism in dict.fromkeys(row["mechanism"] for row in rows):
        chosen = {row["dataset"]: row for row in rows if row["mechanism"] == mechanism}
        name = mechanism if chosen[datasets[0]]["private"] else f"{mechanism} (**no guarantee**)"
        lines.append("| " + " | ".join([name, *(cell(chosen[dataset]) for dataset in datasets)]) + " |")
    return "\n".join(lines)


def cell(row: dict[str, float | None]) -> str:
    precision = row["precision_mean"]
    text = f"{row['answers_mean']:.2f}" + ("" if precision is None else f" ({precision:.3f})")
    return text if row["paper_answers"] is None else f"{text} [{row['paper_answers']:g}]"


def coverage() -> str:
    """Factor and measured coverage by noise and ratio."""
    rows = json.loads((DOCS / "results" / "coverage.json").read_text(encoding="utf-8"))["rows"]
    lines = ["| noise | ratio | factor | coverage | without the factor |", "|---|---|---|---|---|"]
    for row in rows:
        numbers = f"{row['ratio']:.3g} | {row['factor']:.3f} | {row['coverage']:.3f} | {row['naive_coverage']:.3f}"
        lines.append(f"| {row['law']} | {numbers} |")
    return "\n".join(lines)


def benchmarks(name: str) -> str:
    """The rows that ``python -m benchmarks`` (or ``benchmarks.fleet``) wrote."""
    rows = json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))
    lines = ["| what | expost | against | peer | ratio | target |", "|---|---|---|---|---|---|"]
    for row in rows:
        peer = "–" if row["peer_seconds"] is None else readable(row["peer_seconds"])
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.3g}×"
        cells = (row["what"], readable(row["seconds"]), row["peer"], peer, ratio, row["target"])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def readable(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"


def fill(page: Path, marker: str, content: str) -> None:
    """Replace what stands between a marker and its end."""
    text = page.read_text(encoding="utf-8")
    block = f"<!-- {marker} -->\n{content}\n<!-- end -->"
    page.write_text(re.sub(rf"<!-- {marker} -->.*?<!-- end -->", lambda _: block, text, flags=re.DOTALL), encoding="utf-8")


def main() -> None:
    fill(DOCS / "reproduction.md", "table1", rendered(1))
    fill(DOCS / "reproduction.md", "table2", rendered(2))
    fill(DOCS / "counting.md", "coverage", coverage())
    fill(DOCS.parent / "benchmarks" / "README.md", "bench", benchmarks("bench"))
    fill(DOCS.parent / "benchmarks" / "README.md", "cuda", benchmarks("fleet_cuda"))


if __name__ == "__main__":
    main()
