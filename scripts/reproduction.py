"""Writes the tables of docs/reproduction.md from docs/results/*.json (which ``expost experiment`` wrote), between its markers."""

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


def main() -> None:
    page = DOCS / "reproduction.md"
    text = page.read_text(encoding="utf-8")
    for number in (1, 2):
        block = f"<!-- table{number} -->\n{rendered(number)}\n<!-- end -->"
        text = re.sub(rf"<!-- table{number} -->.*?<!-- end -->", lambda _, block=block: block, text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
