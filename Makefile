# Two commands are enough: `make demo` and `make test`. `make help` lists the rest.
PYTHON  ?= python3.11
VENV    ?= .venv
# This pin takes the CPU build where the configured package index offers one.
TORCH   ?= torch==2.13.0
WORKERS ?= 2
OUT     ?= demo-out
# The operator database counts its coverage over one process, so it runs in one of its own beside the others.
OPINFO  := tests/unit/test_opinfo.py tests/unit/lower/test_opinfo.py tests/unit/autodiff/test_opinfo.py

# Each process of a test would else compile our sources anew, half of its time.
unexport PYTHONDONTWRITEBYTECODE

PY    := $(VENV)/bin/python
PIP   := $(PY) -m pip install -qq --disable-pip-version-check
BUILD := $(wildcard src/framefuse/native/*.c src/framefuse/native/*.h) setup.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test gpu fuzz soak damage lint map ops bench page clean missing

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.built ## make .venv with torch, the development tools and framefuse itself (editable)

demo: $(VENV)/.built ## the op chain and a handful of models against eager and torch.compile, under three minutes
	@$(PY) -m benchmarks demo --out $(OUT)

test: $(VENV)/.built ## everything CI checks: extension without warnings, ruff, mypy, all tests
	@$(PY) -m pytest -q $(OPINFO) > $(VENV)/opinfo.log 2>&1 & database=$$!; \
	{ $(MAKE) -s --no-print-directory lint && bash tests/native/run_other_pythons.sh; } || { kill $$database; exit 1; }; \
	$(PY) -m pytest -q -n $(WORKERS) --dist worksteal $(addprefix --ignore=,$(OPINFO)); rest=$$?; \
	wait $$database; failed=$$?; cat $(VENV)/opinfo.log; exit $$((rest || failed))

gpu: $(VENV)/.built ## the tests that need a GPU, with what they measured; torch's databases of modules, optimizers and operators there
	@$(PY) -m pytest -q -rPs -m gpu tests/gpu
	@FRAMEFUSE_TEST_DEVICE=cuda $(PY) -m pytest -q tests/operators/test_modules.py tests/operators/test_optimizer_database.py
	@$(PY) -m tests.operators.run --device cuda

fuzz: $(VENV)/.built ## N=20000 generated programs from SEED=0 (KIND=writes, training or sequences: of these), compiled against eager, on all cores
	@$(PY) -m tests.fuzz.run --programs $(or $(N),20000) --seed $(or $(SEED),0) $(if $(KIND),--$(KIND))

soak: $(VENV)/.built ## MINUTES=120 of random models, compiled against eager: equal, memory level, no fault
	@$(PY) -m tests.soak.run --minutes $(or $(MINUTES),120) --seed $(or $(SEED),0)

damage: $(VENV)/.built ## N=10000 damaged and foreign files of the cache: each is refused, and calls compile anew
	@$(PY) tools/damage.py --count $(or $(N),10000) --seed $(or $(SEED),0)

lint: $(VENV)/.built ## ruff and mypy
	@$(PY) -m ruff check -q --output-format concise .
	@$(PY) -m mypy --no-error-summary

map: $(VENV)/.built ## print the map of modules
	@$(PY) tools/module_map.py

stops: $(VENV)/.built ## write the pages under docs/stops from the catalogue of stops
	@$(PY) tools/stop_pages.py --write > /dev/null

ops: $(VENV)/.built ## the primitives by element type, and which of torch's functions become them
	@$(PY) -m framefuse.cli ops

bench: $(VENV)/.built ## the figures of the CPU, into bench-out/ (about half an hour)
	@for part in "curve --fresh" "models --fresh" start train kernels guards memory; do $(PY) -m benchmarks $$part || exit 1; done

page: $(VENV)/.built ## write what was measured into docs/performance.md
	@$(PY) -m benchmarks page

bench-%: $(VENV)/.built ## one of them, as in `make bench-models ARGS="--only bert"`; `make bench-list` names them
	@$(PY) -m benchmarks $(if $(filter list,$*),--help,$* $(ARGS))

clean: ## remove .venv and everything built
	@rm -rf $(VENV) build src/*.egg-info src/framefuse/_native*.so .mypy_cache .pytest_cache .ruff_cache demo-out bench-out

missing:

# Each stamp holds one step of the setup, so that a second `make` does only what has changed.
$(VENV)/.torch:
	@echo "setup: python environment in $(VENV), $(TORCH)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip "setuptools>=77" wheel
	@$(PIP) "$(TORCH)"
	@touch $@

$(VENV)/.tools: $(VENV)/.torch pyproject.toml
	@echo "setup: development tools and the model zoo"
	@$(PY) tools/requirements.py | xargs $(PIP)
	@$(PIP) --no-deps timm torchvision
	@touch $@

# Without the library the extension is built again, whatever the stamp says.
$(VENV)/.built: $(VENV)/.tools $(BUILD) $(if $(wildcard src/framefuse/_native.*.so),,missing)
	@echo "setup: framefuse and its C extension, warnings are errors"
	@FRAMEFUSE_WERROR=1 $(PIP) --no-build-isolation --no-deps -e .
	@touch $@
