# Every target sets up what it needs: a machine with git, make and Python 3.11, 3.12, 3.13 or 3.14 is enough.
PYTHON ?= python3
FOUND_PYTHON = $(or $(shell command -v $(PYTHON)),$(error $(PYTHON): no such program; give PYTHON=… of Python 3.11, 3.12, 3.13 or 3.14))
CONFIG ?= configs/demo.toml
RUNNER ?=
FLAGS ?=
EXTRAS ?=
CACHE ?= .cache
UV := $(CACHE)/uv/bin/uv
VENV := .venv
BENCH := .venv-bench
READERS := .venv-readers
ALTALIGN := $(VENV)/bin/altalign
PRISM := $(abspath $(CACHE))/prism/prism
VERSITYGW := $(abspath $(CACHE))/versitygw/versitygw
FAKE_GCS := $(abspath $(CACHE))/fake-gcs-server/fake-gcs-server
# Versions and digests of all modules: tools/go.mod, tools/go.sum. No sum database is asked.
GO_INSTALL = GOBIN=$(dir $@) GOFLAGS=-mod=readonly go -C tools install

# Each worker begins with its half of the tests, in order, so that those of a file share what its fixtures made; who is done takes from the other's end.
# One that crashes or hangs ends the rest: a worker in its place would run it again.
XDIST := -n auto --dist worksteal --max-worker-restart 0

# Marks of tests that take long, by subject: pyproject.toml says what each is. `make check` leaves them out, `make test` all but those marked `everyday`.
LONG := browser or cluster or engine or faults or gpu or guides or hostile or installs or java or machines or runs or stores or trained

export UV_PROJECT_ENVIRONMENT := $(VENV)
export PYTHONUTF8 := 1

.PHONY: help setup setup-dev curate browse train eval experiment test test-all test-kills test-power-cuts test-engines test-clusters test-clusters-all test-readers test-pythons lint check docs supply-chain sbom bench bench-large bench-gpu prism jars google-cloud versitygw fake-gcs-server browser clean

help:
	@echo "make curate [CONFIG=…]  curate the demo web, or what a config names, into shards; RUNNER=prism, spark or flink on that engine"
	@echo "make browse [RUN=…]     look at all that the demo's run, or another one, kept and dropped, in the browser"
	@echo "make train [CONFIG=…]   train a dual encoder on shards, by default a small one on the demo's (3 minutes on 2 cores; 5.5 GB of torch); goes on where it stopped"
	@echo "make eval [CONFIG=…] [SETS=…]  measure a trained model, by default the demo's on retrieval, classes and neighbours (2 minutes on 2 cores)"
	@echo "make test               the fast tests, and of all that takes long some of each kind (10 minutes on 2 slow cores; 7 GB of packages)"
	@echo "make test-all           every test that needs no Java, no cluster and no GPU (50 minutes on 2 slow cores)"
	@echo "make test-kills         curations broken off at 150 points, by signals, a full and a read-only disk; add, remove, select, merge, retry and the web at 35 each (an hour)"
	@echo "make test-power-cuts    runs whose power is cut at 300 points, as simulated, and continued (12 minutes)"
	@echo "make test-engines       Spark and Flink inside one process: the same bytes, errors, signals (9 minutes on 2 cores; Java and Maven)"
	@echo "make test-clusters      clusters of Spark and Flink on this machine, their processes killed (12 minutes on 2 cores); test-clusters-all: in every step (19)"
	@echo "make test-readers       output of img2dataset, shards opened by webdataset, datasets, open_clip, Energon, Daft, Lance and others, cards by mlcroissant, runs by Embedding Atlas and LightlyStudio, models of open_clip and timm, jobs for Dataflow (5.5 GB of torch)"
	@echo "make test-pythons       the wheel installed alone, with extras, by every Python from 3.11 to 3.14 that is here; filters, readers and storage on the oldest and the newest (6 minutes on 2 cores; the network)"
	@echo "make lint               style and types"
	@echo "make check              the same, and the fast tests (2 minutes)"
	@echo "make docs               tables of the reference, from the code"
	@echo "make supply-chain       licences and known vulnerabilities of all packages, offline"
	@echo "make sbom               the bill of materials in the wheel, from uv.lock"
	@echo "make experiment [NAME=zerovl]  train the runs of experiments/zerovl.toml, and write docs/experiments/zerovl.md (an hour at most on two cores)"
	@echo "make bench              speed and memory beside other programs (30 minutes; 5.5 GB of torch for the loader's part); PARTS='text pages images whole web' of curation (12); PARTS=scale: a very large one, simulated (40; 5 GB of disk); PARTS=clusters: Spark and Flink (hours), after make jars CLUSTERS=1"
	@echo "make bench-large        the text stages at 25 M rows (5 minutes, and as much to make the rows; 10 GB of disk)"
	@echo "make jars               job servers of Spark and Flink, for engine.runner = spark or flink"
	@echo "make bench-gpu          training steps on a GPU, with whatever torch PYTHON has: no uv, no network (10 minutes)"
	@echo "make setup              .venv/bin/altalign, from uv.lock; EXTRAS=nsfw,open_clip with the packages of these extras"

$(UV):
	@$(FOUND_PYTHON) -c 'import sys; sys.exit("altalign needs Python 3.11, 3.12, 3.13 or 3.14; this is " + sys.version.split()[0] + ": give PYTHON=…") if not (3, 11) <= sys.version_info[:2] <= (3, 14) else None'
	@echo "installing uv into $(CACHE)/uv" >&2
	@$(FOUND_PYTHON) -m venv $(CACHE)/uv
	@$(CACHE)/uv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r uv.txt

# Stamps: an environment is made anew only when the lock file changed. Bytecode at once: where Python writes none itself, every
# start would compile for longer than it works.
$(VENV)/.curate: $(UV) pyproject.toml uv.lock
	@echo "installing altalign into $(VENV): about 1 GB, once" >&2
	@$(UV) sync --locked --quiet --python $(FOUND_PYTHON) --compile-bytecode --inexact
	@touch $@

$(VENV)/.train: $(UV) pyproject.toml uv.lock
	@echo "installing altalign with torch into $(VENV): about 5.5 GB, once" >&2
	@$(UV) sync --locked --quiet --python $(FOUND_PYTHON) --compile-bytecode --inexact --extra train
	@touch $@ $(VENV)/.curate

$(VENV)/.dev: $(UV) pyproject.toml uv.lock
	@echo "installing what development and tests need into $(VENV): about 7 GB, once" >&2
	@$(UV) sync --locked --quiet --python $(FOUND_PYTHON) --compile-bytecode --inexact --group dev
	@touch $@ $(VENV)/.curate $(VENV)/.train

# EXTRAS=nsfw,open_clip brings the packages of these extras too, which stay; pyproject.toml has all of them.
COMMA := ,
setup: $(VENV)/.curate
	@$(if $(EXTRAS),$(UV) sync --locked --quiet --python $(FOUND_PYTHON) --compile-bytecode --inexact $(addprefix --extra ,$(subst $(COMMA), ,$(EXTRAS))))
setup-dev: $(VENV)/.dev

demo-web/README.md: $(VENV)/.curate
	@test -f $@ || $(ALTALIGN) demo demo-web

# The demo's config reads the demo web, written on first use; engines but the embedded one need a server.
SERVER_prism := $(PRISM)
SERVER_spark := jars
SERVER_flink := jars
SERVER_dataflow := google-cloud
curate: export ALTALIGN_PRISM := $(or $(ALTALIGN_PRISM),$(PRISM))
curate: $(VENV)/.curate $(SERVER_$(RUNNER)) $(if $(filter configs/demo.toml,$(CONFIG)),demo-web/README.md)
	$(ALTALIGN) curate $(CONFIG) $(if $(RUNNER),--set engine.runner=$(RUNNER)) $(FLAGS)

browse: RUN ?= runs/demo
browse: $(VENV)/.curate
	@test $(RUN) != runs/demo || test -f runs/demo/manifest.json || $(MAKE) --no-print-directory curate CONFIG=configs/demo.toml RUNNER= FLAGS=
	@test $(RUN) != runs/demo || $(ALTALIGN) score runs/demo --with examples/scores.toml
	$(ALTALIGN) browse $(RUN) $(FLAGS)

# Training takes what curation leaves on disk; the demo's shards are made where they are not there.
train eval: CONFIG = configs/train-demo.toml
train eval: $(VENV)/.train
	@test $(CONFIG) != configs/train-demo.toml || test -f runs/demo/manifest.json || $(MAKE) --no-print-directory curate CONFIG=configs/demo.toml RUNNER= FLAGS=
	$(ALTALIGN) $@ $(CONFIG) $(if $(filter eval,$@),$(if $(SETS),--sets $(SETS))) $(FLAGS)

# The demo's model is measured on pictures of its classes too.
eval: SETS = $(if $(filter configs/train-demo.toml,$(CONFIG)),configs/eval-demo.toml)
eval: | demo-classes
demo-classes: | $(VENV)/.train
	$(VENV)/bin/python -m altalign.demo.classes $@

# Runs of an experiment that are not trained yet, a process a core, and its page. FLAGS=--page writes the page alone,
# --again trains a finished run once more and compares, --scale=4 makes steps, towers and pairs larger (for a GPU).
experiment: NAME ?= zerovl
experiment: $(VENV)/.train
	$(VENV)/bin/python -m experiments $(NAME) $(FLAGS)

# Prism and object stores where Go is; without it the tests that need them are skipped and say so.
SERVERS = @! command -v go >/dev/null || $(MAKE) --no-print-directory prism versitygw fake-gcs-server
test: $(VENV)/.dev
	$(SERVERS)
	$(VENV)/bin/python -m pytest $(XDIST) -m 'everyday or not ($(LONG))' $(FLAGS)

# PART=faults or others: of the tests that take long and are not everyday's, those of faults and stores, or the others.
OF_PART_faults := everyday or faults or stores or not ($(LONG))
OF_PART_others := everyday or not (faults or stores)
test-all: $(VENV)/.dev
	$(SERVERS)
	$(VENV)/bin/python -m pytest $(XDIST) -m '($(or $(OF_PART_$(PART)),everyday or not everyday)) and not (java or cluster or installs)' $(FLAGS)

# What `make test-all` takes a sample of; another ALTALIGN_KILLS_SEED draws other points.
test-kills: $(VENV)/.dev
	ALTALIGN_KILLS=100 $(VENV)/bin/python -m pytest -o faulthandler_timeout=0 tests/end_to_end/test_faults.py $(FLAGS)
	ALTALIGN_SEQUENCES=50 $(VENV)/bin/python -m pytest -o faulthandler_timeout=0 tests/end_to_end/test_living_runs.py $(FLAGS)

# The same of tests/end_to_end/test_power_cuts.py, and ALTALIGN_POWER_CUTS_SEED.
test-power-cuts: $(VENV)/.dev
	ALTALIGN_POWER_CUTS=300 $(VENV)/bin/python -m pytest -o faulthandler_timeout=0 tests/end_to_end/test_power_cuts.py $(FLAGS)

# Job servers come where Java and Maven are; without them the tests are skipped and say so. One test at a time: engines take all cores.
BRING = @! command -v java >/dev/null || ! command -v mvn >/dev/null || $(MAKE) --no-print-directory jars
# ENGINE=spark or flink: those of that one.
test-engines: $(VENV)/.dev
	$(SERVERS)
	$(BRING)
	$(VENV)/bin/python -m pytest -m java tests/end_to_end/test_engines.py tests/end_to_end/test_object_stores.py $(and $(ENGINE),-k $(ENGINE)) $(FLAGS)

# CLUSTER=spark or flink: those of that one.
OF_CLUSTER_spark := -k 'spark or executor'
OF_CLUSTER_flink := -k flink
test-clusters: $(VENV)/.dev
	$(BRING) CLUSTERS=1
	$(VENV)/bin/python -m pytest tests/end_to_end/test_clusters.py $(OF_CLUSTER_$(CLUSTER)) $(FLAGS)

test-clusters-all: $(VENV)/.dev
	$(BRING) CLUSTERS=1
	ALTALIGN_KILLS_IN=all $(VENV)/bin/python -m pytest tests/end_to_end/test_clusters.py $(FLAGS)

# Shards in other people's readers, embedders of other people's models, jobs for Dataflow: an environment of its own, for it brings torch.
$(READERS)/.made: $(UV) pyproject.toml uv.lock tools/webdataset.txt tools/clip-benchmark.txt tools/loaders.txt tools/embedding-atlas.txt tools/lightly-studio.txt
	@UV_PROJECT_ENVIRONMENT=$(READERS) $(UV) sync --locked --quiet --python $(FOUND_PYTHON) --compile-bytecode --group readers
	@$(UV) pip install --quiet --python $(READERS)/bin/python --no-deps --require-hashes --target $(CACHE)/webdataset-of-open-clip -r tools/webdataset.txt
	@$(UV) pip install --quiet --python $(READERS)/bin/python --no-deps --require-hashes --target $(CACHE)/clip-benchmark -r tools/clip-benchmark.txt
	@$(UV) pip install --quiet --python $(READERS)/bin/python --no-deps --require-hashes --target $(CACHE)/loaders -r tools/loaders.txt
	@$(UV) pip install --quiet --python $(READERS)/bin/python --no-deps --require-hashes --target $(CACHE)/embedding-atlas -r tools/embedding-atlas.txt
	@$(UV) pip install --quiet --python $(READERS)/bin/python --no-deps --require-hashes --target $(CACHE)/lightly-studio -r tools/lightly-studio.txt
	@touch $@

test-readers: $(READERS)/.made $(BENCH)/.made
	IMG2DATASET=$(abspath $(BENCH))/bin/img2dataset $(READERS)/bin/python -m pytest $(XDIST) tests/end_to_end/test_img2dataset.py tests/altalign/test_shards_in_other_readers.py tests/end_to_end/test_readers.py tests/altalign/test_python.py::test_hugging_face_reads_the_samples_as_a_stream tests/altalign/test_python.py::test_a_notebook_curates tests/docs/test_read_the_shards.py tests/browse/test_atlas.py tests/browse/test_search.py tests/pipelines/card/test_card_in_other_readers.py tests/pipelines/images/test_embedders_of_torch.py tests/pipelines/engine/test_dataflow.py tests/benchmarks/test_train_gpu.py tests/train/exchange tests/train/model/test_published.py tests/eval/test_metrics_of_other_libraries.py tests/test_supply_chain.py $(FLAGS)

# Other Pythons of this machine, pyenv's or those on the path: the wheel in all of them, and in the oldest and the newest the fast tests of what needs no torch.
OF_PYTHONS := tests/filters tests/dedup tests/altalign/data tests/altalign/settings tests/altalign/storage tests/pipelines/read
test-pythons: $(VENV)/.dev
	$(VENV)/bin/python -m pytest $(XDIST) -m installs tests/test_wheel.py $(FLAGS)
	@found="$$($(VENV)/bin/python tools/pythons.py)" && echo "$$found" | while read -r version python; do test -z "$$version" || { \
	  UV_PROJECT_ENVIRONMENT=$(VENV)-$$version $(UV) sync --locked --quiet --python $$python --compile-bytecode --group pythons \
	  && $(VENV)-$$version/bin/python -m pytest $(XDIST) -m 'not ($(LONG))' $(OF_PYTHONS) $(FLAGS) </dev/null; } || exit 1; done

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright

check: lint
	$(VENV)/bin/python -m pytest $(XDIST) -m 'not ($(LONG))' -q $(FLAGS)

# What the reference says of settings, reasons, columns and exit codes, from the code; a test fails while it is not so.
docs: $(VENV)/.dev
	PYTHONPATH=. $(VENV)/bin/python docs/make_reference.py

# Licences of what is installed and known vulnerabilities of what is locked, offline.
supply-chain: $(VENV)/.dev
	$(VENV)/bin/python tools/supply_chain.py licences
	$(VENV)/bin/python tools/supply_chain.py vulnerabilities

# The bill of materials in the wheel, from uv.lock; a test fails while it is not so.
sbom: $(VENV)/.dev
	$(VENV)/bin/python tools/supply_chain.py sbom $(UV)

# What altalign is measured beside, in an environment of its own.
$(BENCH)/.made: $(UV) benchmarks/pyproject.toml benchmarks/uv.lock
	@UV_PROJECT_ENVIRONMENT=$(abspath $(BENCH)) $(UV) sync --locked --quiet --python $(FOUND_PYTHON) --project benchmarks
	@touch $@

# PARTS=… names some of them, by their modules. A part that cannot run says why, and the others run; the loader runs beside peers that bring torch.
PARTS ?= text pages images whole web near_duplicates browse loader
bench: $(VENV)/.curate $(BENCH)/.made $(if $(filter loader,$(PARTS)),$(READERS)/.made) $(if $(filter scale clusters,$(PARTS)),$(VENV)/.dev) $(if $(filter scale,$(PARTS)),versitygw)
	@failed=; $(foreach part,$(PARTS),$(if $(filter loader,$(part)),$(READERS),$(if $(filter scale clusters,$(part)),$(VENV),$(BENCH)))/bin/python -m benchmarks.$(part) $(FLAGS) || failed="$$failed $(part)";) \
	  test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# On a machine with a GPU and a torch of its own: nothing is installed.
bench-gpu:
	@$(PYTHON) -m benchmarks.train_gpu $(FLAGS)

bench-large: $(VENV)/.curate $(BENCH)/.made
	$(BENCH)/bin/python -m benchmarks.text --rows 25000000 --peers polars $(FLAGS)

# Beam's own portable runner, of the SDK's version, from the Go module proxy.
prism: $(PRISM)
$(PRISM): tools/go.mod tools/go.sum
	$(GO_INSTALL) github.com/apache/beam/sdks/v2/go/cmd/prism

# Beam's job servers of Spark and Flink; SPARK_JOB_SERVER_JAR and FLINK_JOB_SERVER_JAR name others. CLUSTERS=1 brings the engines' own programs too.
jars: $(VENV)/.curate $(UV)
	@UV=$(abspath $(UV)) $(VENV)/bin/python tools/jars.py $(if $(CLUSTERS),--clusters)

# What of Beam is for Google Cloud: 70 packages, beside the others.
google-cloud: $(VENV)/.curate
	@$(UV) sync --locked --quiet --python $(FOUND_PYTHON) --compile-bytecode --inexact --extra dataflow

# An S3 server and an emulator of GCS, which tests of object stores run against on loopback.
versitygw: $(VERSITYGW)
$(VERSITYGW): tools/go.mod tools/go.sum
	$(GO_INSTALL) github.com/versity/versitygw/cmd/versitygw

fake-gcs-server: $(FAKE_GCS)
$(FAKE_GCS): tools/go.mod tools/go.sum
	$(GO_INSTALL) github.com/fsouza/fake-gcs-server

# Chromium, in which tests read the report, where the system's packages may be installed; without it those tests are skipped and say so.
browser:
	@if command -v chromium >/dev/null; then :; \
	  elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core; \
	  else echo "no Chromium, and none can be installed: install the package chromium"; fi

clean:
	rm -rf $(VENV) $(BENCH) $(CACHE) demo-web demo-classes runs/demo
