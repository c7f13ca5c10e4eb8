"""One thread for the linear algebra of numpy and torch, here and in processes that tests start.

Under xdist each core has a worker already, and threads that wait for each other spin: the examples
with text took four times as much processor time. ``OMP_NUM_THREADS`` is not set: the package reads
it, and trains several models at once without it.
"""

from __future__ import annotations

import os

for _name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
