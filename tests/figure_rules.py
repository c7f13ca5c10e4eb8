"""What a document must say about the origin of its tables, images and measured numbers.

Directly above a table or an image stands where it comes from::

    <!-- NAME -->                         a block that a script fills, up to <!-- end -->
    <!-- made by: make figures (scripts/figures.py, docs/results/x.json) -->
    <!-- measured by: make bench (docs/results/bench.json) -->
    <!-- by definition -->                a table that contains no results

A paragraph about a measurement names a command or a file (in backticks or as a link), or has such a
line above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->")
_IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
_SOURCE = re.compile(r"(?:made|measured) by: (make \w+)(?: \(([^)]*)\))?$")
_RESULT = re.compile(r"\d+\.\d+")
_CLAIM = re.compile(r"\b(measured|faster|slower|took|takes about)\b", re.IGNORECASE)
_FIGURE = re.compile(
    r"\d\s*(?:×|%|times\b|n?s\b|[mµ]s\b|min\b|hours?\b|seconds?\b|[GM]i?B\b)|\d\.\d"
)
_COMMAND = re.compile(
    r"`[^`]*(?:scripts/|scripts\.|make |expost |python -m |tests/)[^`]*`"
    r"|\]\([^)]*(?:\.md|results|benchmarks)[^)]*\)"
)


@dataclass(frozen=True)
class House:
    """What a document may refer to.

    The root of the repository, the Makefile's recipes, and the blocks as scripts make them now.
    """

    root: Path
    recipes: Mapping[str, str]
    blocks: Mapping[tuple[str, str], str]

    def runs(self, target: str, script: str) -> bool:
        """Whether a Make target runs a script."""
        recipe = self.recipes.get(target, "")
        module = script.removesuffix(".py").replace("/", ".")
        command = module.replace("reproduction.", "reproduction ", 1)
        return any(each in recipe for each in (script, f"-m {module}", f"-m {command}"))


def recipes(makefile: str) -> dict[str, str]:
    """Target → its commands."""
    found = re.findall(r"^(\w+):[^\n]*\n((?:\t[^\n]*\n)*)", makefile, re.MULTILINE)
    return {f"make {name}": commands for name, commands in found}


def problems(name: str, text: str, house: House) -> Iterator[str]:
    """What is wrong with a document, by line."""
    lines = _without_code(text).splitlines()
    folder = (house.root / name).parent
    for number, line in enumerate(lines, start=1):
        above = _above(lines, number - 1)
        if line.startswith("|---") or re.match(r"\|\s*:?-{3,}", line):
            yield from (
                f"{name}:{number}: {problem}" for problem in _table(name, lines, number - 1, house)
            )
        for target in _IMAGE.findall(line):
            yield from (
                f"{name}:{number}: {problem}" for problem in _image(folder, target, above, house)
            )
    for number, paragraph, above in _paragraphs(lines):
        if (
            _CLAIM.search(paragraph)
            and _FIGURE.search(paragraph)
            and not _COMMAND.search(paragraph)
        ):
            if above is None or not _SOURCE.match(above):
                yield f"{name}:{number}: a measured figure without a command: {paragraph[:60]!r}"
            else:
                yield from (f"{name}:{number}: {problem}" for problem in _source(above, house))
    yield from _stale(name, text, house)


def _without_code(text: str) -> str:
    """Fenced blocks emptied, so that lines keep their numbers."""
    return re.sub(
        r"^```.*?^```",
        lambda block: "\n" * block[0].count("\n"),
        text,
        flags=re.MULTILINE | re.DOTALL,
    )


def _above(lines: list[str], place: int) -> str | None:
    """The comment directly above a line, or above the empty line above it."""
    for line in reversed(lines[max(0, place - 2) : place]):
        if line.strip():
            match = _COMMENT.fullmatch(line.strip())
            return match[1] if match else None
    return None


def _table(name: str, lines: list[str], separator: int, house: House) -> Iterator[str]:
    marker = _above(lines, separator - 1)
    if marker is None:
        yield "a table without a line that says where it comes from"
    elif marker == "by definition":
        body = []
        for line in lines[separator + 1 :]:
            if not line.startswith("|"):
                break
            body.append(re.sub(r"`[^`]*`", "", line))
        yield from (
            f"a result in a table 'by definition': {line[:60]!r}"
            for line in body
            if _RESULT.search(line)
        )
    elif _SOURCE.match(marker):
        yield from _source(marker, house)
    elif (name, marker) not in house.blocks:
        yield f"no script fills the block {marker!r}"


def _image(folder: Path, target: str, marker: str | None, house: House) -> Iterator[str]:
    if not (folder / target).is_file():
        yield f"the image {target} does not exist"
    match = _SOURCE.match(marker or "")
    if match is None:
        yield f"the image {target} has no line above it that says what makes it"
        return
    yield from _source(match[0], house)
    scripts = [part.strip() for part in (match[2] or "").split(",") if part.strip().endswith(".py")]
    if not any(
        (house.root / each).is_file()
        and Path(target).name in (house.root / each).read_text("utf-8")
        for each in scripts
    ):
        yield f"no script in {match[0]!r} writes {Path(target).name}"


def _source(marker: str, house: House) -> Iterator[str]:
    """A Make target that is there and runs the scripts it is said to run; files that are there."""
    match = _SOURCE.match(marker)
    assert match is not None
    target, listed = (
        match[1],
        [part.strip() for part in (match[2] or "").split(",") if part.strip()],
    )
    if target not in house.recipes:
        yield f"there is no {target!r}"
    for part in listed:
        if not (house.root / part).exists():
            yield f"{part} does not exist"
        elif part.endswith(".py") and not house.runs(target, part):
            yield f"{target!r} does not run {part}"


def _paragraphs(lines: list[str]) -> Iterator[tuple[int, str, str | None]]:
    """Prose between empty lines: its first line, its text, the comment above it."""
    start: int | None = None
    for place, line in enumerate([*lines, ""]):
        prose = bool(line.strip()) and not line.startswith(("|", "#", "<!--", "![", ">"))
        if prose and start is None:
            start = place
        elif not prose and start is not None:
            yield start + 1, " ".join(lines[start:place]), _above(lines, start)
            start = None


def _stale(name: str, text: str, house: House) -> Iterator[str]:
    """Blocks that are not what their script makes of the committed results."""
    for (page, marker), content in house.blocks.items():
        if page != name:
            continue
        found = re.search(rf"<!-- {re.escape(marker)} -->\n(.*?)\n?<!-- end -->", text, re.DOTALL)
        if found is None:
            yield f"{name}: the block {marker!r} is missing, though a script fills it"
        elif found[1] != content:
            yield f"{name}: the block {marker!r} is stale; run make figures"
