"""Apply one-line mistakes to copies of the package, and report those that no test notices.

The mistakes are listed in ``tests/mutants/*.toml``, one file per room::

    [[mutant]]
    name = "a short description"            # unique
    file = "randomness/coins.py"            # below src/expost
    old = "turn % 2 == 1"                   # occurs exactly once in the file
    new = "turn % 2 == 0"
    tests = ["tests/randomness/test_coins.py"]  # files, or pytest node ids
    equivalent = "why no test can notice"   # optional; such an edit is applied but not run

Each job has its own copy of the checkout in a temporary folder. Every set of tests is first run on
the unchanged copy, where it must pass; a set that cannot run here (a package is missing) is
reported, and its mutants are not counted as killed. A mutant is *killed* if a test fails, or if the
tests take much longer than without the edit. The exit code is 0 if every mutant that was tried is
killed and none was left out, else 1.

    python tools/mutants.py                          all
    python tools/mutants.py --room privacy           one list
    python tools/mutants.py --rooms privacy,budget   several lists
    python tools/mutants.py --only NAME              one mutant, with the output of its tests
    python tools/mutants.py --sample 20              every n-th mutant, 20 in all
    python tools/mutants.py --part 2/5               the second of five parts
    python tools/mutants.py --jobs 4
    python tools/mutants.py --json                   one JSON document: outcome and time per mutant
    python tools/mutants.py --check                  only whether every edit still applies
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tests" / "mutants"
PACKAGE = ROOT / "src" / "expost"
KILLED, SURVIVES, EQUIVALENT, NOT_RUN = "killed", "survives", "equivalent", "not run"
_LIMIT = 300  # seconds for one set of tests
_NOT_COPIED = (".*", "__pycache__", "node_modules", "site", "dist", "build", "*.egg-info")


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


@dataclass(frozen=True)
class Outcome:
    """What happened to one mutant, and how many seconds it took."""

    room: str
    name: str
    file: str
    outcome: str
    seconds: float = 0.0
    reason: str = ""


def load(room: str | None = None) -> list[Mutant]:
    """Return the mutants of one room, or of all."""
    found = []
    for path in sorted(LISTS.glob(f"{room or '*'}.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            tests = tuple(entry.pop("tests", ()))
            found.append(Mutant(room=path.stem, tests=tests, **entry))
    return found


class Copy:
    """A copy of the checkout in a temporary folder, in which one file at a time is edited."""

    def __init__(self, folder: Path) -> None:
        self.root, self.package = folder, folder / "src" / "expost"
        ignored = shutil.ignore_patterns(*_NOT_COPIED)
        shutil.copytree(ROOT, folder, ignore=ignored, symlinks=True)

    def passes(
        self, tests: tuple[str, ...], mutant: Mutant | None = None, limit: float = _LIMIT
    ) -> tuple[bool, str]:
        """Return whether the tests pass with an edit, and what they printed."""
        if mutant is None:
            return self._run(tests, limit)
        place = self.package / mutant.file
        text, edited = place.read_text(encoding="utf-8"), mutant.apply(self.package)
        place.write_text(edited, encoding="utf-8")
        try:
            return self._run(tests, limit)
        finally:
            place.write_text(text, encoding="utf-8")

    def _run(self, tests: tuple[str, ...], limit: float) -> tuple[bool, str]:
        quiet = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=short"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.root / "src"), str(self.root)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_DIR": str(self.root / "numba"),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.root / "hypothesis"),
        }
        shutil.rmtree(self.root / "hypothesis", ignore_errors=True)
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            environment.setdefault(name, "1")
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *quiet, *tests],
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, f"more than {limit:.0f} s"
        if done.returncode not in (0, 1, 2):
            raise RuntimeError(f"pytest could not run {tests}:\n{done.stdout}\n{done.stderr}")
        return done.returncode == 0, done.stdout


class Runner:
    """Runs mutants in a pool of copies."""

    def __init__(self, folder: Path, jobs: int, *, talk: bool) -> None:
        self._copies: SimpleQueue[Copy] = SimpleQueue()
        self._talk = talk
        self._limits: dict[tuple[str, ...], float] = {}
        self._broken: dict[tuple[str, ...], str] = {}
        for number in range(jobs):
            self._copies.put(Copy(folder / str(number)))

    def baseline(self, tests: tuple[str, ...]) -> None:
        """Run tests without an edit: they must pass, and their time sets the limit."""
        passed, output, seconds = self._timed(tests, None, _LIMIT)
        self._limits[tests] = min(_LIMIT, 20 + 4 * seconds)
        if not passed:
            self._broken[tests] = output[-2000:]

    def outcome(self, mutant: Mutant) -> Outcome:
        """Run the tests of one mutant."""
        who = mutant.room, mutant.name, mutant.file
        if mutant.equivalent:
            return Outcome(*who, EQUIVALENT, reason=mutant.equivalent)
        if mutant.tests in self._broken:
            found = Outcome(*who, NOT_RUN, reason=self._broken[mutant.tests])
        else:
            passed, output, seconds = self._timed(mutant.tests, mutant, self._limits[mutant.tests])
            last = "" if passed else output.strip().splitlines()[-1]
            kind = SURVIVES if passed else KILLED
            found = Outcome(*who, kind, round(seconds, 1), last)
        if self._talk:
            _say(f"{found.outcome:8} {found.seconds:6.1f} s  {mutant.room}: {mutant.name}")
        return found

    def _timed(
        self, tests: tuple[str, ...], mutant: Mutant | None, limit: float
    ) -> tuple[bool, str, float]:
        copy, start = self._copies.get(), time.monotonic()
        try:
            passed, output = copy.passes(tests, mutant, limit)
        except RuntimeError as error:
            passed, output = False, str(error)
        finally:
            self._copies.put(copy)
        return passed, output, time.monotonic() - start


def outcomes(mutants: list[Mutant], jobs: int = 1, talk: bool = True) -> list[Outcome]:
    """Return what happened to each mutant."""
    wanted = sorted({mutant.tests for mutant in mutants if not mutant.equivalent})
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        runner = Runner(Path(folder), jobs, talk=talk)
        list(pool.map(runner.baseline, wanted))
        return list(pool.map(runner.outcome, mutants))


def survivors(mutants: list[Mutant], jobs: int = 1, talk: bool = True) -> list[Mutant]:
    """Return the mutants that no test notices, or whose tests could not run."""
    found = outcomes(mutants, jobs, talk)
    return [
        mutant
        for mutant, each in zip(mutants, found, strict=True)
        if each.outcome in (SURVIVES, NOT_RUN)
    ]


def summary(found: list[Outcome]) -> dict[str, dict[str, float]]:
    """Return the counts and the seconds per room."""
    rooms: dict[str, dict[str, float]] = {}
    for each in found:
        room = rooms.setdefault(
            each.room, {KILLED: 0, SURVIVES: 0, EQUIVALENT: 0, NOT_RUN: 0, "seconds": 0.0}
        )
        room[each.outcome] += 1
        room["seconds"] = round(room["seconds"] + each.seconds, 1)
    return rooms


def _say(text: str) -> None:
    """Write one line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _show(mutants: list[Mutant], found: list[Outcome]) -> None:
    """Write the score per room, then the mutants that are left."""
    for room, numbers in summary(found).items():
        tried = numbers[KILLED] + numbers[SURVIVES]
        _say(
            f"{room}: {numbers[KILLED]} of {tried} killed, {numbers[EQUIVALENT]} proven "
            f"equivalent, {numbers[NOT_RUN]} not run, {numbers['seconds']:.0f} s"
        )
    for mutant, each in zip(mutants, found, strict=True):
        if each.outcome == SURVIVES:
            _say(f"SURVIVES {mutant.file}: {mutant.name}\n  - {mutant.old}\n  + {mutant.new}")
    for tests, reason in {
        mutant.tests: each.reason
        for mutant, each in zip(mutants, found, strict=True)
        if each.outcome == NOT_RUN
    }.items():
        _say(f"NOT RUN: {', '.join(tests)} fail without an edit:\n{reason}")


def _only(mutant: Mutant) -> int:
    """Run one mutant and write what its tests print."""
    with tempfile.TemporaryDirectory() as folder:
        passed, output = Copy(Path(folder) / "copy").passes(mutant.tests, mutant)
    _say(output)
    _say("SURVIVES" if passed else "killed")
    return 1 if passed else 0


def _chosen(options: argparse.Namespace) -> list[Mutant]:
    """The mutants that the options name."""
    rooms = [name for name in (options.rooms or "").split(",") if name]
    rooms += [options.room] if options.room else []
    found = [mutant for room in rooms or [None] for mutant in load(room)]
    if options.only:
        found = [mutant for mutant in found if mutant.name == options.only]
    if options.sample and options.sample < len(found):
        found = [found[place * len(found) // options.sample] for place in range(options.sample)]
    if options.part:
        part, parts = map(int, options.part.split("/"))
        found.sort(key=lambda mutant: mutant.tests)
        found = found[(part - 1) * len(found) // parts : part * len(found) // parts]
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--room")
    parser.add_argument("--rooms")
    parser.add_argument("--only")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--part")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    mutants = _chosen(options)
    broken = []
    for mutant in mutants:
        try:
            mutant.apply(PACKAGE)
        except (ValueError, OSError) as error:
            broken.append(f"{mutant.room}: {error}")
    for problem in broken:
        _say(f"does not apply: {problem}")
    if broken or options.check or not mutants:
        return 1 if broken or not mutants else 0
    if options.only and not options.json:
        return _only(mutants[0])
    found = outcomes(mutants, options.jobs, talk=not options.json)
    if options.json:
        document: dict[str, Any] = {
            "rooms": summary(found),
            "mutants": [asdict(each) for each in found],
        }
        _say(json.dumps(document, indent=1))
    else:
        _show(mutants, found)
    return 1 if any(each.outcome in (SURVIVES, NOT_RUN) for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
