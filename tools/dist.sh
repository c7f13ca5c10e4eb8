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
import pathlib, sys, tarfile, zipfile

wheel, sdist = sys.argv[1:]
strange = [name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith(("expost/", "expost-"))]
assert not strange, f"the wheel has files that are not of the package: {strange[:5]}"
inside = set(zipfile.ZipFile(wheel).namelist())
files = [path for path in pathlib.Path("src/expost").rglob("*.*") if "__pycache__" not in path.parts]
wanted = {str(path.relative_to("src")) for path in files}
assert wanted <= inside, f"the wheel lacks {sorted(wanted - inside)[:5]}"  # templates and static files, too
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

# The server from the wheel: its other packages are those of PYTHON, expost itself is not.
"$python" -m pip install --quiet --no-deps --target alone "$wheel"
PYTHONPATH="$place/alone" "$python" - "$place" <<'PYTHON'
import pathlib, socket, subprocess, sys, time, urllib.error, urllib.request

import expost

place = pathlib.Path(sys.argv[1])
assert place in pathlib.Path(expost.__file__).parents, expost.__file__
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
command = [sys.executable, "-m", "expost", "server", "start", "--home", "server", "--port", str(port), "--quiet"]
server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def page(path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read().decode()


try:
    for _ in range(300):
        try:
            page("/api/health")
            break
        except urllib.error.URLError:
            assert server.poll() is None, "the server did not start"
            time.sleep(0.2)
    assert "Your token" in page("/sign-in")
    for name in ("server.css", "server.js", "icon.svg"):
        assert page(f"/static/{name}")
    print("The server of the wheel works, with its templates and static files")
finally:
    server.terminate()
    server.wait(30)
PYTHON
