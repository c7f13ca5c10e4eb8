"""Skips what needs numba or torch where they are missing; torch keeps to one thread.

Two threads of torch slow each other down on a busy machine.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

USES_TORCH = re.compile(r"^(?:import|from) (?:torch|tests\.training\.peers)\b", re.MULTILINE)


class MissingPackage(pytest.Module):
    """A test file that cannot be imported here."""

    reason = ""

    def collect(self):
        pytest.skip(self.reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector):
    """Replace a file of this folder by a skip if a package it needs is not installed."""
    if find_spec("numba") is None:
        reason = "the fleet needs numba: pip install 'expost[native]'"
    elif find_spec("torch") is None and USES_TORCH.search(module_path.read_text(encoding="utf-8")):
        reason = "these tests compare with torch: pip install 'expost[torch]'"
    else:
        return None
    skipped = MissingPackage.from_parent(parent, path=module_path)
    skipped.reason = reason
    return skipped


@pytest.fixture(autouse=True)
def _one_torch_thread():
    if find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
