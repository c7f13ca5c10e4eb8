"""The documentation site: its quick starts run as they stand, and its link checker finds faults.

``make docs`` builds the whole site and checks every link; that is not repeated here.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
QUICK_STARTS = sorted((DOCS / "quickstart").glob("*.md"))
NEEDED = {"analyst": "ibis", "data-scientist": "sklearn", "ml-engineer": "numba"}
NEEDED["privacy-officer"] = "ibis"
COMMAND = f'expost() {{ "{sys.executable}" -m expost "$@"; }}\nset -euo pipefail\n'


def loaded(name: str) -> ModuleType:
    """A module in the folder docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path) -> list[tuple[str, str]]:
    """The code blocks of a page in order, as (language, code)."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```(python|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", QUICK_STARTS, ids=lambda page: page.stem)
def test_a_quick_start_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python blocks share their names; shell blocks run beside them, in the same folder."""
    if page.stem in NEEDED:
        pytest.importorskip(NEEDED[page.stem])
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page.stem}
    found = blocks(page)
    assert len(found) >= 4
    for language, code in found:
        if language == "python":
            exec(compile(code, str(page), "exec", dont_inherit=True), names)
        else:
            subprocess.run(["bash", "-c", COMMAND + code], check=True, timeout=120)
    capfd.readouterr()


def test_every_image_has_words_for_those_who_do_not_see_it() -> None:
    """Alternative texts are sentences or phrases, not names of files."""
    pages = [path for path in DOCS.rglob("*.md") if not {"_build", "generated"} & set(path.parts)]
    for page in [ROOT / "README.md", *pages]:
        for text, path in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text("utf-8")):
            assert len(text.split()) >= 4, (page.name, path)


_NOT_OUR_WORDS = re.compile(
    r"dearest|stands? in (its|their) place|is asked by|\bdesk\b|utility-first|runs as a test"
    r"|not private\b|realised charge|noise taken off|promise|progress goal",
    re.IGNORECASE,
)
"""Words that readers had to read twice, or that can be read as their opposite."""


def test_pages_use_one_language() -> None:
    """Prose outside code; advisories and the paper's tables quote what was written before."""
    quoting = ("advisories", "reproduction", "tightness")
    pages = [path for path in DOCS.rglob("*.md") if not {"_build", "generated"} & set(path.parts)]
    for page in [ROOT / "README.md", *pages]:
        if page.stem not in quoting:
            prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
            assert [match[0] for match in _NOT_OUR_WORDS.finditer(prose)] == [], page.name


def test_page_titles_say_the_task() -> None:
    """Two words at least: a title such as "Text" helps nobody who searches."""
    for page in DOCS.rglob("*.md"):
        if not {"_build", "generated"} & set(page.parts) and page.name != "index.md":
            title = page.read_text("utf-8").splitlines()[0]
            assert re.match(r"# \S+ \S+|```{include}", title), page.name


def test_there_is_a_quick_start_for_every_kind_of_user() -> None:
    names = {page.stem for page in QUICK_STARTS}
    assert names == {"analyst", "data-scientist", "ml-engineer", "privacy-officer"}


def test_the_reference_lists_the_modules_of_the_configuration() -> None:
    """Catches a public module that is in conf.py and not on the page, or the other way round."""
    configured = re.search(
        r"PUBLIC_MODULES = \((.*?)\)", (DOCS / "conf.py").read_text("utf-8"), re.DOTALL
    )
    assert configured is not None
    listed = re.findall(r"^   (expost[\w.]*)$", (DOCS / "reference/index.md").read_text(), re.M)
    assert re.findall(r'"(expost[\w.]*)"', configured[1]) == listed


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="none.html">x</a>', "broken link none.html"),
        ('<a href="other.html#none">x</a>', "no element 'none'"),
        ('<a href="#none">x</a>', "no element 'none'"),
        ('<img src="none.png">', "broken link none.png"),
        ('<script src="https://cdn.example/x.js"></script>', "from another host"),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', "from another host"),
    ],
)
def test_the_link_checker_finds_faults(tmp_path: Path, body: str, problem: str) -> None:
    (tmp_path / "other.html").write_text('<p id="here">x</p>', encoding="utf-8")
    (tmp_path / "index.html").write_text(body, encoding="utf-8")
    found = list(loaded("check_links").problems(tmp_path))
    assert any(problem in each for each in found), found


def test_the_link_checker_leaves_good_pages_alone(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<p id="a b">x</p>', encoding="utf-8")
    (tmp_path / "style.css").write_text("p { background: url(x.png) }", encoding="utf-8")
    good = (
        '<a href="other.html#a%20b">x</a><a href="https://arxiv.org/abs/1">y</a><a href="#">z</a>'
    )
    (tmp_path / "index.html").write_text(good, encoding="utf-8")
    assert list(loaded("check_links").problems(tmp_path)) == []


def test_a_style_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text('@import "https://fonts.example/x.css";', encoding="utf-8")
    assert list(loaded("check_links").problems(tmp_path)) != []
