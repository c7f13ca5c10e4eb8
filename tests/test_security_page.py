"""``SECURITY.md`` and the advisories say what the project is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def supported() -> dict[str, str]:
    """The table of versions: what, and its lowest version."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+|–) \| [^|]+ \|$", text, re.MULTILINE)
    return {what.split(" ")[0].lower(): lowest for what, lowest in rows}


@pytest.mark.parametrize("package", ["numpy", "torch", "scikit-learn", "opacus", "sqlalchemy"])
def test_lowest_versions_are_those_of_the_package(package: str) -> None:
    required = [*PROJECT["dependencies"]]
    for extra in ("torch", "sklearn", "opacus", "sql"):
        required += PROJECT["optional-dependencies"][extra]
    stated = {
        name.lower(): version for name, version in (r.split(">=") for r in required if ">=" in r)
    }
    assert supported()[package] == stated[package]


def test_python_versions_are_those_of_the_package() -> None:
    assert f">={supported()['python']}" == PROJECT["requires-python"]


def test_every_version_with_privacy_changes_has_advisories() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    advisories = (ROOT / "docs" / "advisories.md").read_text(encoding="utf-8")
    for section in changes.split("\n## ")[1:]:
        version = section.split()[0]
        if "### Privacy" in section:
            assert f" {version}" in advisories, version


def test_the_citation_names_the_version() -> None:
    version = (ROOT / "src/expost/_version.py").read_text(encoding="utf-8").split('"')[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_newest_section_of_the_changelog_is_the_version() -> None:
    version = (ROOT / "src/expost/_version.py").read_text(encoding="utf-8").split('"')[1]
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[0]
    assert newest == version
