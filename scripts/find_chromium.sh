#!/usr/bin/env bash
# Prints the path of a Chromium that starts: scripts/find_chromium.sh [--look-only]
# Installs Debian's where there is none and that is possible, unless it is only to look.
# CHROMIUM=/path/to/chromium names one. Ends with 1 and a sentence where there is none.
set -uo pipefail

starts() {
    "$1" --version 2>/dev/null | grep -Eq '^(Chromium|Google Chrome) [0-9]+'
}

look() {
    local name path
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        if path=$(command -v "$name") && starts "$path"; then
            echo "$path"
            return
        fi
    done
    return 1
}

if [ -n "${CHROMIUM:-}" ]; then
    if starts "$CHROMIUM"; then
        command -v "$CHROMIUM"
        exit
    fi
    echo "CHROMIUM=$CHROMIUM does not start; name one that does, or leave the variable out." >&2
    exit 1
fi

look && exit

missing="The browser tests need Chromium: install it (on Debian: apt install chromium), or name it:"
missing="$missing CHROMIUM=/path/to/chromium ./run_tests.sh"
if [ "${1:-}" = "--look-only" ]; then
    echo "$missing" >&2
    exit 1
fi

as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
    echo "Installing Debian's chromium for the browser tests" >&2
    # An array that may be empty, written so that an old bash takes it.
    debian() { DEBIAN_FRONTEND=noninteractive ${as_root[@]+"${as_root[@]}"} apt-get -qq "$@" >&2; }
    debian update
    debian install --yes --no-install-recommends chromium && look && exit
fi
echo "$missing" >&2
exit 1
