"""Unexpected words on the command line: an answer or a refusal.

There is never a traceback, a hang or a warning of a library.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expost import PureDP
from expost.budget.ledger import Ledger
from tests.fuzz.command import FORESEEN, Books, Done, expost
from tests.fuzz.profiles import examples

NUMBERS = [
    "0",
    "1",
    "2",
    "-1",
    "0.5",
    "1e-6",
    "nan",
    "inf",
    "-inf",
    "1e300",
    "1e-300",
    "5e-324",
    "9" * 400,
    "1" + "0" * 30,
    "",
    "x",
    "0x1",
    "١",
]
WORDS = st.sampled_from(
    [
        *NUMBERS,
        "\udcff",
        "a\x00b",
        "[/red]",
        "\x1b[31m",
        ":smile:",
        "../..",
        "é",
        "--",
        "-",
        "--json",
        "n" * 500,
    ]
) | st.text(max_size=12)
LEVELS = [
    *NUMBERS,
    "0.1,0.2",
    "0.2,0.1",
    "0.1:1:0.1",
    "0:1:0.1",
    "0.1:1e9:0.1",
    "1:2",
    "0.1:0.2:5e-324",
    "1e-300,1",
    "1,1e300",
    "0.1,0.1",
    ",",
    ":::",
    "nan:1:1",
]
COMMANDS: list[list[str]] = [
    ["tune"], ["count"], ["plan"], ["certificate"], ["audit"], ["ledger"], ["ledger", "create"],
    ["ledger", "show"], ["ledger", "entries"], ["ledger", "verify"], ["ledger", "abandon"],
    ["ledger", "export"], ["nothing"], [],
]  # fmt: skip


def foreseen(done: Done) -> None:
    assert done.code in FORESEEN, done
    assert "Traceback" not in done.err, done
    assert "\x1b" not in done.text, done
    if done.code == 2:
        assert done.text.strip(), done


@examples(150)
@given(command=st.sampled_from(COMMANDS), words=st.lists(WORDS, max_size=4))
def test_any_words(
    tmp_path_factory: pytest.TempPathFactory, command: list[str], words: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        foreseen(expost(*command, *words))


@examples(60)
@given(data=st.data())
def test_plan(data: st.DataObject) -> None:
    """Numbers at the limits of floats, billions of levels, more settings than fit in memory."""
    options = [
        "delta",
        "overhead",
        "repeats",
        "sampling-rate",
        "epochs",
        "target-charge",
        "max-runs",
    ]
    chosen = data.draw(st.lists(st.sampled_from(options), max_size=2, unique=True))
    words = [f"--{name}={data.draw(st.sampled_from(NUMBERS))}" for name in chosen]
    levels, settings = data.draw(st.sampled_from(LEVELS)), data.draw(st.sampled_from(NUMBERS))
    foreseen(
        expost("plan", f"--epsilons={levels}", f"--configurations={settings}", "--json", *words)
    )


@examples(60)
@given(data=st.data())
def test_ledger_create(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """What is refused leaves no file; what is made is sound."""
    path = tmp_path_factory.mktemp("made") / "ledger.db"
    numbers = st.sampled_from([*NUMBERS, "10"])
    words = [f"--epsilon={data.draw(numbers)}", f"--name={data.draw(WORDS)}"]
    for name, values in (
        ("delta", numbers),
        ("kind", st.sampled_from(["pure", "approx", "zcdp", "renyi"])),
        (
            "orders",
            st.sampled_from(["2,4", "4", "1.0000001", "1e300", "8,4", "x", "2," * 500 + "3"]),
        ),
        ("rule", st.sampled_from(["all", "any"])),
        ("cap", st.sampled_from(["ann=1", "ann=", "=", "ann=1e400", "\udcff=1", "a\x00=1"])),
        ("neighbours", st.sampled_from(["replace", "x"])),
    ):
        if data.draw(st.booleans()):
            words.append(f"--{name}={data.draw(values)}")
    done = expost("ledger", "create", str(path), *words, "--json")
    foreseen(done)
    assert path.exists() == (done.code == 0), done
    if done.code == 0:
        assert Books.of(path).reserved == 0


@examples(30)
@given(reservation=WORDS, name=WORDS)
def test_a_ledger_is_asked_for_what_it_does_not_hold(
    tmp_path_factory: pytest.TempPathFactory, reservation: str, name: str
) -> None:
    path = tmp_path_factory.mktemp("asked") / "ledger.db"
    Ledger.create(path, PureDP(1), "people").reserve(
        PureDP(0.5), "job\x1b[31m", reservation_id="one"
    )
    before = Books.of(path)
    for words in (
        ["abandon", str(path), reservation],
        ["show", str(path), f"--name={name}"],
        ["entries", str(path), f"--name={name}"],
    ):
        foreseen(expost("ledger", *words))
    assert Books.of(path) == before


@examples(40)
@given(data=st.data())
def test_audit(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Names that are no functions, files that are no arrays, numbers that are no chances."""
    folder = tmp_path_factory.mktemp("audit")
    for name in ("one.npz", "two.npy"):
        (folder / name).write_bytes(
            data.draw(st.sampled_from([b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"x" * 100]))
        )
    subject = data.draw(
        st.sampled_from(
            [
                "os:getcwd",
                "nothing:x",
                "x",
                ":",
                "..:x",
                "json:dumps",
                "a\x00:b",
                f"{folder}/none.py:x",
                "\udcff:x",
            ]
        )
    )
    words = [
        f"--data={folder}/one.npz",
        f"--neighbour={folder}/two.npy",
        f"--runs={data.draw(st.sampled_from(NUMBERS))}",
    ]
    options = [
        "event",
        "score",
        "selector",
        "overhead",
        "target",
        "delta",
        "epsilon",
        "confidence",
        "workers",
    ]
    words += [
        f"--{name}={data.draw(WORDS)}"
        for name in data.draw(st.lists(st.sampled_from(options), max_size=2, unique=True))
    ]
    done = expost("audit", subject, *words, "--json")
    foreseen(done)
    assert done.code == 2
