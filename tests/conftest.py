"""One thread for the linear algebra of numpy and torch, here and in processes that tests start.

Under xdist each core has a worker already, and threads that wait for each other spin: the examples
with text took four times as much processor time. ``OMP_NUM_THREADS`` is not set: the package reads
it, and trains several models at once without it.

Modules and tests that are loaded are left out of garbage collection, which would otherwise look at
all of them again and again: nearly a tenth of the time of tests of tables.

Examples of Hypothesis have no deadline: how long one takes depends on the load of the machine.
"""

from __future__ import annotations

import gc
import os

from hypothesis import settings

for _name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")


def pytest_collection_finish() -> None:
    """Leave alone what is there before the first test, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure() -> None:
    """Let everything be collected at the end: some libraries report what is left over."""
    gc.unfreeze()
