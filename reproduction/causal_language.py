"""A causal language model fine-tuned to the loss that Opacus reaches at ε = 8.

    python -m reproduction causal-language --json

The model is a GPT-2 of one layer that is made from a configuration and trained on public made-up
text, without privacy. Its LoRA adapters are then trained on private text, in which half of the
tokens are followed by other ones. Public text, private text and test rows are made up; every run
has private text and test rows of its own.

The goal of a run is the least loss per token, on the public test rows, of 20 trainings with Opacus
at ε = 8: the best of its learning rates, epochs and batch sizes. Its search is charged
nothing. Then the same rows and the same module are given to :func:`expost.tune` with this goal:

``progressive``
    Training until it passes, with defaults, scored on the same test rows, which are public.
``progressive, private``
    The same, scored on a part of the private rows: a harder task, since they do not train.
``grid``
    ``training="auto"`` with the 20 settings as a grid, scored on the public test rows: two
    trainings, then attempts over the grid. Not among the usual methods, since it takes long.

Tests: ``tests/reproduction/test_causal_language.py``.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput

VOCABULARY, LENGTH, PAD, FIRST = 128, 12, 0, 3
ROWS, TEST_ROWS = 2000, 2000
EPSILON, DELTA = 8.0, 1e-5
LOSS_BOUND = 6.0
AIM, MOST = 6.0, 10.0
_WEIGHTS = "EXPOST_PUBLIC_WEIGHTS"


RATES, EPOCHS, BATCH_SIZES = (0.001, 0.003, 0.01, 0.03, 0.1), (10, 30), (125, 500)
CLIP = 0.1
SETTINGS = tuple(product(RATES, EPOCHS, BATCH_SIZES))
"""The twenty settings of both, for Adam: learning rate, epochs and batch size."""

METHODS = ("progressive", "progressive, private", "grid")


def text(rows: int, seed: int, *, private: bool) -> Array:
    """Return rows of 6 to 12 tokens; most follow from the one before, by a rule of the language."""
    generator = np.random.default_rng(seed)
    follower = np.random.default_rng(1).permutation(VOCABULARY - FIRST) + FIRST
    if private:  # the latter half of the tokens has other followers
        half = (VOCABULARY - FIRST) // 2
        follower[half:] = np.roll(follower[half:], 1)
    tokens = generator.integers(FIRST, VOCABULARY, (rows, LENGTH))
    for place in range(1, LENGTH):
        follows = generator.random(rows) < 0.85
        usual = follower[tokens[:, place - 1] - FIRST]
        tokens[:, place] = np.where(follows, usual, tokens[:, place])
    ends = generator.integers(LENGTH // 2, LENGTH + 1, rows)
    tokens[np.arange(LENGTH)[None] >= ends[:, None]] = PAD
    return tokens


def _configured() -> Any:
    """Return the model with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=1,
            n_head=2,
            n_positions=LENGTH,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def train_on_public_text(steps: int = 800) -> dict[str, Any]:
    """Return weights trained on public text, without privacy."""
    import torch

    from expost.integrations.transformers import CausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = _configured()
        learner = CausalLM(model, pad=PAD)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
        for step in range(steps):
            tokens = torch.tensor(text(128, step, private=False))
            optimiser.zero_grad()
            learner(tokens)[:, 0].mean().backward()
            optimiser.step()
    return dict(model.state_dict())


@cache
def public_weights() -> dict[str, Any]:
    """Return the public weights: those of the process that started this one, if it has any."""
    import torch

    path = os.environ.get(_WEIGHTS)
    return train_on_public_text() if path is None else dict(torch.load(path, weights_only=True))


def module() -> Any:
    """Return the public model with new adapters, which alone are trained."""
    import torch
    from peft import LoraConfig, get_peft_model

    from expost.integrations.transformers import CausalLM

    weights = public_weights()
    with torch.random.fork_rng(devices=[]):
        base = _configured()
    base.load_state_dict(weights)
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    return CausalLM(get_peft_model(base, adapters), pad=PAD)


def loss_of(module: Any, tokens: Array) -> float:
    """Return the mean over rows of the loss per token, each row clipped as expost does."""
    import torch

    with torch.no_grad():
        losses = module(torch.tensor(tokens))[:, 0]
    return float(losses.clamp(max=LOSS_BOUND).double().mean())


def train_opacus(setting: Sequence[float], train: Array, test: Array, seed: int) -> float:
    """Train with Opacus as in its tutorial, and return the loss on the test rows."""
    import torch
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    rate, epochs, batch = setting[0], int(setting[1]), int(setting[2])
    model = module()
    trained = [value for value in model.parameters() if value.requires_grad]
    rows = torch.utils.data.TensorDataset(torch.tensor(train))
    model, optimiser, loader = PrivacyEngine(accountant="prv").make_private_with_epsilon(
        module=model.train(),
        optimizer=torch.optim.Adam(trained, lr=rate),
        data_loader=torch.utils.data.DataLoader(rows, batch_size=batch),
        target_epsilon=EPSILON,
        target_delta=DELTA,
        epochs=epochs,
        max_grad_norm=CLIP,
    )
    for _ in range(epochs):
        for (tokens,) in loader:
            optimiser.zero_grad()
            if len(tokens):
                model(tokens)[:, 0].mean().backward()
            optimiser.step()
    return loss_of(model, test)


def rows_of(seed: int, run: int) -> tuple[Array, Array, int]:
    """Return the private rows and the public test rows of a run, and a seed for its trainings."""
    first, second, third = map(int, np.random.SeedSequence([seed, run]).generate_state(3))
    return text(ROWS, first, private=True), text(TEST_ROWS, second, private=True), third


def opacus_loss(seed: int, run: int, number: int) -> float:
    """Return the loss on the test rows of one of Opacus's settings; infinite if it diverged."""
    train, test, drawn = rows_of(seed, run)
    loss = train_opacus(SETTINGS[number], train, test, drawn + number)
    return loss if math.isfinite(loss) else math.inf


def tuned(seed: int, run: int, method: str, goal: float) -> dict[str, Any]:
    """Tune to a goal and return what was charged."""
    import expost
    from expost.tuning.model.released_model import module_of

    train, test, drawn = rows_of(seed, run)
    more: dict[str, Any] = {"training": "progressive"}
    if method == "grid":
        more = {
            "training": "auto",
            "learning_rates": list(RATES),
            "epochs": list(EPOCHS),
            "batch_sizes": list(BATCH_SIZES),
            "clips": [CLIP],
            "optimisers": ["adam"],
        }
    with tempfile.TemporaryDirectory() as folder:
        if method != "progressive, private":
            path = Path(folder) / "test.npz"
            np.savez(path, X=test)
            more |= {"scoring": "public", "public_test": str(path)}
        result = expost.tune(
            train,
            model=module,
            metric="loss",
            at_most=goal,
            loss_bound=LOSS_BOUND,
            integers=True,
            feature_bounds=[0, VOCABULARY - 1],
            delta=DELTA,
            max_epsilon=MOST,
            randomness=expost.SimulationRandomness(drawn),
            simulation=True,
            **more,
        )
    loss = None
    if result.passed and result.model is not None:
        loss = loss_of(module_of(result.model), test)
    return {
        "run": run,
        "method": method,
        "goal": goal,
        "epsilon": result.spent.epsilon,
        "passed": bool(result.passed),
        "loss": loss,
    }


def causal_language(
    methods: Sequence[str] = METHODS[:2], *, runs: int = 3, seed: int = 15183, jobs: int = 2
) -> dict[str, Any]:
    """Return what Opacus reaches in each run, and what each method is charged for the same.

    Parameters
    ----------
    methods : sequence of str
        Of ``METHODS``.
    runs, seed : int
        Runs, each with rows of its own, and the seed of all.
    jobs : int
        Number of processes.
    """
    import torch

    for method in methods:
        if method not in METHODS:
            raise InvalidInput("methods", method, "choose from " + ", ".join(METHODS))
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.pt"
        torch.save(train_on_public_text(), weights)
        settings = {_WEIGHTS: str(weights), "OMP_NUM_THREADS": "1"}
        with ProcessPoolExecutor(
            jobs, mp_context=get_context("spawn"), initializer=_begin, initargs=(settings,)
        ) as pool:
            pairs = list(product(range(runs), range(len(SETTINGS))))
            pairs.sort(key=lambda pair: -SETTINGS[pair[1]][1])  # long ones first
            losses = list(pool.map(partial(opacus_loss, seed), *zip(*pairs, strict=True)))
            found = dict(zip(pairs, losses, strict=True))
            best = [
                min((found[run, number], number) for number in range(len(SETTINGS)))
                for run in range(runs)
            ]
            wanted = list(product(methods, range(runs)))
            outcomes = [
                pool.submit(tuned, seed, run, method, best[run][0]) for method, run in wanted
            ]
            done = [outcome.result() for outcome in outcomes]
    return {
        "randomness": f"simulation: seed {seed}",
        "delta": DELTA,
        "rows": ROWS,
        "test_rows": TEST_ROWS,
        "settings": [list(setting) for setting in SETTINGS],
        "max_epsilon": MOST,
        "aim": AIM,
        "opacus": {
            "epsilon": EPSILON,
            "losses": [
                [found[run, number] for number in range(len(SETTINGS))] for run in range(runs)
            ],
            "best": [loss for loss, _ in best],
        },
        "methods": [summary(method, done) for method in methods],
    }


def summary(method: str, outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean and the 95 % quantile of ε of a method; misses count with their charge."""
    own = [outcome for outcome in outcomes if outcome["method"] == method]
    epsilons = [outcome["epsilon"] for outcome in own]
    return {
        "method": method,
        "epsilon": float(np.mean(epsilons)),
        "quantile_95": float(np.quantile(epsilons, 0.95)),
        "passed": float(np.mean([outcome["passed"] for outcome in own])),
        "runs": own,
    }


def _begin(settings: dict[str, str]) -> None:
    """Prepare a process: one thread, and the public weights."""
    import warnings

    import torch

    os.environ.update(settings)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Opacus warns that its generator is not secure
