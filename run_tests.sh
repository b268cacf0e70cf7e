#!/usr/bin/env bash
# Sets up the environment, then runs every check and every test. Exits 0 only if all passed.
#   --all                         adds what takes longer: products of combinations, interpreted
#                                 kernels, what is measured in real time, the gates at full size
#   PYTEST_ARGS="-k queue -x"     is added to pytest's command lines
#   MINICPMO_GOLDENS=DIR          compares with the recordings in DIR too
#   CHROMIUM=/path/to/chromium    is the browser; else it is looked for
#   CI=true                       installs missing system packages without a question
# Each stage leaves a JUnit file and its slowest tests in data/tests.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1

extras=gateway,worker,webrtc,dev,browser,bench
[[ " $* " == *" --all "* ]] && extras+=,charts,stores,ray
scripts/setup.sh "$extras" || exit 1
scripts/setup.sh pages --with-checks || exit 1
node=$(scripts/find_node.sh) || exit 1

without=()
if browser=$(scripts/find_chromium.sh); then
    export CHROMIUM=$browser
elif [ -n "${CHROMIUM:-}" ]; then
    exit 1 # the one that was named does not start
else
    without+=(--without browser)
fi
case " $* " in
*" --all "*) scripts/find_gate_programs.sh || without+=(--without gates) ;;
esac

# Kept compiled even where that is turned off, as in images of containers: each process of the tests
# would compile them all anew.
unset PYTHONDONTWRITEBYTECODE
# One thread a process: the tests run on all cores, and toy tensors gain nothing from more threads.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
PATH=$node:$PATH exec .venv/bin/python -m scripts.run_stages "$@" ${without[@]+"${without[@]}"}
