"""The package imports neither torch nor numba, and a missing one is reported at use."""

import subprocess
import sys

import expost.training

TRAIN = """
import sys
for name in {missing!r}:
    sys.modules[name] = None  # as if it were not installed
import numpy as np
from expost.errors import MissingExtra
from expost.training import Configuration, Fleet
settings = [Configuration(0.1, 1, 2, 1.0, noise_multiplier=1.0)]
try:
    Fleet({model}, settings).train(np.eye(4), [0, 1, 0, 1])
except MissingExtra as error:
    print(error.package, error.extra)
else:
    print("trained")
"""


def output(program: str) -> str:
    made = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return made.stdout.strip()


def test_importing_the_package_loads_no_engine():
    report = "import sys, expost.training; print({'torch', 'numba', 'rich'} & set(sys.modules))"
    assert output(report) == "set()"


def test_every_public_name_is_exported_and_documented():
    expected = {"DPSGD", "Configuration", "Fleet", "Trained", "candidates", "progress_bar"}
    assert set(expost.training.__all__) == expected
    for name in expost.training.__all__:
        assert (getattr(expost.training, name).__doc__ or "").strip()


def test_linear_models_need_numba_only():
    assert output(TRAIN.format(missing=["torch"], model="'logistic'")) == "trained"
    found = output(TRAIN.format(missing=["numba", "torch"], model="'logistic'"))
    assert found == "numba native"


def test_modules_need_torch():
    assert output(TRAIN.format(missing=["torch"], model="lambda: None")) == "torch torch"


def test_training_a_module_does_not_load_the_compiler_of_torch():
    """It would take 150 MB and seconds; the module has dropout, so that all modes are used."""
    program = """
import sys
import numpy as np
from torch import nn
from expost.training import Configuration, Fleet
settings = [Configuration(0.1, 1, 2, 1.0, noise_multiplier=1.0)]
factory = lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
Fleet(factory, settings).train(np.eye(4), [0, 1, 0, 1])
print({"torch._dynamo", "torch._inductor", "sympy"} & set(sys.modules))
"""
    assert output(program) == "set()"
