# Every step of CI is a target here. `make help` lists them.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# -P keeps the current folder off the path: `import api` would be a second copy of dracaena.api.
RUN := $(BIN)/python -P
# Tests start hundreds of processes: each would compile all of it again where bytecode is not kept.
unexport PYTHONDONTWRITEBYTECODE
JOBS ?= 2
# Programs under test wait for leases and for each other half of their time. A real API server is emptied between tests.
INTEGRATION_JOBS ?= $(if $(DRACAENA_TEST_API),0,4)

# Tests write thousands of small files. On a disk each that takes another's place waits for it, and costs eight times the
# CPU. Taken where it has a GiB of room and may hold programs and device nodes, and TMPDIR says nothing else.
TEST_FOLDER = $(shell awk '$$2 == "/dev/shm" && $$3 == "tmpfs" && $$4 !~ /noexec|nodev/ {print $$2}' /proc/mounts 2>/dev/null \
	| while read -r folder; do [ "$$(df -k --output=avail $$folder | tail -n 1)" -gt 1048576 ] && [ -w $$folder ] && echo $$folder; done)
IN_TEST_FOLDER = $(if $(TMPDIR),,$(addprefix TMPDIR=,$(firstword $(TEST_FOLDER))))

.DEFAULT_GOAL := help
.PHONY: help demo test test-search test-long test-held-up unit unit-controller unit-plugin unit-rest unit-image-python image-python integration e2e e2e-all e2e-soak e2e-soak-planted device-test page-test pictures bench bench-long bench-go bench-node bench-cluster conformance conformance-go peer-cases check format lint types imports proto schemas budget lock wheels image release-image chart krew site release clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/runtime.stamp ## the main job on recorded machines, no GPU and no cluster needed (KEEP=1 leaves it running)
	@$(BIN)/dracaena demo $(if $(filter-out 0 no false,$(KEEP)),--keep)

# Integration tests wait half of their time. Unit tests take that half, at a lower priority: they have no limit to keep.
# On more than four cores: make --jobs=2 unit JOBS=8 integration
test: $(VENV)/dev.stamp ## all tests, a few seeds of each search; units beside the others, each shown when it has ended
	@echo "unit tests beside integration tests: what each prints is shown when it has ended, after some minutes"
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=target UNIT_PRIORITY="nice -n 10" unit-controller unit-plugin unit-rest integration

# Three processes with about a third of the unit tests each: of several workers each would collect all of them, which
# costs a tenth of their CPU, and in a new checkout compile all of them.
UNIT_THIRDS := tests/unit/controller tests/unit/kubelet_plugin
unit-controller: $(VENV)/dev.stamp ## those of the controller alone
	@$(MAKE) --no-print-directory JOBS=0 UNIT_TESTS="$(word 1,$(UNIT_THIRDS))" unit

unit-plugin: $(VENV)/dev.stamp ## those of the kubelet plugin alone
	@$(MAKE) --no-print-directory JOBS=0 UNIT_TESTS="$(word 2,$(UNIT_THIRDS))" unit

unit-rest: $(VENV)/dev.stamp ## the other unit tests
	@$(MAKE) --no-print-directory JOBS=0 UNIT_TESTS="$(UNIT_TESTS) $(addprefix --ignore=,$(UNIT_THIRDS))" unit

unit: $(VENV)/dev.stamp ## unit and architecture tests
	@$(IN_TEST_FOLDER) $(UNIT_PRIORITY) $(RUN) -m pytest -q -n $(JOBS) --dist worksteal $(UNIT_TESTS)

UNIT_TESTS := tests/unit tests/architecture
# Of what the image holds. The others look at this repository: its pages, its chart, its benches, its other tests.
IMAGE_UNIT_TESTS = $(filter-out %/__pycache__,$(wildcard $(patsubst src/dracaena/%/,tests/unit/%,$(wildcard src/dracaena/*/))))

unit-image-python: ## unit tests of the programs on the image's Python (IMAGE_PYTHON=3.13) in .venv-3.13; fails where that Python is not here
	@$(IMAGE_PYTHON_PROGRAM); [ -n "$$python" ] || { echo "make $@: no Python $(IMAGE_PYTHON) here, neither on PATH nor of pyenv" >&2; exit 1; }; \
		$(MAKE) --no-print-directory VENV=.venv-$(IMAGE_PYTHON) PYTHON="$$python" UNIT_TESTS="$(IMAGE_UNIT_TESTS)" unit

image-python: ## print the path of the image's Python on this machine; nothing where it is not here
	@$(IMAGE_PYTHON_PROGRAM); echo "$$python"

# Tried, not only looked for: pyenv puts a program of that name on PATH that may refuse to run.
IMAGE_PYTHON_PROGRAM = python=; for each in python$(IMAGE_PYTHON) "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$(IMAGE_PYTHON).*/bin/python; do \
	"$$each" -c 'import ensurepip, venv' 2>/dev/null && python=$$(command -v "$$each"); done

# Each test is in one of the three: `make test` runs what has neither mark (addopts of pyproject.toml). Hypothesis draws
# more of those without a number of their own in the larger two; tests/unit/conftest.py has the profiles.
test-search: $(VENV)/dev.stamp ## what `make test` only samples: random sequences, interleavings, crashes at each step, planted faults
	@$(IN_TEST_FOLDER) $(RUN) -m pytest -q -n $(JOBS) --dist loadgroup -m "search or (hypothesis and not long)" --hypothesis-profile=search tests/unit tests/integration

test-long: $(VENV)/dev.stamp ## the same exhaustively, half an hour (SCHEDULES=n interleavings, 100000)
	@$(RUN) -m pytest -q -n $(JOBS) -m "long or (hypothesis and not search)" --hypothesis-profile=long tests/unit tests/integration

SEED ?= 1
# The threads sleep most of the time, so that more tests than cores can run beside each other.
test-held-up: $(VENV)/dev.stamp ## integration tests with the threads of our programs held up at random (SEED=n, CALLS=n, LONGEST=seconds)
	@$(IN_TEST_FOLDER) $(RUN) -m pytest -q -n 8 --dist loadgroup -p support.held_up_threads --hold-up $(SEED) \
		$(addprefix --hold-up-calls=,$(CALLS)) $(addprefix --hold-up-longest=,$(LONGEST)) tests/integration

integration: $(VENV)/dev.stamp ## whole programs over real sockets on the embedded cluster
	@$(IN_TEST_FOLDER) $(RUN) -m pytest -q -n $(INTEGRATION_JOBS) --dist loadgroup tests/integration

e2e: $(VENV)/dev.stamp ## real Kubernetes, kubelet and containerd on this machine (root; KUBERNETES=1.37|1.36; docs/dev/tests.md)
	@PYTHONPATH=tests $(RUN) -m e2e.run $(E2E)

e2e-all: $(VENV)/dev.stamp ## the same on each version of Kubernetes, one after the other
	@for version in 1.37 1.36; do \
		echo "== Kubernetes $$version"; PYTHONPATH=tests KUBERNETES=$$version $(RUN) -m e2e.run $(E2E) || exit $$?; done

e2e-soak: $(VENV)/dev.stamp ## faults for SOAK_S seconds (600) on a real control plane, and a checker beside them (root; docs/dev/tests.md)
	@PYTHONPATH=tests $(RUN) -m e2e.soak.run $(SOAK)

e2e-soak-planted: $(VENV)/dev.stamp ## plant faults into copies, one at a time, and see whether the soak finds them (an hour; root)
	@PYTHONPATH=tests $(RUN) -m e2e.soak.planted $(PLANTED)

device-test: $(VENV)/dev.stamp ## try a real GPU, down to CUDA in a container and behind MPS (root; docs/dev/device.md)
	@PYTHONPATH=tests $(RUN) -m pytest -q -s -n 0 tests/device/on_real_gpu.py tests/device/on_real_mps.py tests/device/on_real_node.py

page-test: $(VENV)/dev.stamp ## the controller's page in a real headless Chromium, which has to be here (PAGE_SCREENSHOTS=folder)
	@PYTHONPATH=tests $(RUN) -m pytest -q -s -n 0 tests/page/in_chromium.py

pictures: $(VENV)/dev.stamp ## take the pictures of page and dashboards again into docs/pictures (needs a headless Chromium here; builds Prometheus with Go)
	@PYTHONPATH=tests $(RUN) -m page.pictures docs/pictures

bench: $(VENV)/dev.stamp ## ours beside the systems before us, as tables with ratios and floors (docs/dev/bench.md; BENCH="quality -o json")
	@PYTHONPATH=tests $(RUN) -m bench.run $(BENCH)

bench-long: $(VENV)/dev.stamp ## the same with more seeds and sizes where a section has them (BENCH="mixed queue")
	@PYTHONPATH=tests $(RUN) -m bench.run --long $(BENCH)

bench-go: $(VENV)/dev.stamp ## every state beside go-gpuallocator itself, built as a Go module; needs Go (GO=path; docs/dev/bench.md)
	@PYTHONPATH=tests $(RUN) -m bench.beside_go

bench-cluster: $(VENV)/dev.stamp ## pods bound per second with our controller and without, on a real control plane (root; docs/dev/bench.md)
	@PYTHONPATH=tests $(RUN) -m bench.cluster.run $(BENCH)

bench-node: $(VENV)/dev.stamp ## prepare and unprepare, start, leaks, the plugin at rest (25 minutes; BENCH="--rest-s 60 --calls 100 -o json")
	@PYTHONPATH=tests $(RUN) -m bench.node.run $(BENCH)

conformance: $(VENV)/dev.stamp ## the cases of the folder named by DRACAENA_CONFORMANCE_DIR, recorded with DRACAENA_CONFORMANCE_KUBERNETES (1.36)
	@PYTHONPATH=tests $(RUN) -m conformance.run

conformance-go: $(VENV)/dev.stamp ## random cases beside Kubernetes' own allocators, built as Go modules; needs Go (GO=path; CONFORMANCE="--cases 20000")
	@PYTHONPATH=tests $(RUN) -m conformance.beside_reference $(CONFORMANCE)

peer-cases: $(VENV)/dev.stamp ## the baselines of the bench on the originals' own cases, in the folder named by DRACAENA_PEER_CASES
	@[ -d "$$DRACAENA_PEER_CASES" ] || { echo "peer-cases: DRACAENA_PEER_CASES is no folder" >&2; exit 2; }
	@$(RUN) -m pytest -q tests/bench/on_peer_cases.py

check: format lint types imports ## format, lint, types, import rules; changes nothing

format: $(VENV)/dev.stamp ## check the formatting
	@$(BIN)/ruff format --check --quiet . || { echo "make check: 'ruff format .' would change the files above" >&2; exit 1; }

lint: $(VENV)/dev.stamp ## check the style (ruff)
	@$(BIN)/ruff check --quiet .

types: $(VENV)/dev.stamp ## check the types (mypy, strict)
	@$(BIN)/mypy
	@cd tests && MYPYPATH=../src:. ../$(BIN)/mypy --config-file ../pyproject.toml --explicit-package-bases .

imports: $(VENV)/dev.stamp ## check the direction of imports
	@cd src && ../$(BIN)/lint-imports --config ../.importlinter --no-cache

proto: $(VENV)/dev.stamp ## generate the gRPC code from proto/**/*.proto
	@$(RUN) -m dracaena.proto.generate

schemas: $(VENV)/dev.stamp ## write docs/schemas/*.json, the JSON Schemas for editors and readers of podlist.json
	@for name in manifest topologypolicy gpuconfig vfioconfig podlist; do $(BIN)/dracaena schema $$name > docs/schemas/$$name.json || exit $$?; done

budget: $(VENV)/dev.stamp ## print the numbers that docs/dev/budget.md limits, and lower the limits of those that fell
	@PYTHONPATH=tests $(RUN) -m support.budget

lock: $(VENV)/dev.stamp ## resolve requirements/*.in again (names, versions and hashes)
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet $(LOCK_FLAGS) pyproject.toml --extra programs --extra demo --extra completion requirements/runtime.in -o requirements/runtime.txt
	@$(BIN)/uv pip compile --quiet $(LOCK_FLAGS) requirements/runtime.txt requirements/dev.in -o requirements/dev.txt
	@$(BIN)/uv pip compile --quiet $(LOCK_FLAGS) requirements/site.in -o requirements/site.txt

LOCK_FLAGS := --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate

wheels: $(VENV)/runtime.stamp ## put all that the image and an install hold into wheels/, for the Python of its base (IMAGE_PYTHON=3.13, MACHINE=x86_64)
	@$(RUN) deploy/image/wheels.py --installable --python $(IMAGE_PYTHON) --machine $(MACHINE)

image: wheels ## build the container image with buildah or docker (IMAGE=name, BASE=image with python3)
	@if command -v buildah >/dev/null; then buildah build --timestamp $(IMAGE_TIME) --build-arg BASE=$(BASE) --tag $(IMAGE) .; \
	elif docker info >/dev/null 2>&1; then SOURCE_DATE_EPOCH=$(IMAGE_TIME) docker build --build-arg BASE=$(BASE) --tag $(IMAGE) .; \
	else echo "make image: neither buildah nor a running docker is here" >&2; exit 1; fi

release-image: ## the same for a release: BASE must name its image by digest (BASE=…@sha256:…), or nothing is built
	@echo "$(BASE)" | grep -Eq '@sha256:[0-9a-f]{64}$$' || { echo "make $@: BASE is $(BASE), expected an image with its digest (…@sha256:…), so that the release can be built again: docs/dev/releases.md" >&2; exit 1; }
	@$(MAKE) --no-print-directory image

krew: $(VENV)/runtime.stamp ## build the archives for krew and their manifest into dist/krew (KREW_URL=https://address of the archives)
	@$(RUN) deploy/krew/archives.py --url "$(KREW_URL)"

IMAGE := docker.io/dracaena/dracaena:0.1.0
BASE := docker.io/library/python:3.13-slim-trixie
IMAGE_PYTHON := 3.13
# The commit's, so that one commit and one base make one image; 1980 where there is no git.
IMAGE_TIME = $(shell git log -1 --format=%ct 2>/dev/null || echo 315532800)
MACHINE := $(shell uname -m)

chart: $(VENV)/dev.stamp ## write what follows from other files into the chart and the pages: table of values, schema of settings, tables of metrics, dashboards
	@$(RUN) deploy/helm/generate.py
	@$(RUN) deploy/helm/boards.py

release: wheels ## gather what a release publishes in dist/release: wheels, chart, krew archives if built, notes, SBOM, checksums; try an install from it
	@$(RUN) deploy/release/gather.py
	@$(IMAGE_PYTHON_PROGRAM); [ -n "$$python" ] || { echo "make $@: dist/release is there, but no install from it was tried: no Python $(IMAGE_PYTHON) here" >&2; exit 1; }; \
		$(RUN) deploy/release/try_install.py "$$python"

site: $(VENV)/runtime.stamp $(VENV)-site/stamp ## build the site of docs/ into dist/site and check it (CONTRIBUTING.md)
	@$(RUN) website/pages.py
	@NO_MKDOCS_2_WARNING=1 $(VENV)-site/bin/mkdocs build --quiet --strict --config-file website/mkdocs.yml
	@$(RUN) website/check.py

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .venv-* build dist wheels src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

# One environment: the demo's packages first, the developers' tools on top of the same versions.
$(VENV)/runtime.stamp: requirements/runtime.txt pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Dracaena needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "installing into $(VENV) (once; about half a minute)"
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/runtime.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/runtime.stamp
	@echo "installing the developers' tools into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

# The generator of the site in an environment of its own: no test needs its thirty packages.
$(VENV)-site/stamp: requirements/site.txt
	@$(PYTHON) -m venv $(VENV)-site
	@$(VENV)-site/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/site.txt
	@touch $@
