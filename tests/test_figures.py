"""Numbers in the README and the docs have commands, images have scripts, tables are up to date.

Only texts are made again, from the committed JSON; the long computations are ``make figures``'s.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from scripts import audit, fill_documents

from expost.selection.plan import plan_levels
from reproduction import tightness
from tests.figure_rules import House, problems, recipes

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = sorted(
    [
        "README.md",
        "benchmarks/README.md",
        *(
            str(path.relative_to(ROOT))
            for path in (ROOT / "docs").rglob("*.md")
            if not {"_build", "generated"} & set(path.parts)
        ),
    ]
)
FIGURES_ONLY_BY_HAND = (
    "make_bank.py",  # a GPU's hours
    "tune_counting.py",  # searches whose outcome is in the source
    "default_grid.py",
    "demo.py",  # what `make demo` runs
    "demo_server.py",  # what `make server` runs
)


@pytest.fixture(scope="module")
def house() -> House:
    """What the scripts would write now, caught instead of written."""
    blocks: dict[tuple[str, str], str] = {}

    def catch(page: Path, marker: str, content: str) -> None:
        blocks[str(page.relative_to(ROOT)), marker] = content

    with pytest.MonkeyPatch.context() as patch:
        for module in (fill_documents, audit, tightness):
            patch.setattr(module, "fill", catch)
        fill_documents.main()
        audited = json.loads((RESULTS / "audit.json").read_text(encoding="utf-8"))
        catch(ROOT / "docs" / "audit.md", "caught", audit.caught(audited["suspects"]))
        catch(ROOT / "docs" / "audit.md", "needed", audit.needed_table(audited["needed"]))
        patch.setattr(tightness, "draw", lambda *_: None)
        patch.setattr(Path, "write_text", lambda *_, **__: None)
        tightness.write(json.loads((RESULTS / "tightness.json").read_text(encoding="utf-8")))
    return House(ROOT, recipes((ROOT / "Makefile").read_text(encoding="utf-8")), blocks)


@pytest.mark.parametrize("page", PAGES)
def test_every_number_has_a_command(house: House, page: str) -> None:
    assert list(problems(page, (ROOT / page).read_text(encoding="utf-8"), house)) == []


def test_make_figures_runs_every_script(house: House) -> None:
    """Catches a script that nobody runs any more, or that is renamed."""
    for path in sorted((ROOT / "scripts").glob("*.py")):
        if path.name not in (*FIGURES_ONLY_BY_HAND, "__init__.py"):
            assert house.runs("make figures", f"scripts/{path.name}"), path.name


def test_the_front_page_lists_every_page() -> None:
    """Catches a page that nobody finds: it is in no table of contents of docs/index.md."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    own = ("docs/index.md", "docs/reference/generated")
    listed = [page for page in PAGES if page.startswith("docs/") and not page.startswith(own)]
    names = [page.removeprefix("docs/").removesuffix(".md") for page in listed]
    listing = re.findall(r"^(?:.* <)?([\w/-]+)>?$", text, re.MULTILINE)
    assert [name for name in names if name not in listing] == []


def test_every_image_is_shown(house: House) -> None:
    """Catches a figure that no document uses any more."""
    texts = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert [
        path.name
        for path in (ROOT / "docs" / "figures").iterdir()
        if f"figures/{path.name}" not in texts
    ] == []


def test_every_result_has_a_command() -> None:
    """Catches a JSON file without a known origin.

    A command in a page or the Makefile, or the script that writes it, must name it.
    """
    places = [*(ROOT / page for page in PAGES), ROOT / "Makefile", *(ROOT / "scripts").glob("*.py")]
    texts = "".join(path.read_text(encoding="utf-8") for path in places)
    for path in RESULTS.glob("*.json"):
        family = path.stem.partition("_")[0]
        assert f"docs/results/{path.name}" in texts or f"docs/results/{family}_" in texts, path.name


@pytest.mark.slow
def test_the_figures_of_the_overview() -> None:
    """The sentence about ten levels: computed again, by the command that it names."""
    levels = plan_levels(
        [round(0.1 * level, 1) for level in range(1, 11)], 162, delta=1e-6, overhead=0.05
    ).levels
    ours, theirs = (
        [getattr(level, kind) for level in levels] for kind in ("charge", "charge_paper")
    )
    text = " ".join((ROOT / "docs" / "inside.md").read_text(encoding="utf-8").split())
    assert (
        f"cost {ours[0]:.2f} … {ours[-1]:.2g} at δ = 1e-6 where the published bound gives "
        f"{theirs[0]:.2f} … {theirs[-1]:.2g}" in text
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("| a | b |\n|---|---|\n| x | 1.5 |\n", "without a line"),
        ("<!-- by definition -->\n| a | b |\n|---|---|\n| x | 1.5 |\n", "a result in a table"),
        ("<!-- nobody -->\n| a | b |\n|---|---|\n| x | 1 |\n<!-- end -->\n", "no script fills"),
        (
            "<!-- made by: make moon -->\n| a | b |\n|---|---|\n| x | 1.5 |\n",
            "there is no 'make moon'",
        ),
        (
            "<!-- made by: make figures (scripts/none.py) -->\n| a | b |\n|---|---|\n| x | 1.5 |\n",
            "scripts/none.py does not exist",
        ),
        (
            "<!-- made by: make figures (reproduction/table3/make_bank.py) -->\n"
            "| a | b |\n|---|---|\n| x | 1.5 |\n",
            "does not run reproduction/table3/make_bank.py",
        ),
        (
            "<!-- made by: make figures (docs/results/none.json) -->\n"
            "| a | b |\n|---|---|\n| x | 1.5 |\n",
            "none.json does not exist",
        ),
        ("![x](docs/figures/plan.png)\n", "has no line above it"),
        (
            "<!-- made by: make figures (scripts/figures.py) -->\n![x](docs/figures/none.png)\n",
            "does not exist",
        ),
        (
            "<!-- made by: make figures (scripts/interval_coverage.py) -->\n"
            "![x](docs/figures/plan.png)\n",
            "writes plan.png",
        ),
        ("This is 3 times faster than that.\n", "a measured figure without a command"),
        ("<!-- by definition -->\nMeasured: 7 s.\n", "a measured figure without a command"),
        ("<!-- good -->\n| a |\n|---|\n| 2 |\n<!-- end -->\n", "'good' is stale"),
        ("", "'good' is missing"),
    ],
)
def test_what_is_wrong_is_found(text: str, problem: str) -> None:
    """Test of the test."""
    makefile = recipes((ROOT / "Makefile").read_text(encoding="utf-8"))
    found = list(
        problems("bad.md", text, House(ROOT, makefile, {("bad.md", "good"): "| a |\n|---|\n| 1 |"}))
    )
    assert any(problem in each for each in found), found


def test_what_is_right_is_left_alone() -> None:
    """Test of the test: every form of a line above, and code that only looks like a table."""
    text = (
        "<!-- good -->\n| a |\n|---|\n| 1 |\n<!-- end -->\n\n"
        "<!-- by definition -->\n| a | b |\n|---|---|\n| x | `1.5` |\n\n"
        "<!-- measured by: make bench (docs/results/bench.json) -->\n| a |\n|---|\n| 1.5 |\n\n"
        "<!-- made by: make figures (scripts/figures.py) -->\n![x](docs/figures/plan.png)\n\n"
        "```\n| a |\n|---|\n```\n\nMeasured by `make bench`: 7 s.\n"
    )
    makefile = recipes((ROOT / "Makefile").read_text(encoding="utf-8"))
    house: Any = House(ROOT, makefile, {("good.md", "good"): "| a |\n|---|\n| 1 |"})
    assert list(problems("good.md", text, house)) == []
