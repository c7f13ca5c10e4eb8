"""Names and files that docstrings and comments mention exist."""

from __future__ import annotations

import ast
import re
import tokenize
from functools import lru_cache
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "expost"
FILES = sorted(SOURCE.rglob("*.py"))

NAME = re.compile(r"\bexpost(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(r"(?<![\w./-])(?:[\w-]+/)+[\w-]+\.(?:py|md|toml|sh)\b|(?<![\w./-])tests/[\w/]+")


def prose(source: str) -> list[str]:
    """The docstrings and the comments of a file."""
    texts = [
        token.string
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.append(str(node.value.value))
    return texts


@lru_cache
def members(path: Path) -> dict[str, set[str]]:
    """Names at the top level of a module, with the names inside those that are classes."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            inner = {part.name for part in node.body if hasattr(part, "name")}
            inner |= {
                part.target.id
                for part in node.body
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            }
            found[node.name] = inner
        elif isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, set())
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, set())
        elif isinstance(node, (ast.ImportFrom, ast.Import)):
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, set())
    return found


def name_exists(name: str) -> bool:
    """Whether a dotted name is a module of expost, or a name in one."""
    parts = name.split(".")[1:]
    folder = SOURCE
    while parts and (folder / parts[0]).is_dir():
        folder = folder / parts.pop(0)
    if not parts:
        return True
    module = folder / f"{parts[0]}.py"
    if module.exists():
        parts = parts[1:]
    else:
        module = folder / "__init__.py"
    if not parts:
        return True
    known = members(module)
    # Members of a class that is imported or inherited are not followed.
    return parts[0] in known and (len(parts) == 1 or not known[parts[0]] or len(parts) == 2)


def file_exists(name: str, folder: Path) -> bool:
    """Whether a file is in the repository, in the package, or in a folder above ``folder``."""
    bases = (ROOT, SOURCE, SOURCE.parent, folder, folder.parent)
    return any((base / name.rstrip("/")).exists() for base in bases)


def dead(source: str, folder: Path = SOURCE) -> list[str]:
    """Names and files that are mentioned and do not exist."""
    texts = prose(source)
    names = {name for text in texts for name in NAME.findall(text)}
    files = {name for text in texts for name in FILE.findall(text)}
    return sorted(
        {name for name in names if not name_exists(name)}
        | {name for name in files if not file_exists(name, folder)}
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_docstrings_mention_exists(path: Path) -> None:
    assert dead(path.read_text(encoding="utf-8"), path.parent) == []


def test_a_dead_path_is_found() -> None:
    """Test of the test."""
    text = '"""See :mod:`expost.budget.cellar`, ``tests/budget/test_cellar.py``."""\n# a/b.py\n'
    assert dead(text) == ["a/b.py", "expost.budget.cellar", "tests/budget/test_cellar.py"]
    good = '"""See :func:`expost.budget.limits.amount_of`, ``expost.Ledger``, docs/ledger.md."""'
    assert dead(good) == []
    assert not name_exists("expost.budget.limits.amount_off")
