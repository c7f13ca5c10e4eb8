"""A missing extra fails at use, with the command that installs it."""

import subprocess
import sys

BLOCKED = """
import sys
sys.modules["{module}"] = None
import expost
from expost.errors import MissingExtra
try:
    {use}
except MissingExtra as error:
    print(error)
"""


def use_without(module: str, use: str) -> str:
    code = BLOCKED.format(module=module, use=use)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_opendp():
    out = use_without(
        "opendp", "from expost.integrations.opendp import from_opendp; from_opendp(None)"
    )
    assert "pip install 'expost[opendp]'" in out


def test_ray():
    out = use_without("ray", "from expost.integrations.ray import RayExecutor; RayExecutor()")
    assert "pip install 'expost[ray]'" in out


def test_dask():
    out = use_without(
        "distributed", "from expost.integrations.dask import DaskExecutor; DaskExecutor()"
    )
    assert "pip install 'expost[dask]'" in out
