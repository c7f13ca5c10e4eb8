"""Where a ledger is (a file name or a database URL), and the file of a SQLite ledger.

A URL may hold a password, so no message repeats it.

SQLite keeps its journal beside the *name* of a file. A second name of the same file (a bind mount
of a single file, or a name it was renamed to) would miss a journal that a crash left behind. Two
things that belong to the file itself, and not to a name, make this safe:

* A lock on the file (``flock``). Every write transaction holds it alone, and every read
  transaction begins under it.
* A marker in the header of the file (SQLite's ``user_version``). It is synced to the disk before a
  transaction changes anything and removed when the transaction is durable. It holds a token of the
  name (folder and file name) whose journal protects the transaction.

A marker that is found while the lock is held was left by a crash. Under the marker's own name,
SQLite rolls the transaction back; under any other name, the ledger is refused. So is a journal
without a marker: the ledger has continued under another name since, and rolling the journal back
would remove entries. Hard links are refused always, and network file systems unless
``EXPOST_LEDGER_NETWORK=1`` is set, because locks and syncing are not reliable there.

Tests: ``tests/budget/test_file_names.py``, ``tests/budget/test_timed_out.py``,
``tests/fuzz/test_ledger_urls.py``.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from expost.errors import LedgerError, import_extra
from expost.files import lock_file, read_at, unlock_file, write_at

_SCHEME = re.compile(r"(postgres|sqlite)\w*(\+\w+)?:|[^/]*:.*@", re.IGNORECASE | re.DOTALL)
_DRIVERS = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")


class Location:
    """The place of a ledger: a file name, sqlite:///file or postgresql://user@host/database."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.sql = import_extra("sqlalchemy", "sqlalchemy", "sql")
        try:
            self.url = _parse(self.sql, url)
        except (self.sql.exc.ArgumentError, ValueError):
            # The URL may hold a password, so the message does not repeat it.
            raise LedgerError(
                "this is not a database URL; give a file name, sqlite:///file or postgresql://…"
            ) from None
        self.backend: str = self.url.get_backend_name()
        if self.url.drivername not in _DRIVERS:
            raise LedgerError(
                f"{self.url.drivername} is not supported; "
                "give a file name, sqlite:///file or postgresql://…, without a driver"
            )
        if self.backend == "sqlite" and (self.url.query or self.url.host or self.url.username):
            # With uri=true SQLite would open another file than the one that was checked.
            raise LedgerError(
                "a SQLite ledger takes no host and no options after ?; "
                "give a file name or sqlite:///file"
            )
        # Fixed now, so that a later change of the working directory does not matter.
        try:
            self._folder = Path.cwd()
        except OSError:  # the working directory was removed
            self._folder = Path("/")

    @property
    def file(self) -> Path | None:
        """The SQLite file as it was given, or None for other databases."""
        if self.backend != "sqlite":
            return None
        if not self.url.database or self.url.database == ":memory:":
            raise LedgerError("a ledger in memory would not survive its process; give a file name")
        return Path(self.url.database)

    @property
    def path(self) -> Path | None:
        """The SQLite file as an absolute path, or None for other databases."""
        file = self.file
        return None if file is None else self._folder / file

    @property
    def address(self) -> str:
        """The location of the ledger, without passwords and without options, which may hold one."""
        return str(self.url.set(query={}).render_as_string(hide_password=True))

    def touch(self) -> None:
        """Create the SQLite file if there is none, with access for its owner only."""
        path = self.path
        if path is None or path.exists():
            return
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            return
        except OSError as error:
            raise LedgerError(f"cannot create {self.file}: {error.strerror}") from None


def _parse(sql: Any, url: str | os.PathLike[str]) -> Any:
    """A parsed database URL. A bare path means a SQLite file."""
    text = os.fspath(url)
    # A mistyped URL may hold a password, so it is not treated as a file name.
    if "\x00" in text or (_SCHEME.match(text) and "://" not in text):
        raise ValueError
    if "://" not in text:
        return sql.engine.URL.create("sqlite", database=text)
    # An unescaped @ in a password would make its second part the host, which messages show.
    if not text.isprintable() or text.partition("://")[2].partition("/")[0].count("@") > 1:
        raise ValueError
    text = text.replace("postgresql://", "postgresql+psycopg://", 1).replace(
        "postgres://", "postgresql+psycopg://", 1
    )
    return sql.engine.make_url(text)


NETWORK_VARIABLE = "EXPOST_LEDGER_NETWORK"

_NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fhgfs", "gfs2", "glusterfs"),
        *("gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs"),
        *("pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"),
    )
)
_MARKER_AT, _MARKER_SIZE = 60, 4  # user_version in the header of a SQLite file
_COUNTER_AT = 24  # SQLite's counter of changes
_WAL_AT = 18  # 2 in the header if the file is in WAL mode
_MAGIC = b"SQLite format 3\x00"
_PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_ESCAPE = re.compile(r"\\([0-7]{3})")


class DatabaseFile:
    """The open file of a ledger, shared by all ledgers of this process that use it.

    Use :meth:`open`. ``local``: whether it is on a local disk, where ``flock`` is a lock of its
    own.
    """

    _known: ClassVar[weakref.WeakValueDictionary[tuple[int, int], DatabaseFile]] = (
        weakref.WeakValueDictionary()
    )
    _registry = threading.Lock()

    def __init__(self, descriptor: int, path: Path, local: bool) -> None:
        # Kept open: closing any descriptor of a file drops the locks that SQLite holds on it here.
        self._reader = descriptor
        self._writer: int | None = None
        self._path, self._local = path, local
        self._mutex = threading.RLock()
        self._depth = 0
        self._waiter: _Waiter | None = None

    def __del__(self) -> None:
        for descriptor in (self._reader, self._writer):
            if descriptor is not None:
                os.close(descriptor)

    @classmethod
    def open(cls, path: Path) -> DatabaseFile:
        """Return the open file; refuse hard links and network file systems."""
        local = check_file_system(path)
        with cls._registry:
            try:
                facts = os.stat(path)
                known = cls._known.get((facts.st_dev, facts.st_ino))
                if known is not None:
                    return known
                # Opening a pipe or a device could wait for ever.
                if not stat.S_ISREG(facts.st_mode):
                    raise LedgerError(f"the ledger could not be used: {path} is not a file")
                descriptor = os.open(path, os.O_RDONLY | _PLAIN | getattr(os, "O_NONBLOCK", 0))
            except OSError as error:
                raise LedgerError(
                    f"the ledger could not be used: cannot open {path}: {error.strerror}"
                ) from None
            facts = os.fstat(descriptor)
            file = cls(descriptor, path, local)
            cls._known[facts.st_dev, facts.st_ino] = file
            return file

    @classmethod
    def forget_all(cls) -> None:
        """Forget the files of the parent process, in a child that was forked."""
        cls._registry = threading.Lock()
        cls._known = weakref.WeakValueDictionary()

    def check_name(self, path: Path) -> None:
        """Refuse a file that has a second hard link, or that the path no longer names."""
        facts = os.fstat(self._reader)
        try:
            same = os.path.samestat(facts, os.stat(path))
        except OSError:
            same = False
        if not same:
            raise LedgerError(
                "the ledger could not be used: its file was removed, renamed or replaced while "
                "it was open; open the ledger again"
            )
        if facts.st_nlink > 1:
            raise LedgerError(
                f"the ledger could not be used: its file has {facts.st_nlink} hard links; remove "
                "all but one name, because a crash under one name cannot be repaired under another"
            )

    def check_journal(self, path: Path) -> None:
        """Refuse what a crash under another name left behind. The caller holds the lock."""
        marker = self.marker()
        if marker == token(path) or os.fstat(self._reader).st_size == 0:
            return
        if marker:
            raise LedgerError(
                "the ledger could not be used: a write to it was interrupted while it was open "
                "under another name; open it once under that name, which repairs it, or run: "
                "expost ledger recover"
            )
        if has_journal(path):
            raise LedgerError(
                "the ledger could not be used: a journal lies beside it that does not belong to "
                "its last write (it was used under another name since, or by another program); "
                "run: expost ledger recover"
            )

    def in_wal_mode(self) -> bool:
        """Return whether the file uses a write-ahead log, as ledgers of schema 1 do."""
        header = read_at(self._reader, _WAL_AT + 1, 0)
        return header.startswith(_MAGIC) and header[_WAL_AT:] == b"\x02"

    def stamp(self) -> tuple[int, int]:
        """Return SQLite's counter of changes, and when the file was last written to."""
        counter = read_at(self._reader, 4, _COUNTER_AT)
        return int.from_bytes(counter, "big"), os.fstat(self._reader).st_mtime_ns

    def marker(self) -> int:
        """Return the token of the name whose transaction is not known to be finished, or 0."""
        return int.from_bytes(read_at(self._reader, _MARKER_SIZE, _MARKER_AT), "big")

    def mark(self, path: Path) -> None:
        """Write the marker of this name; it is on the disk when this returns."""
        self._write_marker(token(path))
        getattr(os, "fdatasync", os.fsync)(self._writing())

    def clear(self) -> None:
        """Remove the marker. It need not reach the disk: a marker that stays is harmless."""
        with suppress(OSError):
            self._write_marker(0)

    def sync(self) -> None:
        """Sync the file to the disk."""
        os.fsync(self._writing())

    def _write_marker(self, value: int) -> None:
        # An empty file has no header yet; SQLite writes one in its first transaction.
        if os.fstat(self._reader).st_size > 0:
            write_at(self._writing(), value.to_bytes(_MARKER_SIZE, "big"), _MARKER_AT)

    def _writing(self) -> int:
        """A descriptor of the same file that is open for writing."""
        if self._writer is None:
            try:
                self._writer = os.open(self._path, os.O_RDWR | _PLAIN)
            except OSError as error:
                raise LedgerError(
                    f"the ledger could not be used: it cannot be written: {error.strerror}"
                ) from None
        return self._writer

    @contextmanager
    def locked(self, *, alone: bool, seconds: float) -> Iterator[None]:
        """Hold the lock of the file, alone or together with other readers."""
        deadline = time.monotonic() + seconds
        if not self._mutex.acquire(timeout=seconds):
            raise _busy(seconds)
        try:
            if self._depth == 0 and self._local:
                self._lock(alone, deadline - time.monotonic(), seconds)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0 and self._local:
                    unlock_file(self._reader)
        finally:
            self._mutex.release()

    def _lock(self, alone: bool, left: float, seconds: float) -> None:
        """Take the lock. The kernel queues those who wait, so that they follow one another."""
        waiter = self._waiter
        if waiter is None or not waiter.is_waiting():
            try:
                lock_file(self._reader, alone=alone)
                return
            except BlockingIOError:
                # A blocking call has no time limit, so a helper thread makes it.
                waiter = self._waiter = _Waiter(self)
                waiter.start()
        # The lock belongs to the open file, not to a thread: a helper that was left by a request
        # which timed out would also give up the lock of the next one. So the next one takes it on.
        if not waiter.wait(max(left, 0.0)):
            raise _busy(seconds)


class _Waiter(threading.Thread):
    """Waits to hold a file alone. If nobody waits for the lock any more, it gives the lock back."""

    def __init__(self, file: DatabaseFile) -> None:
        super().__init__(daemon=True, target=self._take, args=(file,))
        self._state = threading.Condition()
        self._done = self._given_up = False

    def _take(self, file: DatabaseFile) -> None:
        lock_file(file._reader, wait=True)
        with self._state:
            self._done = True
            if self._given_up:
                unlock_file(file._reader)
            self._state.notify_all()

    def is_waiting(self) -> bool:
        """Return whether the lock is still to come; if so, it is kept for the next request."""
        with self._state:
            self._given_up = False
            return not self._done

    def wait(self, seconds: float) -> bool:
        """Return whether the lock was obtained in time."""
        with self._state:
            try:
                self._state.wait_for(lambda: self._done, seconds)
            finally:
                self._given_up = not self._done
            return self._done


def _busy(seconds: float) -> LedgerError:
    return LedgerError(
        f"the ledger could not be used: another process has held it for {seconds:.0f} s; the "
        "request was not recorded. If a process is stuck, end it"
    )


def token(path: Path) -> int:
    """Return a number of 31 bits, not 0, for the place of the journal: folder and file name."""
    real = Path(os.path.realpath(path))
    folder = real.parent
    facts = os.stat(folder)
    volume = os.statvfs(folder).f_fsid if hasattr(os, "statvfs") else facts.st_dev
    name = f"{facts.st_ino}:{volume}:{real.name}"
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:4]) % (2**31 - 1) + 1


def journal_of(path: Path) -> Path:
    """Return the name of SQLite's rollback journal."""
    return Path(os.path.realpath(path) + "-journal")


def has_journal(path: Path) -> bool:
    """Return whether a journal lies beside a name that SQLite would roll back.

    The first byte of a journal is 0 until the journal is on the disk and may be used.
    """
    try:
        with journal_of(path).open("rb") as file:
            return file.read(1) not in (b"", b"\x00")
    except OSError:
        return False


def check_file_system(path: Path) -> bool:
    """Return whether a path is on a local disk; refuse other file systems, unless accepted."""
    kind = file_system_of(path)
    local = kind not in _NETWORK and not kind.startswith("fuse.")
    if not local and os.environ.get(NETWORK_VARIABLE) != "1":
        raise LedgerError(
            f"the ledger could not be used: it is on a network or user-space file system ({kind}), "
            "whose locks do not protect a budget; use a local disk or PostgreSQL. "
            f"{NETWORK_VARIABLE}=1 accepts the risk (docs/ledger.md)"
        )
    return local


def file_system_of(path: Path, table: str = "/proc/self/mountinfo") -> str:
    """Return the type of the file system that holds a path; empty if the system does not say."""
    try:
        lines = Path(table).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    real, best, kind = os.path.realpath(path), "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        mount_point = _ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = real == mount_point or real.startswith(mount_point.rstrip("/") + "/")
        # Of several mounts at one point, the last one counts.
        if inside and len(mount_point) >= len(best):
            best, kind = mount_point, right.split(" ")[0]
    return kind
