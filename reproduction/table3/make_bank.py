"""Train a bank for Table 3, best on a GPU. Needs torch and numpy.

Use the bank with: python -m reproduction table3 --bank FILE

Example, from the root of the repository (add --resume to continue an earlier bank):

python -m reproduction.table3.make_bank --task mnist --data ../shared/data --device cuda \\
    --repeats 4 --out docs/results/bank_mnist.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from expost.errors import ExpostError
from reproduction.table3.bank import Bank
from reproduction.table3.bank_builder import Builder, check_resumed, empty_bank
from reproduction.table3.tasks import GRID, LEVELS, TASKS, Split, task_named


def main() -> int:
    """Parse the arguments and train; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduction.table3.make_bank",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", required=True, choices=list(TASKS), help="row of Table 3")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the data files, or the file itself"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="file of the bank (JSON); rewritten after every slice",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the trainings in --out and add those that are missing",
    )
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument(
        "--epsilons",
        default=",".join(f"{level:g}" for level in LEVELS),
        help="comma-separated levels (default: %(default)s)",
    )
    parser.add_argument("--repeats", type=int, default=1, help="trainings per setting and level")
    parser.add_argument(
        "--together", type=int, default=256, help="approximate number of models in a slice"
    )
    parser.add_argument(
        "--seconds-budget", type=float, help="start no slice that would end later than this"
    )
    parser.add_argument(
        "--limit-configs", type=int, help="for a test: use only this many settings of the grid"
    )
    parser.add_argument("--rows", type=int, help="for a test: train on the first rows only")
    given = parser.parse_args()
    try:
        return build(given)
    except ExpostError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def build(given: argparse.Namespace) -> int:
    """Train the bank; return 0 if it is complete, 1 if time ran out, 2 if --out exists."""
    task = task_named(given.task)
    if given.out.exists() and not given.resume:
        sys.stderr.write(f"{given.out} exists: pass --resume to add to it, or another --out\n")
        return 2
    split = task.load(given.data)
    if given.rows is not None:
        split = Split(split.X[: given.rows], split.y[: given.rows], split.test_X, split.test_y)
    count = (
        len(GRID) if given.limit_configs is None else min(len(GRID), max(1, given.limit_configs))
    )
    settings = [GRID[round(place * (len(GRID) - 1) / max(1, count - 1))] for place in range(count)]
    bank = empty_bank(task, split, settings, task.sha256(given.data), given.device)
    if given.rows is not None or count < len(GRID):
        bank.details["exactness"] = f"a trial: {len(split.X)} rows, {count} settings"
    if given.out.exists():
        bank = check_resumed(Bank.load(given.out), bank)
    builder = Builder(
        task,
        split,
        bank,
        save=lambda filled: filled.save(given.out),
        device=given.device,
        together=given.together,
        seconds=given.seconds_budget,
        say=lambda line: print(line, flush=True),
    )
    return (
        0
        if builder.build([float(level) for level in given.epsilons.split(",")], given.repeats)
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
