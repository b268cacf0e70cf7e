#!/usr/bin/env bash
# Sets up the environment, then runs every check and every test. Exits 0 only if all passed.
#   PYTEST_ARGS="-m nightly -x"   is added to pytest's command lines
#   MINICPMO_GOLDENS=DIR          compares with the recordings in DIR too
#   CHROMIUM=/path/to/chromium    is the browser; else it is found, or Debian's is installed
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1

scripts/setup.sh gateway,worker,dev,browser,bench || exit 1
scripts/setup.sh pages --with-checks || exit 1
node=$(scripts/find_node.sh) || exit 1
CHROMIUM=$(scripts/find_chromium.sh) || exit 1
export CHROMIUM
[ ! -e assets/nano/SHA256SUMS ] || scripts/find_gate_programs.sh || exit 1

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

page_types() {
    local project status=0
    for project in tsconfig.json tsconfig.worklet.json tsconfig.tests.json; do
        PATH=$node:$PATH node_modules/.bin/tsc -p "$project" || status=1
    done
    return $status
}

page_modules() {
    local told status=0
    told=$(find tests/js -name '*.test.js' -print0 |
        xargs -0 "$node/node" --test --test-reporter=spec 2>&1) || status=1
    if [ $status = 0 ]; then tail -n 9 <<<"$told"; else printf '%s\n' "$told"; fi
    return $status
}

read -r -a extra_args <<<"${PYTEST_ARGS:-}"
nothing_chosen=5 # pytest's exit status; fine where PYTEST_ARGS chooses among the tests

run_pytest() {
    "$python" -m pytest "$@" ${extra_args[@]+"${extra_args[@]}"}
    local status=$?
    [ $status = 0 ] || { [ $status = $nothing_chosen ] && [ -n "${PYTEST_ARGS:-}" ]; }
}

# What they need is fetched from PyPI and npm.
gates() { PATH=$node:$PATH run_pytest tests/gates -rsx; }

stage "lint" "$python" -m ruff check .
stage "format" "$python" -m ruff format --check .
stage "types" "$python" -m mypy
stage "types of the pages" page_types
stage "modules of the pages" page_modules
# A file's tests stay in one process: recordings share what was computed from them.
stage "tests" run_pytest --ignore=tests/browser --ignore=tests/gates -n auto --dist loadfile
# One process: all gates share a loaded model. Skipped and expected failures are told with reasons.
stage "gates of the embedded model" gates
# Each process has a system and up to two browsers of its own.
stage "browser tests" run_pytest tests/browser --ignore=tests/browser/measured \
    -n auto --maxprocesses 4 --dist loadfile
# What is measured has the machine to itself.
stage "measured browser tests" run_pytest tests/browser/measured -rP

if [ ${#failed[@]} -gt 0 ]; then
    printf '\nFailed: %s\n' "${failed[*]}"
    exit 1
fi
