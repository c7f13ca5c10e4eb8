"""Where a server keeps its files, and how it listens. Tests: ``tests/server/test_start.py``."""

from __future__ import annotations

import os
import re
import secrets
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from expost.errors import InvalidInput
from expost.files import require_private

DEFAULT_PORT = 8400
DEFAULT_TICK = 10.0
_HOST = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TABLES: dict[str, dict[str, Any]] = {
    "oidc": {
        "issuer": str,
        "client": str,
        "roles": dict,
        "name": "preferred_username",
        "groups": "groups",
        "link_people": False,
    },
    "mail": {"host": str, "sender": str, "port": 587, "security": "starttls", "user": ""},
    "webhook": {"url": str},
}
"""The tables of ``settings.toml``: each key with its default, or with its type if it has none."""


@dataclass(frozen=True)
class OutsideSettings:
    """Who signs people in, and who is told what happens: ``settings.toml``, and the secrets.

    ``sources`` are the secrets that URLs of data sets name; each may be sent to its
    ``source_hosts``.
    """

    address: str = ""
    oidc: Mapping[str, Any] = field(default_factory=dict)
    mail: Mapping[str, Any] = field(default_factory=dict)
    webhook: Mapping[str, Any] = field(default_factory=dict)
    oidc_secret: str = field(default="", repr=False)
    smtp_password: str = field(default="", repr=False)
    webhook_key: str = field(default="", repr=False)
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    source_hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, home: Path) -> OutsideSettings:
        """Read the files of a server's folder; a secret of the environment comes first."""
        given, hidden = _toml(home / "settings.toml"), home / "secrets.toml"
        if hidden.exists():
            require_private(hidden, "secrets.toml")
        kept = _toml(hidden)
        known = {"address", "sources", *_TABLES}
        for name in given:
            if name not in known:
                raise InvalidInput("settings.toml", name, "give " + ", ".join(sorted(known)))
        tables: dict[str, Any] = {
            name: _table(name, given[name]) for name in _TABLES if name in given
        }
        address = str(given.get("address", "")).rstrip("/")
        if tables:
            check_url(address, "address")
        names = ("oidc_secret", "smtp_password", "webhook_key")
        texts: dict[str, Any] = {
            name: os.environ.get(f"EXPOST_{name.upper()}") or str(kept.get(name, ""))
            for name in names
        }
        sources = {str(name): str(text) for name, text in kept.get("sources", {}).items()}
        hosts = _hosts(given.get("sources", {}))
        settings = cls(address, **tables, **texts, sources=sources, source_hosts=hosts)
        settings._check()
        return settings

    def _check(self) -> None:
        """Refuse what cannot work, without quoting a secret."""
        if self.oidc:
            check_url(self.oidc["issuer"], "oidc.issuer")
            wrong = set(self.oidc["roles"].values()) - {"owner", "auditor", "analyst"}
            if wrong:
                raise InvalidInput("oidc.roles", min(map(str, wrong)), "owner, auditor or analyst")
        if self.mail and self.mail["security"] not in ("starttls", "tls", "none"):
            raise InvalidInput("mail.security", self.mail["security"], "starttls, tls or none")
        if self.webhook:
            check_url(self.webhook["url"], "webhook.url")
            if len(self.webhook_key) < 32:
                valid = "give 32 characters or more in EXPOST_WEBHOOK_KEY or secrets.toml"
                raise InvalidInput("webhook_key", "the key", valid)


def _toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file; nothing if there is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):  # the message may quote a secret
        raise InvalidInput(path.name, "the file", "give TOML") from None


def _hosts(given: Any) -> dict[str, tuple[str, ...]]:
    """The hosts of each secret of a source: ``VISITS = ["db.example", "db.example:5433"]``."""
    hosts = {}
    for name, listed in given.items() if isinstance(given, dict) else [("sources", None)]:
        if not isinstance(listed, list) or not all(_is_host(host) for host in listed):
            valid = 'give lists of hosts: VISITS = ["db.example", "db.example:5433"]'
            raise InvalidInput("settings.toml", f"sources.{name}", valid)
        hosts[str(name)] = tuple(host.lower() for host in listed)
    return hosts


def _is_host(host: Any) -> bool:
    """Whether a text is the name or the address of one host, perhaps with a port."""
    return isinstance(host, str) and _HOST.fullmatch(host) is not None


def _table(name: str, given: Any) -> dict[str, Any]:
    """A table of the settings with its defaults."""
    keys, whole = _TABLES[name], {}
    for key in given if isinstance(given, dict) else {}:
        if key not in keys:
            raise InvalidInput(name, key, "give " + ", ".join(keys))
    for key, usual in keys.items():
        kind = usual if isinstance(usual, type) else type(usual)
        value = given.get(key, usual) if isinstance(given, dict) else usual
        if type(value) is not kind:
            raise InvalidInput(f"{name}.{key}", "this value", f"give a {kind.__name__}")
        whole[key] = value
    return whole


def check_url(url: str, field: str) -> str:
    """Return an address that secrets may be sent to: HTTPS, or this machine."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not (local or parts.scheme == "https") or not parts.hostname or parts.username:
        raise InvalidInput(field, "this URL", "give https://host")
    return url


@dataclass(frozen=True)
class ServerSettings:
    """The settings of one server process; ``pool`` is where another one offers prices."""

    home: Path
    database: str | None = None
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tick: float = DEFAULT_TICK
    workers: str = "local"
    threads: int = 2
    pricers: int = 2
    hosts: tuple[str, ...] = ()
    secure: bool | None = None
    proxy_key: bytes | None = field(default=None, repr=False)
    lease: float = 30.0
    grace: float = 5.0
    pool: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.tick <= 3600:
            raise InvalidInput("tick", self.tick, "give seconds from 0 to 3600")
        if self.workers not in ("local", "processes", "ray", "dask"):
            raise InvalidInput("workers", self.workers, "give local, processes, ray or dask")
        if not 0 <= self.threads <= 64:
            raise InvalidInput("threads", self.threads, "give a number from 0 to 64")
        if not 0 <= self.pricers <= 64:
            raise InvalidInput("pricers", self.pricers, "give a number from 0 to 64")
        if not 0 < self.port < 65536:
            raise InvalidInput("port", self.port, "give a port from 1 to 65535")

    @property
    def database_url(self) -> str:
        """The URL of the server's own tables."""
        if self.database is None:
            return f"sqlite:///{self.home.absolute() / 'server.db'}"
        scheme, _, rest = self.database.partition("://")
        return f"{'postgresql+psycopg' if scheme == 'postgresql' else scheme}://{rest}"

    @property
    def ledger_url(self) -> str:
        """The URL of the ledger."""
        return self.database or f"sqlite:///{self.home.absolute() / 'ledger.db'}"

    @property
    def cookies_secure(self) -> bool:
        """Whether cookies carry the attribute ``Secure``."""
        if self.secure is not None:
            return self.secure
        return any(name.lower() not in _LOOPBACK for name in (self.host, *self.hosts))

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """The host names of accepted requests."""
        everywhere = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound
        own = () if self.host in everywhere else (self.host,)
        return frozenset(name.lower() for name in (*_LOOPBACK, *own, *self.hosts))

    @property
    def jobs(self) -> Path:
        """Folder of tuning jobs."""
        return self.home / "jobs"

    @property
    def alive(self) -> Path:
        """Folder with one locked file per running server process."""
        return self.home / "alive"

    def prepare(self) -> None:
        """Make the folder of the server, with access for its owner only."""
        database = self.database
        if database is not None and not database.startswith("postgresql://"):
            raise InvalidInput("database", "this URL", "give postgresql://user@host/database")
        for folder in (self.home, self.jobs, self.alive):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(self.home.stat().st_mode) & 0o077:
            self.home.chmod(0o700)

    def signing_key(self) -> bytes | None:
        """The key of the proxy, or None."""
        if self.proxy_key is not None:
            return self.proxy_key
        path = self.home / "proxy.key"
        if not path.exists():
            return None
        require_private(path, "proxy.key")
        key = path.read_bytes().strip()
        if len(key) < 32:
            raise InvalidInput("proxy.key", "the file", "give at least 32 bytes")
        return key

    def home_identity(self) -> str:
        """A name of this folder, by which jobs that keep files in it are recognised."""
        path = self.home / "identity"
        if not path.exists():
            draft = path.with_name(f".identity.{secrets.token_hex(8)}")
            descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with open(descriptor, "w", encoding="ascii") as stream:
                stream.write(secrets.token_hex(16))
                stream.flush()
                os.fsync(stream.fileno())
            try:
                os.link(draft, path)  # unlike a rename, it never replaces another process's
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        return path.read_text(encoding="ascii")
