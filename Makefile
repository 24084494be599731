# Two commands: `make demo` and `make test`. Each target does its own set-up; the second time that takes half a second.
.DEFAULT_GOAL := help
.PHONY: help demo test check versions simulate explore mutants mutation fuzz crash network bench docs screenshots protos setup clean

# Answers to questions that the environment must not change.
PY := .venv/bin/python
unexport ONCEWARD_VENV ONCEWARD_PYSPARK
# Without it, each test worker compiles all tests again before it runs the first.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## real records go through Spark exactly once while processes are killed (4 minutes)
	@.venv/bin/onceward demo

test: setup ## everything, on a real Kafka; PYTEST="-k name" for a part
	@sh scripts/test.sh $(PYTEST)

check: ## format, lint, types, stubs, unit and scenario tests (under a minute)
	@sh scripts/setup.sh --no-broker
	@sh scripts/check.sh

versions: ## other versions, each beside the pinned rest (hours); KAFKA="3.9 4.0" PYTHON=3.13 PYSPARK=4.2.1 POSTGRES=18 PYTEST="-k name"
	@PYTHON= sh scripts/setup.sh
	@PYTHON= $(PY) -m tests.versions $(if $(KAFKA),--kafka $(KAFKA)) $(if $(PYTHON),--python $(PYTHON)) $(if $(PYSPARK),--pyspark $(PYSPARK)) \
		$(if $(POSTGRES),--postgres $(POSTGRES)) $(if $(GROUP),--group $(GROUP)) $(if $(TABLE),--table) $(if $(PYTEST),--pytest $(PYTEST))

explore: ## every interleaving of small worlds, with crashes and lost messages (some 5 minutes)
	@sh scripts/setup.sh --no-broker
	@$(PY) -m tests.explorer

simulate: ## 12,500 worlds on virtual time (3 minutes); SEEDS= START= for others, SEED= STAYING= replays one line by line
	@sh scripts/setup.sh --no-broker
	@$(PY) -m tests.simulation $(if $(SEED),--seed $(SEED) $(if $(STAYING),--staying),--seeds $(or $(SEEDS),10000) --start $(or $(START),1))

mutants: ## breaks the product in every way in turn, and says who notices (4 minutes); MUTANT="words" for some
	@sh scripts/setup.sh --no-broker
	@$(PY) -m tests.mutants $(MUTANT)

mutation: ## breaks each line in small ways, part by part, and lists what no test without a broker notices (hours); PART= FILE=
	@sh scripts/setup.sh --no-broker
	@$(PY) -m tests.mutation $(PART) $(if $(FILE),--file $(FILE)) $(ARGS)

fuzz: ## damaged batches of records through the compiled codec, under sanitizers (a minute); SECONDS= SEED=
	@sh native/fuzz/run.sh $(or $(SECONDS),60) $(SEED)

crash: setup ## kills every process everywhere on real brokers (two hours); SEED= SCHEDULES= PART=
	@$(PY) -m tests.crash $(if $(SEED),--seed $(SEED)) $(if $(SCHEDULES),--schedules $(SCHEDULES)) $(if $(PART),--part $(PART))
	@$(if $(SEED)$(PART),,$(PY) -m pytest -m crash tests/checker tests/integration tests/unit/sinks)

network: setup ## every link fails in every way, on real brokers (289 runs); SEED= SCENARIO= MINUTES= for a random mix
	@$(PY) -m tests.network $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SCENARIO),--scenario $(SCENARIO))

bench: setup ## speed of whole jobs; PEERS=all or flink,streams,quix,c beside ours; QUICK=1; BENCH=coordinator, latency, start, settle, reading, outputs, letters, scale or queries
	@$(PY) -m benchmarks $(BENCH) $(if $(PEERS),--peers $(PEERS)) $(if $(QUICK),--quick) $(ARGS)

docs: ## the pages as a site on 127.0.0.1:8000, rebuilt when a page changes
	@sh scripts/setup.sh --no-broker
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve --dev-addr 127.0.0.1:8000

screenshots: ## draw the pictures of the page in docs/images again, in Chromium
	@sh scripts/setup.sh --no-broker
	@sh scripts/chromium.sh
	@$(PY) -m tests.unit.web.chromium.screenshots

protos: ## generate wire/v1 from protos/
	@sh scripts/setup.sh --no-broker
	@$(PY) scripts/protos.py

setup:
	@sh scripts/setup.sh

clean: ## remove the environment, caches and state; the broker's jars stay in the user's cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
