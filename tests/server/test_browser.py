"""A walk through the server with a real browser: slider, certificate, refusal, tuning, auditor."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if shutil.which("chromium") is None:
    pytest.skip("there is no chromium", allow_module_level=True)

from tests.server import browsing

Walk = tuple[Any, str, Any, dict[str, str]]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    folder = tmp_path_factory.mktemp("browser")
    with browsing.served(folder) as (address, service, tokens), browsing.browser() as opened:
        yield opened, address, service, tokens


def new_page(walk: Walk, **options: Any) -> Any:
    """A page that fails the test if the browser reports an error."""
    page = walk[0].new_context(**options).new_page()
    page.set_default_timeout(60_000)
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on(
        "console",
        lambda said: page.complaints.append(said.text) if said.type == "error" else None,
    )
    return page


def fits(page: Any) -> bool:
    """Whether the page is as wide as the window: nothing to scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def shown_price(page: Any) -> float:
    return float(page.locator("#price .big").inner_text().split()[-1])


def test_from_the_slider_to_the_certificate_and_a_refusal(walk: Walk) -> None:
    _, address, _, tokens = walk
    page = new_page(walk)
    browsing.sign_in(page, address, tokens["ann"])
    page.get_by_role("link", name="Ask about visits").click()
    before = shown_price(page)
    slider = page.get_by_label("Error, by slider")
    slider.focus()
    for _ in range(5):
        slider.press("ArrowRight")
    page.wait_for_function(
        f"() => !document.querySelector('#price').innerText.includes('{before:g}')"
    )
    page.locator(".price:not([aria-busy])").wait_for()
    assert shown_price(page) < before  # a larger error is cheaper
    page.get_by_label("Purpose (kept in the ledger)").fill("weekly report")
    price = shown_price(page)
    page.get_by_role("button", name="Ask at this price").click()
    page.wait_for_url(re.compile("/requests/"))
    browsing.read_release(page)
    assert 0 < float(page.locator("section .big").inner_text().split()[-1]) <= price
    for city in ("Bern", "Graz", "Ulm"):
        assert page.get_by_role("rowheader", name=city).is_visible()
    page.get_by_role("link", name="Verify: compute the charge again").click()
    assert page.get_by_text("Verified.").is_visible()
    with page.expect_download() as saved:
        page.get_by_role("link", name="Certificate", exact=True).click()
    assert saved.value.suggested_filename.startswith("certificate-")
    page.get_by_role("link", name="One-page report").click()
    assert page.get_by_role("heading", name="Who is protected").is_visible()
    assert page.pdf(format="A4").count(b"/Type /Page\n") == 1  # an officer prints one sheet

    page.goto(f"{address}/ask/visits?kind=count&by=city&unit=percent&error=0.05")
    assert page.get_by_text("The budget would refuse this.").is_visible()
    page.get_by_role("button", name="Ask at this price").click()
    assert page.get_by_role("heading", name="The budget refused this").is_visible()
    assert page.complaints == []


def test_a_query_in_sql(walk: Walk) -> None:
    """The unit stays per cent when the kind changes, and an empty query is no error."""
    _, address, _, tokens = walk
    page = new_page(walk)
    browsing.sign_in(page, address, tokens["ann"])
    page.goto(f"{address}/ask/visits")
    for kind in ("Sum of a column", "A query in SQL"):
        with page.expect_response(re.compile(r"/ask/visits\?")):
            page.get_by_label(kind).check()
        page.locator(".price:not([aria-busy])").wait_for()
        assert page.locator("#unit").input_value() == "percent"
    page.get_by_text("Write a SELECT to see its price.").wait_for()
    page.get_by_label("One SELECT with aggregates").fill("SELECT COUNT(*) AS n FROM visits")
    page.locator("#price .big").wait_for()
    assert shown_price(page) > 0
    assert page.complaints == []


def test_without_javascript_on_a_phone(walk: Walk) -> None:
    _, address, _, tokens = walk
    page = new_page(walk, java_script_enabled=False, viewport=browsing.PHONE)
    browsing.sign_in(page, address, tokens["ann"])
    page.goto(f"{address}/ask/visits")
    assert not page.get_by_label("Error, by slider").is_visible()
    page.get_by_label("Error", exact=True).fill("30")
    before = shown_price(page)
    page.get_by_role("button", name="Show the price").click()
    page.wait_for_url(re.compile("error=30"))
    assert shown_price(page) < before
    page.get_by_role("button", name="Ask at this price").click()
    browsing.read_release(page)  # the page reloads by itself
    assert page.get_by_role("rowheader", name="Bern").is_visible()


def test_a_tuning_job_and_the_auditor(walk: Walk) -> None:
    _, address, _, tokens = walk
    page = new_page(walk)
    browsing.sign_in(page, address, tokens["ann"])
    browsing.tune(page, address)
    browsing.read_release(page)
    assert page.get_by_role("heading", name="What it cost").is_visible()
    assert page.complaints == []
    auditor = new_page(walk)
    browsing.sign_in(auditor, address, tokens["ada"])
    auditor.get_by_role("link", name="Ledger").click()
    auditor.get_by_role("link", name="Verify the whole ledger").click()
    assert auditor.get_by_text("Everything agrees.").is_visible()
    assert auditor.complaints == []


def test_phone_and_dark(walk: Walk) -> None:
    _, address, _, tokens = walk
    grounds = {}
    both = ("/datasets/visits", "/ask/visits", "/requests", "/budgets/visits", "/tokens")
    for who, scheme, paths in (
        ("olga", "light", (*both, "/entries", "/people", "/register")),
        ("ann", "dark", (*both, "/ask/digits", "/plan")),
    ):
        page = new_page(walk, viewport=browsing.PHONE, color_scheme=scheme)
        browsing.sign_in(page, address, tokens[who])
        for path in paths:
            page.goto(address + path, wait_until="domcontentloaded")
            assert fits(page), path
        grounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert page.complaints == []
    assert grounds["light"] != grounds["dark"]


def test_the_keyboard_reaches_the_content_first(walk: Walk) -> None:
    _, address, _, tokens = walk
    page = new_page(walk)
    browsing.sign_in(page, address, tokens["ann"])
    page.goto(f"{address}/datasets")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
