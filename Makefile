# `make demo` and `make test` do all set-up themselves; `make check` is the one command before a
# commit. Needs Python 3.11 or newer with venv and pip, and a C++ compiler.

PYTHON ?= python3
VENV := .venv
WHEEL_VENV := .venv-wheel
PACKAGES := omniwire contracts serialization runtime

# The wheel and the linked checkout are what is checked and tested, never the folders themselves:
# keep the current folder and the caller's own paths out of sys.path.
export PYTHONSAFEPATH := 1
unexport PYTHONPATH
# What is imported is compiled once: child processes import torch again and again.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

# A folder is newer than the last installation when a file in it came or went.
FOLDERS := $(shell find $(PACKAGES) \( -name __pycache__ -o -name '.*' \) -prune -o -type d -print)
INSTALLED := $(VENV)/.installed
# Where the editable installation links the checkout as the package it is published as.
LINKED := build/linked
WHEEL_READY := $(WHEEL_VENV)/.dependencies
BOUNDS_VENV := build/bounds
# Not compiled: most of torch and transformers is never imported here.
PIP := -m pip install -qq --no-compile
PIP_INSTALL := $(PIP) --constraint constraints.txt
TESTED_EXTRAS := bench,cli,demo,docs,ray,testing
MYPY := ../../$(VENV)/bin/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache

# $(call new-venv,FOLDER,STAMP): without the stamp there is no environment, or half of one.
define new-venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "$(PYTHON) is older than 3.11: make PYTHON=python3.11 ..."; exit 2; }
test -f $(2) || $(PYTHON) -m venv --clear $(1)
@rm -f $(2)
endef

.PHONY: demo test check lint mypy pyright imports docs wheel test-wheel bounds bench soak fuzz clean

demo: $(INSTALLED)
	$(VENV)/bin/omniwire demo

test: check test-wheel

check: lint mypy pyright imports docs

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# In the linked tree, since at the top of the checkout the folder omniwire/ hides the package.
mypy: $(INSTALLED)
	cd $(LINKED) && $(MYPY) -p omniwire
	cd $(LINKED) && $(MYPY) ../../tests/unit/static_types.py
	cd $(LINKED) && $(MYPY) ../../docs/examples/*

pyright: $(INSTALLED)
	$(VENV)/bin/pyright --project pyproject.toml --pythonpath $(VENV)/bin/python

imports: $(INSTALLED)
	cd $(LINKED) && ../../$(VENV)/bin/lint-imports ../../pyproject.toml --no-cache

# Fails on a broken link or anchor; tests/unit/test_docs_site.py checks the navigation.
docs: $(INSTALLED)
	$(VENV)/bin/zensical build --clean --strict

test-wheel: export OMP_NUM_THREADS := 2
test-wheel: wheel $(WHEEL_READY)
	$(WHEEL_VENV)/bin/python $(PIP_INSTALL) --no-deps --force-reinstall dist/omniwire-*.whl
	OMNIWIRE_DIST=dist $(WHEEL_VENV)/bin/python -m pytest
	$(WHEEL_VENV)/bin/python -m pytest --doctest-modules --pyargs omniwire

# The same tests with the oldest versions that pyproject.toml allows, in a new environment.
bounds: export OMP_NUM_THREADS := 2
bounds: wheel
	$(PYTHON) -m venv --clear $(BOUNDS_VENV)
	$(PYTHON) tests/support/lower_bounds.py > $(BOUNDS_VENV)/constraints.txt
	wheel=$$(echo dist/omniwire-*.whl) && $(BOUNDS_VENV)/bin/python $(PIP) \
		--constraint $(BOUNDS_VENV)/constraints.txt "$$wheel[$(TESTED_EXTRAS)]"
	OMNIWIRE_DIST=dist $(BOUNDS_VENV)/bin/python -m pytest
	$(BOUNDS_VENV)/bin/python -m pytest --doctest-modules --pyargs omniwire

# The sdist, and the wheel from it: what the sdist lacks is missing from the wheel.
wheel: $(INSTALLED)
	rm -rf dist omniwire.egg-info
	$(VENV)/bin/python -m build --quiet --no-isolation

bench: export OMP_NUM_THREADS := 1
bench: $(INSTALLED)
	for benchmark in benchmarks/*.py; do \
		env -u PYTHONSAFEPATH $(VENV)/bin/python "$$benchmark" || exit 1; done

# Producers and executors that are killed again and again.
SOAK_SECONDS ?= 600
soak: export OMP_NUM_THREADS := 1
soak: $(INSTALLED)
	$(VENV)/bin/python tests/handoff/soak.py $(SOAK_SECONDS)

# Coverage-guided; longer by hand: make fuzz FUZZ_SECONDS=3600
FUZZ_SECONDS ?= 60
fuzz: $(INSTALLED)
	$(VENV)/bin/python $(PIP_INSTALL) atheris
	mkdir -p build/fuzz
	$(VENV)/bin/python tests/conformance/fuzz_decode.py -max_total_time=$(FUZZ_SECONDS) \
		-max_len=4096 -verbosity=0 -print_final_stats=1 -artifact_prefix=build/fuzz- build/fuzz

clean:
	rm -rf $(VENV) $(WHEEL_VENV) build dist omniwire.egg-info
	rm -rf .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache

# Strict mode, since type checkers cannot follow setuptools' default one.
$(INSTALLED): pyproject.toml constraints.txt $(FOLDERS)
	$(call new-venv,$(VENV),$@)
	rm -rf build
	@echo "Installing into $(VENV): about a minute the first time"
	$(VENV)/bin/python $(PIP_INSTALL) setuptools
	$(VENV)/bin/python $(PIP_INSTALL) --no-build-isolation --config-settings editable_mode=strict \
		--editable '.[bench,cli,demo,dev,docs,ray,testing]'
	ln -s "$$(basename build/__editable__.omniwire-*)" $(LINKED)
	@touch $@

$(WHEEL_READY): pyproject.toml constraints.txt | wheel
	$(call new-venv,$(WHEEL_VENV),$@)
	@echo "Installing into $(WHEEL_VENV): about a minute the first time"
	wheel=$$(echo dist/omniwire-*.whl) && \
		$(WHEEL_VENV)/bin/python $(PIP_INSTALL) "$$wheel[$(TESTED_EXTRAS)]"
	@touch $@
