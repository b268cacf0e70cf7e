#!/usr/bin/env bash
# Prints the folder that holds a `node` (22 or newer) and an `npm` (9 or newer): the machine's own or
# the one in .venv. Ends with 1 and silence where there is neither.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

least_node=22
least_npm=9

major() {
    local version
    version=$("$@" --version 2>/dev/null | head -n 1) || return 1
    version=${version#v}
    [[ $version =~ ^[0-9]+ ]] && echo "${BASH_REMATCH[0]}"
}

is_enough() {
    local node npm
    [ -x "$1/node" ] && [ -x "$1/npm" ] || return 1
    node=$(major "$1/node") || return 1
    npm=$(PATH=$1:$PATH major "$1/npm") || return 1
    [ "$node" -ge "$least_node" ] && [ "$npm" -ge "$least_npm" ]
}

own=$(command -v node || true)
for folder in "${own%/node}" "$PWD/.venv/bin"; do
    if [ -n "$folder" ] && is_enough "$folder"; then
        echo "$folder"
        exit 0
    fi
done
exit 1
