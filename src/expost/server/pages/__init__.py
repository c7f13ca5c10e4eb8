"""The pages of a server: HTML made on the server, readable without JavaScript.

Every page calls actions of the service with the person of the session, as the API does; none reads
tables. Templates escape everything that people or data can write. Style and script are files of the
package, because the content security policy forbids inline ones.
Tests: ``tests/server/test_pages.py``, ``tests/server/test_browser.py``.
"""

from __future__ import annotations

from expost.server.pages import ask_pages, people_pages, release_pages, rendering

MODULES = (people_pages, ask_pages, release_pages, rendering)
"""The modules whose routers make up the pages."""
