"""Without numba and torch there is nothing to test here."""

import pytest

pytest.importorskip("numba", reason="the fleet needs numba: pip install 'expost[torch]'")
pytest.importorskip("torch", reason="these tests compare with torch: pip install 'expost[torch]'")
