# Two commands do everything: `make report` (the main job) and `make test`.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: report test lint docs clean

report: $(INSTALLED)
	$(BIN)/certify validate --preset default --out runs/default --open

test: lint docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations 15

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf .venv docs/_build build *.egg-info
