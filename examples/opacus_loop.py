"""Tune a training loop that you already have, written with Opacus.

    python examples/opacus_loop.py

``train`` is the loop as it was: it knows nothing of expost. ``OpacusRun`` says what it promises and
scores its model on other rows, with noise. The selector then charges for the winner instead of for
every training. The model is the one with LoRA adapters of ``text_lora/model.py``.

What is promised: the number n of rows is public, and a person's row is in its place or the place is
empty (the relation "zero-out"). An empty place has the label −1; its loss counts 0 times.

Opacus draws its noise from torch's generator, which is not a cipher. For real data use its
``secure_mode``, or ``expost tune`` with the same model (``text_lora/job.toml``).
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from expost import ZCDP, AboveThreshold, Candidate, DiscreteGaussian, Query, Release, RenyiDP
from expost.privacy import dpsgd_curve

FOLDER = Path(__file__).parent
BATCH, EPOCHS, CLIP = 200, 6, 1.0


def load(path: Path) -> Any:
    """Import a file that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(
    model: nn.Module, X: torch.Tensor, y: torch.Tensor, *, noise: float, rate: float
) -> nn.Module:
    """Train with Opacus, as in its tutorial."""
    optimiser = torch.optim.Adam(
        [value for value in model.parameters() if value.requires_grad], lr=rate
    )
    private, optimiser, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimiser,
        data_loader=DataLoader(TensorDataset(X, y), batch_size=BATCH),
        noise_multiplier=noise,
        max_grad_norm=CLIP,
    )
    for _ in range(EPOCHS):
        for tokens, labels in loader:
            optimiser.zero_grad()
            losses = nn.functional.cross_entropy(
                private(tokens), labels.clamp(min=0), reduction="none"
            )
            (losses * (labels >= 0)).mean().backward()
            optimiser.step()
    return model


@dataclass(frozen=True)
class Scored:
    """A trained model and its noisy accuracy."""

    parameters: dict[str, np.ndarray]
    accuracy: float


@dataclass(frozen=True)
class OpacusRun:
    """The loop as a mechanism: a guarantee, and a call."""

    noise: float
    rate: float
    rows: int  # public

    @property
    def training(self) -> RenyiDP:
        """The guarantee of the loop: make_private samples at the rate 1/(steps per epoch)."""
        per_epoch = math.ceil(self.rows / BATCH)
        curve = dpsgd_curve(
            sampling_rate=1 / per_epoch, noise_multiplier=self.noise, steps=per_epoch * EPOCHS
        )
        return RenyiDP(curve.orders, curve.epsilons, "zero-out")

    @property
    def score_rho(self) -> float:
        """The ρ of the score's noise: as much as the training costs at every order, not more."""
        curve = self.training
        return min(loss / order for order, loss in zip(curve.orders, curve.epsilons, strict=True))

    @property
    def guarantee(self) -> RenyiDP:
        """Of training and score together: the larger of both, since they use different rows."""
        score = ZCDP(self.score_rho, "zero-out").to_renyi(self.training.orders)
        return self.training.at_worst(score)

    def __call__(self, data: dict[str, np.ndarray], randomness: Any) -> Scored:
        make = load(FOLDER / "text_lora" / "model.py").make
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(randomness.bits(63))
            model = train(
                make(),
                torch.from_numpy(data["X"]),
                torch.from_numpy(data["y"]),
                noise=self.noise,
                rate=self.rate,
            ).eval()
        with torch.no_grad():
            decided = model(torch.from_numpy(data["score_X"])).argmax(dim=1).numpy()
        # One row changes the number of correct decisions by at most 1.
        correct = Query(lambda rows: int((decided == rows["score_y"]).sum()))
        noisy = DiscreteGaussian(correct, self.score_rho, "zero-out")(data, randomness)
        parameters = {
            name: value.detach().numpy().copy()
            for name, value in model.named_parameters()
            if value.requires_grad
        }
        return Scored(parameters, float(noisy) / len(data["score_y"]))


def main(rows: int = 3000, out: Path | None = None) -> Release:
    """Tune the loop and print what it cost."""
    made = load(FOLDER / "made_up_reviews.py")
    texts, labels = made.reviews(rows)
    X, kept = made.tokens(texts), rows * 4 // 5
    data = {"X": X[:kept], "y": labels[:kept], "score_X": X[kept:], "score_y": labels[kept:]}
    candidates = [
        Candidate(OpacusRun(noise, rate, kept), {"noise": noise, "learning_rate": rate})
        for noise in (2.0, 1.0)  # the cheaper level first
        for rate in (0.02, 0.05)
    ]
    # Algorithm 2: the first run that reaches the goal is released, or nothing. A run may be
    # dropped, so nothing may be found; then call it again, as a further request.
    selector = AboveThreshold(overhead=0.5, at_least=0.7, delta=1e-5)
    print("at worst:", selector.charges(candidates).worst_case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns that its generator is not secure
        release = selector.select(candidates, data, score=lambda model: model.accuracy)
    print("released:", release.params, "passed:", release.passed, "spent:", release.spent)
    if out is not None and release.passed:
        np.savez(out / "adapters.npz", **release.value.parameters)
        release.save(out / "release.json", encode=lambda model: {"noisy accuracy": model.accuracy})
    return release


if __name__ == "__main__":
    main(out=Path())  # adapters.npz, and the certificate release.json
