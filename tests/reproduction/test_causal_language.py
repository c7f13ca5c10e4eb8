"""``reproduction causal-language``: rows, the public model, Opacus's trainings and the jobs."""

from __future__ import annotations

import itertools
import json

import pytest

pytest.importorskip("peft", reason="needs the transformers extra")

import numpy as np
from reproduction.cli import app
from typer.testing import CliRunner

from expost.errors import InvalidInput
from reproduction import causal_language as experiment


@pytest.fixture
def small(monkeypatch):
    """Few rows, a short training on public text, and two settings in place of twenty."""
    monkeypatch.setattr(experiment, "ROWS", 120)
    monkeypatch.setattr(experiment, "TEST_ROWS", 60)
    weights = experiment.train_on_public_text(steps=5)
    monkeypatch.setattr(experiment, "public_weights", lambda: weights)


def test_private_text_has_other_followers_for_half_of_the_tokens():
    public, private = (experiment.text(4000, 1, private=flag) for flag in (False, True))
    assert public.shape == (4000, experiment.LENGTH)
    assert {experiment.PAD, experiment.FIRST} <= set(np.unique(public))

    def usual(rows):
        pairs = {}
        for row in rows:
            for one, two in itertools.pairwise(row):
                if two != experiment.PAD:
                    pairs.setdefault(one, []).append(two)
        return {one: max(set(after), key=after.count) for one, after in pairs.items()}

    here, there = usual(public), usual(private)
    other = np.mean([here[token] != there[token] for token in here])
    assert 0.45 < other < 0.55


def test_only_the_adapters_are_trained(small):
    module = experiment.module()
    trained = [name for name, value in module.named_parameters() if value.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)


def test_opacus_and_a_job_train_on_the_same_rows(small):
    pytest.importorskip("opacus", reason="needs the opacus extra")
    loss = experiment.opacus_loss(1, 0, 0)
    assert 0 < loss <= experiment.LOSS_BOUND
    outcome = experiment.tuned(1, 0, "progressive", experiment.LOSS_BOUND - 0.1)
    assert outcome["passed"]
    assert 0 < outcome["epsilon"] < experiment.MOST
    assert outcome["loss"] <= outcome["goal"]


def test_a_method_that_misses_counts_with_its_charge():
    outcomes = [
        {"method": "progressive", "epsilon": 2.0, "passed": True},
        {"method": "progressive", "epsilon": 8.0, "passed": False},
        {"method": "grid", "epsilon": 1.0, "passed": True},
    ]
    row = experiment.summary("progressive", outcomes)
    assert (row["epsilon"], row["passed"], len(row["runs"])) == (5.0, 0.5, 2)
    assert row["quantile_95"] == pytest.approx(7.7)


def test_unknown_methods_are_named_before_anything_is_trained():
    with pytest.raises(InvalidInput, match="methods"):
        experiment.causal_language(["best"])


def test_the_command_writes_what_it_shows(monkeypatch, tmp_path):
    document = {
        "delta": 1e-5,
        "opacus": {"epsilon": 8.0, "best": [1.5]},
        "methods": [
            {"method": "grid", "epsilon": 5.0, "quantile_95": 5.0, "passed": 1.0, "runs": [{}]}
        ],
    }
    monkeypatch.setattr(experiment, "causal_language", lambda *_, **__: document)
    path = tmp_path / "language.json"
    shown = CliRunner().invoke(app, ["causal-language", "--into", str(path)])
    assert "grid" in shown.output
    assert json.loads(path.read_text(encoding="utf-8")) == document
