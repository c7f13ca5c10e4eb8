"""A missing package fails at use, and the message names the smallest extra that has it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

BLOCKED = """
import sys
sys.modules["{module}"] = None
import expost
from expost.errors import MissingExtra
try:
    {use}
except MissingExtra as error:
    print(error)
"""

TRAIN = (
    "from expost.training import Configuration, Fleet; "
    "grid = [Configuration(learning_rate=1, epochs=1, batch_size=2, clip=1, noise_multiplier=1)]; "
)

SKLEARN_WHOLE = ("scikit-learn", "sklearn")
"""The one extra that is larger than needed: `expost.sklearn` also has estimators that use numba."""


def use_without(module: str, use: str) -> str:
    code = BLOCKED.format(module=module, use=use)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_opendp():
    out = use_without(
        "opendp", "from expost.integrations.opendp import from_opendp; from_opendp(None)"
    )
    assert "pip install 'expost[opendp]'" in out


def test_ray():
    out = use_without("ray", "from expost.integrations.ray import RayExecutor; RayExecutor()")
    assert "pip install 'expost[ray]'" in out


def test_dask():
    out = use_without(
        "distributed", "from expost.integrations.dask import DaskExecutor; DaskExecutor()"
    )
    assert "pip install 'expost[dask]'" in out


@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("numba", "native", TRAIN + "Fleet('linear', grid).train([[0.0], [1.0]], [0.0, 1.0])"),
        (
            "torch",
            "torch",
            TRAIN + "Fleet('linear', grid).train([[0.0], [1.0]], [0.0, 1.0], device='cuda')",
        ),
        ("sklearn", "sklearn", "import expost.sklearn"),
        ("sklearn", "sklearn", "from expost.sklearn import ExPostSearch"),
        ("matplotlib", "plot", "from expost import plots; plots.figure(1)"),
        (
            "optuna",
            "optuna",
            "from expost.integrations.optuna import PrivateStudy; PrivateStudy({})",
        ),
        (
            "ibis",
            "analytics",
            "import tempfile, pathlib; rows = pathlib.Path(tempfile.mkdtemp(), 'rows.csv'); "
            "rows.write_text('u,g'); expost.count(rows, by='g', user='u', keys=['a'], epsilon=1)",
        ),
        ("sqlalchemy", "sql", "expost.Ledger.create('ledger.db', expost.PureDP(1), 'b')"),
        (
            "psycopg",
            "postgres",
            "expost.Ledger.create('postgresql://localhost/x', expost.PureDP(1), 'b')",
        ),
        (
            "dp_accounting",
            "accounting",
            "from expost.integrations.dp_accounting import dpsgd_guarantee; "
            "dpsgd_guarantee(0.1, 1.0, 1)",
        ),
        (
            "opacus",
            "opacus",
            "from expost.integrations.opacus import train_with_opacus; "
            "train_with_opacus(None, None, None, None)",
        ),
    ],
)
def test_the_message_names_the_extra(module: str, extra: str, use: str) -> None:
    if module == "psycopg":
        pytest.importorskip("sqlalchemy", reason="a ledger needs SQLAlchemy before a driver")
    assert f"pip install 'expost[{extra}]'" in use_without(module, use)


@pytest.mark.parametrize(("module", "extra"), [("numba", "native"), ("sklearn", "demo")])
def test_tune_from_the_command_line(module: str, extra: str) -> None:
    """Catches `expost tune` that points to gigabytes of torch where a small package is missing."""
    pytest.importorskip("sklearn", reason="the example's data come with scikit-learn")
    code = (
        f"import sys; sys.modules[{module!r}] = None; "
        "sys.argv = ['expost', 'tune', 'examples/digits.toml']; "
        "import expost.__main__; expost.__main__.start()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode != 0
    shown = " ".join((done.stdout + done.stderr).split())
    assert f"pip install 'expost[{extra}]'" in shown


def _extras() -> dict[str, frozenset[str]]:
    """Extras and the packages they install, with those of the extras they include."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed: dict[str, list[str]] = project["optional-dependencies"]

    def packages(extra: str) -> frozenset[str]:
        found: set[str] = set()
        for requirement in listed[extra]:
            included = re.fullmatch(r"expost\[(.*)\]", requirement)
            if included:
                found = found.union(*(packages(name) for name in included[1].split(",")))
            else:
                found.add(re.split(r"[\[<>=~! ]", requirement)[0].lower().replace("_", "-"))
        return frozenset(found)

    return {extra: packages(extra) for extra in listed}


def _calls() -> list[tuple[str, str]]:
    """The package and the extra of every ``MissingExtra`` and ``import_extra`` in the source."""
    found = []
    for folder in ("src", "reproduction"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
                if called not in ("MissingExtra", "import_extra") or path.name == "errors.py":
                    continue
                words = [argument.value for argument in node.args]
                words = words[1:] if called == "import_extra" else words
                found.append((words[0], words[1] if len(words) > 1 else words[0]))
    return sorted(set(found))


def test_every_extra_is_the_smallest_that_helps() -> None:
    """Catches a message that names an extra without the package, or one that installs more."""
    extras = _extras()
    assert len(_calls()) > 10
    for package, extra in _calls():
        name = package.lower().replace("_", "-")
        assert name in extras[extra], (package, extra)
        smaller = [
            other
            for other, content in extras.items()
            if name in content and content < extras[extra]
        ]
        assert not smaller or (package, extra) == SKLEARN_WHOLE, (package, extra, smaller)
