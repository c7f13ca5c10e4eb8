"""Checkpoints: the same call after a crash finishes the same selection with one charge.

Any other call is refused.
"""

from __future__ import annotations

import base64
import io
import json
import math
import multiprocessing
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import expost.files
from expost import (
    FAILED,
    AboveThreshold,
    Candidate,
    DiscreteGaussian,
    DiscreteLaplace,
    Doubling,
    Estimate,
    NoiseReduction,
    PureDP,
    Query,
    RandomDropping,
    RepeatAndSelect,
    SimulationRandomness,
    TruncatedNegativeBinomial,
)
from expost.budget.ledger import Ledger
from expost.errors import BudgetRefused, CheckpointMismatch, ExpostError, InvalidInput, LedgerError
from expost.execution import checkpoint as module
from expost.execution.checkpoint import Checkpoint, JsonCodec, NpzCodec, fingerprint
from expost.selection.selector import Selector

DATA = [3, 1, 2, 2, 9]


class Crash(BaseException):
    """Ends a selection as a kill would: nothing may catch it."""


@dataclass
class Job:
    """A selection that can be called again and again, and counts what it runs."""

    folder: Path
    selector: Selector = field(default_factory=lambda: RandomDropping(overhead=0.05))
    sizes: tuple[float, ...] = (0.05, 0.1, 0.2)
    repeats: int = 2
    output: Callable[[], Any] = lambda: secrets.randbelow(10**12)
    data: Any = field(default_factory=lambda: list(DATA))
    calls: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = Ledger.create(self.folder / "ledger.db", PureDP(100))

    def checkpoint_identity(self) -> None:
        """What it has counted so far is not part of what it is."""

    @property
    def path(self) -> Path:
        return self.folder / "job.checkpoint"

    def run(self, data: Any, randomness: Any) -> Any:
        self.calls.append(self.output())
        return self.calls[-1]

    def candidates(self) -> list[Candidate]:
        return [
            Candidate(self.run, {"size": s}, repeats=self.repeats, guarantee=PureDP(s))
            for s in self.sizes
        ]

    def select(self, **changes: Any) -> Any:
        call = {
            "ledger": self.ledger,
            "memo": "job",
            "checkpoint": self.path,
            **self.options,
        } | changes
        candidates = call.pop("candidates", None) or self.candidates()
        return call.pop("selector", self.selector).select(
            candidates, call.pop("data", self.data), **call
        )

    def crash(self, **changes: Any) -> None:
        with pytest.raises(Crash):
            self.select(**changes)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What the checkpoint holds."""
        return [
            json.loads(line.partition(b" ")[2]) for line in self.path.read_bytes().split(b"\n")[:-1]
        ]

    @property
    def reservations(self) -> int:
        return sum(entry.action == "reserve" for entry in self.ledger.entries())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@contextmanager
def crashing(owner: Any, name: str, *, after: bool, at: int = 0) -> Iterator[None]:
    """Inside, the at-th call of ``owner.name`` crashes, before or after it has done its work."""
    original, calls = getattr(owner, name), iter(range(10**9))

    def wrapped(*arguments: Any, **options: Any) -> Any:
        fatal = next(calls) == at
        if fatal and not after:
            raise Crash
        result = original(*arguments, **options)
        if fatal:
            raise Crash
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, wrapped)
        yield


# Resuming.


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (module, "_create", False),
        (module, "_create", True),
        (module, "_sync_folder", False),
        (Ledger, "reserve", False),
        (Ledger, "reserve", True),
        (Checkpoint, "record", False),
        (Checkpoint, "record", True),
        (Ledger, "settle", False),
        (Ledger, "settle", True),
        (Checkpoint, "erase", False),
    ],
)
def test_a_crash_at_any_step(job, owner, name, after):
    """Catches a step after which the next call draws or charges twice, or cannot go on."""
    with crashing(owner, name, after=after):
        job.crash()
    kept = job.lines[0]["draws"] if job.path.exists() else None
    outputs = [line["output"] for line in job.lines[1:]] if job.path.exists() else []
    made = len(job.calls)
    with crashing(Checkpoint, "erase", after=False):  # look at the file once more before it goes
        job.crash()
    draws, final = job.lines[0]["draws"], [line["output"] for line in job.lines[1:]]
    assert kept in (None, draws)
    assert final == outputs + job.calls[made:]
    release = job.select()
    assert release.value == max(final)
    assert release.index == draws["kept"][final.index(max(final))]
    assert job.reservations == 1
    assert job.ledger.open_reservations() == []
    assert Fraction(release.spent.epsilon) == job.ledger.standing().filter.settled[0]
    assert [path.name for path in job.folder.iterdir() if "checkpoint" in path.name] == []
    assert job.ledger.verify() == []


@pytest.mark.parametrize("done", range(5))
def test_finished_outputs_are_not_made_again(tmp_path, done):
    """Catches a resumed selection that runs a finished candidate again: another mechanism."""
    job = Job(
        tmp_path, sizes=(1e-9,), repeats=5, selector=RandomDropping(overhead=1.0)
    )  # all five are kept, nearly surely
    with crashing(Checkpoint, "record", after=True, at=done):
        job.crash()
    before = list(job.calls)
    assert len(before) == done + 1
    release = job.select()
    assert len(job.calls) == 5
    assert release.value == max(job.calls)


def laplace(sizes: tuple[float, ...]) -> list[Candidate]:
    return [Candidate(DiscreteLaplace(Query(len), size)) for size in sizes]


def gaussian(sizes: tuple[float, ...]) -> list[Candidate]:
    return [Candidate(DiscreteGaussian(Query(len), size)) for size in sizes]


def queries(sizes: tuple[float, ...]) -> list[Candidate]:
    return [Candidate(Query(len), guarantee=PureDP(size)) for size in sizes]


@pytest.mark.parametrize(
    ("selector", "candidates", "budget"),
    [
        (AboveThreshold(0.5, at_least=10**13), None, PureDP(100)),
        (AboveThreshold(0.5, at_least=10**13), queries, PureDP(100)),
        (Doubling(10**13), None, PureDP(100)),
        (NoiseReduction(at_least=10**13), laplace, PureDP(100)),
        (NoiseReduction(at_least=10**13), gaussian, None),
        (RepeatAndSelect(TruncatedNegativeBinomial(1, 0.3)), None, PureDP(100)),
        (RandomDropping(0.05, at_least=10**13), None, PureDP(100)),
    ],
)
def test_every_selector_resumes(tmp_path, selector, candidates, budget):
    """Catches draws that do not survive JSON, or a selector that draws again when it resumes."""
    job = Job(tmp_path, selector)
    options: dict[str, Any] = {"candidates": candidates((0.05, 0.1, 0.2))} if candidates else {}
    if budget is None:
        options["ledger"] = None
    with crashing(Checkpoint, "erase", after=False):
        job.crash(**options)
    lines = job.lines
    with crashing(Checkpoint, "erase", after=False):
        job.crash(**options)
    assert job.lines == lines
    first, second = (job.select(**options, checkpoint=path) for path in (job.path, None))
    assert first.worst_case == second.worst_case
    assert not job.path.exists()


def test_nan_and_infinite_outputs_resume(tmp_path):
    """Catches an output that JSON cannot hold, or that comes back as something else."""
    values = iter([math.nan, -math.inf, np.float64("nan"), math.inf, np.float32(2.5)])
    job = Job(tmp_path, RandomDropping(1.0), (1e-9,), repeats=5, output=lambda: next(values))
    with crashing(Checkpoint, "erase", after=False):
        job.crash()
    release = job.select()
    assert release.value == math.inf
    assert len(job.calls) == 5


def test_failures_are_outcomes_that_are_kept(tmp_path):
    """Catches a failed candidate that runs again after a crash, and a failure reported twice."""
    failures: list[int] = []

    def fail() -> Any:
        raise ValueError("no luck")

    job = Job(tmp_path, RandomDropping(1.0), (1e-9,), repeats=4, output=fail)
    report = lambda index, error: failures.append(index)  # noqa: E731
    with crashing(Checkpoint, "erase", after=False):
        job.crash(on_failure=report)
    assert [line["failed"] for line in job.lines[1:]] == [True] * 4
    release = job.select(on_failure=report)
    assert release.value is FAILED
    assert len(failures) == 4


def test_a_checkpoint_without_a_ledger(job):
    """Catches a checkpoint that needs a ledger."""
    with crashing(Checkpoint, "record", after=True):
        job.crash(ledger=None)
    assert job.select(ledger=None).value == max(job.calls)
    assert job.reservations == 0


def test_a_budget_added_meanwhile_does_not_stop_a_selection(job):
    """Catches "the only budget" that has another meaning when the selection resumes."""
    with crashing(Checkpoint, "record", after=True):
        job.crash()
    job.ledger.add_budget("others", PureDP(1))
    assert job.select().value == max(job.calls)
    assert job.reservations == 1


@pytest.mark.parametrize("memo", ["another", "x" * 20_000])
def test_another_memo_does_not_stop_a_selection(job, memo):
    """Catches a resumed selection that is refused, and its checkpoint erased, over a note."""
    with crashing(Checkpoint, "record", after=True):
        job.crash()
    assert job.select(memo=memo).value == max(job.calls)
    assert job.reservations == 1


# Refusals.


def test_a_simulation_is_not_resumed_as_a_protected_selection(job):
    """Catches draws and run keys from a seed in a release that says it was not simulated."""
    seeded = {"ledger": None, "randomness": SimulationRandomness(1), "simulation": True}
    with crashing(Checkpoint, "record", after=True):
        job.crash(**seeded)
    with pytest.raises(CheckpointMismatch, match="another selection"):
        job.select(ledger=None)
    assert job.select(**seeded).simulated


CHANGES: dict[str, Callable[[Job], dict[str, Any]]] = {
    "fewer candidates": lambda job: {"candidates": job.candidates()[:-1]},
    "another order": lambda job: {"candidates": job.candidates()[::-1]},
    "other params": lambda job: {
        "candidates": [Candidate(job.run, {}, 2, PureDP(s)) for s in job.sizes]
    },
    "other promises": lambda job: {
        "candidates": [Candidate(job.run, {"size": s}, 2, PureDP(s + 1)) for s in job.sizes]
    },
    "other repeats": lambda job: {
        "candidates": [Candidate(job.run, {"size": s}, 3, PureDP(s)) for s in job.sizes]
    },
    "another mechanism": lambda job: {
        "candidates": [Candidate(other_run, {"size": s}, 2, PureDP(s)) for s in job.sizes]
    },
    "other settings": lambda job: {"selector": RandomDropping(overhead=0.06)},
    "another selector": lambda job: {"selector": AboveThreshold(0.05, at_least=1)},
    "other data": lambda job: {"data": [*DATA, 1]},
    "named data": lambda job: {"data_fingerprint": "version 2"},
    "another ledger": lambda job: {"ledger": Ledger.create(job.folder / "other.db", PureDP(100))},
    "no ledger": lambda job: {"ledger": None},
    "another budget": lambda job: {"budget": "default"},
    "another analyst": lambda job: {"analyst": "eve"},
    "another codec": lambda job: {"codec": NpzCodec()},
}


def other_run(data: Any, randomness: Any) -> int:
    return 1


@pytest.mark.parametrize("change", CHANGES)
def test_another_selection_is_refused(job, change):
    """Catches draws and outputs of one selection that are used for another one.

    The other one has other candidates, data, settings or another ledger.
    """
    with crashing(Checkpoint, "record", after=True):
        job.crash()
    before, entries = job.path.read_bytes(), len(list(job.ledger.entries()))
    with pytest.raises(CheckpointMismatch, match="another selection"):
        job.select(**CHANGES[change](job))
    assert job.path.read_bytes() == before
    assert len(list(job.ledger.entries())) == entries
    assert len(job.calls) == 1  # nothing ran
    assert job.select().value == max(job.calls)  # the right call still can


def test_a_refused_reservation_erases_the_checkpoint(job):
    """Catches draws that are kept although nothing was charged.

    The next call would start from them, or could not go on.
    """
    with pytest.raises(BudgetRefused):
        job.select(ledger=(small := Ledger.create(job.folder / "small.db", PureDP(0.01))))
    assert not job.path.exists()
    assert job.calls == []
    with pytest.raises(InvalidInput):
        job.select(budget="nowhere")
    assert not job.path.exists()
    assert small.open_reservations() == []


def test_a_broken_ledger_keeps_the_checkpoint(job, monkeypatch):
    """Catches draws that are discarded while it is unknown whether the reservation was recorded."""

    def lost(*_: Any, **__: Any) -> None:
        raise LedgerError("the connection was lost")

    with monkeypatch.context() as patch:
        original = Ledger.reserve
        patch.setattr(Ledger, "reserve", lambda *a, **k: (original(*a, **k), lost()))
        with pytest.raises(LedgerError):
            job.select()
    draws = job.lines[0]["draws"]
    with crashing(Checkpoint, "erase", after=False):
        job.crash()
    assert job.lines[0]["draws"] == draws
    job.select()
    assert job.reservations == 1


def test_an_abandoned_selection_cannot_go_on(job):
    """Catches a selection that was abandoned at its worst case and then released for less."""
    with crashing(Checkpoint, "record", after=True):
        job.crash()
    job.ledger.abandon(job.ledger.open_reservations()[0])
    with pytest.raises(LedgerError, match="abandoned"):
        job.select()
    assert len(job.calls) == 1


def test_a_restored_checkpoint_of_a_settled_selection_runs_nothing(tmp_path):
    """Catches a second sample for free: a checkpoint restored after its selection was released.

    It may come from a backup or a snapshot.
    """
    job = Job(tmp_path, RandomDropping(1.0), (1e-9,), repeats=3)
    with crashing(Checkpoint, "record", after=True):
        job.crash()
    early = job.path.read_bytes()
    job.select()
    job.path.write_bytes(early)
    made = len(job.calls)
    with pytest.raises(ExpostError):
        job.select()
    assert len(job.calls) == made


def hold(path: str, ready: Any, done: Any) -> None:
    """Open a checkpoint and keep it."""
    descriptor = os.open(path, os.O_RDWR)
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX)
    ready.set()
    done.wait(30)


def test_two_processes_cannot_run_one_selection(job):
    """Catches one reservation that pays for two runs of the same selection, side by side."""
    with crashing(Checkpoint, "record", after=True):
        job.crash()
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    child = context.Process(target=hold, args=(str(job.path), ready, done))
    child.start()
    ready.wait(30)
    with pytest.raises(CheckpointMismatch, match="in use"):
        job.select()
    done.set()
    child.join()
    assert job.select().value == max(job.calls)


def test_a_selection_inside_itself_is_refused(job):
    """Catches a second call in the same process, from a candidate or a thread."""
    inner: list[Exception] = []

    def nest() -> int:
        try:
            job.select()
        except CheckpointMismatch as error:
            inner.append(error)
        return 1

    job.output = nest
    job.select()
    assert inner
    assert job.reservations == 1


def test_a_checkpoint_that_was_erased_while_it_was_opened(job):
    """Catches a lock on a removed file: erasing it would later remove another's checkpoint."""
    with crashing(Checkpoint, "record", after=True):
        job.crash()
    original = expost.files.fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        original(descriptor, operation)
        job.path.unlink()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expost.files.fcntl, "flock", late)
        with pytest.raises(CheckpointMismatch, match="in use"):
            job.select()


# Files.


def test_the_file_is_for_its_owner_only(job):
    """Catches secrets that others can read, whatever the umask says."""
    old = os.umask(0)
    try:
        with crashing(Checkpoint, "record", after=True):
            job.crash()
        assert stat.S_IMODE(job.path.stat().st_mode) == 0o600
    finally:
        os.umask(old)


def test_drafts_are_never_readable_and_swept_away(job):
    """Catches a draft of a checkpoint (it holds the draws) that a crash left behind for good."""
    old = os.umask(0)
    try:
        with crashing(module.os, "link", after=False), pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                Path, "unlink", lambda self, missing_ok=False: None
            )  # the kill comes before the clean-up
            job.crash()
        drafts = [path for path in job.folder.iterdir() if path.name.startswith(".job.checkpoint.")]
        assert [stat.S_IMODE(path.stat().st_mode) for path in drafts] == [0o600]
    finally:
        os.umask(old)
    neighbour = job.folder / ".job.checkpoint.txt"
    neighbour.write_text("mine")
    job.select()
    assert [path.name for path in job.folder.iterdir() if "checkpoint" in path.name] == [
        neighbour.name
    ]


def test_a_torn_last_line_is_dropped(tmp_path):
    """Catches a partly written output, of any length, that is used or blocks the selection."""
    job = Job(tmp_path, RandomDropping(1.0), (1e-9,), repeats=3)
    with crashing(Checkpoint, "record", after=True, at=1):
        job.crash()
    whole = job.path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    first = job.lines[1]["output"]
    for length in range(last, len(whole), 7):
        job.path.write_bytes(whole[:length])
        with crashing(Ledger, "settle", after=False):
            job.crash()
        assert len(job.lines) == 4
        assert job.lines[1]["output"] == first
        assert job.lines[2]["output"] == job.calls[-2]


def test_a_damaged_file_is_refused(tmp_path):
    """Catches a flipped bit in a draw or an output, which would change the selection.

    Every byte is tried.
    """
    job = Job(tmp_path, repeats=1)
    with crashing(Checkpoint, "record", after=True):
        job.crash()
    whole, made = job.path.read_bytes(), len(job.calls)
    for place in range(len(whole) - 1):
        broken = bytearray(whole)
        broken[place] ^= 1 << (place % 7)
        job.path.write_bytes(broken)
        with pytest.raises(CheckpointMismatch):
            job.select()
        assert job.path.read_bytes() == broken
    for length in range(
        0, whole.index(b"\n"), 5
    ):  # the header appears by a rename: it cannot be torn
        job.path.write_bytes(whole[:length])
        with pytest.raises(CheckpointMismatch):
            job.select()
    assert len(job.calls) == made
    job.path.write_bytes(whole)
    assert job.select().value == max(job.calls)


@pytest.mark.parametrize(
    "content",
    [b"", b"dear diary", b"dear diary\n", b"one\ntwo\nthree", b"\x00" * 5000, b"a b\n" * 3],
)
def test_a_file_that_is_no_checkpoint_is_left_alone(job, content):
    """Catches a path given by mistake, and a file that is cut, or emptied, for its trouble."""
    job.path.write_bytes(content)
    with pytest.raises(CheckpointMismatch):
        job.select()
    assert job.path.read_bytes() == content
    assert job.reservations == 0


def test_paths_that_cannot_be(job):
    """Catches a raw OSError, or a charge before the checkpoint is known to work."""
    for path in (job.folder / "none" / "job", job.folder):
        with pytest.raises(ExpostError):
            job.select(checkpoint=path)
    assert job.reservations == 0
    assert job.calls == []


def test_a_newer_checkpoint_is_refused(job):
    """Catches a file of a newer expost that is read in the old way."""
    with crashing(Checkpoint, "record", after=True):
        job.crash()
    header = job.lines[0] | {"schema": module._SCHEMA + 1}
    job.path.write_bytes(module._line(header))
    with pytest.raises(CheckpointMismatch, match="schema"):
        job.select()


# Secrets.


def test_no_secret_is_in_an_error(tmp_path):
    """Catches an output, a draw, a salt or an id in an exception's text or repr."""
    job = Job(tmp_path, output=lambda: "SECRET", options={"score": len})
    with crashing(Checkpoint, "record", after=True):
        job.crash()
    header = job.lines[0]
    hidden = [
        "SECRET",
        header["salt"],
        header["identity"],
        "kept",
        json.dumps(header["draws"]["kept"]),
        str(DATA)[1:-1],
    ]
    good = job.path.read_bytes()
    errors: list[BaseException] = []

    def provoke(**changes: Any) -> None:
        with pytest.raises(ExpostError) as caught:
            job.select(**changes)
        errors.append(caught.value)

    provoke(data=[*DATA, 1])
    provoke(selector=RandomDropping(overhead=0.06))
    job.path.write_bytes(good.replace(b"SECRET", b"SECREX"))
    provoke()
    job.path.write_bytes(module._line(header | {"schema": 9}))
    provoke()
    job.path.write_bytes(good)
    job.ledger.abandon(header["reservation"])
    provoke()
    texts = [
        text
        for error in errors
        for text in (str(error), repr(error), repr(error.__cause__), repr(error.__context__))
    ]
    assert len(errors) == 5
    for text in texts:
        assert not [each for each in hidden if each in text], text


def test_an_open_checkpoint_does_not_show_itself(job):
    """Catches draws and outputs in a repr, and so in a traceback with locals."""
    seen: list[str] = []
    original = Checkpoint.record

    def spy(self: Checkpoint, *arguments: Any) -> Any:
        seen.append(repr(self))
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "record", spy)
        job.select()
    assert seen
    assert all("kept" not in text and "outputs" not in text for text in seen)


class Unreadable:
    """A codec whose ``decode`` does not understand what ``encode`` wrote."""

    def encode(self, value: Any) -> Any:
        return "SECRET"

    def decode(self, stored: Any) -> Any:
        raise ValueError(stored)


class NotJson(Unreadable):
    """A codec that returns something that JSON cannot hold."""

    def encode(self, value: Any) -> Any:
        return [math.nan]


@pytest.mark.parametrize("codec", [JsonCodec(), NpzCodec(), Unreadable(), NotJson()])
def test_an_output_that_cannot_be_stored_is_a_failure(tmp_path, codec):
    """Catches a selection that ends, and names a type, because of what one output is."""
    told: list[str] = []
    job = Job(tmp_path, output=lambda: {"SECRET", "SECRET2"}, options={"score": len})
    release = job.select(codec=codec, on_failure=lambda index, error: told.append(str(error)))
    assert release.value is FAILED
    assert len(told) == len(job.calls)
    assert not any("set" in text.split() for text in told)  # its type
    assert job.ledger.open_reservations() == []


def test_a_loser_that_cannot_be_stored_does_not_change_the_winner(tmp_path):
    """Catches the same when the unstorable output is a loser, and another draw when it resumes."""
    values = iter([{"SECRET"}, 7, {"SECRET"}])
    job = Job(tmp_path, RandomDropping(1.0), (1e-9,), 3, output=lambda: next(values))
    with crashing(Checkpoint, "erase", after=False):
        job.crash()
    assert [line["failed"] for line in job.lines[1:]] == [True, False, True]
    assert job.select().value == 7
    assert len(job.calls) == 3


def test_an_output_belongs_to_its_candidate(tmp_path):
    """Catches an output that is released under another candidate's settings and charge."""
    job = Job(tmp_path, RandomDropping(1.0), (1e-9, 2e-9), repeats=1)
    with crashing(Checkpoint, "erase", after=False):
        job.crash()
    header, *outputs = job.lines
    assert [line["candidate"] for line in outputs] == header["draws"]["kept"]
    swapped = [{**line, "candidate": 1 - line["candidate"]} for line in outputs]
    job.path.write_bytes(b"".join(map(module._line, [header, *swapped])))
    with pytest.raises(CheckpointMismatch, match="another candidate"):
        job.select()


# Codecs and fingerprints.

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False)
    | st.text()
    | st.fractions()
    | st.sampled_from(
        [
            np.float64(1.5),
            np.float32(0.1),
            np.int64(-3),
            np.uint8(7),
            np.bool_(True),
            np.float64("inf"),
        ]
    )
    | st.builds(
        Estimate, st.integers(), st.floats(0, 100), st.sampled_from(["laplace", "gaussian"])
    ),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types all the way down, signs of zeros included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values()))
    return repr(a) == repr(b)


@given(value=plain)
@settings(max_examples=200, deadline=None)
def test_json_outputs_come_back_as_they_were(value):
    """Catches values that change their type.

    A tuple that becomes a list, a fraction a float, a NumPy number a Python number, or a dict of
    ours that becomes data.
    """
    codec = JsonCodec()
    stored = json.loads(json.dumps(codec.encode(value), allow_nan=False))
    assert same(codec.decode(stored), value)


@pytest.mark.parametrize(
    "value", [math.nan, np.float64("nan"), np.float32("nan"), (math.nan, [math.inf])]
)
def test_nan_comes_back(value):
    """Catches NaN as JSON cannot write it, or a NumPy NaN that cannot be read back."""
    codec = JsonCodec()
    assert same(codec.decode(json.loads(json.dumps(codec.encode(value), allow_nan=False))), value)


@pytest.mark.parametrize(
    "value", [{1: 2}, {1, 2}, b"bytes", object(), np.zeros(2), 1j, np.longdouble(1), [object()]]
)
def test_json_refuses_what_it_would_lose(value):
    """Catches an output that would come back as something else."""
    with pytest.raises(InvalidInput, match="codec"):
        JsonCodec().encode(value)


arrays = st_numpy.arrays(
    st_numpy.scalar_dtypes(), st_numpy.array_shapes(min_dims=0, max_dims=3, max_side=3)
)


@given(
    value=arrays
    | st.dictionaries(
        st.text() | st.sampled_from(["file", "args", "allow_pickle", "expost_single"]), arrays
    )
)
@settings(max_examples=100, deadline=None)
def test_arrays_come_back_as_they_were(value):
    """Catches a name taken for a NumPy option, a lost shape or type, an array for a mapping."""
    codec = NpzCodec()
    found = codec.decode(json.loads(json.dumps(codec.encode(value))))
    pairs = (
        zip(found.values(), value.values(), strict=True)
        if isinstance(value, dict)
        else [(found, value)]
    )
    if isinstance(value, dict):
        assert list(found) == list(value)
    for a, b in pairs:
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.array([(1, "x")], dtype=[("a", int), ("b", object)]),
        [1, 2],
        1.5,
        {"a": [1]},
        {"a": "text"},
    ],
)
def test_arrays_of_objects_are_refused(value):
    """Catches a pickle, hidden in an array or in a field of one."""
    with pytest.raises(InvalidInput):
        NpzCodec().encode(value)


def test_a_pickle_is_never_read():
    """Catches a checkpoint that runs somebody else's code when it is opened."""
    buffer = io.BytesIO()
    np.savez(buffer, np.array([object], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        NpzCodec().decode({"names": None, "npz": base64.b64encode(buffer.getvalue()).decode()})


def test_arrays_resume(tmp_path):
    """Catches a codec that is not used on both sides."""
    job = Job(
        tmp_path,
        output=lambda: np.arange(3) + secrets.randbelow(1000),
        options={"codec": NpzCodec(), "score": np.sum},
    )
    with crashing(Checkpoint, "erase", after=False):
        job.crash()
    made = len(job.calls)
    release = job.select()
    assert len(job.calls) == made
    assert release.value.tolist() == max(job.calls, key=np.sum).tolist()


class Table:
    """As much of a data frame as a fingerprint looks at."""

    def __init__(self, **columns: list[Any]) -> None:
        self._columns = {name: np.array(values) for name, values in columns.items()}
        self.columns = list(columns)

    def to_numpy(self) -> np.ndarray:
        return np.column_stack(list(self._columns.values()))

    def __getitem__(self, name: str) -> Any:
        values = self._columns[name]
        return type("Column", (), {"to_numpy": lambda _: values})()


DIFFERENT: list[Any] = [
    None, 0, 1, True, 0.0, "0", b"0", "", [], {}, [0], [0, 1], [[0], 1], [[0, 1]], ["0", "1"],
    ["01"], {"a": 0}, {"b": 0}, {"a": 0, "b": 0}, {"a": {"b": 0}}, np.array([0, 1]),
    np.array([0.0, 1.0]), np.array([0, 1], dtype=np.int8), np.array([[0, 1]]),
    np.array(["a", "bc"]), np.array(["ab", "c"]), np.array(["ab", "c"], dtype=object),
    Table(a=[0, 1]), Table(b=[0, 1]), Table(a=[0, 1], b=[0, 1]), Fraction(1, 3),
]  # fmt: skip


def test_different_data_have_different_fingerprints():
    """Catches data that are taken for each other: lengths and types must be part of the print."""
    prints = [fingerprint(data, b"salt") for data in DIFFERENT]
    assert len(set(prints)) == len(prints)


def test_equal_data_have_equal_fingerprints_under_one_salt():
    """Catches a fingerprint that depends on memory layout or identity, or not on the salt."""
    grid = np.arange(12).reshape(3, 4)
    assert fingerprint(np.asfortranarray(grid), b"s") == fingerprint(grid.copy(), b"s")
    assert fingerprint(grid[:, ::2], b"s") == fingerprint(grid[:, ::2].copy(), b"s")
    assert fingerprint({"a": [1, "x"]}, b"s") == fingerprint({"a": [1, "x"]}, b"s")
    assert fingerprint([1], b"one") != fingerprint([1], b"two")


@pytest.mark.parametrize("data", [{1, 2}, object(), iter([1]), [object()]])
def test_data_without_a_fingerprint_must_be_named(tmp_path, data):
    """Catches data that is mistaken for other data because they cannot be distinguished.

    Naming the data helps, and nothing is charged before.
    """
    job = Job(tmp_path, data=data)
    with pytest.raises(InvalidInput, match="data_fingerprint"):
        job.select()
    assert job.reservations == 0
    with crashing(Checkpoint, "record", after=True):
        job.crash(data_fingerprint="version 1")
    assert job.select(data_fingerprint="version 1").value == max(job.calls)
