.PHONY: check docs fix lock map monitoring pages protocol settings

check:
	./run_tests.sh

fix:
	scripts/setup.sh gateway,worker,dev
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .
	scripts/setup.sh pages --with-checks
	PATH="$$(scripts/find_node.sh):$$PATH" npm run --silent fix

lock:
	.venv/bin/python -m scripts.lock

map:
	.venv/bin/python -m scripts.module_map

settings:
	.venv/bin/python -m scripts.settings_reference

protocol:
	.venv/bin/python -m core.schemas.export
	.venv/bin/python -m scripts.http_types

pages:
	scripts/setup.sh pages

monitoring:
	.venv/bin/python -m scripts.monitoring

docs:
	.venv/bin/python -m mkdocs build
