# Everything runs in the project's .venv, made on the first call and again when pyproject.toml changes.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed
comma := ,
REAL := $(if $(wildcard ../shared/data/msweb_user_area.npz),$(comma)msweb$(comma)reddit2008)
DATASETS := S8000,S16000,S32000,S64000,S128000$(REAL)
REACH := --bank docs/results/bank_mnist.json --levels 0.1:1.0:0.1 --bars 0.6,0.85,0.9,0.92,0.94 --trials 400 --json

QUICK := tests/test_architecture.py tests/test_public_names.py tests/test_readme.py tests/test_work.py \
	tests/contracts tests/privacy/test_guarantees.py tests/theorems/test_plan.py tests/theorems/test_pure.py
# A test of chance fails now and then in a correct library. A test that fails is run once more, and the
# names of those that then passed are printed: look at each of them.
REPEAT := --reruns 1 -r fER
OTHER_VERSIONS := 3.12 3.13
# Compiled Python is kept: without, each process of the suite compiles the package and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo server docs quick test test-all test-long check scan dist bench figures fuzz mutants clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## a goal, what reaching it cost, what a fixed ε would cost, the score without privacy
	$(BIN)/python -m scripts.demo

server: $(STAMP)  ## a server with made-up data, to look around: http://127.0.0.1:8400
	$(BIN)/python -m scripts.demo_server

test: $(STAMP)  ## the whole test suite
	$(BIN)/python -m pytest -n auto --dist worksteal $(REPEAT)

test-long: fuzz  ## nightly: more seeds, trials and cases than the suite, and the long fuzz tests
	$(BIN)/python -m pytest -n auto --dist worksteal -m long

quick: check  ## under a minute: lint, types and the fast tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not long" $(QUICK)

test-all: test  ## the test suite, also on Python 3.12 and 3.13 where they are found
	tools/test_versions.sh $(OTHER_VERSIONS)

check: $(STAMP)  ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

scan:  ## known vulnerabilities of everything in .venv; needs the network
	test -x .venv-scan/bin/pip-audit || { $(PYTHON) -m venv .venv-scan && .venv-scan/bin/python -m pip install --quiet pip-audit; }
	.venv-scan/bin/pip-audit --strict --progress-spinner off --skip-editable --path $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")

dist: $(STAMP)  ## wheel and sdist in dist/, and a trial of the wheel alone in a clean environment
	tools/dist.sh $(BIN)/python

bench: $(STAMP)  ## ratios against peers, measured side by side
	$(BIN)/python -m benchmarks

figures: $(STAMP)  ## every figure and table of the README and the docs
	$(BIN)/python -m scripts.figures
	$(BIN)/python -m scripts.interval_coverage
	$(BIN)/python -m scripts.counting_comparison
	$(BIN)/python -m scripts.capped_truth --runs 10 --json > docs/results/capped_truth.json
	$(BIN)/python -m scripts.chosen_caps --runs 2 --questions rows sum --json > docs/results/chosen_caps.json
	$(BIN)/python -m scripts.audit
	$(BIN)/python -m reproduction tightness
	for table in table1 table2; do $(BIN)/python -m reproduction $$table --jobs 2 --datasets $(DATASETS) --json > docs/results/$$table.json || exit 1; done
	$(if $(REAL),$(BIN)/python -m reproduction reach $(REACH) > docs/results/reach_mnist.json,@echo "Reaching a bar is left as it is: some of its rows need data that is not here")
	$(if $(REAL),$(BIN)/python -m reproduction reach $(REACH) --curves dpsgd > docs/results/reach_mnist_dpsgd.json)
	$(if $(REAL),for task in mnist gisette twitter twitter-blog; do $(BIN)/python -m reproduction table3 --task $$task --json > docs/results/table3_$$task.json || exit 1; done,@echo "Table 3 is left as it is: some of its rows need data that is not here")
	$(if $(REAL),$(BIN)/python -m reproduction analysts --json > docs/results/analysts.json)
	$(if $(REAL),$(BIN)/python -m reproduction facts --json > docs/results/facts.json)
	$(BIN)/python -m scripts.passed_is_true
	$(if $(REAL),$(BIN)/python -m scripts.noise_reduction)
	$(if $(REAL),$(BIN)/python -m scripts.least_epsilon)
	$(if $(REAL),$(BIN)/python -m reproduction networks --into docs/results/networks.json)
	$(if $(REAL),$(BIN)/python -m scripts.per_person ../shared/data)
	$(BIN)/python -m scripts.screens
	$(BIN)/python -m scripts.gallery
	$(BIN)/python -m scripts.fill_documents
	if command -v chromium > /dev/null; then $(BIN)/python -m scripts.server_pictures; fi

fuzz: $(STAMP)  ## the fuzz tests with fresh examples, forty times as many
	EXPOST_FUZZ=long $(BIN)/python -m pytest -n auto tests/fuzz

docs: $(STAMP)  ## the documentation site, in docs/_build/html; warnings and broken links are errors
	rm -rf docs/_build docs/reference/generated
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

mutants: $(STAMP)  ## one-line mistakes in a copy of the package: which ones does no test notice?
	$(BIN)/python tools/mutants.py --jobs 2

clean:  ## remove environments, builds and caches
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache
