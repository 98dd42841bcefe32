# Every target sets up what it needs: a machine with git, make and Python 3.11 or 3.12 is enough.
PYTHON ?= python3
CONFIG ?= configs/demo.toml
RUNNER ?= embedded
FLAGS ?=
CACHE ?= .cache
UV := $(CACHE)/uv/bin/uv
VENV := .venv
ALTALIGN := $(VENV)/bin/altalign
PRISM := $(abspath $(CACHE))/prism/prism

export UV_PROJECT_ENVIRONMENT := $(VENV)
export PYTHONUTF8 := 1

.PHONY: help setup setup-dev curate test test-readers check bench prism clean

help:
	@echo "make curate [CONFIG=…]  curate the demo web, or what a config names, into shards"
	@echo "make test               all tests that need no cluster and no GPU"
	@echo "make test-readers       shards opened by webdataset, datasets and open_clip (5.5 GB of torch)"
	@echo "make check              lint, types and the fast tests"
	@echo "make bench              speed and memory beside other engines"
	@echo "make setup              .venv/bin/altalign, from uv.lock"

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit("altalign needs Python 3.11 or 3.12; this is " + sys.version.split()[0] + ": give PYTHON=…") if sys.version_info[:2] not in ((3, 11), (3, 12)) else None'
	@$(PYTHON) -m venv $(CACHE)/uv
	@$(CACHE)/uv/bin/pip install --quiet --disable-pip-version-check 'uv>=0.9'

# Stamps: an environment is made anew only when the lock file changed.
$(VENV)/.curate: $(UV) pyproject.toml uv.lock
	@$(UV) sync --locked --quiet --python $(shell command -v $(PYTHON)) --inexact
	@touch $@

$(VENV)/.dev: $(UV) pyproject.toml uv.lock
	@$(UV) sync --locked --quiet --python $(shell command -v $(PYTHON)) --group dev
	@touch $@ $(VENV)/.curate

setup: $(VENV)/.curate
setup-dev: $(VENV)/.dev

demo-web/README.md: $(VENV)/.curate
	@test -f $@ || $(ALTALIGN) demo demo-web

# The demo's config reads the demo web, written on first use.
curate: $(VENV)/.curate $(if $(filter configs/demo.toml,$(CONFIG)),demo-web/README.md)
	$(ALTALIGN) curate $(CONFIG) --set engine.runner=$(RUNNER) $(FLAGS)

# Prism where Go is; without it the tests that need it are skipped and say so.
test: $(VENV)/.dev
	@! command -v go >/dev/null || $(MAKE) --no-print-directory prism
	$(VENV)/bin/python -m pytest -n auto --dist loadfile $(FLAGS)

# Shards in other people's readers, open_clip's among them: an environment of its own, for it brings torch.
test-readers: $(UV)
	UV_PROJECT_ENVIRONMENT=.venv-readers $(UV) sync --locked --quiet --python $(shell command -v $(PYTHON)) --group readers
	.venv-readers/bin/python -m pytest tests/altalign/test_shards_in_other_readers.py $(FLAGS)

check: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright
	$(VENV)/bin/python -m pytest -n auto --dist loadfile -m 'not slow and not engine' -q $(FLAGS)

bench: $(VENV)/.dev
	$(VENV)/bin/python -m benchmarks.text_stage $(FLAGS)

# Beam's own portable runner, of the SDK's version, from the Go module proxy.
prism: $(PRISM)
$(PRISM): $(VENV)/.curate
	GOBIN=$(dir $(PRISM)) go install github.com/apache/beam/sdks/v2/go/cmd/prism@v$$($(VENV)/bin/python -c 'import apache_beam; print(apache_beam.__version__)')

clean:
	rm -rf $(VENV) $(CACHE) demo-web runs/demo
