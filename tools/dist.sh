#!/usr/bin/env bash
# make dist: build the sdist and, from it, the wheel; then install the wheel alone and use it.
# Usage: tools/dist.sh PYTHON [FOLDER]   (PYTHON has the package `build`; FOLDER is dist by default)
set -euo pipefail
python=$(realpath --no-symlinks "$1")
cd "$(dirname "$0")/.."
folder=${2:-dist}
rm -rf "$folder"
"$python" -m build --outdir "$folder" .
wheel=$(realpath "$folder"/expost-*.whl)

# The wheel has the package and nothing else; the sdist has what the tests need.
"$python" - "$wheel" "$(realpath "$folder"/expost-*.tar.gz)" <<'PYTHON'
import sys, tarfile, zipfile

wheel, sdist = sys.argv[1:]
strange = [name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith(("expost/", "expost-"))]
assert not strange, f"the wheel has files that are not of the package: {strange[:5]}"
with tarfile.open(sdist) as archive:
    tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
needed = {"src", "tests", "docs", "examples", "benchmarks", "reproduction", "scripts", "tools"}
needed |= {"Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml"}
assert needed <= tops, f"the sdist lacks {sorted(needed - tops)}"
PYTHON

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
unset PYTHONPATH
"$python" -m venv clean
clean/bin/python -m pip install --quiet "$wheel"
clean/bin/python -m expost --version
clean/bin/expost plan --epsilons 0.1:1.0:0.1 --configurations 162 --json > plan.json
clean/bin/python - <<'PYTHON'
import json
from importlib.metadata import distributions

import expost

assert json.load(open("plan.json"))
for name in expost.__all__:
    getattr(expost, name)
installed = {each.metadata["Name"].lower() for each in distributions()}
extras = {"torch", "numba", "scikit-learn", "scipy", "sqlalchemy", "ibis-framework", "matplotlib"}
assert not installed & extras, f"not a clean environment: {sorted(installed & extras)}"
print("The wheel works alone, with", ", ".join(sorted(installed - {"pip", "setuptools"})))
PYTHON
