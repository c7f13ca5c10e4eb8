"""Trains a bank for Table 3 (``python -m reproduction table3 --bank FILE``); needs torch, numpy and src on the path, best on a GPU.

python -m reproduction.table3.make_bank --task mnist --data ../shared/data --device cuda --repeats 4 --out docs/results/bank_mnist.json --resume
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, choices=list(TASKS))
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the data files, or the file itself"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="the bank (JSON); rewritten after every slice"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep what --out holds and train what is missing"
    )
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument(
        "--epsilons",
        default=",".join(f"{level:g}" for level in LEVELS),
        help="levels, default %(default)s",
    )
    parser.add_argument(
        "--repeats", type=int, default=1, help="trainings of each setting at each level"
    )
    parser.add_argument(
        "--together", type=int, default=256, help="models side by side in a slice, about"
    )
    parser.add_argument("--seconds-budget", type=float, help="begin no slice that would end later")
    parser.add_argument(
        "--limit-configs", type=int, help="a trial: that many settings, spread over the grid"
    )
    parser.add_argument("--rows", type=int, help="a trial: train on the first rows only")
    given = parser.parse_args()
    try:
        return build(given)
    except ExpostError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def build(given: argparse.Namespace) -> int:
    task = task_named(given.task)
    if given.out.exists() and not given.resume:
        sys.stderr.write(f"{given.out} exists: say --resume to add to it, or give another --out\n")
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
