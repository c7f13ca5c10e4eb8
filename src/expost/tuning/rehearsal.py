"""Rehearse a job on made-up rows before anything is reserved: check every model, and time it.

The whole candidate runs (training, decision, scoring) for each distinct model and optimiser, with
batches of no row, of one row and of many, and with one and many scoring rows. The rows are random
numbers of the same public shape, the randomness is seeded, and no private row is used. So what is
refused here depends on public facts only, and its text may be shown.

With an executor the rehearsal runs in one of its workers. Times are measured at two lengths, so
that compilation and other fixed costs are not multiplied.

Tests: ``tests/tuning/test_rehearsal.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expost.errors import InvalidInput
from expost.execution.dispatch import check_executor, here, tasks_of
from expost.randomness.source import SimulationRandomness
from expost.selection.candidate import Candidate
from expost.tuning.candidates import FittedCodec, ScoredModel, TrainAndScore
from expost.tuning.model import Recipe
from expost.tuning.timing import Pace, made_up, measure, probe_of, rehearsal_data

_MANY = 5  # rows of the batch that stands for many
_NEVER = 1e-12  # a sampling rate at which a batch is empty
_WHOLE = 1 << 24  # whole numbers that a float32 holds exactly
_LONGEST = 300  # characters of an exception that a message shows


@dataclass(frozen=True)
class RowShape:
    """The public shape of a job's rows."""

    rows: int
    scoring_rows: int


def rehearse(candidates: Sequence[Candidate], shape: RowShape, executor: Any = None) -> Pace:
    """Check and time the candidates of a job on made-up rows."""
    given = [candidate.mechanism for candidate in candidates]
    mechanisms = [mechanism for mechanism in given if isinstance(mechanism, TrainAndScore)]
    copies = sum(candidate.repeats for candidate in candidates)
    if executor is None:
        return _rehearse(mechanisms, shape, copies)
    kinds = kinds_of(mechanisms)
    check_executor(executor, kinds)
    short = _thinned(mechanisms)
    problem, where = executor.submit(_in_a_worker, short, shape, copies).result()
    if not isinstance(problem, Pace):
        raise _refusal(*problem)
    # Threads of this process share its cores, and one fleet was measured on all of them.
    return problem if where == here() else replace(problem, workers=tasks_of(executor))


def kinds_of(mechanisms: Sequence[TrainAndScore]) -> list[TrainAndScore]:
    """Return one mechanism of each model, optimiser and number of class weights."""
    kinds: dict[Any, TrainAndScore] = {}
    for mechanism in mechanisms:
        how = mechanism.configuration
        key = (id(mechanism.recipe), how.optimiser, len(how.class_weights or ()), mechanism.device)
        kinds.setdefault(key, mechanism)
    return list(kinds.values())


def _thinned(mechanisms: Sequence[TrainAndScore]) -> list[TrainAndScore]:
    """Return one mechanism per kind, batch size and number of epochs: enough to check and time."""
    kept: dict[Any, TrainAndScore] = {}
    for mechanism in mechanisms:
        how = mechanism.configuration
        sizes = (len(how.class_weights or ()), float(how.batch_size), float(how.epochs))
        key = (id(mechanism.recipe), how.optimiser, *sizes)
        kept.setdefault(key, mechanism)
    return list(kept.values())


def _in_a_worker(mechanisms: Sequence[TrainAndScore], shape: RowShape, copies: int) -> Any:
    """Rehearse in a worker, and say where that was; a refusal comes back as its parts."""
    try:
        return _rehearse(mechanisms, shape, copies), here()
    except InvalidInput as error:
        value = None if error.value is None else str(error.value)
        return (error.field, value, error.valid, str(error)), here()


def _refusal(field: str, value: str | None, valid: str, text: str) -> InvalidInput:
    """Return the refusal that a worker sent."""
    error = InvalidInput(field, value, valid)
    error.args = (text,)
    return error


def _rehearse(mechanisms: Sequence[TrainAndScore], shape: RowShape, copies: int) -> Pace:
    """Check every kind of candidate, then time them."""
    for mechanism in kinds_of(mechanisms):
        rehearse_candidate(mechanism)
    return measure(mechanisms, shape.rows, shape.scoring_rows, copies)


def rehearse_candidate(mechanism: TrainAndScore) -> None:
    """Run one candidate on made-up rows with batches of every kind."""
    if mechanism.recipe.factory is not None:
        _check_module(mechanism.recipe)
    for rows, rate, scored in ((_MANY, _NEVER, 1), (1, 1.0, _MANY), (_MANY, 1.0, _MANY)):
        try:
            _run(mechanism, rows, rate, scored)
        except InvalidInput:
            raise
        except Exception as error:  # a user's module can raise anything; the rows are made up
            taken = "no row" if rate == _NEVER else f"{rows} row" + "s" * (rows > 1)
            raise unfit(
                f"cannot be trained and scored on a batch of {taken}: {_text(error)}",
                _advice(mechanism.recipe),
            ) from None


def unfit(what: str, wanted: str) -> InvalidInput:
    """Return the refusal of a model: what it did, and what is expected."""
    error = InvalidInput("model", what, wanted)
    error.args = (f"model {what}; {wanted}",)
    return error


def _run(mechanism: TrainAndScore, rows: int, rate: float, scored: int) -> None:
    """Train, decide and score once; raise whatever goes wrong."""
    recipe = mechanism.recipe
    data = rehearsal_data(mechanism, rows, scored)
    probe = replace(
        mechanism,
        configuration=probe_of(mechanism.configuration, rate * rows, rate),
        hooks=replace(mechanism.hooks, progress=None),
    )
    (output,) = probe.run_together([probe], data, [SimulationRandomness(0)])
    if not isinstance(output, ScoredModel):
        # The mechanism turns errors of a decision into failures; make it again to see the error.
        (trained,) = probe.train([probe], data, [SimulationRandomness(0)])
        recipe.decide(trained.parameters, data["score_X"])
        raise unfit("could not be scored", _advice(recipe))
    FittedCodec().decode(FittedCodec().encode(output))


def _check_module(recipe: Recipe) -> None:
    """Check a torch module on batches of one and of many rows, with named errors."""
    import torch

    from expost.training._torch.modules import check_module

    factory: Any = recipe.factory
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        try:
            module = factory()
        except Exception as error:
            how = getattr(factory, "signature", "()")
            raise unfit(
                f"cannot be made: {_text(error)}",
                f"its function has the parameters {how}; give them by model.arguments",
            ) from None
        module = check_module(module).eval()
        like = next(module.parameters())
        if recipe.schema.integers and max(column.high for column in recipe.schema.columns) > _WHOLE:
            raise unfit("takes whole numbers", f"give feature_bounds of at most {_WHOLE}")
        X, _ = made_up(recipe, _MANY)
        rows = torch.from_numpy(np.ascontiguousarray(recipe.shaped(X))).to(like.dtype)
        together = _forward(recipe, module, rows)
        again = _forward(recipe, module, rows)
        alone = [_forward(recipe, module, row[None]) for row in rows]
        if torch.equal(together, again):  # a module that draws numbers cannot be compared
            single = torch.cat([one.reshape(1, -1) for one in alone])
            if not torch.allclose(together.reshape(_MANY, -1), single, rtol=1e-2, atol=1e-4):
                raise unfit(
                    "returns other values for a row when other rows are in its batch",
                    "every row must be computed on its own: the first axis of the input is the "
                    "batch (recurrent layers and attention need batch_first=True), and a layer "
                    "must not use statistics of the batch",
                )


def _forward(recipe: Recipe, module: Any, rows: Any) -> Any:
    """Return the outputs of a module, or refuse what it does with these rows."""
    import torch
    from torch import nn

    given = f"for {len(rows)} row{'s' * (len(rows) > 1)} of shape {tuple(rows.shape[1:])}"
    try:
        outputs = module(rows)
    except Exception as error:
        if any(isinstance(layer, nn.Embedding) for layer in module.modules()) and not getattr(
            recipe.factory, "integers", False
        ):
            raise unfit(
                f"raised {_text(error)} {given}",
                "it has an Embedding, which takes whole numbers such as token ids: "
                "set data.integers = true (--integers), so that the columns are not scaled to "
                "[0, 1]",
            ) from None
        shape = (
            "the rows are flat; if the model takes another shape, set model.input_shape "
            "(--input-shape) to the shape of one example"
            if recipe.input_shape is None
            else "check model.input_shape and the sizes of the first layers"
        )
        raise unfit(f"raised {_text(error)} {given}", shape) from None
    number = len(rows)
    width, meaning = (
        (recipe.class_count, "one value per class")
        if recipe.loss == "softmax"
        else (1, "one value per row")
    )
    expected = f"expected ({number}, {width}): {meaning}"
    if not isinstance(outputs, torch.Tensor):
        what = type(outputs).__name__
        raise unfit(
            f"returned a {what} {given}", f"{expected}; return one tensor, without hidden states"
        )
    shape_found = tuple(outputs.shape)
    if recipe.loss == "softmax":
        fits = len(shape_found) == 2 and shape_found[0] == number and shape_found[1] >= (width or 0)
    else:
        fits = shape_found in ((number, 1), (number,)) or (number == 1 and shape_found == ())
    if not fits:
        hint = ""
        if recipe.loss == "softmax" and width == 2 and outputs.numel() == number:
            hint = '; or set model.loss = "logistic" for a model with one output'
        raise unfit(
            f"returned shape {shape_found} for {number} row{'s' * (number > 1)}", expected + hint
        )
    return outputs


def _text(error: BaseException) -> str:
    """Return the kind and the first line of an exception."""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__} ({text[:_LONGEST]})" if text else type(error).__name__


def _advice(recipe: Recipe) -> str:
    """Return what to do about a model that cannot be trained; names layers known to be hard."""
    general = (
        "gradients are taken row by row (torch.func.vmap): use operations that torch can batch, "
        "and no branches on values"
    )
    if recipe.factory is None:
        return general
    from torch import nn

    hard = [
        f"{type(layer).__name__} at {name!r}"
        for name, layer in recipe.factory().named_modules()
        if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention, nn.EmbeddingBag))
    ]
    return f"{', '.join(hard)} may be the reason; {general}" if hard else general
