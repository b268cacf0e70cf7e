#!/usr/bin/env bash
# Makes the project's virtual environment: scripts/setup.sh EXTRA[,EXTRA...]
# Installs what the pages load with npm:    scripts/setup.sh pages [--with-checks]
# Leaves an environment that is already right untouched, so calling it again costs nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extras=${1:?usage: scripts/setup.sh EXTRA[,EXTRA...]}
if [ "$extras" = pages ]; then
    exec scripts/setup_pages.sh "${@:2}"
fi
. scripts/one_at_a_time.sh
asked=$extras
venv=.venv
stamp=$venv/installed

is_recent_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local name
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
        if command -v "$name" >/dev/null && is_recent_enough "$name"; then
            echo "$name"
            return
        fi
    done
    echo "Python 3.11 or newer was not found. Install it, or name it: PYTHON=/path/to/python3 $0" >&2
    return 1
}

# The first line of the stamp is what the environment was made from, the second what is in it, which
# is installed again with what is asked for. The tools' own settings, which follow in pyproject.toml,
# install nothing.
wanted_from=$(sed '/^\[tool\./,$d' pyproject.toml | cat - constraints.txt | cksum)
is_installed() {
    local made_from present extra
    [ -f "$stamp" ] || return 1
    { read -r made_from && read -r present; } <"$stamp" || return 1
    extras=$asked,$present
    [ "$made_from" = "$wanted_from" ] || return 1
    for extra in ${asked//,/ }; do
        [[ ",$present," == *",$extra,"* ]] || return 1
    done
}
if is_installed; then exit; fi
one_at_a_time packages
if is_installed; then exit; fi # by the one before

# Without pip the environment is one whose making was interrupted.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "Making $venv with $("$python" --version)"
    "$python" -m venv "$venv" || {
        echo "Python could not make a virtual environment (on Debian: apt install python3-venv)." >&2
        exit 1
    }
fi
is_recent_enough "$venv/bin/python" || {
    echo "$venv holds a Python older than 3.11. Remove the folder and start again." >&2
    exit 1
}

echo "Installing into $venv: $extras (the first time this fetches PyTorch, several minutes)"
"$venv/bin/python" -m pip install --constraint constraints.txt --editable ".[$extras]"
printf '%s\n%s\n' "$wanted_from" "$extras" >"$stamp"
