#!/usr/bin/env bash
# Sets up the environment, then runs every check and every test. Exits 0 only if all passed.
#   PYTEST_ARGS="-m nightly -x"   is added to pytest's command line
#   MINICPMO_GOLDENS=DIR          compares with the recordings in DIR too
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1

scripts/setup.sh gateway,worker,dev || exit 1

python=.venv/bin/python
# One thread a process: the tests run on all cores, and toy tensors gain nothing from more threads.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
failed=()

stage() {
    local name=$1 start=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    if "$@"; then
        printf '   %s: passed in %d s\n' "$name" $((SECONDS - start))
    else
        printf '   %s: FAILED after %d s\n' "$name" $((SECONDS - start))
        failed+=("$name")
    fi
}

stage "lint" "$python" -m ruff check .
stage "format" "$python" -m ruff format --check .
stage "types" "$python" -m mypy

printf '\n== tests\n'
read -r -a extra_args <<<"${PYTEST_ARGS:-}"
# A file's tests stay in one process: recordings share what was computed from them.
"$python" -m pytest -n auto --dist loadfile ${extra_args[@]+"${extra_args[@]}"} || failed+=("tests")

if [ ${#failed[@]} -gt 0 ]; then
    printf '\nFailed: %s\n' "${failed[*]}"
    exit 1
fi
