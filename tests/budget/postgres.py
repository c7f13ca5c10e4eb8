"""A real PostgreSQL server for the tests: found (or installed), started in a folder of its own,
stopped at the end.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

_ROOM = 512 * 2**20  # bytes a server may need; less in memory means a folder on disk
_SECONDS = 60


class Unavailable(Exception):
    """Why no server can be had on this machine."""


@dataclass
class Server:
    """A running server on a Unix socket in its own folder, so that no port is needed."""

    folder: Path
    process: subprocess.Popen[bytes]
    _numbers: Iterator[int] = field(default_factory=count)

    def url(self, database: str) -> str:
        return f"postgresql://expost@/{database}?host={self.folder}"

    def execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(
            f"host={self.folder} user=expost dbname=postgres", autocommit=True
        ) as connection:
            connection.execute(statement)

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new, empty database; dropped afterwards, whoever is still connected."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def stop(self) -> None:
        self.process.send_signal(
            signal.SIGINT
        )  # "fast": open connections are closed, then the server ends
        try:
            self.process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def start() -> Server:
    """A server; raises Unavailable with the reason where there can be none."""
    binaries = _find() or _install()
    owner = _owner()
    folder = Path(tempfile.mkdtemp(prefix="pg", dir=_roomy_folder()))
    try:
        if owner is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        server = _launch(binaries, folder, owner)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return server


def _launch(binaries: Path, folder: Path, owner: pwd.struct_passwd | None) -> Server:
    identity = (
        {} if owner is None else {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    )
    settings = {
        "cwd": folder,
        "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
        **identity,
    }
    data, log = folder / "data", folder / "log"
    made = subprocess.run(
        [
            binaries / "initdb",
            "-D",
            data,
            "-U",
            "expost",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        **settings,
    )
    if made.returncode:
        raise Unavailable(f"initdb failed: {made.stderr.strip()[-500:]}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                binaries / "postgres",
                "-D",
                data,
                "-k",
                folder,
                "-c",
                "listen_addresses=",
                "-c",
                "max_connections=100",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the tests only; they stop the server
            **settings,
        )
    server = Server(folder, process)
    try:
        _wait(server, log)
    except BaseException:
        server.stop()
        raise
    return server


def _wait(server: Server, log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            return server.execute("SELECT 1")
        except psycopg.OperationalError as error:
            if server.process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(
                    f"the server did not come up: {log.read_text()[-500:]}"
                ) from error
            time.sleep(0.05)


def _find() -> Path | None:
    """The folder of initdb and postgres: the newest installed, else whatever is on the path."""
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda path: [int(n) for n in path.parent.name.split(".")],
    )
    on_path = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    complete = [
        path
        for path in (*reversed(installed), *on_path)
        if all((path / n).exists() for n in ("initdb", "postgres"))
    ]
    return complete[0] if complete else None


def _install() -> Path:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable("PostgreSQL is not installed, and this user cannot install it")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", "install", "-y", "postgresql"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    found = _find()
    if found is None:
        raise Unavailable(f"apt-get install postgresql failed: {done.stderr.strip()[-500:]}")
    return found


def _owner() -> pwd.struct_passwd | None:
    """Whom the server runs as: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Unavailable("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


def _roomy_folder() -> Path:
    """A short path (socket names are limited), in memory if there is room."""
    memory = Path("/dev/shm")
    roomy = (
        memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ROOM
    )
    return memory if roomy else Path("/tmp")
