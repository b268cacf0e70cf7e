.PHONY: check fix map preloads protocol

check:
	./run_tests.sh

fix:
	scripts/setup.sh gateway,worker,dev
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .

map:
	.venv/bin/python -m scripts.module_map

protocol:
	.venv/bin/python -m core.schemas.export

preloads:
	.venv/bin/python -m scripts.preloads
