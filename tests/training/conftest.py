"""Without numba and torch there is nothing to test here; torch keeps to one thread, as two collapse
on a busy machine.
"""

import pytest

pytest.importorskip("numba", reason="the fleet needs numba: pip install 'expost[torch]'")
torch = pytest.importorskip(
    "torch", reason="these tests compare with torch: pip install 'expost[torch]'"
)


@pytest.fixture(autouse=True)
def _one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
