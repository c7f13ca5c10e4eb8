"""Modules of the user: each job gets its own code, and the process stays as it was."""

from __future__ import annotations

import functools
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

import expost
from expost.errors import CheckpointMismatch, InvalidInput
from expost.execution.checkpoint import identity_of
from expost.randomness.source import SimulationRandomness
from expost.tuning.request.factories import factory_of
from expost.tuning.runs.candidates import TrainAndScore
from tests.tuning.jobs import clouds, job, write

torch = pytest.importorskip("torch", reason="modules need torch: pip install 'expost[torch]'")

NETWORK = """
from torch import nn

def make(width=WIDTH):
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))
"""

BEST = {"at_least": None, "maximize": True}
SMALL = {"epsilons": [8], "learning_rates": [1], "epochs": [1]}


def job_with(folder: Path, width: int, **model: Any) -> Path:
    folder.mkdir()
    (folder / "same_name_9f3.py").write_text(NETWORK.replace("WIDTH", str(width)), "utf-8")
    text = write(folder).read_text(encoding="utf-8")
    kind = model.get("kind", "same_name_9f3:make")
    more = model.get("more", "")
    text = text.replace('kind = "logistic"', f'kind = "{kind}"\n{more}')
    text = text.replace("at_least = 0.7", "maximize = true").replace("attempts = 3\n", "")
    (folder / "job.toml").write_text(text, encoding="utf-8")
    return folder / "job.toml"


def width_of(result: Any) -> int:
    return len(result.model.parameters["0.bias"])


def simulate(config: Any, *rows: Any, **more: Any) -> Any:
    return expost.tune(config, *rows, randomness=SimulationRandomness(1), simulation=True, **more)


def test_a_second_job_whose_module_has_the_same_name_trains_its_own_model(tmp_path: Path) -> None:
    first, second = job_with(tmp_path / "one", 3), job_with(tmp_path / "two", 7)
    path, modules = list(sys.path), dict(sys.modules)
    assert width_of(simulate(first)) == 3
    assert width_of(simulate(second)) == 7
    assert sys.path == path
    assert not [name for name in set(sys.modules) - set(modules) if "same_name" in name]
    assert not [name for name in sys.modules if name.startswith("_expost_model")]


def test_arguments_and_files(tmp_path: Path) -> None:
    more = "arguments = {width = 5}"
    made = job_with(tmp_path / "one", 3, kind="same_name_9f3.py:make", more=more)
    result = simulate(made)
    assert width_of(result) == 5
    assert result.details["model"]["arguments"] == {"width": 5}


class Net(torch.nn.Sequential):
    def __init__(self, width: int = 4) -> None:
        super().__init__(torch.nn.Linear(2, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))


@pytest.mark.parametrize(
    ("kind", "arguments", "width"),
    [
        (Net, {}, 4),
        (Net, {"width": 6}, 6),
        (lambda: Net(5), {}, 5),
        (functools.partial(Net, width=3), {}, 3),
    ],
    ids=["class", "arguments", "function", "partial"],
)
def test_a_function_or_a_class_is_a_model(kind: Any, arguments: Any, width: int) -> None:
    config = job(model={"kind": kind, "arguments": arguments}, goal=BEST, search=SMALL)
    assert width_of(simulate(config, *clouds())) == width


def test_one_module_is_not_a_factory() -> None:
    with pytest.raises(InvalidInput, match="makes new ones"):
        simulate(job(model={"kind": Net()}), *clouds())


def test_modules_of_the_folder_are_kept_with_their_job(tmp_path: Path) -> None:
    """A helper that both jobs import under one name, also from inside the factory."""
    made = []
    for number, width in (("one", 2), ("two", 6)):
        folder = tmp_path / number
        folder.mkdir()
        (folder / "sizes_4b1.py").write_text(f"WIDTH = {width}\n", encoding="utf-8")
        (folder / "late_4b1.py").write_text(f"OUT = {width}\n", encoding="utf-8")
        (folder / "nets_4b1.py").write_text(
            "from torch import nn\nfrom sizes_4b1 import WIDTH\n\ndef make():\n"
            "    from late_4b1 import OUT\n    return nn.Linear(WIDTH, OUT)\n",
            encoding="utf-8",
        )
        made.append(factory_of("nets_4b1:make", folder))
    again = [pickle.loads(pickle.dumps(each)) for each in made]
    for factory, width in zip(made + again, [2, 6] * 2, strict=True):
        assert (factory().in_features, factory().out_features) == (width, width)
    assert not [name for name in sys.modules if name.endswith("_4b1")]


def test_identity_covers_source_helpers_and_arguments(tmp_path: Path) -> None:
    net, helper = tmp_path / "nets_7c2.py", tmp_path / "sizes_7c2.py"
    helper.write_text("WIDTH = 2\n", encoding="utf-8")
    net.write_text("from sizes_7c2 import WIDTH\n\ndef make(more=0):\n    return WIDTH\n", "utf-8")

    def identity(**arguments: Any) -> str:
        return identity_of(factory_of("nets_7c2:make", tmp_path, arguments=arguments))

    seen = [identity(), identity(more=1)]
    assert identity() == seen[0]
    helper.write_text("WIDTH = 3\n", encoding="utf-8")
    seen.append(identity())
    net.write_text(net.read_text(encoding="utf-8") + "# other\n", encoding="utf-8")
    seen.append(identity())
    assert len(set(seen)) == 4


def test_a_changed_model_does_not_continue_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = job_with(tmp_path / "one", 3)

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainAndScore, "rate", stop)
    monkeypatch.setattr(
        "expost.tuning.job.rehearse", lambda *_: expost.tuning.plan.rehearsal.Pace(1, 1)
    )
    with pytest.raises(KeyboardInterrupt):
        expost.tune(config, out=tmp_path / "out")
    monkeypatch.undo()
    file = config.parent / "same_name_9f3.py"
    file.write_text(file.read_text(encoding="utf-8").replace("Tanh", "Sigmoid"), encoding="utf-8")
    with pytest.raises(CheckpointMismatch):
        expost.tune(config, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no_such_module_1:make", "not found"),
        ("json:nothing", "no function or class 'nothing'"),
        ("missing.py:make", "no such file"),
        ("a\x00.py:make", "ValueError"),
        ("x" * 5000 + ":make", "OSError|not found"),
        (".:make", "raises|not found"),
    ],
)
def test_a_factory_that_is_not_there(kind: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        simulate(job(model={"kind": kind}), *clouds())


def test_a_module_that_raises_says_what(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise OSError('no weights')\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="OSError: no weights"):
        factory_of("broken:make", tmp_path)
