# make demo    set up, serve a language model, ask ten questions beside full prefill, leave it running
#               (DEMO="--model FILE", "--questions all", "--stop": docs/console.md)
# make test    everything CI runs apart from `make check`, in four processes
# make test-slow  what takes too long for that: Ray clusters, training, chaos, other people's clients,
#               and every combination of methods, families and prompts
# make loadtest  serve, ingest the sample corpus, raise the rate of requests until every method misses
#               its limits (LOADTEST="--url https://… --api-key …" asks your own service:
#               docs/testing.md#load)
# make chaos   break a running service at random for CHAOS_MINUTES (10), from CHAOS_SEED (docs/testing.md#chaos)
# make recipes run the commands of docs/recipes.md: proxies with TLS, Open WebUI in a browser, … (RECIPES="--only TLS")
# make containers  build the image (from Debian's packages where no registry is in reach), try it alone
#               and with the compose file; needs a running Docker. make containers-fleet: only the
#               upgrade and the kills of two gateways and two workers under load
# make check   ruff, mypy (strict), import rules, and that generated files are up to date
PYTHON ?= python3
VENV := .venv/bin
# Without this, waiting threads keep shared cores busy 10 to 500 times longer.
export OMP_WAIT_POLICY := PASSIVE
# Where the environment forbids Python to keep what it compiled, every process compiles all of it
# again: a third of what the start of a service costs.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo serve tools programs test test-slow check lint types imports generated budget walk dashboards bench \
	loadtest chaos recipes containers containers-fleet containers-image clean

setup: .venv/.ready

.venv/.ready: pyproject.toml $(wildcard plugins/*/pyproject.toml) constraints.txt scripts/setup.sh
	PYTHON=$(PYTHON) scripts/setup.sh dev,loadtest,clients,otel,postgresql,ray
	@touch $@

demo: setup
	$(VENV)/python -m demo.run $(DEMO)

serve: setup
	$(VENV)/kvstitch serve

# What tests need besides Python packages; quick where it is there.
tools: setup programs
	$(VENV)/python -m kvstitch.service.worker.kernels.cpu.build --if-changed
	scripts/install-postgresql.sh
	scripts/install-triton.sh

# The part that can be installed beside `make setup`.
programs:
	scripts/install-redis.sh
	scripts/install-chromium.sh
	scripts/install-axe.sh
	scripts/install-oidc-provider.sh
	scripts/install-prometheus.sh
	scripts/install-ops-tools.sh

# What uses more than one thread says so; small products are slower by several. Four processes for
# two cores, because a test of a service waits longer than it computes.
test: export OMP_NUM_THREADS := 1
test: tools
	# With Triton these do more than be skipped; services would only start slower with it. By files,
	# because what is interpreted is one run for a whole file.
	PYTHONPATH=$(CURDIR)/build/triton $(VENV)/python -m pytest -n 2 --dist loadfile -m "not slow" plugins/gpu/tests_gpu/kernels
	$(VENV)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not slow"

# What takes minutes each, and the combinations that `make test` leaves out.
test-slow: tools
	scripts/install-clients.sh
	scripts/install-vllm.sh
	PYTHONPATH=$(CURDIR)/build/triton $(VENV)/python -m pytest -n 2 -m slow plugins/gpu/tests_gpu/kernels
	$(VENV)/python -m pytest -n 2 --dist loadfile -m "slow and exhaustive"
	$(VENV)/python -m pytest -m "slow and not exhaustive"
	$(VENV)/python -m pytest -n 2 -m "hypothesis and not slow" --hypothesis-profile other

# Longest first, so that two cores end at the same time.
check: types walk imports generated lint budget

lint: setup
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .

types: setup
	$(VENV)/mypy

imports: setup
	$(VENV)/lint-imports

# Lines, files, words, twins of records: [tool.budget] in pyproject.toml.
budget: setup
	$(VENV)/python -m scripts.budget

# Stops and returns of a question and a document: [tool.budget.walk].
walk: setup
	$(VENV)/python -m scripts.walk

generated: setup
	$(VENV)/python -m scripts.docs_tables --check
	PYTHONPATH=docker/grafana $(VENV)/python -m kvstitch_dashboards --check

# Writes the files that are generated from code: dashboards, docs/metrics.md.
dashboards: setup
	$(VENV)/python -m scripts.docs_tables
	PYTHONPATH=docker/grafana $(VENV)/python -m kvstitch_dashboards

bench: setup
	$(VENV)/python -m benchmarks.speed --resume
	$(VENV)/python -m benchmarks.costs.ingestion

loadtest: setup
	$(VENV)/python -m loadtest --step-s 8 $(LOADTEST)

chaos: setup
	scripts/install-redis.sh
	$(VENV)/python -m tests.trials.chaos

recipes: setup
	scripts/install-proxies.sh
	scripts/install-chromium.sh
	scripts/install-prometheus.sh
	$(VENV)/python -m tests.trials.recipes $(RECIPES)

# VERSION: the tag. DOCKER, COMPOSE: other programs than docker and docker-compose.
containers containers-fleet containers-image: VERSION ?= 0.2.0
containers-image: setup
	scripts/containers/bases.sh python redis
	$(VENV)/python -m scripts.containers.build --target service -t kvstitch:$(VERSION)-cpu

containers: containers-image
	scripts/containers/bases.sh prometheus
	$(VENV)/python -m tests.trials.containers.alone kvstitch:$(VERSION)-cpu
	$(VENV)/python -m tests.trials.containers.composed $(VERSION) --prometheus
	scripts/containers/bases.sh haproxy postgresql
	$(VENV)/python -m tests.trials.containers.fleet $(VERSION)

containers-fleet: containers-image
	scripts/containers/bases.sh haproxy postgresql
	$(VENV)/python -m tests.trials.containers.fleet $(VERSION)

clean:
	rm -rf .venv build *.egg-info
