"""Check a built site without network: ``python docs/check_links.py docs/_build/html``.

Every relative link and image must point to a file of the site, every fragment to an element of its
page, and no page may load a script, style, font or image from another host. Links that a reader may
follow to other sites are not opened. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "link": "href", "source": "src", "iframe": "src"}
_NOT_FETCHED = {"canonical", "index", "search", "next", "prev", "author"}
_CSS_URL = re.compile(r"""(?:url\(|@import\s+)["']?(?:https?:)?//""")


class _Page(HTMLParser):
    """The ids of a page, its links, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect ids, links and loaded files of one element."""
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in _LOADED and _LOADED[tag] in given:
            target = given[_LOADED[tag]]
            if tag == "link" and given.get("rel") in _NOT_FETCHED:
                self.links.append(target)
            else:
                self.loads.append(target)


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def problems(site: Path) -> Iterator[str]:
    """What is wrong with a built site, one line for each problem."""
    site = site.resolve()
    for path in sorted(site.rglob("*.html")):
        page, name = _read(path), path.relative_to(site)
        for target in page.loads:
            if urlsplit(target).netloc:
                yield f"{name}: loads {target} from another host"
        for target in (*page.links, *page.loads):
            yield from (f"{name}: {problem}" for problem in _broken(path, target))
    for path in sorted(site.rglob("*.css")):
        if _CSS_URL.search(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: loads a file from another host"


def _broken(path: Path, target: str) -> Iterator[str]:
    """Why a link inside the site leads nowhere."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return
    place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if place.is_dir():
        place = place / "index.html"
    if not place.is_file():
        yield f"broken link {target}"
    elif (
        parts.fragment
        and place.suffix == ".html"
        and unquote(parts.fragment) not in _read(place).ids
    ):
        yield f"no element {parts.fragment!r} for link {target}"


def main() -> int:
    """Print the problems; 1 if there are any."""
    found = list(problems(Path(sys.argv[1])))
    print("\n".join(found) or "all links inside the site work; nothing is loaded from other hosts")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
