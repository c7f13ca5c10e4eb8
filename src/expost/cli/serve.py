"""``expost serve``: a server where people ask, and the data stays behind it.

Tests: ``tests/server/test_start.py``.
"""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from expost.cli.output import notes
from expost.errors import MissingExtra


class Workers(StrEnum):
    """Where models are trained."""

    local = "local"
    processes = "processes"
    ray = "ray"
    dask = "dask"


def serve(
    home: Annotated[Path, typer.Option(help="Folder of the server; made if it does not exist.")],
    port: Annotated[int, typer.Option(help="Port.")] = 8400,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    database: Annotated[
        str | None,
        typer.Option(
            help="postgresql://… for a team; by default two SQLite files in the home.",
            envvar="EXPOST_DATABASE",  # a password is not for the list of processes
        ),
    ] = None,
    workers: Annotated[
        Workers,
        typer.Option(help="Where models are trained. Counts run in threads of the server."),
    ] = Workers.local,
    threads: Annotated[
        int, typer.Option(help="Requests that run at the same time; 0 only answers.")
    ] = 2,
    pricers: Annotated[
        int, typer.Option(help="Processes that compute prices; 0: none, without a deadline.")
    ] = 2,
    tick: Annotated[
        float, typer.Option(help="Results appear at multiples of this many seconds.")
    ] = 10.0,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Host name under which people reach the server; may be repeated."),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="Address of a proxy whose X-Forwarded-For is believed; may be repeated. Without "
            "it, such headers are ignored."
        ),
    ] = None,
    owner_link: Annotated[
        bool,
        typer.Option(
            "--owner-link", help="Print a link for a new owner even if there is one (lost tokens)."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No log of HTTP calls.")] = False,
) -> None:
    """Hold the data and the budget, run the questions, and let only releases out."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("uvicorn", "server") from None
    from expost.server.api.connections import LimitedConnection, most_connections
    from expost.server.app import create_app
    from expost.server.server_settings import ServerSettings

    LimitedConnection.most = most_connections()
    os.umask(0o077)  # what the server and its workers write is for its owner only
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("expost.server").setLevel(logging.WARNING if quiet else logging.INFO)
    settings = ServerSettings(
        home,
        database=database,
        host=host,
        port=port,
        tick=tick,
        workers=workers.value,
        threads=threads,
        pricers=pricers,
        hosts=tuple(name or ()),
    )
    app = create_app(settings)
    app.state.service.prices.warm()
    address = f"{'https' if settings.cookies_secure else 'http'}://{(name or [host])[0]}:{port}"
    link = app.state.service.signin.first_link(again=owner_link)
    notes.print(f"server: {address}", highlight=False)
    if link is not None:
        notes.print(
            f"first owner (works once, for a day): {address}/first?link={link}",
            highlight=False,
            soft_wrap=True,
        )
    uvicorn.run(
        app,
        host=host,
        port=port,
        access_log=False,  # it would hold addresses with their queries
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=2,
        http=LimitedConnection,
        # By default Uvicorn believes every caller on this machine, who could avoid all limits.
        proxy_headers=bool(proxy),
        forwarded_allow_ips=list(proxy or ()),
    )
