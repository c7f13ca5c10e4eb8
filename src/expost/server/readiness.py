"""Is the server ready? The disk has room, the database takes a write, the ledger verifies.

Nothing here depends on rows. Tests: ``tests/server/test_connections.py``.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from sqlalchemy.exc import IntegrityError

from expost.budget.ledger import Ledger
from expost.errors import LedgerError
from expost.server.database import ServerDatabase, facts
from expost.server.jobs.price_pool import PricePool
from expost.server.problems import Unavailable

LEAST_FREE = 64 * 2**20
CHECK_SECONDS = 300.0  # how often the whole ledger is verified
DISK, DATABASE, LEDGER = (
    "the disk is full",
    "the database cannot be written",
    "the ledger is damaged or cannot be read",
)


def ready_problems(home: Path, store: ServerDatabase, pool: PricePool, ledger: str) -> list[str]:
    """Return why a server cannot work; empty if it can.

    The ledger is verified in a process of the pool, at most every five minutes.
    """
    problems = []
    if shutil.disk_usage(home).free < LEAST_FREE:
        problems.append(DISK)
    try:
        store.write(_touch)
    except IntegrityError:
        pass  # another process wrote the first row at the same time
    except Exception:  # whatever the driver raises
        problems.append(DATABASE)
    period = int(time.time() // CHECK_SECONDS)
    try:
        if not pool.compute("readiness", ledger_is_sound, ledger, period):
            problems.append(LEDGER)
    except Unavailable:
        pass  # it is too long to be verified here; GET /api/verify does
    return problems


def ledger_is_sound(url: str, period: int) -> bool:
    """Verify a ledger, in a worker; ``period`` makes the result of another time another one."""
    try:
        return not Ledger.open(url).verify()
    except LedgerError as error:
        return "there is no ledger" in str(error)  # no budget was opened yet
    except Exception:
        return False


def _touch(connection: Any) -> None:
    """Write one row; processes that do so at once wait for each other."""
    values = {"name": "ready", "value": str(int(time.time()))}
    same = facts.update().where(facts.c.name == values["name"])
    if not connection.execute(same.values(**values)).rowcount:
        connection.execute(facts.insert().values(**values))
