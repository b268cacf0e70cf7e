.PHONY: check fix

check:
	./run_tests.sh

fix:
	scripts/setup.sh gateway,worker,dev
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .
