#!/usr/bin/env bash
# Installs Debian packages after a question: scripts/install_packages.sh "WHAT FOR" PACKAGE...
# Asks in a terminal; with CI=true installs without a question; otherwise installs nothing.
# Ends with 0 only where it has installed them.
set -uo pipefail

purpose=$1
shift
command="apt-get install --yes --no-install-recommends $*"

command -v apt-get >/dev/null || exit 1
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
if [ "${CI:-}" = true ]; then
    [ "$(id -u)" = 0 ] || as_root=(sudo -n)
elif [ -t 0 ] && [ -t 2 ]; then
    read -r -p "$purpose need $*. Run '${as_root[*]+${as_root[*]} }$command'? [y/N] " answer
    case $answer in
    [yY]*) ;;
    *) exit 1 ;;
    esac
else
    exit 1
fi

echo "Installing $* with apt-get" >&2
# An array that may be empty, written so that an old bash takes it.
debian() { ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >&2; }
debian update
debian install --yes --no-install-recommends "$@"
