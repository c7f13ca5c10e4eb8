"""Streams, files and interruptions that a command meets: none loses an answer or hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.command import expost

SOURCE = str(Path(__file__).parents[2] / "src")


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, as a shell starts it."""
    paths = os.pathsep.join(filter(None, [environment.pop("first", ""), SOURCE]))
    return subprocess.run(
        [sys.executable, "-m", "expost", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "200", **environment},
        capture_output=True,
        timeout=30,
        check=False,
    )


# Streams


@pytest.fixture
def request_(tmp_path):
    """A request whose answers have letters beyond ASCII, and the ledger that it charges."""
    pytest.importorskip("ibis", reason="needs the analytics extra")
    (tmp_path / "rows.csv").write_text(
        "u,g\n" + "".join(f"{index},Zürich {'日'}\n" for index in range(500)), encoding="utf-8"
    )
    (tmp_path / "keys.txt").write_text("Zürich 日\nÖ\n", encoding="utf-8")
    options = ("--by", "g", "--user", "u", "--keys", tmp_path / "keys.txt", "--epsilon", 5)
    return "count", tmp_path / "rows.csv", *options


@pytest.mark.parametrize(
    ("encoding", "form"), [("ascii", ()), ("latin-1", ()), ("ascii", ("--json",))]
)
def test_answers_reach_a_stream_that_is_not_utf_8(request_, encoding, form):
    """They are paid for. JSON stays JSON."""
    done = run(*request_, *form, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode(encoding)
    if form:
        document = json.loads(shown)
        groups = {answer["group"] for answer in document["answers"] + document["unanswered"]}
        assert groups == {"Zürich 日", "Ö"}
    else:
        assert "rich" in shown
        assert "\\u65e5" in shown


def test_errors_reach_such_a_stream(tmp_path):
    done = run("count", tmp_path / "Ö日.csv", "--user", "u", "--epsilon", 1, "--json")
    assert json.loads(done.stdout)["error"]["exit_code"] == done.returncode == 2
    plain = run(
        *("count", tmp_path / "Ö日.csv", "--user", "u", "--epsilon", 1, "--json"),
        PYTHONIOENCODING="ascii",
    )
    assert json.loads(plain.stdout) == json.loads(done.stdout)
    assert plain.returncode == 2


# Interruptions


@pytest.mark.parametrize("module", ["numpy", "typer", "rich", "sqlite3"])
def test_an_interruption_while_modules_load(tmp_path, module):
    """No traceback, which would look like an error of the program."""
    (tmp_path / f"{module}.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    done = run("--version", first=str(tmp_path))
    assert done.returncode == 130
    assert done.stderr.decode() == "interrupted\n"


def test_the_command_starts_before_it_imports():
    """What is imported before ``main`` is called cannot be interrupted without a traceback."""
    program = "import sys, expost.__main__; print('numpy' in sys.modules, 'typer' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        check=True,
    )
    assert found.stdout.split() == [b"False", b"False"]
    project = (Path(SOURCE).parent / "pyproject.toml").read_text(encoding="utf-8")
    assert 'expost = "expost.__main__:start"' in project


# Files


COMMANDS: list[tuple[object, ...]] = [
    ("count", "ROWS", "--user", "u", "--by", "g", "--epsilon", 1, "--keys", "ODD"),
    ("count", "ROWS", "--by=g", "--keys=KEYS", "--user=u", "--epsilon=1", "--prior", "ODD"),
    ("certificate", "show", "ODD"),
    ("certificate", "verify", "ODD"),
    ("certificate", "sign", "ODD", "--key", "KEY", "--out", "SIGNED"),
    ("certificate", "verify", "DOCUMENT", "--key", "ODD"),
    ("ledger", "verify", "LEDGER", "--head", "ODD"),
    ("ledger", "verify", "LEDGER", "--head", "DOCUMENT", "--key", "ODD"),
    ("ledger", "head", "LEDGER", "--key", "ODD"),
    ("tune", "ODD"),
]


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        *((command, "pipe") for command in COMMANDS),
        (COMMANDS[0], "device"),
        (COMMANDS[3], "device"),
    ],
)
def test_a_device_or_a_pipe_is_no_file(tmp_path, command, kind):
    """Reading one would not end, or would take all memory."""
    odd = "/dev/zero"
    if kind == "pipe":
        os.mkfifo(odd := str(tmp_path / "pipe"))
        os.chmod(odd, 0o600)
    elif not os.path.exists(odd):
        pytest.skip("there is no such device")
    (tmp_path / "rows.csv").write_text("u,g\n1,a\n")
    (tmp_path / "keys.txt").write_text("a\n")
    (tmp_path / "document.json").write_text("{}")
    names = {"ODD": odd, "ROWS": tmp_path / "rows.csv", "KEYS": tmp_path / "keys.txt"}
    names |= {"DOCUMENT": tmp_path / "document.json", "LEDGER": tmp_path / "ledger.db"}
    names |= {"KEY": tmp_path / "key", "SIGNED": tmp_path / "signed.json"}
    if "LEDGER" in command:
        from expost import Ledger, PureDP

        Ledger.create(names["LEDGER"], PureDP(1))
    words = [str(names.get(word, word)).replace("KEYS", str(names["KEYS"])) for word in command]
    done = expost(*words)  # in this process: an alarm ends what does not end by itself
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
