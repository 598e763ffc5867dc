# make demo    set up, serve the embedded default, ingest the sample corpus, ask, compare, stop
# make test    everything CI runs except the static checks, in two processes
# make loadtest  serve, ingest the sample corpus, raise the rate until every method gives in
#               (LOADTEST="--url https://… --api-key …" loads a service of yours: docs/loadtest.md)
# make check   ruff, mypy strict, import rules, generated files are up to date
PYTHON ?= python3
VENV := .venv/bin
# Contended cores spin 10 to 500 times longer without this.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: setup demo serve test check dashboards bench loadtest clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt scripts/setup.sh
	PYTHON=$(PYTHON) scripts/setup.sh dev,loadtest,clients,otel
	@touch $@

demo: setup
	$(VENV)/python -m demo.run

serve: setup
	$(VENV)/kvstitch serve

test: setup
	scripts/install-redis.sh
	scripts/install-chromium.sh
	scripts/install-prometheus.sh
	scripts/install-ops-tools.sh
	$(VENV)/python -m pytest -n 2 --dist loadfile

check: setup
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(VENV)/python -m service.metrics_docs --check
	PYTHONPATH=docker/grafana $(VENV)/python -m kvstitch_dashboards --check

# Writes what is made from code: the dashboards and the page of metrics.
dashboards: setup
	$(VENV)/python -m service.metrics_docs
	PYTHONPATH=docker/grafana $(VENV)/python -m kvstitch_dashboards

bench: setup
	$(VENV)/python -m benchmarks.speed --resume

loadtest: setup
	$(VENV)/python -m loadtest --step-s 8 $(LOADTEST)

clean:
	rm -rf .venv build *.egg-info
