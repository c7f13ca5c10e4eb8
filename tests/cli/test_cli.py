"""The command line: one JSON document on stdout, everything else on stderr, telling exit codes."""

import json
import subprocess
import sys

import pytest

from expost import Candidate, PureDP, RandomDropping, __version__


def expost(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from expost.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def certificate(tmp_path):
    release = RandomDropping(overhead=1).select(
        [Candidate(lambda d, r: 3.5, {"a": 1}, guarantee=PureDP(0.5))], None
    )
    release.save(tmp_path / "release.json")
    return tmp_path / "release.json"


def test_version_and_help():
    assert expost("--version").stdout.strip() == f"expost {__version__}"
    done = expost("--help")
    assert done.returncode == 0
    assert "certificate" in done.stdout


def test_certificate_as_json_is_one_document(certificate):
    done = expost("certificate", str(certificate), "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)["spent"] == PureDP(2.0).as_dict()


def test_certificate_as_a_table(certificate):
    done = expost("certificate", str(certificate))
    assert done.returncode == 0
    assert "ε = 2" in done.stdout
    assert "theorem:max-score" in done.stdout


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
        assert done.stdout == ""


def test_unknown_commands_and_files_are_bad_input():
    assert expost("no-such-command").returncode == 2
    assert expost("certificate", "no-such-file").returncode == 2
