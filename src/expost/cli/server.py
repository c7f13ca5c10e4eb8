"""``expost server``: start a server where people ask, back it up, restore it.

Tests: ``tests/server/test_start.py``, ``tests/server/test_backup.py``.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from expost.budget.signing import SigningKey, load_public
from expost.cli.output import Json, notes, show, visible

app = typer.Typer(
    help="Run a server that holds the data and the budget, and lets only releases out.",
    no_args_is_help=True,
)


class Workers(StrEnum):
    """Where models are trained."""

    local = "local"
    processes = "processes"
    ray = "ray"
    dask = "dask"


Database = Annotated[
    str | None,
    typer.Option(
        help="postgresql://… for a team; by default two SQLite files in the home.",
        envvar="EXPOST_DATABASE",  # a password is not for the list of processes
    ),
]


@app.command("start")
def start_server(
    home: Annotated[Path, typer.Option(help="Folder of the server; made if it does not exist.")],
    port: Annotated[int, typer.Option(help="Port.")] = 8400,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    database: Database = None,
    processes: Annotated[
        int, typer.Option(help="Processes that answer calls and run questions.", min=1, max=64)
    ] = 1,
    workers: Annotated[
        Workers,
        typer.Option(help="Where models are trained. Counts run in threads of the server."),
    ] = Workers.local,
    threads: Annotated[
        int, typer.Option(help="Requests that a process runs at the same time; 0 only answers.")
    ] = 2,
    pricers: Annotated[
        int,
        typer.Option(help="Processes that compute prices for all that answer; 0: none."),
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
    json_log: Annotated[
        bool, typer.Option("--json-log", help="Write the log as JSON, one document per line.")
    ] = False,
) -> None:
    """Hold the data and the budget, run the questions, and let only releases out."""
    from expost.execution.workers import forks_of
    from expost.server.jobs import WARM

    os.umask(0o077)  # what the server and its workers write is for its owner only
    forks_of(WARM)  # it takes seconds, also while this process imports
    from expost.server.server_settings import ServerSettings
    from expost.server.service import Service
    from expost.server.serving import listen, set_logging

    log = {"quiet": quiet, "json_lines": json_log}
    set_logging(**log)
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
    service = Service(settings)
    link = service.signin.first_link(again=owner_link)
    service.close()
    address = f"{'https' if settings.cookies_secure else 'http'}://{(name or [host])[0]}:{port}"
    notes.print(f"server: {address}", highlight=False)
    if link is not None:
        notes.print(
            f"first owner (works once, for a day): {address}/first?link={link}",
            highlight=False,
            soft_wrap=True,
        )
    listen(settings, list(proxy or ()), processes, log)


@app.command("backup")
def backup_server(
    home: Annotated[Path, typer.Option(help="Folder of the server, which may be running.")],
    out: Annotated[Path, typer.Option(help="New folder for the backup.")],
    database: Database = None,
    key: Annotated[
        Path | None,
        typer.Option(help="Sign the manifest with this private key (expost ledger keys)."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Copy people, data sets, requests and the ledger as they are at one moment.

    Sources, unfinished tuning jobs and keys are not part of it. Whoever has a backup can read what
    was released, and nothing of the rows.
    """
    from expost.server.backup import back_up
    from expost.server.server_settings import ServerSettings

    settings = ServerSettings(home, database=database)
    manifest = back_up(settings, out, None if key is None else SigningKey.load(key))
    entries = (manifest["ledger"] or [0])[0]
    words = f"backup of {manifest['time']}: {entries} entries of the ledger, {visible(out)}"
    show(manifest, as_json=json_output, render=lambda console: console.print(words))


class ChargedSince(StrEnum):
    """What was charged between a backup and the loss of a server."""

    nothing = "nothing"
    unknown = "unknown"


@app.command("restore")
def restore_server(
    folder: Annotated[Path, typer.Argument(help="Folder of the backup.")],
    home: Annotated[Path, typer.Option(help="New folder for the server.")],
    database: Database = None,
    ledger: Annotated[
        Path | None, typer.Option(help="The newest file of the ledger, if it was saved.")
    ] = None,
    charged_since: Annotated[
        ChargedSince | None,
        typer.Option(
            help="Without the newest ledger: 'nothing' if no question was asked after the backup; "
            "'unknown' charges all that the budgets had left."
        ),
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="Public key that must have signed the manifest.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Check a backup and make a server of it; nothing is changed if anything is wrong.

    A ledger in place of which a server would be restored is never overwritten.
    """
    from expost.server.backup import restore
    from expost.server.server_settings import ServerSettings

    report = restore(
        folder,
        ServerSettings(home, database=database),
        charged_since=None if charged_since is None else charged_since.value,
        ledger=ledger,
        public=None if public_key is None else load_public(public_key),
    )
    words = (
        f"restored as of {report['backup']}; charged since: {report['charged_since']}; "
        f"{report['ended']} unfinished requests ended without an answer. People and tokens are "
        "those of the backup: look at what was revoked later"
    )
    show(report, as_json=json_output, render=lambda console: console.print(words))
