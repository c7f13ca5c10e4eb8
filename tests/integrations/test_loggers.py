"""Trackers get what was released and public settings only, read back from their own files."""

import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest

import expost
from expost import SimulationRandomness
from expost.errors import InvalidInput
from expost.integrations.loggers import log_release, released_facts

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 600)
X = np.clip(0.5 + 0.2 * (Y[:, None] - 0.5) + 0.15 * RNG.standard_normal((600, 3)), 0, 1)
GRID = {"learning_rates": [1.0, 4.0], "epochs": [2], "batch_sizes": [100], "clips": [1]}
JOB = {"feature_bounds": [0, 1], "classes": 2, "model": "logistic", "training": "dp-sgd", **GRID}
JOB |= {"epsilons": [1, 4], "delta": 1e-5, "max_epsilon": 30, "features": ["plain"]}
GIVEN = {"simulation": True, "randomness": SimulationRandomness(1)}

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def tuned():
    return expost.tune(X, Y, at_least=0.6, **JOB, **GIVEN)


def test_only_the_release_and_public_settings_may_be_logged(tuned):
    settings, numbers = released_facts(tuned)
    assert numbers["epsilon"] == tuned.spent.epsilon
    assert numbers["largest_epsilon"] == tuned.worst_case.epsilon
    assert numbers["noisy_score"] == tuned.score
    assert numbers["passed"] == 1.0
    assert settings["released.learning_rate"] == str(tuned.params["learning_rate"])
    # all of it is in the certificate, which is released
    certificate = json.loads(tuned.certificate())["tuning"]
    for name in settings:
        table, _, key = name.partition(".")
        assert table == "released" or key in certificate[table]
    assert {"goal.value", "privacy.delta", "model.kind"} <= set(settings)
    assert not any(word in name for name in settings for word in ("time", "second", "run"))


def test_a_loss_is_logged_in_its_own_direction():
    done = expost.tune(
        X, Y, metric="log_loss", maximize=True, loss_bound=4.0, **(JOB | {"epsilons": [4]}), **GIVEN
    )
    assert released_facts(done)[1]["noisy_score"] == -done.score


def test_mlflow(tuned, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    place = (tmp_path / "mlruns").as_uri()
    log_release(tuned, f"mlflow:{place}")
    client = mlflow.MlflowClient(tracking_uri=place)
    (experiment,) = [one for one in client.search_experiments() if one.name == "expost"]
    (run,) = client.search_runs([experiment.experiment_id])
    settings, numbers = released_facts(tuned)
    assert run.data.params == settings
    assert run.data.metrics == numbers
    assert run.info.status == "FINISHED"
    assert run.info.start_time == run.info.end_time  # midnight of the date in the certificate
    assert run.info.start_time % (24 * 3600 * 1000) == 0
    (history,) = client.get_metric_history(run.info.run_id, "epsilon")
    assert history.timestamp == run.info.start_time
    assert set(run.data.tags) <= {"mlflow.runName"}
    text = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/certificate.json")
    assert text == tuned.certificate()


def test_tensorboard(tuned, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # a second job has a run of its own
        log_release(tuned, f"tensorboard:{tmp_path}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expost-0", "expost-1"]
    events = EventAccumulator(str(tmp_path / "expost-0"))
    events.Reload()
    _, numbers = released_facts(tuned)
    assert set(events.Tags()["scalars"]) == set(numbers)
    for name, value in numbers.items():
        (event,) = events.Scalars(name)
        assert event.value == pytest.approx(value, rel=1e-6)
        assert event.wall_time % (24 * 3600) == 0
    assert set(events.Tags()["tensors"]) == {"settings", "certificate"}
    (file,) = (tmp_path / "expost-0").iterdir()
    assert re.fullmatch(r"events\.out\.tfevents\.\d+\.expost", file.name)


def log_records(content):
    """Return the records of a log in blocks of 32 KiB: checksum, length, kind, piece."""
    place, pieces = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # the rest of a block
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        pieces += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield pieces
            pieces = b""


def test_wandb(tuned, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    wandb.teardown()  # it reads the environment once per process
    log_release(tuned, "wandb:notes")
    wandb.teardown()  # the file is written in another process, which ends now
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    kinds, config, summary = set(), {}, {}
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kinds.add(record.WhichOneof("record_type"))
        for item in record.run.config.update:
            config[item.key] = json.loads(item.value_json)
        for item in record.summary.update:
            summary[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
        assert record.run.host in ("", "expost")
    settings, numbers = released_facts(tuned)
    assert {name: config[name] for name in settings} == settings
    assert {name: summary[name] for name in numbers} == numbers
    assert summary["certificate"] == tuned.certificate()
    assert not kinds & {"history", "stats", "output", "output_raw", "environment"}


def test_a_tracker_that_fails_loses_nothing(tuned, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with pytest.warns(UserWarning, match="log_to"):
        done = expost.tune(X, Y, at_least=0.6, log_to=f"tensorboard:{blocked}", **JOB, **GIVEN)
    assert done.spent.epsilon > 0


def test_a_job_writes_its_run_when_it_is_over(tmp_path):
    pytest.importorskip("tensorboard")
    seen = []

    def watching(done, total):
        seen.append(list(tmp_path.iterdir()))

    expost.tune(
        X, Y, at_least=0.6, log_to=f"tensorboard:{tmp_path}", progress=watching, **JOB, **GIVEN
    )
    assert seen
    assert not any(seen)  # nothing while it trained
    assert [path.name for path in tmp_path.iterdir()] == ["expost-0"]


def test_an_unknown_tracker_is_refused_before_anything_is_read():
    start = time.perf_counter()
    with pytest.raises(InvalidInput, match="'mlflow', 'tensorboard', 'wandb'"):
        expost.tune(X, Y, at_least=0.6, log_to="neptune", **JOB)
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "wandb"])
def test_a_missing_tracker_names_its_extra(name):
    code = (
        f"import sys; sys.modules[{name!r}] = None\n"
        "import expost\n"
        f"try: expost.tune([[0.5]], [0], at_least=0.6, log_to={name!r})\n"
        "except expost.errors.MissingExtra as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"expost[{name}]" in done.stdout


def test_progress_is_a_bar_for_the_curator(capsys):
    done = expost.tune(X, Y, at_least=0.6, progress=True, **JOB, **GIVEN)
    captured = capsys.readouterr()
    assert done.spent.epsilon > 0
    assert "training" in captured.err
    assert captured.out == ""
    expost.tune(X, Y, at_least=0.6, progress=False, **JOB, **GIVEN)
    assert "training" not in capsys.readouterr().err
