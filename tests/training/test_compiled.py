"""The cache of compiled kernels notices a change in any kernel's file."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import expost
from expost.training._native import compiled, noise

ANOTHER = """
from expost.training._native import noise
from expost.training._native.compiled import kernel


@kernel
def pairs(radii, angles, first, second, errors):
    noise.scaled_pairs(radii, angles, 1.0, first, second, errors)
"""
PROGRAM = """
import numpy as np
from expost.training._native.another import pairs
radii, angles = (np.arange(1, 5, dtype=np.uint64) << np.uint64(shift) for shift in (60, 58))
first, second, errors = np.zeros((3, 4))
pairs(radii, angles, first, second, errors)
print([*first.tolist(), *second.tolist()], sum(pairs.stats.cache_hits.values()))
"""


def test_kernels_are_cached_under_the_hash_of_all_sources():
    for each in (noise.refill, noise.add_lattice_noise, noise.scaled_pairs):
        assert each._cache._cache_file._source_stamp == compiled.source_stamp()


def test_a_sampler_that_was_changed_in_another_file_is_compiled_again(tmp_path):
    """A copy of the package, run twice (the second time from the cache), then with its directions
    turned into zeros: the noise is zero at once, though the kernel's own file did not change. The
    old index of the cache names a type that is gone; it is not read.
    """
    package = tmp_path / "expost"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(expost.__file__).parent, package, ignore=ignored)
    (package / "training" / "_native" / "another.py").write_text(ANOTHER)
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def run() -> tuple[list[float], int]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        numbers, hits = done.stdout.rsplit(" ", 1)
        return [float(each) for each in numbers.strip("[] \n").split(",")], int(hits)

    first, second = run(), run()
    assert first[0] == second[0]
    assert (first[1], second[1]) == (0, 1)
    changed = package / "training" / "_native" / "noise.py"
    text = changed.read_text(encoding="utf-8")
    line = "x = np.float64(angle"
    assert text.count(line) == 1
    changed.write_text(text.replace(line, "x = 0.0 * np.float64(angle"), encoding="utf-8")
    for index in (tmp_path / "cache").rglob("*.nbi"):
        with index.open("rb") as stream:
            version = pickle.load(stream)
        index.write_bytes(pickle.dumps(version) + b"cexpost\nATypeThatIsGone\n.")
    third = run()
    assert third[1] == 0
    assert 0.0 in third[0]
    assert third[0] != first[0]


@pytest.mark.parametrize("name", ["training/configuration.py", "randomness/samplers.py"])
def test_constants_of_other_files_are_part_of_the_key(name, monkeypatch):
    """Kernels hold constants of these files, which their own files do not show."""
    changed = Path(expost.__file__).parent / name
    read, before = Path.read_bytes, compiled.source_stamp.__wrapped__()
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: read(path) + b" " * (path.resolve() == changed.resolve())
    )
    assert compiled.source_stamp.__wrapped__() != before
