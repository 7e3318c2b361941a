# Two processes of pytest share two cores: more threads each only make them wait for one another.
# Everything runs in its own virtual environment with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
STAMP := $(VENV)/.installed

.PHONY: demo test lint docs clean

demo: $(STAMP)
	$(BIN)/fieldfill demo -o demo_output --overwrite

test: $(STAMP)-dev lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)-docs
	$(BIN)/sphinx-build -W -b html docs docs/_build

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e ".[all]"
	touch $@

$(STAMP)-dev: $(STAMP)
	$(INSTALL) -e ".[all,dev]"
	touch $@

$(STAMP)-docs: $(STAMP)
	$(INSTALL) -e ".[all,docs]"
	touch $@

clean:
	rm -rf $(VENV) docs/_build demo_output
