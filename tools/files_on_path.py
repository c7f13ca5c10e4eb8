"""Count the files of the package that run on one path: what a reader has to open to follow it.

    python tools/files_on_path.py select           RandomDropping.select, without a ledger
    python tools/files_on_path.py count --json     expost count on a CSV file, without a ledger
    python tools/files_on_path.py tune             expost tune on a small job, without a ledger
    python tools/files_on_path.py server           a question at the server, from request to answer

``--json`` prints ``{"files": number, "rooms": {room: [file, …]}}``. A file counts if one of its
functions is called; importing a file does not count. A first process runs the path and lists the
modules that it imports; the second imports them, and then counts.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "expost"
_MODULES = "EXPOST_PATH_MODULES"  # the file to which the first process writes its modules


class Recorder:
    """The files whose functions are called while it records, in every thread."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._recording = False

    def install(self) -> None:
        """Watch this thread and all that are started later."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the block runs."""
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def _see(self, frame: Any, event: str, argument: Any) -> None:
        # Bodies of modules and classes are not optimised; they run when a file is imported.
        if self._recording and event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            self.files.add(frame.f_code.co_filename)

    def rooms(self) -> dict[str, list[str]]:
        """The recorded files of the package, by room."""
        rooms: dict[str, list[str]] = {}
        for name in sorted(self.files):
            path = Path(name)
            if path.is_relative_to(PACKAGE):
                inside = path.relative_to(PACKAGE)
                rooms.setdefault(inside.parts[0].removesuffix(".py"), []).append(str(inside))
        return rooms


def run_command(*arguments: str) -> None:
    """Run the ``expost`` command in this process, without its output."""
    from expost.__main__ import start

    sys.argv = ["expost", *arguments]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            start()
        except SystemExit as end:
            if end.code not in (0, None, 5):  # 5: finished, the goal was missed
                raise RuntimeError(f"expost {' '.join(arguments)}: {said.getvalue()}") from None


def follow_select(recorder: Recorder) -> None:
    """A selection by Algorithm 3 among noisy answers."""
    from expost import Candidate, DiscreteLaplace, Query, RandomDropping

    query = Query(lambda rows: len(rows), sensitivity=1)
    candidates = [Candidate(DiscreteLaplace(query, level), repeats=20) for level in (0.5, 1.0)]
    with recorder.recording():
        RandomDropping(0.1).select(candidates, list(range(100)))


def follow_count(recorder: Recorder) -> None:
    """The groups of a CSV file."""
    rows = [f"{person},{person % 3}" for person in range(600)]
    Path("rows.csv").write_text("person,group\n" + "\n".join(rows) + "\n", encoding="utf-8")
    Path("keys.txt").write_text("0\n1\n2\n", encoding="utf-8")
    words = ["count", "rows.csv", "--by", "group", "--user", "person", "--keys", "keys.txt"]
    with recorder.recording():
        run_command(*words, "--epsilon", "5", "--within", "0.2")


def follow_tune(recorder: Recorder) -> None:
    """A small job."""
    from tests.tuning.jobs import write

    job = write(Path.cwd())
    with recorder.recording():
        run_command("tune", str(job), "--out", "model")


def follow_server(recorder: Recorder) -> None:
    """A question at the server."""
    from tests.server.running_server import QUESTION, open_server

    with open_server(Path.cwd()) as server, recorder.recording():
        asked = server.ask("ann", QUESTION, "first")
        view = server.wait(asked.json()["id"], "ann")
        if view["status"] != "done":
            raise RuntimeError(f"the question ended as {view['status']}")


PATHS: dict[str, Callable[[Recorder], None]] = {
    "select": follow_select,
    "count": follow_count,
    "tune": follow_tune,
    "server": follow_server,
}


def main() -> None:
    """Count the files on one path."""
    parser = argparse.ArgumentParser(description="Count the files that run on one path.")
    parser.add_argument("name", choices=PATHS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(os.environ.get(_MODULES) or Path(folder, "modules"))
        first = _MODULES in os.environ
        os.chdir(folder)
        if not first:
            command = [sys.executable, __file__, options.name]
            subprocess.run(command, check=True, env=os.environ | {_MODULES: str(listed)})
            for name in listed.read_text(encoding="utf-8").split():
                import_module(name)
        recorder = Recorder()
        recorder.install()
        PATHS[options.name](recorder)
        sys.setprofile(None)
        os.chdir(ROOT)
        if first:
            names = sorted(name for name in sys.modules if name.split(".")[0] == "expost")
            listed.write_text("\n".join(names), encoding="utf-8")
            return
    rooms = recorder.rooms()
    count = sum(map(len, rooms.values()))
    if options.json:
        print(json.dumps({"files": count, "rooms": rooms}, indent=2))
        return
    print(f"{options.name}: {count} files")
    for room, files in rooms.items():
        print(f"  {room}: {', '.join(files)}")


if __name__ == "__main__":
    main()
