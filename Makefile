# Short names for the scripts; each makes .venv/ when it is missing. A benchmark has a name: make bench ARGS=femnist
.PHONY: demo test fast docs bench

demo:
	bash scripts/demo.sh

test:
	bash scripts/test.sh

fast:
	bash scripts/test.sh --fast

docs: .venv
	.venv/bin/python scripts/docs.py

bench: .venv
	.venv/bin/python scripts/bench.py $(ARGS)

.venv:
	bash -c 'source scripts/environment.sh && ensure_environment ".[dev]"'
