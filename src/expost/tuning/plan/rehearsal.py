"""Rehearse a job on made-up rows before anything is reserved: check every model, and time it.

**Times.** A training of s steps takes a fixed time plus s times the time of a step. The time of a
step is measured by the difference of two lengths, so that compilation is not multiplied, at the
middle batch size of the grid, for one model and for as many as train at once.

**Checks.** The whole candidate runs (training, decision, scoring) for each distinct model and
optimiser, with batches of no row, of one row and of many, and with one and many scoring rows. The
rows are random numbers of the same public shape, the randomness is seeded, and no private row is
used. So what is refused here depends on public facts only, and its text may be shown.

With an executor the rehearsal runs in one of its workers.

Tests: ``tests/tuning/test_rehearsal.py``.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.workers import check_executor, here, tasks_of
from expost.features.columns import Column
from expost.privacy.guarantees import ADD_REMOVE
from expost.randomness.source import SimulationRandomness
from expost.selection.candidate import Candidate
from expost.training.configuration import OWN, Configuration
from expost.tuning.model.released_model import Recipe
from expost.tuning.runs.candidates import FittedCodec, ScoredModel, TrainAndScore

_VALUES = 1 << 24  # numbers in the made-up rows, at most
_SECONDS = 0.05  # length of a measurement, at least
_TOGETHER = 32  # models that are measured together on a device
# steps of the shorter measurement, and further steps of the longer one (if the shorter one takes
# long, if not); on a device, the first steps are recorded as graphs
_LENGTHS = {"cpu": (2, 1, 8), "cuda": (64, 128, 128)}
_ENDS = ("low", "high")
_known: dict[Any, Pace] = {}


@dataclass(frozen=True)
class Pace:
    """How long runs take."""

    run: float
    share: float
    fixed: float = 0.0
    workers: int = 1

    def seconds(self, runs: float) -> float:
        """Return the time of a number of runs, in seconds."""
        batch = runs / min(self.workers, max(runs, 1.0))
        return self.fixed + max(min(batch, 1.0) * self.run, batch * self.share)


def measure(mechanisms: Sequence[TrainAndScore], rows: int, scoring_rows: int, copies: int) -> Pace:
    """Return the pace of a job's trainings and scores."""
    groups: dict[int, list[TrainAndScore]] = {}
    for mechanism in mechanisms:
        groups.setdefault(id(mechanism.recipe), []).append(mechanism)
    paces = [_pace(group, rows, scoring_rows, copies) for group in groups.values()]
    parts = [len(group) / len(mechanisms) for group in groups.values()]
    return Pace(
        sum(part * pace.run for part, pace in zip(parts, paces, strict=True)),
        sum(part * pace.share for part, pace in zip(parts, paces, strict=True)),
        max(pace.fixed for pace in paces),
    )


def _pace(group: Sequence[TrainAndScore], rows: int, scoring_rows: int, copies: int) -> Pace:
    """Return the pace of candidates with one recipe; the time of public features is left out."""
    first = group[0]
    if first.recipe.features is not None:
        schema = first.recipe.schema
        numbers = (Column(),) * first.recipe.features.width(schema.width)
        plain = replace(first.recipe, features=None, schema=replace(schema, columns=numbers))
        first = replace(first, recipe=plain, rows=None)
    batches = [float(mechanism.configuration.batch_size) for mechanism in group]
    epochs = [float(mechanism.configuration.epochs) for mechanism in group]
    batch = sorted(batches)[len(group) // 2]
    steps = float(np.mean(np.maximum(1.0, np.multiply(epochs, rows) / batches)))
    recipe, threads = first.recipe, _threads(first)
    together = max(1, min(copies, _TOGETHER if first.device != "cpu" else threads))
    model = (recipe.kind, recipe.class_count, recipe.schema.width, first.configuration.optimiser)
    sizes = (rows, scoring_rows, batch, steps)
    key = (*model, *sizes, first.device, threads, together)
    if key in _known and recipe.factory is None:  # built-in models always take as long
        return _known[key]
    size = min(rows, max(math.ceil(batch), _VALUES // recipe.schema.width))
    lengths = _LENGTHS["cpu" if first.device == "cpu" else "cuda"]
    fixed, alone = _line(lambda count: _train(first, size, batch, 1, count), *lengths)
    shared = alone
    if together > 1:
        line = _line(lambda count: _train(first, size, batch, together, count), *lengths)
        shared = line[1] / together
    score = _score(first, scoring_rows)
    _known[key] = Pace(steps * alone + score, steps * shared + score, fixed)
    return _known[key]


def _line(timed: Callable[[int], float], first: int, few: int, many: int) -> tuple[float, float]:
    """Return intercept and slope of a time that grows with a number of steps."""
    timed(first)  # compiles
    short = timed(first)
    more = few if short > _SECONDS else many
    while True:
        longer = timed(first + more)
        if longer - short >= _SECONDS or more >= 1 << 16 or longer > 20 * _SECONDS:
            break
        more *= 4
    slope = max(longer - short, longer / 100) / more
    return max(0.0, short - first * slope), slope


def _train(first: TrainAndScore, size: int, batch: float, models: int, steps: int) -> float:
    """Return the seconds of a training of some steps on made-up rows."""
    data = rehearsal_data(first, size, 1)
    probe = probe_of(first.configuration, min(batch, size), steps * min(batch, size) / size)
    calls = [replace(first, configuration=probe, hooks=replace(first.hooks, progress=None))]
    sources = [SimulationRandomness(number) for number in range(models)]
    started = time.perf_counter()
    calls[0].train(calls * models, data, sources)
    return time.perf_counter() - started


def _score(first: TrainAndScore, scoring_rows: int) -> float:
    """Return the seconds of scoring one model."""
    size = max(1, min(scoring_rows, _VALUES // (16 * first.recipe.schema.width)))
    probe = replace(first, configuration=probe_of(first.configuration, 1.0, 1.0))
    (trained,) = probe.train([probe], rehearsal_data(first, 1, 1), [SimulationRandomness(0)])
    data = rehearsal_data(first, 1, size)
    for _ in range(2):  # the first one compiles
        started = time.perf_counter()
        probe.rate(trained.parameters, data, SimulationRandomness(0))
    return (time.perf_counter() - started) * scoring_rows / size


def _threads(first: TrainAndScore) -> int:
    """Return how many models train at the same time on a CPU."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return (
        first.hooks.threads
        or (int(said) if said.isdecimal() and int(said) else 0)
        or (os.cpu_count() or 1)
    )


def rehearsal_data(mechanism: TrainAndScore, rows: int, scored: int) -> dict[str, Any]:
    """Return made-up data of a candidate, with public numbers of rows if its relation has them."""
    X, y = made_up(mechanism.recipe, rows)
    score_X, score_y = made_up(mechanism.recipe, scored)
    secret = mechanism.guarantee.neighbours == ADD_REMOVE
    return {
        "X": X,
        "y": y,
        "score_X": score_X,
        "score_y": score_y,
        "rows": rows if secret else None,
        "score_rows": scored if secret else None,
        "job": "rehearsal",
    }


def made_up(recipe: Recipe, rows: int) -> tuple[Array, Array]:
    """Return random rows and targets of the public shape."""
    generator = np.random.default_rng(0)
    X = generator.random((rows, recipe.schema.width))
    if recipe.schema.integers:
        low, high = (
            np.array([vars(column)[end] for column in recipe.schema.columns]) for end in _ENDS
        )
        X = np.clip(np.round(low + X * (high - low)), np.ceil(low), np.floor(high)).astype(np.int64)
    return X, np.arange(rows) % float(recipe.class_count or 2)


def probe_of(configuration: Configuration, batch: float, epochs: float) -> Configuration:
    """Return a short training with the optimiser of a configuration."""
    return replace(
        configuration,
        batch_size=batch,
        epochs=epochs,
        noise_multiplier=1.0,
        epsilon=None,
        delta=None,
    )


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
        check_network(mechanism.recipe)
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


def check_network(recipe: Recipe) -> None:
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
                "set data.integers = true (--integers), so that the columns are not scaled",
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
        else ("1 or 2", "the loss of the row, and the share of its tokens that are predicted")
        if recipe.loss == OWN
        else (1, "one value per row")
    )
    expected = f"expected ({number}, {width}): {meaning}"
    if not isinstance(outputs, torch.Tensor):
        what = type(outputs).__name__
        raise unfit(
            f"returned a {what} {given}", f"{expected}; return one tensor, without hidden states"
        )
    shape_found = tuple(outputs.shape)
    if recipe.loss == OWN:
        fits = shape_found in ((number, 1), (number, 2), (number,))
    elif recipe.loss == "softmax":
        least = recipe.class_count or 0
        fits = len(shape_found) == 2 and shape_found[0] == number and shape_found[1] >= least
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
