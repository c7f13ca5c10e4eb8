"""Train one configuration with Opacus.

This is a cross-check of :class:`~expost.training.Fleet`, and an alternative for models that the
fleet refuses. The parts of Opacus (GradSampleModule, Poisson sampler, DPOptimizer) run with the
same sampling rate, steps, clipping norm, noise and expected batch size as the fleet.
``PrivacyEngine.make_private`` is not used: it would round the rate to 1/⌈n/batch⌉.

A row whose features or gradient are not finite in the precision of the model adds nothing.

Assumptions: the per-example gradients of Opacus are correct for the model (its validator is asked,
and a model that looks across the batch on made-up rows is refused), and its noise is good enough.
The noise consists of float32 Gaussians from torch's Mersenne twister, seeded with 63 bits of
``randomness``; it is not cryptographically strong.

Tests: ``tests/training/test_opacus.py``; neighbours: ``tests/hostile/test_training.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from expost.errors import InvalidInput, MissingExtra
from expost.randomness.source import Randomness, require_protection
from expost.training.configuration import Configuration, check_class_weights, guarantees_of
from expost.training.engines import Trained

__all__ = ["train_with_opacus"]


def train_with_opacus(
    factory: Callable[[], Any],
    configuration: Configuration,
    X: Any,
    y: Any,
    *,
    loss: str = "softmax",
    randomness: Randomness | None = None,
    simulation: bool = False,
) -> Trained:
    """Train one model with Opacus.

    Parameters
    ----------
    factory : callable
        Returns a new torch module. It is called with torch's generator seeded from ``randomness``.
    configuration : Configuration
        Learning rate, clipping norm, noise, batch size and length of the training.
    X, y : array_like
        The training data.
    loss : str, default "softmax"
        As in :class:`~expost.training.Fleet`.
    randomness : Randomness, optional
        The source of random bits; by default the operating system.
    simulation : bool, default False
        Allow seeded randomness and training without noise. No data is protected then.

    Returns
    -------
    Trained
        The parameters, the configuration and the guarantee.

    Raises
    ------
    MissingExtra
        If torch or Opacus is not installed.
    InvalidInput
        If an argument is not valid, or Opacus refuses the model.
    SimulationOnly
        If the source is seeded and ``simulation`` is False.
    """
    try:
        import torch
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler
        from opacus.validators import ModuleValidator
    except ImportError:
        raise MissingExtra("opacus", "opacus") from None
    from expost.training._torch.module_state import STATE_BYTES, generator_state
    from expost.training._torch.modules import LOSSES, one_thread, outputs_of
    from expost.training.configuration import LOSSES as NAMES
    from expost.training.configuration import check_rows, check_training_data

    source = require_protection(randomness, simulation=simulation)
    if not simulation and configuration.noise_multiplier == 0:
        raise InvalidInput(
            "noise_multiplier",
            0,
            "give a number > 0: without noise no data is protected; "
            "pass simulation=True if no data of real people is used",
        )
    if loss not in NAMES:
        raise InvalidInput("loss", loss, "give one of " + ", ".join(NAMES))
    shaped = check_rows(X, dimensions=None)
    with torch.random.fork_rng(), one_thread():
        torch.manual_seed(source.bits(63))
        module = factory()
        if problems := ModuleValidator.validate(module, strict=False):
            raise InvalidInput(
                "model",
                type(problems[0]).__name__,
                "Opacus refuses this model; opacus.validators.ModuleValidator.fix may repair it",
            )
        _refuse_mixing(module, shaped.shape[1:])
        outputs = outputs_of(module, shaped)
        check_class_weights([configuration], loss, outputs)
        rows, targets = check_training_data(shaped, y, loss, outputs, dimensions=None)
        plan = configuration.plan(len(rows))
        wrapped = GradSampleModule(module, loss_reduction="sum")
        # torch reads 32 bits of a seed: all seeds could be tried, so the whole state is set
        generator = torch.Generator()
        generator.set_state(generator_state(source.bytes(STATE_BYTES)))
        torch.random.set_rng_state(generator_state(source.bytes(STATE_BYTES)))  # dropout
        optimiser = _total(DPOptimizer)(
            _optimiser(configuration, module.parameters()),
            noise_multiplier=plan.noise_multiplier,
            max_grad_norm=float(configuration.clip),
            expected_batch_size=configuration.batch_size,
            generator=generator,
        )
        sampler = UniformWithReplacementSampler(
            num_samples=len(rows),
            sample_rate=plan.sampling_rate,
            steps=plan.steps,
            generator=generator,
        )
        dtype = next(module.parameters()).dtype
        inputs, labels = torch.from_numpy(rows).to(dtype), torch.from_numpy(targets)
        finite = torch.isfinite(inputs).flatten(1).all(1)  # a number may be too large for the type
        counts = ~torch.isnan(labels) & finite  # a row that does not count adds nothing
        rates, decay = configuration.learning_rates(plan.steps), float(configuration.weight_decay)
        for step, batch in enumerate(sampler):
            chosen = torch.tensor(batch, dtype=torch.int64)
            chosen = chosen[counts[chosen]]
            optimiser.zero_grad()
            outputs_here, targets_here = wrapped(inputs[chosen]), labels[chosen]
            if configuration.class_weights is None:
                summed: Any = LOSSES[loss](outputs_here, targets_here) * max(1, len(chosen))
            else:
                summed = _weighted(outputs_here, targets_here, loss, configuration.class_weights)
            summed.backward()
            rate = float(rates[min(step, len(rates) - 1)])
            for group in optimiser.param_groups:
                group["lr"] = rate
            if decay:
                with torch.no_grad():
                    for parameter in module.parameters():
                        if parameter.requires_grad:
                            parameter.mul_(1.0 - rate * decay)
            optimiser.step()
    parameters = {
        name: value.detach().numpy().copy()
        for name, value in module.named_parameters()
        if value.requires_grad
    }
    return Trained(parameters, configuration, guarantees_of([plan])[0])


def _weighted(outputs: Any, targets: Any, loss: str, class_weights: tuple[float, ...]) -> Any:
    """Return the sum of the losses, each times the weight of its class."""
    import torch
    from torch.nn import functional

    table, labels = torch.tensor(class_weights, dtype=outputs.dtype), targets.to(torch.int64)
    if loss == "softmax":
        return functional.cross_entropy(outputs, labels, weight=table, reduction="sum")
    return functional.binary_cross_entropy_with_logits(
        outputs.flatten(), targets.to(outputs.dtype), weight=table[labels], reduction="sum"
    )


def _refuse_mixing(module: Any, shape: tuple[int, ...]) -> None:
    """Refuse a model whose output for a made-up row depends on the other rows."""
    import torch

    training = module.training
    module.eval()  # no dropout
    kind = next(module.parameters()).dtype
    gradients = [scale * torch.randn(5, *shape, dtype=kind) for scale in (1, 30)]
    for rows in (*gradients, torch.rand(5, *shape, dtype=kind)):
        try:
            with torch.no_grad():
                together = module(rows)
                alone = torch.cat([module(row[None]) for row in rows])
        except Exception:  # noqa: S112 - such rows do not suit it; check_training_data tells
            continue
        if together.shape != alone.shape or not torch.allclose(together, alone, 1e-3, 1e-4):
            raise InvalidInput(
                "model",
                type(module).__name__,
                "it looks across the batch, and the output for a row must depend on this row only; "
                "change its forward, or use Fleet, which passes rows one by one",
            )
    module.train(training)


def _total(optimiser: Any) -> Any:
    """An optimiser of Opacus for which a gradient that is not finite is 0."""
    import torch

    class Total(optimiser):  # type: ignore[misc]
        def clip_and_accumulate(self) -> None:
            samples = [sample for sample in self.grad_samples if len(sample)]
            if samples:
                norms = [sample.flatten(1).double().square().sum(1) for sample in samples]
                fine = torch.isfinite(torch.stack(norms).sum(0))
                for sample in samples:
                    sample[~fine] = 0
            super().clip_and_accumulate()

    return Total


def _optimiser(configuration: Configuration, parameters: Any) -> Any:
    """The torch optimiser of a configuration."""
    import torch

    rate = float(configuration.learning_rate)
    if configuration.optimiser == "adam":
        return torch.optim.Adam(parameters, lr=rate)
    return torch.optim.SGD(
        parameters,
        lr=rate,
        momentum=float(configuration.momentum) if configuration.optimiser == "momentum" else 0.0,
    )
