"""Write what a tuning job released to MLflow, TensorBoard or Weights & Biases.

A tracker that listens to a search stores what must stay with the curator: which runs were made,
what the losers scored, how far each training is, and when. Here nothing is written before the job
is over. Then one run is written: public settings, the settings and the noisy score of what was
released, its bounds, and the charge. All of it is in the certificate, so it is post-processing of a
release. Times are those of the date in the certificate, at midnight: how long a job took tells how
many runs it made. (wandb writes when its own files were made, which is after the job.)

Tests: ``tests/integrations/test_loggers.py``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expost.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from expost.tuning.model.tuned import Tuned

__all__ = ["log_release", "released_facts"]

_TABLES = ("data", "model", "search", "goal", "privacy")
_LONGEST = 250  # characters of a setting; the certificate has all of them
_NAME = "expost"


def log_release(tuned: Tuned, log_to: str) -> None:
    """Write one run with what a job released.

    Parameters
    ----------
    tuned : Tuned
        The result of :func:`expost.tune`.
    log_to : str
        ``"mlflow"``, ``"tensorboard"`` or ``"wandb"``, where the library's own settings say where
        to write; or with a place: ``"mlflow:URI"``, ``"tensorboard:FOLDER"`` (``runs`` by default),
        ``"wandb:PROJECT"``.

    Raises
    ------
    InvalidInput
        If there is no such tracker.
    MissingExtra
        If its package is not installed.
    """
    check_log_to(log_to)
    name, _, address = log_to.partition(":")
    facts, numbers = released_facts(tuned)
    day = datetime.fromisoformat(str(tuned.details["date"])).replace(tzinfo=UTC)
    _WRITERS[name](address, facts, numbers, tuned.certificate(), int(day.timestamp()))


def check_log_to(log_to: object) -> None:
    """Refuse a tracker that is not known or not installed."""
    name = log_to.partition(":")[0] if isinstance(log_to, str) else ""
    if name not in _WRITERS:
        raise InvalidInput("log_to", log_to, "give one of " + ", ".join(map(repr, _WRITERS)))
    try:
        import_module(name)
    except ImportError:
        missing = (
            MissingExtra("mlflow-skinny", "mlflow"),
            MissingExtra("tensorboard", "tensorboard"),
            MissingExtra("wandb", "wandb"),
        )
        raise next(error for error in missing if error.extra == name) from None


def released_facts(tuned: Tuned) -> tuple[dict[str, str], dict[str, float]]:
    """Return what may be logged of a job.

    Parameters
    ----------
    tuned : Tuned
        The result of :func:`expost.tune`.

    Returns
    -------
    settings : dict of str to str
        The public settings of the job, and those of the released model.
    numbers : dict of str to float
        The charge, the largest possible charge, and, of a released model, its noisy score and
        its bounds, in the direction of the metric; ``passed`` is 0 or 1.
    """
    settings = {
        f"{table}.{key}": _text(value)
        for table in _TABLES
        for key, value in tuned.details[table].items()
        if value is not None and value != {} and value != ()
    }
    settings |= {f"released.{key}": _text(value) for key, value in tuned.params.items()}
    told: Mapping[str, Any] = tuned.as_dict()["confidence"] or {}
    sign = 1.0 if tuned.details["goal"]["larger_is_better"] else -1.0
    numbers = {
        "epsilon": tuned.spent.epsilon,
        "delta": tuned.spent.delta,
        "largest_epsilon": tuned.worst_case.epsilon,
        "passed": float(tuned.passed),
        "noisy_score": told.get("noisy_score", None if tuned.score is None else sign * tuned.score),
        "bound_on_scoring_rows": told.get("bound_on_scoring_rows"),
        "bound_on_population": told.get("bound_on_population"),
    }
    finite = {
        name: float(value)
        for name, value in numbers.items()
        if value is not None and math.isfinite(value)
    }
    return settings, finite


def _text(value: Any) -> str:
    """Return a setting as a text of limited length."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _mlflow(
    address: str, facts: dict[str, str], numbers: dict[str, float], certificate: str, day: int
) -> None:
    """Write a run of MLflow by its client, which adds nothing of its own."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=address or None)
    name, when = os.environ.get("MLFLOW_EXPERIMENT_NAME", _NAME), 1000 * day
    known = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if known is None else known.experiment_id
    run = client.create_run(experiment, start_time=when, run_name=facts["model.kind"]).info.run_id
    client.log_batch(
        run,
        metrics=[Metric(key, value, when, 0) for key, value in numbers.items()],
        params=[Param(key, value) for key, value in facts.items()],
    )
    client.log_text(run, certificate, "certificate.json")
    client.set_terminated(run, end_time=when)


def _tensorboard(
    address: str, facts: dict[str, str], numbers: dict[str, float], certificate: str, day: int
) -> None:
    """Write an event file; the library's own writer would add the time and the host."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder = Path(address or "runs")
    number = 0
    while (home := folder / f"{_NAME}-{number}").exists():
        number += 1
    home.mkdir(parents=True)
    values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
    plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    table = "\n".join(["|setting|value|", "|---|---|", *(f"|{k}|{v}|" for k, v in facts.items())])
    for tag, text in (("settings", table), ("certificate", f"```\n{certificate}\n```")):
        content = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        values.append(Summary.Value(tag=tag, tensor=content, metadata=plugin))
    with (home / f"events.out.tfevents.{day}.{_NAME}").open("wb") as stream:
        writer = RecordWriter(stream)
        writer.write(Event(wall_time=day, file_version="brain.Event:2").SerializeToString())
        writer.write(Event(wall_time=day, summary=Summary(value=values)).SerializeToString())


def _wandb(
    address: str, facts: dict[str, str], numbers: dict[str, float], certificate: str, day: int
) -> None:
    """Write a run of wandb without what it collects by itself."""
    import wandb

    settings = wandb.Settings(
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        disable_git=True,
        disable_code=True,
        console="off",
        host=_NAME,
        silent=True,
    )
    run = wandb.init(
        project=address or _NAME, config=dict(facts), settings=settings, reinit="create_new"
    )
    try:
        run.summary.update({**numbers, "certificate": certificate})  # no history, so no times
    finally:
        run.finish()


_Writer = Callable[[str, dict[str, str], dict[str, float], str, int], None]
_WRITERS: dict[str, _Writer] = {
    "mlflow": _mlflow,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}
