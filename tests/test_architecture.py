"""The structure of the package: direction of imports, a light ``import expost``, short files."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "expost"
FILES = sorted(SOURCE.rglob("*.py"))

ROOMS = (
    "_version",
    "errors",
    "files",
    "rationals",
    "arrays",
    "randomness",
    "privacy",
    "html_tables",
    "mechanisms",
    "budget",
    "execution",
    "selection",
    "tables",
    "features",
    "facts",
    "certificates",
    "plots",
    "analytics",
    "training",
    "tuning",
    "audit",
    "sklearn",
    "integrations",
    "server",
    "cli",
    "__main__",
)
"""From low to high: a room imports itself and the rooms before it, and no other."""

QUIET = ROOMS[: ROOMS.index("plots")]
"""Rooms that never print or log."""

HEAVY = (
    "numpy",
    "sqlalchemy",
    "torch",
    "ray",
    "pandas",
    "sklearn",
    "opendp",
    "typer",
    "scipy",
    "rich",
    "matplotlib",
    "jax",
    "tensorflow",
    "distributed",
    "dask",
)

LONGEST = 700  # few, longer files, one noun each


def room_of(path: Path) -> str:
    """errors.py → errors, privacy/charges.py → privacy, __init__.py → the front door."""
    first = path.relative_to(SOURCE).parts[0]
    return "the front door" if first == "__init__.py" else first.removesuffix(".py")


def imported(source: str, package: tuple[str, ...] = ("expost",)) -> Iterator[str]:
    """Full names of the modules that a file imports; ``package`` resolves relative imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield from (
                [f"{module}.{alias.name}" for alias in node.names]
                if module == "expost"
                else [module]
            )


def rooms(source: str, package: tuple[str, ...] = ("expost",)) -> set[str]:
    """The rooms of expost that a file imports."""
    return {name.split(".")[1] for name in imported(source, package) if name.startswith("expost.")}


def allowed(room: str, other: str) -> bool:
    """Whether ``room`` may import ``other``; a room that is not listed may import nothing."""
    if room == "the front door":
        return other in ROOMS[: ROOMS.index("sklearn")] or other == "server"
    return room in ROOMS and other in ROOMS[: ROOMS.index(room) + 1]


def misplaced(room: str, source: str, package: tuple[str, ...] = ("expost",)) -> list[str]:
    return sorted(other for other in rooms(source, package) if not allowed(room, other))


def package_of(path: Path) -> tuple[str, ...]:
    return ("expost", *path.relative_to(SOURCE).parts[:-1])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    assert misplaced(room_of(path), path.read_text(encoding="utf-8"), package_of(path)) == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("privacy", "from expost.mechanisms import Mechanism"),
        ("privacy", "def late():\n    import expost.selection.plan"),
        ("privacy", "from expost import selection"),
        ("privacy", "from ..selection import plan"),
        ("mechanisms", "if TYPE_CHECKING:\n    from expost.selection.candidate import Candidate"),
        ("selection", "from expost.cli.main import app"),
        ("selection", "from expost.integrations.opendp import wrap"),
        ("randomness", "from expost.privacy.guarantees import PureDP"),
        ("errors", "from expost.rationals import exact"),
        ("integrations", "from expost.cli import main"),
        ("the front door", "from expost.integrations import opendp"),
        ("budget", "from expost.tuning.job import tune"),
        ("budget", "from expost.selection.release import Release"),
        ("execution", "from expost.selection.candidate import Candidate"),
        ("training", "from expost.tuning.job import tune"),
        ("analytics", "from expost.training import Fleet"),
        ("cellar", "from expost.errors import ExpostError"),
    ],
)
def test_an_import_that_points_the_wrong_way_is_found(room: str, source: str) -> None:
    """Test of the test."""
    assert misplaced(room, source, ("expost", room))


def test_every_room_is_ordered() -> None:
    """A new room without a place in the order fails; so does a place without a room."""
    found = {room_of(path) for path in FILES} - {"the front door"}
    assert found == set(ROOMS)


def test_importing_expost_is_light() -> None:
    """Optional and slow packages are imported at use, never at ``import expost``."""
    report = (
        "import sys, expost; "
        "print('\\n'.join(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", report], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "expost" in loaded
    assert sorted(set(loaded) & set(HEAVY)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_short(path: Path) -> None:
    """A file this long asks to be two."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_lower_rooms_print_and_log_nothing(path: Path) -> None:
    """Below the command line nothing is logged or printed: a log line could contain a run count."""
    if room_of(path) in QUIET:
        source = path.read_text(encoding="utf-8")
        assert not {"logging", "rich", "typer"} & {name.split(".")[0] for name in imported(source)}
        calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        assert not any(isinstance(call, ast.Name) and call.id == "print" for call in calls)
