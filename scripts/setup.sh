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

# The first line of the stamp is what the environment was made from, the second what is in it.
# The tools' own settings, which follow in pyproject.toml, install nothing.
wanted_from=$(sed '/^\[tool\./,$d' pyproject.toml | cat - constraints.txt | cksum)
if [ -f "$stamp" ]; then
    { read -r made_from; read -r present; } <"$stamp"
    if [ "$made_from" = "$wanted_from" ]; then
        missing=0
        for extra in ${extras//,/ }; do
            [[ ",$present," == *",$extra,"* ]] || missing=1
        done
        [ "$missing" = 0 ] && exit 0
        extras=$extras,$present
    fi
fi

if ! [ -x "$venv/bin/python" ]; then
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
