#!/usr/bin/env bash
# make test-all: run the test suite on the other versions of Python that are found here.
# Usage: tools/test_versions.sh VERSION...
#
# EXTRAS=dev also installs torch, Opacus and Ray, several gigabytes per version where no CPU wheel
# of torch is at hand. The default, EXTRAS=test, goes without; tests that need them are skipped.
# ENVIRONMENTS is the folder of the environments (default: here), PYTEST what pytest is given.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${EXTRAS:-test}
environments=${ENVIRONMENTS:-.}

find_python() { # an interpreter of this version that starts: on the PATH, or one of pyenv's
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1"*/bin/"python$1"; do
    if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

failed=()
for version in "$@"; do
  environment=$environments/.venv-$version
  if ! python=$(find_python "$version"); then
    echo "Python $version: skipped, no interpreter python$version is found"
    continue
  fi
  test -x "$environment/bin/python" || "$python" -m venv "$environment"
  stamp=$environment/.installed-$extras
  if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    "$environment/bin/python" -m pip install --quiet --upgrade pip
    if ! "$environment/bin/python" -m pip install --quiet --editable ".[$extras]" 2>"$environment/pip.log"; then
      echo "Python $version: skipped, .[$extras] cannot be installed: $(grep -m1 ERROR "$environment/pip.log" || tail -n 1 "$environment/pip.log")"
      continue
    fi
    touch "$stamp"
  fi
  echo "Python $version: the test suite with the extra '$extras'"
  # shellcheck disable=SC2086  # PYTEST is a list of words
  "$environment/bin/python" -m pytest -n auto -rs ${PYTEST:-} || failed+=("$version")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed on Python ${failed[*]}"
  exit 1
fi
