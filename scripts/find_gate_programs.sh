#!/usr/bin/env bash
# Ends with 0 where the programs are there that the gates of the embedded model are measured with:
# voices that speak to it, and fonts. Offers to install them (scripts/install_packages.sh).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1

packages=(espeak-ng flite fonts-liberation)

are_here() {
    command -v espeak-ng >/dev/null && command -v flite >/dev/null &&
        [ -e /usr/share/fonts/truetype/liberation/LiberationSerif-Italic.ttf ]
}

are_here && exit
./install_packages.sh "The gates of the embedded model" "${packages[@]}" && are_here && exit
echo "The gates of the embedded model need: apt install ${packages[*]}" >&2
exit 1
