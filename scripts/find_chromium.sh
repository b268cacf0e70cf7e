#!/usr/bin/env bash
# Prints the path of a Chromium that starts: scripts/find_chromium.sh [--look-only]
# Where there is none, offers to install Debian's (scripts/install_packages.sh), unless it is only
# to look. CHROMIUM=/path/to/chromium names one. Ends with 1 and a sentence where there is none.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1

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
if [ "${1:-}" != "--look-only" ]; then
    ./install_packages.sh "The browser tests" chromium && look && exit
fi
echo "The browser tests need Chromium: install it (on Debian: apt install chromium)," \
    "or name it: CHROMIUM=/path/to/chromium" >&2
exit 1
