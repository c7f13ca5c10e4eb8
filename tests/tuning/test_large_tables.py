"""Large tables at the door: the release depends on the rows alone, not on how they arrive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tuning.large_tables import FACTS, cells, tuned, write  # isort: skip  (needs pyarrow)

import pyarrow as pa
import pyarrow.parquet

import expost
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.errors import ExpostError, InvalidInput, WorkersLost
from expost.execution.parts import Parts
from expost.execution.workers import Processes
from expost.privacy.guarantees import ZERO_OUT
from expost.randomness.source import SimulationRandomness
from expost.training.progressive import TrainingRows
from expost.tuning.request.settings import read_settings
from expost.tuning.rows import job_rows as row_reader
from expost.tuning.rows.job_rows import load_rows

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(2) as pool:
        yield pool


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table is a large one."""
    monkeypatch.setattr("expost.tuning.rows.spread_rows.LARGE", 0)


def cut(monkeypatch: pytest.MonkeyPatch, batch: int, piece: int, memory: int = 0) -> None:
    """Read and encode so many rows together; keep so many bytes in memory."""
    monkeypatch.setattr(row_reader, "_BATCH", batch)
    monkeypatch.setattr(row_reader, "PIECE", piece)
    monkeypatch.setattr("expost.execution.parts._IN_MEMORY", memory)
    monkeypatch.setattr("expost.execution.parts._BUNDLE", 10000)


WAYS: dict[str, dict[str, Any]] = {
    "two classes": {},
    "secret number of rows": {"rows": 650},
    "balanced": {"metric": "balanced_accuracy", "class_shares": [0.4, 0.6]},
    "log loss": {"metric": "log_loss", "at_least": None, "at_most": 1.5},
    "regression": {
        "training": "progressive",
        "target": "age",
        "classes": None,
        "target_bounds": [0, 120],
        "feature_bounds": {"gain": [0, 5000]},
        "categories": {**FACTS["categories"], "label": ["no", "yes"]},
        "metric": "mae",
        "at_least": None,
        "at_most": 29,
    },
    "second moments": {
        "training": "noise-reduction",
        "target": "age",
        "classes": None,
        "target_bounds": [0, 120],
        "feature_bounds": {"gain": [0, 5000]},
        "categories": {**FACTS["categories"], "label": ["no", "yes"]},
        "metric": "mae",
        "at_least": None,
        "at_most": 29,
    },
    "three classes": {
        "target": "city",
        "classes": FACTS["categories"]["city"],
        "categories": {"label": ["no", "yes"]},
        "at_least": 0.2,
    },
    "a miss": {"at_least": 0.9},
    "a miss that tells": {"at_least": 0.9, "tell": 0.3},
}


@pytest.mark.parametrize("name", WAYS)
def test_neither_batches_nor_executors_change_the_release(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: Processes
) -> None:
    """The same bytes and the same draws as with arrays, for random batches and executors."""
    file = write(tmp_path / "rows.parquet", cells())
    wanted = tuned(pa.table(cells()), **WAYS[name])
    assert wanted[0] == (not name.startswith("a miss"))
    assert tuned(file, **WAYS[name]) == wanted  # a small file is read at once
    monkeypatch.setattr("expost.tuning.rows.spread_rows.LARGE", 0)
    generator = np.random.default_rng(sorted(WAYS).index(name))
    for executor in (None, "threads", processes):
        sizes = [int(size) for size in generator.integers((1, 40, 0), (400, 300, 50000))]
        cut(monkeypatch, *sizes)
        rows = [file, write(tmp_path / "rows.csv", cells()), pa.table(cells())][
            generator.integers(3)
        ]
        if executor != "threads":
            assert (
                tuned(rows, executor=executor, threads=int(generator.integers(1, 4)), **WAYS[name])
                == wanted
            )
            continue
        with ThreadPoolExecutor(int(generator.integers(1, 4))) as pool:
            assert tuned(rows, executor=pool, **WAYS[name]) == wanted


def test_public_rows_score_as_with_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: None
) -> None:
    shown = cells(90, seed=5)
    good = [
        all(value not in (None, "?", "") and value == value for value in row)
        for row in zip(*shown.values(), strict=True)
    ]
    kept = {
        name: [v for v, fine in zip(column, good, strict=True) if fine]
        for name, column in shown.items()
    }
    kept["age"] = [value if np.isfinite(value) else 1.0 for value in kept["age"]]
    public = write(tmp_path / "public.parquet", kept)
    told = {"scoring": "public", "public_test": str(public)}
    file = write(tmp_path / "rows.parquet", cells())
    parts = tuned(file, **told)
    monkeypatch.setattr("expost.tuning.rows.spread_rows.LARGE", 2**40)
    assert parts == tuned(pa.table(cells()), **told)


@pytest.mark.parametrize("secret", [None, 650])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_pieces_of_a_file_are_the_rows_of_the_table(
    suffix: str, secret: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The split is that of arrays, and a hostile cell spoils its own row only."""
    from expost.tuning.request.defaults import default_job

    path = write(tmp_path / f"rows.{suffix}", cells())
    data = read_settings(default_job(path, at_least=0.6, rows=secret, **FACTS)).data
    whole = load_rows(data, randomness=SimulationRandomness(4))
    for batch, piece in ((1, 1), (97, 50), (10**6, 7)):
        cut(monkeypatch, batch, piece)
        later = load_rows(data, randomness=SimulationRandomness(4), lazy=True)
        assert len(later.X) == len(later.score_X) == 0
        assert (later.places, later.score_places) == (whole.places, whole.score_places)
        found = later.loaded()
        for name in ("X", "y", "score_X", "score_y"):
            assert np.array_equal(getattr(found, name), getattr(whole, name), equal_nan=True), name
        if secret is not None:
            other = later.with_key(bytes(32)).loaded()
            assert np.array_equal(other.X, whole.with_key(bytes(32)).X)


@pytest.mark.parametrize("threshold", [0, 2**40])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_several_files_are_one_table(
    suffix: str, threshold: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorted by name, with columns found by name; a file that lacks one is refused."""
    monkeypatch.setattr("expost.tuning.rows.spread_rows.LARGE", threshold)
    table = cells()
    for number, part in enumerate((slice(0, 300), slice(300, 301), slice(301, 700))):
        some = {name: table[name][part] for name in (sorted(table) if number == 1 else table)}
        write(tmp_path / f"part-{number}.{suffix}", some)
    assert tuned(tmp_path / f"part-*.{suffix}") == tuned(pa.table(table))
    write(tmp_path / f"part-1.{suffix}", {"age": [1.0], "gain": [3], "label": ["no"]})
    with pytest.raises(InvalidInput, match="city"):
        tuned(tmp_path / f"part-*.{suffix}")
    with pytest.raises(InvalidInput, match="no such file"):
        tuned(tmp_path / f"none-*.{suffix}")


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("threshold", [0, 2**40])
@pytest.mark.parametrize("way", ["two classes", "regression", "second moments"])
def test_a_file_without_rows_fails_in_no_way(
    count: int, threshold: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a secret number of rows nothing may tell that there are none."""
    monkeypatch.setattr("expost.tuning.rows.spread_rows.LARGE", threshold)
    empty = pa.table(cells()).slice(0, count)
    pa.parquet.write_table(empty, tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text("age,gain,city,label\n" + "1,2,Zug,yes\n" * count)
    for name in ("rows.parquet", "rows.csv"):
        failures: list[Any] = []
        told = {**WAYS[way], "rows": 650, "max_epsilon": 3}
        tuned(tmp_path / name, on_failure=lambda *failed: failures.append(failed), **told)  # noqa: B023
        assert not failures


def test_one_row_changes_one_piece_by_one_row(tmp_path: Path, large: None) -> None:
    """Neighbours: whatever stands in a row, the other rows of all pieces stay as they are."""
    from expost.tuning.request.defaults import default_job

    def pieces(table: dict[str, list[Any]]) -> list[Any]:
        path = write(tmp_path / "rows.parquet", table)
        data = read_settings(default_job(path, at_least=0.6, **FACTS)).data
        rows = load_rows(data, lazy=True)
        return [array for piece in rows.pieces() for array in piece()]

    before = pieces(cells())
    for name, value in (
        ("age", None),
        ("age", np.nan),
        ("gain", None),
        ("gain", 2**53 + 1),
        ("label", "\x00"),
    ):
        table = cells()
        table[name][5] = value
        after = pieces(table)
        moved = [
            int((~((a == b) | ((a != a) & (b != b)))).reshape(len(a), -1).any(axis=1).sum())
            for a, b in zip(before, after, strict=True)
        ]
        assert sum(moved[::2]) <= 1
        assert sum(moved[1::2]) <= 1


def test_a_damaged_file_costs_nothing_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: None
) -> None:
    file = write(tmp_path / "rows.parquet", cells())
    content = bytearray(file.read_bytes())
    content[200:2200] = bytes(2000)
    file.write_bytes(content)
    book = Ledger.create(tmp_path / "ledger.db", ApproxBudget(4.0, 1e-4, ZERO_OUT))
    with pytest.raises(InvalidInput, match="cannot be read") as caught:
        expost.tune(file, at_least=0.6, max_epsilon=3, ledger=book, **FACTS)
    assert caught.value.__suppress_context__
    standing = book.standing().as_dict()
    assert standing["held"]["epsilon"] == standing["settled"]["epsilon"] == 0


def test_a_file_that_changes_while_it_is_read_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: None
) -> None:
    for count in (500, 900):
        file = write(tmp_path / "rows.parquet", cells())
        book = Ledger.create(tmp_path / f"ledger{count}.db", ApproxBudget(4.0, 1e-4, ZERO_OUT))
        with pytest.raises(InvalidInput, match="changed"):
            expost.tune(
                file,
                at_least=0.6,
                max_epsilon=3,
                ledger=book,
                before=lambda _, count=count: write(file_of(tmp_path), cells(count)),
                **FACTS,
            )
        assert book.standing().as_dict()["held"]["epsilon"] == 0


def file_of(folder: Path) -> Path:
    return folder / "rows.parquet"


class Gone(ThreadPoolExecutor):
    """An executor whose workers disappear after some tasks."""

    left = 20

    def submit(self, *call: Any) -> Any:  # type: ignore[override]
        self.left -= 1
        if self.left < 0:
            raise OSError("a secret")
        return super().submit(*call)


def test_lost_workers_end_the_job_and_it_resumes_elsewhere(tmp_path: Path, large: None) -> None:
    """One reservation, no text of the executor, no rows on disk, and the same draws."""
    file = write(tmp_path / "rows.parquet", cells())
    book = Ledger.create(tmp_path / "ledger.db", ApproxBudget(6.0, 1e-4, ZERO_OUT))
    told = {"at_least": 0.6, "max_epsilon": 3, "ledger": book, "out": tmp_path / "out", **FACTS}
    with Gone(1) as pool, pytest.raises(WorkersLost) as caught:
        expost.tune(file, executor=pool, **told)
    assert "secret" not in str(caught.value)
    held = book.standing().as_dict()["held"]["epsilon"]
    assert 0 < held <= 3
    result = expost.tune(file, **told)
    assert result.passed
    after = book.standing().as_dict()
    assert after["held"]["epsilon"] == 0
    assert after["held"]["epsilon"] == 0
    assert after["settled"]["epsilon"] == pytest.approx(result.spent.epsilon)


def test_another_file_does_not_resume_the_job(tmp_path: Path, large: None) -> None:
    file = write(tmp_path / "rows.parquet", cells())
    told = {"at_least": 0.6, "max_epsilon": 3, "out": tmp_path / "out", **FACTS}
    with Gone(1) as pool, pytest.raises(WorkersLost):
        expost.tune(file, executor=pool, **told)
    table = cells()
    table["age"][3] = 50.0
    write(file, table)
    with pytest.raises(ExpostError, match="other data"):
        expost.tune(file, **told)


KILLED = """\
import os, signal, sys
from pathlib import Path
import expost.tuning.rows.spread_rows
from expost.execution.parts import Parts
from tests.tuning.large_tables import tuned
expost.tuning.rows.spread_rows.LARGE = 0
import expost.execution.parts
expost.execution.parts._IN_MEMORY = 0
plain, calls = Parts.map, []
def counted(self, *values):
    calls.append(1)
    if len(calls) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, *values)
Parts.map = counted
tuned(Path(sys.argv[1]))
"""


def test_a_killed_process_leaves_no_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.parquet", cells())
    folder = tmp_path / "temporary"
    folder.mkdir()
    died = subprocess.run(
        [sys.executable, "-c", KILLED, str(file)],
        env=dict(os.environ, TMPDIR=str(folder)),
        cwd=ROOT,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    assert not list(folder.iterdir())


def test_a_worker_that_is_killed_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: Processes, large: None
) -> None:
    file = write(tmp_path / "rows.parquet", cells())
    wanted = tuned(file)
    sums, step = [], Parts.map

    def killing(self: Parts, *call: Any) -> Any:
        sums.append(1)
        if len(sums) in (3, 10):
            assert processes._pool is not None
            os.kill(next(iter(processes._pool._processes)), signal.SIGKILL)
        return step(self, *call)

    monkeypatch.setattr(Parts, "map", killing)
    assert tuned(file, executor=processes) == wanted
    assert len(sums) > 10


def test_the_sums_are_made_by_the_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an executor no gradient is computed in this thread, also for a small table."""
    import threading

    here, where = threading.get_ident(), set()
    plain = TrainingRows.gradient_sum

    def seen(self: TrainingRows, *values: Any) -> Any:
        where.add(threading.get_ident())
        return plain(self, *values)

    monkeypatch.setattr(TrainingRows, "gradient_sum", seen)
    with ThreadPoolExecutor(2) as pool:
        tuned(pa.table(cells()), executor=pool)
    assert where
    assert here not in where


def test_an_executor_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keyword, or the job's own key, which the certificate and the identity do not contain."""
    from expost.tuning.request.defaults import as_toml, default_job

    started: list[str] = []

    def start(name: str, device: str = "cpu") -> Any:
        started.append(name)
        return nullcontext()

    monkeypatch.setattr("expost.tuning.job.start_executor", start)
    file = write(tmp_path / "rows.parquet", cells())
    tables = default_job(file, at_least=0.6, max_epsilon=3, **FACTS)
    (tmp_path / "job.toml").write_text(as_toml(tables) + '[run]\nexecutor = "spark"\n')
    source = SimulationRandomness
    told: dict[str, Any] = {"simulation": True}
    results = [
        expost.tune(tmp_path / "job.toml", randomness=source(1), **told),
        expost.tune(tmp_path / "job.toml", randomness=source(1), executor="dask", **told),
        expost.tune(tables, randomness=source(1), executor="local", **told),
    ]
    assert started == ["spark", "dask"]  # this process needs none
    assert len({result.certificate() for result in results}) == 1
    for job in ({**tables, "run": {"executor": "moon"}}, {**tables, "run": {"place": "ray"}}):
        with pytest.raises(InvalidInput, match="run"):
            expost.tune(job, executor="local")
    monkeypatch.undo()
    with pytest.raises(InvalidInput, match="processes, ray, dask, spark"):
        expost.tune(tables, executor="moon")


def test_the_command_line_names_executors(tmp_path: Path) -> None:
    """``--executor processes`` on a file of rows; a fixed seed is not possible there."""
    write(tmp_path / "rows.parquet", cells())
    options = ["--target", "label", "--classes", "no,yes", "--at-least", "0.6"]
    options += ["--bounds", "age=0:120", "--bounds", "gain=0:5000", "--categories", "city=Bern,Zug"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "expost",
            "tune",
            "rows.parquet",
            *options,
            "--executor",
            "processes",
            "--json",
        ],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(ROOT / "src")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 5), done.stderr
    assert '"passed"' in done.stdout
