# The commands of the book. `make` alone lists them.

SHELL := bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
HTML := _build/html
UV := 0.13.8

# The same run prints the same numbers, at a speed that other work on the machine hardly changes: no hash seed, one thread.
export PYTHONHASHSEED := 0
export PYTHONUTF8 := 1
# Many processes import the same code: it is compiled once, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
AGG := MPLBACKEND=agg
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# What was freed stays for what comes next: to get it from the system again and again takes a fifteenth of the time of a
# chapter's experiments. Only glibc listens.
REUSE := MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=268435456
WORKERS ?= 2

# $(call stage,name,command): say what runs, then how long it took.
define stage
@printf '\n=== %s\n' '$(1)'; start=$$SECONDS; rc=0; ( $(2) ) || rc=$$?; \
if [ $$rc = 0 ]; then word=passed; else word=FAILED; fi; \
printf '=== %s: %s in %d s\n' '$(1)' $$word $$((SECONDS - start)); exit $$rc
endef

.PHONY: help book test lab lint format outputs lock benchmark clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.installed: requirements.lock pyproject.toml book/_tools/make_venv.sh
	@PYTHON='$(PYTHON)' bash book/_tools/make_venv.sh
	@touch $@

book: .venv/.installed ## build the pages into _build/html
	$(call stage,book,$(AGG) $(ONE_THREAD) $(REUSE) bash book/_tools/build_book.sh $(HTML) $(WORKERS))
	@echo; echo "Read it: file://$(CURDIR)/$(HTML)/index.html"

# Sphinx takes one core, after the notebooks; what needs no pages goes beside it.
test: .venv/.installed ## run all notebooks, build the book, lint, check the notebooks' outputs and run all tests
	@start=$$SECONDS; $(MAKE) executed && $(MAKE) --jobs=2 --output-sync=recurse book lint notebooks && $(MAKE) unit && \
	printf '\nEverything passed in %d s.\n' $$((SECONDS - start))

.PHONY: executed notebooks unit
executed: .venv/.installed
	$(call stage,all notebooks,$(AGG) $(ONE_THREAD) $(REUSE) $(BIN)/python book/_tools/execute_notebooks.py --workers $(WORKERS))

notebooks: executed
	$(call stage,stored outputs of the notebooks,$(AGG) $(ONE_THREAD) $(BIN)/pytest book --nbval-lax --executed -q)

# One worker more, as tests wait for processes that they started. `make unit ROUNDING=1` rounds as another processor does.
unit: .venv/.installed
	$(call stage,tests,$(AGG) $(ONE_THREAD) $(REUSE) $(BIN)/pytest tests -p no:nbval -n $$(($(WORKERS) + 1)) --dist loadscope --no-loadscope-reorder)

# A kernel runs what lies in the startup folder of its profile; see tests/rounding.py.
.PHONY: rounding
ROUNDING ?= 1
rounding: .venv/.installed ## check the notebooks' outputs under the rounding of another processor (ROUNDING=seed)
	@mkdir -p build/ipython/profile_default/startup
	@echo 'from tests.rounding import begin; begin()' > build/ipython/profile_default/startup/rounding.py
	$(call stage,stored outputs under other rounding,$(AGG) $(ONE_THREAD) ROUNDING=$(ROUNDING) PYTHONPATH=$(CURDIR) IPYTHONDIR=$(CURDIR)/build/ipython $(BIN)/pytest $(or $(NOTEBOOKS),book) --nbval-lax --nbval-current-env --nbval-cell-timeout=1800 -o timeout=0 -n $(WORKERS) --dist loadscope)

lab: .venv/.installed ## open the book in JupyterLab, in copies of your own in lab/
	@test -d _build/lab || $(MAKE) book
	@$(BIN)/python -c 'import sys; from book._ext import lab; lab.bring(sys.argv[1], sys.argv[2])' _build/lab lab
	$(ONE_THREAD) $(BIN)/jupyter lab --notebook-dir=lab

.PHONY: handout
handout: .venv/.installed ## make student releases of the exercises in build/handout, with the package they need
	@rm -rf build/handout build/lib # setuptools would pack whatever lies in build/lib
	@$(BIN)/python book/_tools/handout.py build/handout
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/handout . && cp requirements.lock build/handout/

.PHONY: grade
grade: export SUBMISSIONS := $(SUBMISSIONS)
grade: .venv/.installed ## mark the notebooks in SUBMISSIONS=folder/<student>/<chapter>.ipynb into build/grade
	@test -d "$$SUBMISSIONS" || { echo 'Say where they are: make grade SUBMISSIONS=folder'; exit 2; }
	@$(AGG) $(ONE_THREAD) PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python book/_tools/grade.py "$$SUBMISSIONS" build/grade

.PHONY: slides
slides: .venv/.installed ## make one lecture a chapter in build/slides (CHAPTERS="contexts subsets" for some)
	$(call stage,slides,$(AGG) $(ONE_THREAD) $(BIN)/python book/_tools/slides.py build/slides $(CHAPTERS))

.PHONY: pdf
pdf: .venv/.installed ## print the built pages into one PDF, _build/html/book.pdf (needs Chromium)
	@test -s $(HTML)/index.html || $(MAKE) book
	$(call stage,pdf,$(BIN)/python book/_tools/make_pdf.py $(HTML) $(HTML)/book.pdf)

lint: .venv/.installed ## check style and types
	$(call stage,lint,$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy)

format: .venv/.installed ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

outputs: .venv/.installed ## run notebooks and store their checked outputs (NOTEBOOKS="a.ipynb b.ipynb")
	$(AGG) $(ONE_THREAD) $(BIN)/python book/_tools/refresh_outputs.py $(NOTEBOOKS)

lock: .venv/.installed ## pin all packages again (UPGRADE=1 takes the newest ones that pyproject.toml admits)
	UV_VERSION=$(UV) UPGRADE='$(UPGRADE)' bash book/_tools/make_lock.sh

benchmark: .venv/.installed ## time the library
	$(AGG) $(ONE_THREAD) $(BIN)/pytest tests/benchmarks --benchmark-enable --benchmark-only -o timeout=0

clean: ## remove what was built, but keep .venv
	rm -rf _build build .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks *.egg-info
	find book cbo_lib tests -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf
