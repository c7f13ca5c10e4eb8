"""Apply one-line mistakes to a copy of the package, and report those that no test notices.

The mistakes are listed in ``tests/mutants/*.toml``, one file per room::

    [[mutant]]
    name = "a short description"            # unique
    file = "randomness/coins.py"            # below src/expost
    old = "turn % 2 == 1"                   # occurs exactly once in the file
    new = "turn % 2 == 0"
    tests = ["tests/randomness/test_coins.py"]
    equivalent = "why no test can notice"   # optional; such an edit is applied but not run

A mutant is *killed* if a test fails, or if the tests take too long. Every set of tests is first run
on the unchanged copy, where it must pass. The exit code is 0 if every mutant is killed, else 1.

    python tools/mutants.py                 all
    python tools/mutants.py --room privacy  one file
    python tools/mutants.py --only NAME     one mutant, with the output of its tests
    python tools/mutants.py --jobs 4
    python tools/mutants.py --check         only whether every edit still applies
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tests" / "mutants"
PACKAGE = ROOT / "src" / "expost"
_LIMIT = 300  # seconds for one set of tests


@dataclass(frozen=True)
class Mutant:
    """One edit."""

    room: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""

    def apply(self, package: Path) -> str:
        """Return the text of the edited file; raise if the edit does not apply exactly once."""
        text = (package / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: occurs {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


def load(room: str | None = None) -> list[Mutant]:
    """Return the mutants of one room, or of all."""
    found = []
    for path in sorted(LISTS.glob(f"{room or '*'}.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            tests = tuple(entry.pop("tests", ()))
            found.append(Mutant(room=path.stem, tests=tests, **entry))
    return found


class Copy:
    """A copy of the package in a temporary folder, in which one file at a time is edited."""

    def __init__(self, folder: Path) -> None:
        self.package = folder / "src" / "expost"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, self.package, ignore=ignored)

    def passes(
        self, tests: tuple[str, ...], mutant: Mutant | None = None, limit: float = _LIMIT
    ) -> tuple[bool, str]:
        """Return whether the tests pass with an edit, and what they printed."""
        text = None
        if mutant is not None:
            place = self.package / mutant.file
            text, edited = place.read_text(encoding="utf-8"), mutant.apply(self.package)
            place.write_text(edited, encoding="utf-8")
        path = os.pathsep.join([str(self.package.parent), str(ROOT)])
        quiet = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        environment["NUMBA_CACHE_DIR"] = str(self.package.parent / "numba")
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *quiet, *tests],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, f"more than {limit:.0f} s"
        finally:
            if text is not None:
                place.write_text(text, encoding="utf-8")
        if done.returncode not in (0, 1, 2):
            raise RuntimeError(f"pytest could not run {tests}:\n{done.stdout}\n{done.stderr}")
        return done.returncode == 0, done.stdout


def survivors(mutants: list[Mutant], jobs: int = 1, talk: bool = True) -> list[Mutant]:
    """Return the mutants that no test notices."""
    wanted = [mutant for mutant in mutants if not mutant.equivalent]
    with tempfile.TemporaryDirectory() as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number)))
        limits: dict[tuple[str, ...], float] = {}

        def baseline(tests: tuple[str, ...]) -> None:
            copy = copies.get()
            start = time.monotonic()
            try:
                passed, output = copy.passes(tests)
            finally:
                copies.put(copy)
            if not passed:
                raise RuntimeError(f"{tests} fail without an edit:\n{output[-3000:]}")
            limits[tests] = min(_LIMIT, 20 + 4 * (time.monotonic() - start))

        def survives(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                passed, _ = copy.passes(mutant.tests, mutant, limits[mutant.tests])
            finally:
                copies.put(copy)
            if talk:
                _say("SURVIVES" if passed else "killed  ", mutant.room, mutant.name)
            return passed

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(baseline, sorted({mutant.tests for mutant in wanted})))
            alive = list(pool.map(survives, wanted))
    return [mutant for mutant, still in zip(wanted, alive, strict=True) if still]


def _say(*parts: str) -> None:
    """Write one line."""
    sys.stdout.write(" ".join(parts) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--room")
    parser.add_argument("--only")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    mutants = load(options.room)
    if options.only:
        mutants = [mutant for mutant in mutants if mutant.name == options.only]
    broken = []
    for mutant in mutants:
        try:
            mutant.apply(PACKAGE)
        except (ValueError, OSError) as error:
            broken.append(str(error))
    for problem in broken:
        _say("does not apply:", problem)
    if broken or options.check or not mutants:
        return 1 if broken or not mutants else 0
    alive = survivors(mutants, options.jobs)
    equivalent = sum(bool(mutant.equivalent) for mutant in mutants)
    tried = len(mutants) - equivalent
    _say(f"{tried - len(alive)} of {tried} killed; {equivalent} proven equivalent")
    for mutant in alive:
        _say(f"SURVIVES {mutant.file}: {mutant.name}\n  - {mutant.old}\n  + {mutant.new}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
