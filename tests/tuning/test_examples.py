"""The examples with text, run as they stand."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost import Release

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tuned(folder: Path, name: str, rows: int = 1500) -> tuple[Any, Any]:
    """Copy an example, make its rows and run its job through the command line."""
    from typer.testing import CliRunner

    from expost.cli.main import app

    work = folder / name
    shutil.copytree(EXAMPLES / name, work)
    load("made_up_reviews").write(work / "rows.npz", rows)
    out = folder / "out"
    done = CliRunner().invoke(app, ["tune", str(work / "job.toml"), "--out", str(out), "--json"])
    assert done.exit_code in (0, 5), done.output  # 5: the goal was missed
    return json.loads(done.stdout), out


def check_model(out: Path, factory: Any, printed: Any) -> None:
    """The released model predicts new reviews, and only trained parameters are in its file."""
    if not printed["passed"]:
        return
    model = expost.load_model(out / "model.npz", factory)
    made = load("made_up_reviews")
    texts, labels = made.reviews(300, seed=9)
    accuracy = float(np.mean(model.predict(made.tokens(texts)) == labels))
    assert accuracy > 0.6
    trained = {name for name, value in factory().named_parameters() if value.requires_grad}
    assert set(model.parameters) == trained


def test_a_head_on_a_frozen_encoder(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    printed, out = tuned(tmp_path, "frozen_encoder")
    assert printed["passed"]  # at 0.75 nearly every draw passes at the largest level
    assert set(printed["params"]) >= {"epsilon", "learning_rate"}
    check_model(out, load("frozen_encoder/model").make, printed)


def test_lora_adapters(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    printed, out = tuned(tmp_path, "text_lora", 800)
    assert printed["spent"]["epsilon"] > 0
    check_model(out, load("text_lora/model").make, printed)


@pytest.mark.filterwarnings("ignore")
def test_a_causal_model_with_lora_adapters(tmp_path: Path) -> None:
    for package in ("peft", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    module = load("causal_lm_lora")
    done = module.main(tmp_path / "adapter", rows=1500)
    assert 0 < done.spent.epsilon <= 10
    if done.model is not None:
        assert done.model.predict(module.notes(200, seed=3)).mean() < 3.3


def test_an_opacus_loop(tmp_path: Path) -> None:
    for package in ("opacus", "peft", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    module = load("opacus_loop")
    release = module.main(1000, tmp_path)
    assert release.spent.epsilon > 0
    if release.passed:
        assert release.value.accuracy >= 0.7
        assert Release.load(tmp_path / "release.json").spent == release.spent
        assert release.params["noise"] in (1.0, 2.0)
