#!/usr/bin/env bash
# Sets up the environment and holds a conversation with a recording:
#   ./talk.sh [SOUND-OR-VIDEO] [options of python -m core.talk]
# Uses a toy model with random weights unless CHECKPOINT names a real one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

"$here/scripts/setup.sh" worker
python=$here/.venv/bin/python

audio=$here/examples/hello.wav
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    audio=$1
    shift
fi

export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
checkpoint=${CHECKPOINT:-}
if [ -z "$checkpoint" ]; then
    checkpoint=$here/data/tiny
    if ! [ -d "$checkpoint" ]; then
        # Made beside its place and then moved, so that an interrupted run leaves nothing half made.
        rm -rf "$checkpoint.tmp"
        "$python" -m MiniCPMO45.tiny "$checkpoint.tmp"
        mv "$checkpoint.tmp" "$checkpoint"
    fi
fi

# What stands later on the command line wins, so every choice here can be overridden.
"$python" -m core.talk --checkpoint "$checkpoint" --mode duplex --out reply.wav \
    --audio "$audio" "$@"
