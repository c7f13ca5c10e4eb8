"""Public names: each can be imported, and the documents and examples use no other."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import expost
from expost.errors import MissingExtra

ROOT = Path(__file__).parent.parent

MODULES = (
    "expost",
    "expost.audit",
    "expost.budget",
    "expost.errors",
    "expost.features",
    "expost.privacy",
    "expost.sklearn",
    "expost.training",
    *(
        f"expost.integrations.{path.stem}"
        for path in sorted((ROOT / "src" / "expost" / "integrations").glob("*.py"))
        if path.stem != "__init__"
    ),
)
"""The modules that users import from."""

DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks/README.md"]
    if "_build" not in path.parts
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except MissingExtra as error:
        pytest.skip(str(error))


def code_blocks(text: str) -> Iterator[str]:
    """Python code of a Markdown text: fenced as python, py, pycon or a code directive."""
    fence = re.compile(
        r"^(?P<indent> *)(?P<fence>`{3,}|:{3,})\{?(?:code-block|code|testcode|python|py|pycon)\b"
        r"[^\n]*\n(?P<body>.*?)^(?P=indent)(?P=fence)",
        re.DOTALL | re.MULTILINE,
    )
    for match in fence.finditer(text):
        lines = textwrap.dedent(match["body"]).splitlines()
        if any(line.startswith(">>> ") for line in lines):
            lines = [line[4:] for line in lines if line.startswith((">>> ", "... ", "...", ">>>"))]
        yield "\n".join(lines)


def used_names(source: str) -> Iterator[tuple[str, str | None]]:
    """Modules of expost that code imports, with the name it takes from them or None."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "expost":
                    yield alias.name, None
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "expost":
            for alias in node.names:
                yield node.module or "", alias.name
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "expost":
            yield "expost", node.attr


def private_names(source: str) -> list[str]:
    """What code uses of expost that is not public."""
    found = []
    for place, name in used_names(source):
        full = place if name is None else f"{place}.{name}"
        if full in MODULES or full == "expost.integrations":
            continue
        if place not in MODULES or (name is not None and name not in module(place).__all__):
            found.append(full)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_every_listed_name_can_be_imported(name: str) -> None:
    found = module(name)
    listed = found.__all__
    assert len(set(listed)) == len(listed)
    for each in listed:
        assert getattr(found, each) is not None, each
        assert each in dir(found)
        assert not each.startswith("_") or each == "__version__"


def test_a_name_is_the_same_object_wherever_it_is_listed() -> None:
    """Catches two classes of one name, of which `except` or `isinstance` would miss one."""
    for name in MODULES:
        if name in ("expost.sklearn", "expost.integrations.opacus"):
            continue  # these need extras
        for each in set(import_module(name).__all__) & set(expost.__all__):
            assert getattr(import_module(name), each) is getattr(expost, each)


def test_every_error_is_public() -> None:
    errors = import_module("expost.errors")
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, expost.ExpostError)
    }
    assert defined == set(errors.__all__)
    assert defined <= set(expost.__all__)


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Budgett'"):
        _ = expost.Budgett


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_public_names(path: Path) -> None:
    for block in code_blocks(path.read_text(encoding="utf-8")):
        try:
            ast.parse(block)
        except SyntaxError:  # an excerpt with … in it: its import lines only
            block = "\n".join(
                line for line in block.splitlines() if re.match(r"(from|import) expost", line)
            )
        assert private_names(block) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_use_public_names(path: Path) -> None:
    assert private_names(path.read_text(encoding="utf-8")) == []


def test_documents_have_code() -> None:
    """Test of the test: blocks are found, also those with several words after the fence."""
    imports = [
        used
        for path in DOCUMENTS
        for block in code_blocks(path.read_text(encoding="utf-8"))
        if "import" in block and "…" not in block
        for used in used_names(block)
    ]
    assert len(imports) > 20
    text = (
        "```{code-block} python\nx = 1\n```\n\n```toml\nx = 2\n```\n\n  ```python\n  y = 3\n  ```\n"
    )
    assert list(code_blocks(text)) == ["x = 1", "y = 3"]


@pytest.mark.parametrize(
    "source",
    [
        "from expost.budget.ledger import Ledger",
        "from expost.budget import Store",
        "from expost import Reserved",
        "import expost.execution.workers",
        "import expost\nexpost.plan_something()",
        "def late():\n    from expost.tuning import load_model",
    ],
)
def test_a_private_name_is_found(source: str) -> None:
    """Test of the test."""
    assert len(private_names(source)) == 1
