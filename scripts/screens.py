"""Screens of the README and the quick starts: docs/results/screens.json and their figures.

Each command runs once, with fresh randomness, on the made-up customers of ``expost tour`` or on
Adult (../shared/data/adult.csv). Blocks are filled in by scripts/fill_documents.py;
``python -m scripts.screens count describe`` runs some of them again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from expost.cli.tour import write_customers

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "screens.json"
FIGURES = ROOT / "docs" / "figures"
ADULT = ROOT.parent / "shared" / "data" / "adult.csv"
WIDTH = 92  # columns of a code block of the site

COUNT = "expost count customers.csv --by region --user customer --within 0.05 --epsilon 1"
SCREENS: dict[str, list[str]] = {
    "tune": ["expost tune adult.csv --target income --at-least 0.83 --learn-facts 0.05"],
    "customers": ["expost tune customers.csv --target stays --at-least 0.8 --learn-facts 0.2"],
    "describe": ["expost describe customers.csv --epsilon 0.2 --out facts.toml"],
    "count": [f"{COUNT} --keys regions.txt --plot counts.png"],
    "verify": ["expost certificate verify tuned-customers/release.json"],
    "ledger": [
        "expost ledger create ledger.db --name customers --epsilon 2",
        *(
            f"expost count customers.csv --by region --user customer --within {error} "
            f"--epsilon 0.5 --keys regions.txt --ledger ledger.db --json > {error}.json"
            for error in (0.2, 0.1, 0.05)
        ),
        "expost ledger show ledger.db --plot ledger.png",
    ],
}
"""The commands of a screen, run in this order in one folder; the output of the last is shown."""

PICTURES = {
    "tuned-customers/privacy.png": "start_model.png",
    "counts.png": "start_counts.png",
    "ledger.png": "start_ledger.png",
}
"""Figures that the commands write, and their names in docs/figures."""


def run(command: str, folder: Path) -> str:
    """Return what a command writes to stdout."""
    shell = f'expost() {{ "{sys.executable}" -m expost "$@"; }}\n{command}'
    variables = {**os.environ, "COLUMNS": str(WIDTH), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["bash", "-c", shell], cwd=folder, env=variables, text=True, stdout=subprocess.PIPE
    )
    if done.returncode:
        raise SystemExit(f"{command}: exit code {done.returncode}; run this script again")
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def main(names: Sequence[str]) -> None:
    """Run the named screens, or all that the data here allow, in one folder."""
    known = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as made_up:
        folder = Path(made_up)
        write_customers(folder / "customers.csv", folder / "regions.txt")
        if ADULT.is_file():
            shutil.copy(ADULT, folder / "adult.csv")
        for name in names or SCREENS:
            if name == "tune" and not ADULT.is_file():
                continue
            *before, last = SCREENS[name]
            for command in before:
                run(command, folder)
            known[name] = {"command": last, "output": run(last, folder)}
        for source, target in PICTURES.items():
            if (folder / source).exists():
                shutil.copy(folder / source, FIGURES / target)
    kept = {name: known[name] for name in SCREENS if name in known}
    RESULTS.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
