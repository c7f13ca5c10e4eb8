"""One thread for the linear algebra of numpy and torch, here and in processes that tests start.

Under xdist each core has a worker already, and threads that wait for each other spin: the examples
with text took four times as much processor time. ``OMP_NUM_THREADS`` is not set: the package reads
it, and trains several models at once without it.

Garbage is not collected while modules and tests are loaded, and what is then loaded is left out of
later collections, which would otherwise look at all of it again and again: nearly a tenth of the
time of tests of tables.

``-n auto`` starts two workers more than there are cores: nearly half of a worker's time is waiting,
for a server, a cluster, a browser, a process or the disk, and a core would wait with it.

The picture beside a certificate takes a fifth of a second, and hundreds of tests tune: it is drawn
where a test asks for ``pictures``, else a file without a picture is written. All figures have tests
of their own (``tests/test_plots.py``).

Examples of Hypothesis have no deadline: how long one takes depends on the load of the machine.

Temporary folders are in memory where there is room (``/dev/shm``). A ledger waits for the disk at
every commit, 5 to 20 ms: nearly half of the suite's time. That it waits is tested by its settings
(``tests/budget/test_ledger.py``), and tests that kill a process in a commit are on the disk.
Name another folder by ``PYTEST_DEBUG_TEMPROOT``.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

for _name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="expost-state-")  # never that of a user
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

gc.disable()
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers more than cores."""
    affinity = getattr(os, "sched_getaffinity", None)
    return 2 + (len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


@pytest.fixture
def pictures() -> None:
    """Ask for the pictures of jobs."""


@pytest.fixture(autouse=True)
def _few_pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    job = sys.modules.get("expost.tuning.job")
    if job is None or "pictures" in request.fixturenames:
        yield
        return
    plots = job.plots
    job.plots = SimpleNamespace(draw_tuning=lambda path, **values: path.write_bytes(b""))
    yield
    job.plots = plots


def pytest_collection_finish() -> None:
    """Leave alone what is there before the first test, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure() -> None:
    """Let everything be collected at the end: some libraries report what is left over."""
    gc.unfreeze()
