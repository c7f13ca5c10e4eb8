"""A public name of the package is defined in one module: what a name means has one answer."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "expost"

Modules = Iterable[tuple[str, str]]


def defined_twice(modules: Modules) -> dict[str, list[str]]:
    """Return the public functions and classes that several of the modules define."""
    homes: dict[str, set[str]] = defaultdict(set)
    for name, source in modules:
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                homes[node.name].add(name)
    return {
        name: sorted(found)
        for name, found in sorted(homes.items())
        if len(found) > 1 and not name.startswith("_")
    }


def package() -> list[tuple[str, str]]:
    """Return the modules of the package with their sources; alembic names its steps itself."""
    return [
        (str(path.relative_to(SOURCE)), path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
        if path.parent.name != "versions"
    ]


def test_no_public_name_is_defined_twice() -> None:
    """Functions and classes of modules, except names that start with an underscore."""
    assert defined_twice(package()) == {}


@pytest.mark.parametrize(
    ("second", "twice"),
    [
        ("def plan(): ...", {"plan": ["a.py", "b.py"]}),
        ("class plan: ...", {"plan": ["a.py", "b.py"]}),
        ("async def plan(): ...", {"plan": ["a.py", "b.py"]}),
        ("def _plan(): ...", {}),
        ("from a import plan", {}),
        ("class Other:\n    def plan(self): ...", {}),
    ],
)
def test_what_counts_as_a_second_definition(second: str, twice: dict[str, list[str]]) -> None:
    """An import, a method and a private name are no definitions of a public name."""
    assert defined_twice([("a.py", "def plan(): ..."), ("b.py", second)]) == twice


MOST = 40  # most of them are the public places of a table
VAGUE = {"each", "found", "made", "place", "places"}


def bound_names(source: str) -> list[str]:
    """Return every name that a source binds: assignments, loops, parameters."""
    nodes = list(ast.walk(ast.parse(source)))
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return stored + [n.arg for n in nodes if isinstance(n, ast.arg)]


def test_names_say_the_noun() -> None:
    """Vague names do not come back to these rooms; ``MOST`` bounds the rest of the package."""
    vague = {name: sum(b in VAGUE for b in bound_names(source)) for name, source in package()}
    cleared = ("features/", "budget/", "privacy/", "audit/", "mechanisms", "execution/")
    assert {name: n for name, n in vague.items() if n and name.startswith(cleared)} == {}
    assert sum(vague.values()) <= MOST


def test_what_binds_a_name() -> None:
    """A use of a name does not bind it."""
    assert bound_names("def f(each):\n    found = each\n    for place in each: ...") == [
        "found",
        "place",
        "each",
    ]


DOORS = {
    *("tune", "select", "describe", "audit", "plan_levels", "train", "reserve", "plan_job"),
    *("DPLinearRegression", "DPLogisticRegression", "ExPostSearch"),
}
"""Public functions and classes whose keywords are what can be asked."""
LONG = {"confidence_bounds", "list_strategies"}
"""What still has too many parameters; nothing may be added here."""
MOST_PARAMETERS = 8


def long_signatures(modules: Modules) -> set[str]:
    """Return the functions with more parameters; an ``__init__`` is named by its class."""
    listed = set()
    for _, source in modules:
        tree = ast.parse(source)
        named = {id(node): node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        for kind in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]:
            for node in kind.body:
                if isinstance(node, ast.FunctionDef):
                    named[id(node)] = kind.name if node.name == "__init__" else node.name
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                words = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                count = sum(word.arg not in ("self", "cls") for word in words)
                if count > MOST_PARAMETERS:
                    listed.add(named.get(id(node), node.name))
    return listed


def test_signatures_are_short() -> None:
    """Kernels take arrays one by one, and commands get their options by their parameters."""
    modules = [
        (name, source)
        for name, source in package()
        if not name.startswith(("cli/", "training/_native/", "training/_torch/"))
    ]
    assert long_signatures(modules) - DOORS == LONG  # pass an object; a new door goes to DOORS


def test_what_a_long_signature_is() -> None:
    many = ", ".join("abcdefghi")
    assert long_signatures([("a.py", f"def f({many}): ...")]) == {"f"}
    assert long_signatures([("a.py", f"class F:\n    def __init__({many}): ...")]) == {"F"}
    assert (
        long_signatures([("a.py", "class F:\n    def f(self, a, b, c, d, e, f, g, h): ...")])
        == set()
    )
