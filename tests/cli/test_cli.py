"""The command line: one JSON document on stdout, everything else on stderr, and exit codes."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from fractions import Fraction
from unittest import mock

import pytest

from expost import Candidate, PureDP, RandomDropping, RenyiDP, __version__
from expost.certificates.words import guarantee_words
from expost.cli.main import main
from expost.cli.output import (
    BAD_INPUT,
    BUDGET_REFUSES,
    EXIT_CODES,
    FAILURE,
    MISSED_BAR,
    UNEXPECTED,
    value_in_words,
)


def expost(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in this process: starting an interpreter for each would take a second."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    words = mock.patch.object(sys, "argv", ["expost", *arguments])
    wide = mock.patch.dict(os.environ, COLUMNS="200")
    with words, wide, redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@pytest.fixture
def certificate(tmp_path):
    release = RandomDropping(overhead=1).select(
        [Candidate(lambda d, r: 3.5, {"a": 1}, guarantee=PureDP(0.5))], None
    )
    release.save(tmp_path / "release.json")
    return tmp_path / "release.json"


def test_version_and_help():
    command = [sys.executable, "-m", "expost", "--version"]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert alone.stdout.strip() == f"expost {__version__}"
    done = expost("--help")
    assert done.returncode == 0
    assert "certificate" in done.stdout


def test_help_lists_the_exit_codes():
    """Catches a code that is missing from the help, or whose number has changed."""
    assert (FAILURE, BAD_INPUT, BUDGET_REFUSES, UNEXPECTED, MISSED_BAR) == (1, 2, 3, 4, 5)
    text = " ".join(expost("--help").stdout.split())
    assert EXIT_CODES == (
        "Exit codes: 0 done, 1 a check failed, 2 bad input, 3 the budget refuses, "
        "4 unexpected error, 5 finished but the goal was missed."
    )
    assert EXIT_CODES in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1, "b": {"c": True}}, "a = 1, b = (c = yes)"),
        ([1, "x", None], "[1, x, –]"),
        ({}, "–"),
        ([], "[]"),
        (0.5, "0.5"),
        (False, "no"),
        ([[[[[1]]]]], "[[[[…]]]]"),
    ],
)
def test_values_in_words(value, text):
    """Catches Python's notation in a table, and nesting that is shown without end."""
    assert value_in_words(value) == text


def test_certificate_as_json_is_one_document(certificate):
    done = expost("certificate", str(certificate), "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)["spent"] == PureDP(2.0).as_dict()


def test_certificate_as_a_table(certificate):
    done = expost("certificate", str(certificate), "--verbose")
    assert done.returncode == 0
    assert "ε = 2" in done.stdout
    assert "theorem:max-score" in done.stdout
    assert "a = 1" in done.stdout
    assert "{" not in done.stdout  # no Python dict


@pytest.mark.parametrize(
    "content", ["", "not json", "{}", '{"schema": 1}', '{"schema": 2}', "[1]", '"x"', "\xff"]
)
def test_a_bad_certificate_is_bad_input(tmp_path, content):
    """Catches a traceback, or a success, on files that are no certificate."""
    path = tmp_path / "bad.json"
    path.write_bytes(content.encode("latin-1"))
    for arguments in (["certificate", str(path)], ["certificate", str(path), "--json"]):
        done = expost(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "error" in done.stderr
        assert ("error" in json.loads(done.stdout)) if "--json" in arguments else not done.stdout


def test_a_file_that_is_not_text(tmp_path):
    """Catches a message that quotes bytes of the file: it may be the data."""
    path = tmp_path / "bad.json"
    path.write_bytes(b"\xfe")
    done = expost("certificate", str(path))
    assert done.returncode == 2
    assert "not UTF-8 text" in done.stderr
    assert "0xfe" not in done.stderr


def test_unknown_commands_and_files_are_bad_input():
    assert expost("no-such-command").returncode == 2
    assert expost("certificate", "no-such-file").returncode == 2


@pytest.mark.parametrize(
    "value", [0.1, 0.12345649, 1.0000001, 3.0, 1e-9, 5e-324, 123456.7, 0.0, 1e300]
)
def test_a_charge_is_never_rounded_down_for_display(value):
    """Catches a table that shows less than was spent."""
    for guarantee in (PureDP(value), RenyiDP((2.0, 3.0), (value, value))):
        text = guarantee_words(guarantee)
        shown = re.findall(r"ε = \[?([^\s,\])]+)", text)[0]
        assert value <= float(shown)  # the text reads back as at least the number
        assert Fraction(shown) <= Fraction(value) * Fraction(1001, 1000)
