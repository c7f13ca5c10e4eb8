"""Pictures of the server's pages for the documentation, taken with Chromium.

``python -m scripts.server_pictures [FOLDER]`` furnishes a server with made-up data in a temporary
folder, asks some questions in the browser, and writes PNG files into ``docs/figures/server/``; with
a folder, pictures of every page go there instead.
"""

from __future__ import annotations

import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from tests.server import browsing

KEPT = Path("docs/figures/server")
FEW = (
    "ask.png",
    "release.png",
    "budget.png",
    "report.png",
    "ask-phone.png",
    "ask-dark.png",
)

PLACES = {
    "ann": [
        *("/ask/visits", "/datasets", "/datasets/visits", "/ask/digits", "/plan", "/requests"),
        *("/requests/{id}", "/releases/{id}", "/releases/{id}/report", "/budgets/visits"),
        "/tokens",
    ],
    "olga": ["/budgets", "/people", "/register", "/entries", "/acts", "/verify"],
}


def take(opened: Any, address: str, tokens: dict[str, str], folder: Path, every: bool) -> None:
    """Walk through the server and take the pictures."""

    def shoot(page: Any, name: str, path: str | None = None) -> None:
        if path is not None:
            page.goto(address + path)
        if every or f"{name}.png" in FEW:
            picture = Image.open(BytesIO(page.screenshot(full_page=True))).convert("RGB")
            picture.quantize(48).save(folder / f"{name}.png", optimize=True)

    size = {"width": 1000, "height": 700}
    ann = opened.new_context(viewport=size).new_page()
    ann.set_default_timeout(120_000)
    shoot(ann, "sign-in", "/sign-in")
    browsing.sign_in(ann, address, tokens["ann"])
    shoot(ann, "datasets")
    browsing.tune(ann, address)
    shoot(ann, "request")
    tuned = ann.url
    ann.goto("about:blank")  # else its reload may abort the next visit
    for place in ("kind=count&by=city&error=5", "kind=mean&column=spend&by=city&error=4"):
        ann.goto(f"{address}/ask/visits?{place}")
        ann.get_by_label("Purpose (kept in the ledger)").fill("weekly report")
        if "count" in place:
            shoot(ann, "ask")
        ann.get_by_role("button", name="Ask at this price").click()
        browsing.read_release(ann)
    shoot(ann, "release")
    last = ann.url.rpartition("/")[2]
    shoot(ann, "report", ann.url.removeprefix(address) + "/report")
    ann.goto(f"{address}/ask/visits?kind=count&by=city&error=0.05")
    shoot(ann, "ask-refused")
    ann.get_by_role("button", name="Ask at this price").click()
    shoot(ann, "refused")
    ann.goto(tuned)
    browsing.read_release(ann)
    shoot(ann, "release-tune")
    for name in ("datasets/visits", "ask/digits", "plan", "requests"):
        shoot(ann, name.replace("/", "-"), f"/{name}")
    olga = opened.new_context(viewport=size).new_page()
    browsing.sign_in(olga, address, tokens["olga"])
    shoot(olga, "budget", "/budgets/visits")
    for name in ("budgets", "people", "tokens", "register", "entries", "acts", "verify", "none"):
        shoot(olga, name, f"/{name}")
    for name, options in (("phone", {"viewport": browsing.PHONE}), ("dark", {"viewport": size})):
        scheme = "dark" if name == "dark" else "light"
        for who in ("ann", "olga") if every else ("ann",):
            page = opened.new_context(color_scheme=scheme, **options).new_page()
            browsing.sign_in(page, address, tokens[who])
            for path in PLACES[who] if every else ["/ask/visits"]:
                shown = path.format(id=last)
                label = path.strip("/").replace("/", "-").replace("{id}", "") or "first"
                shoot(page, "ask-" + name if path == "/ask/visits" else f"{label}-{name}", shown)


def main() -> None:
    """Furnish a server and take its pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else KEPT
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        browsing.served(Path(home)) as (address, _, tokens),
        browsing.browser() as opened,
    ):
        take(opened, address, tokens, folder, every=folder != KEPT)


if __name__ == "__main__":
    main()
