#!/usr/bin/env bash
# Sets up the environment and holds a conversation with a recording:
#   ./talk.sh [SOUND-OR-VIDEO] [options of python -m core.talk]
# Without CHECKPOINT it uses the embedded model, or a toy with random weights where there is none.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

"$here/scripts/setup.sh" worker
python=$here/.venv/bin/python

audio=$here/examples/hello.wav
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    audio=$1
    shift
fi

# Made beside its place and then moved, so that an interrupted run leaves nothing half made.
make_checkpoint() {
    [ -d "$1" ] && return
    rm -rf "$1.tmp"
    "$python" -m "$2" "$1.tmp" && mv "$1.tmp" "$1"
}

export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
checkpoint=${CHECKPOINT:-}
if [ -z "$checkpoint" ]; then
    checkpoint=$here/data/nano
    { [ -e "$here/assets/nano/SHA256SUMS" ] && make_checkpoint "$checkpoint" core.nano_assets; } || {
        checkpoint=$here/data/tiny
        make_checkpoint "$checkpoint" MiniCPMO45.tiny
    }
fi

# What stands later on the command line wins, so every choice here can be overridden.
"$python" -m core.talk --checkpoint "$checkpoint" --mode duplex --out reply.wav \
    --audio "$audio" "$@"
