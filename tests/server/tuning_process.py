"""One server process that runs tuning jobs; used by ``test_tuning.py``, which kills it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from expost.server.server_settings import ServerSettings
from expost.server.service import Service

if __name__ == "__main__":
    made = Service(ServerSettings(Path(sys.argv[1]), tick=0.0, threads=1))
    made.runner.start()
    time.sleep(120)
