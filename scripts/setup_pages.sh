#!/usr/bin/env bash
# Installs the pages' libraries with npm and builds the pages: scripts/setup.sh pages [--with-checks]
# --with-checks adds what checks the pages. What is already right stays untouched.
# Comes after scripts/setup.sh EXTRA.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/one_at_a_time.sh

wanted=libraries
[ "${1:-}" = "--with-checks" ] && wanted=checks
asked=$wanted
stamp=node_modules/.installed
retry="Once the network is there, this completes them: scripts/setup.sh pages"

# The first line of the stamp is what the folder was made from, the second what is in it.
wanted_from=$(cksum <package-lock.json)
is_installed() {
    local made_from present
    [ -f "$stamp" ] || return 1
    { read -r made_from && read -r present; } <"$stamp" || return 1
    if [ "$present" = checks ]; then wanted=checks; fi # what is there stays
    [ "$made_from" = "$wanted_from" ] && [ "$present" = "$wanted" ]
}

# The checks run on node; the pages alone need it at set-up only.
is_complete() {
    is_installed && { [ "$asked" = libraries ] || scripts/find_node.sh >/dev/null; }
}

# Leaves a build that is up to date untouched. Where node has gone since, the gateway serves the
# sources if they have changed.
build() {
    local node
    node=$(scripts/find_node.sh) || return 0
    PATH=$node:$PATH node scripts/build_pages.mjs
}
if is_complete; then build; exit; fi

one_at_a_time pages
aside=.venv/pages
trap 'rm -rf "$aside" "$lock"' EXIT
if is_complete; then build; exit; fi

if ! node=$(scripts/find_node.sh); then
    echo "No npm 9 with Node 22 or newer was found; .venv gets one of its own."
    if ! scripts/setup.sh npm || ! node=$(scripts/find_node.sh); then
        echo "npm could not be installed, so the pages are slower and have no charts and waveforms. $retry" >&2
        exit 1
    fi
fi
if is_installed; then build; exit; fi

# Made aside and moved into place, so that what is there stays whole until the new one is.
rm -rf "$aside"
mkdir -p "$aside"
cp package.json package-lock.json .npmrc "$aside"
flags=(--ignore-scripts --fetch-retries=1 --fetch-retry-mintimeout=1000 --loglevel=error)
[ "$wanted" = checks ] || flags+=(--omit=dev)

echo "Installing the pages' libraries with npm"
if ! (cd "$aside" && PATH=$node:$PATH npm ci "${flags[@]}"); then
    echo "npm could not fetch the pages' libraries, so the pages are slower and have no charts and waveforms. $retry" >&2
    exit 1
fi
printf '%s\n%s\n' "$wanted_from" "$wanted" >"$aside/$stamp"
rm -rf node_modules
mv "$aside/node_modules" node_modules
build
