"""A server on a port, with a real browser in front of it."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from expost.server.app import create_app
from expost.server.server_settings import ServerSettings
from tests.server.running_server import furnish

PHONE = {"width": 390, "height": 844}


@contextmanager
def served(folder: Path, tick: float = 1.0) -> Iterator[tuple[str, Any, dict[str, str]]]:
    """A furnished server in a thread: its address, the service and a token per person."""
    app = create_app(ServerSettings(folder / "server", tick=tick))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", app.state.service, furnish(app.state.service, folder)
    finally:
        server.should_exit = True
        thread.join(20)


@contextmanager
def browser() -> Iterator[Any]:
    """Debian's Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        path = shutil.which("chromium")
        opened = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


def sign_in(page: Any, address: str, token: str) -> None:
    """Sign in by the form."""
    page.goto(f"{address}/sign-in")
    page.get_by_label("Your token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile("/(datasets|budgets)$"))


def read_release(page: Any) -> None:
    """Wait for the answer of the request on the page, and open it."""
    link = page.get_by_role("link", name="Read the release")
    link.wait_for(timeout=60_000)
    link.click()
    page.get_by_role("heading", name="What it cost").wait_for()


def tune(page: Any, address: str) -> None:
    """Start a small tuning job."""
    fields = "epsilons=1&learning_rates=2&epochs=2&at_least=0.3&attempts=3"
    page.goto(f"{address}/ask/digits?{fields}")
    page.get_by_label("Purpose (kept in the ledger)").fill("read postcodes")
    page.locator("#ask:not([disabled])").click()
    page.wait_for_url(re.compile("/requests/"))
