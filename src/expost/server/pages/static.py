"""Style sheet, script and icon: a fixed list of files, read once."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

from expost.server.problems import Missing

router = APIRouter()

KINDS = {
    "desk.css": "text/css; charset=utf-8",
    "desk.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@cache
def content(name: str) -> bytes:
    """Return a file of the package."""
    return files("expost.server.pages").joinpath("static", name).read_bytes()


@cache
def version() -> str:
    """Return a short name of the present files, so that browsers notice new ones."""
    joined = b"".join(content(name) for name in KINDS)
    return hashlib.sha256(joined).hexdigest()[:12]


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Return a style sheet, script or icon."""
    if name not in KINDS:
        raise Missing("there is no such file", "name")
    headers = {"cache-control": "public, max-age=3600"}
    return Response(content(name), media_type=KINDS[name], headers=headers)
