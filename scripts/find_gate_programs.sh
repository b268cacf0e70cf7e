#!/usr/bin/env bash
# Sees to what the embedded model's gates are measured with: voices that speak to it, and fonts.
# Installs Debian's where that is possible. Ends with 1 and a sentence where something is missing.
set -uo pipefail

packages=(espeak-ng flite fonts-liberation)

are_here() {
    command -v espeak-ng >/dev/null && command -v flite >/dev/null &&
        [ -e /usr/share/fonts/truetype/liberation/LiberationSerif-Italic.ttf ]
}

are_here && exit

as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
    echo "Installing Debian's ${packages[*]} for the gates of the embedded model" >&2
    # An array that may be empty, written so that an old bash takes it.
    debian() { DEBIAN_FRONTEND=noninteractive ${as_root[@]+"${as_root[@]}"} apt-get -qq "$@" >&2; }
    debian update
    debian install --yes --no-install-recommends "${packages[@]}" && are_here && exit
fi
echo "The gates of the embedded model need: apt install ${packages[*]}" >&2
exit 1
