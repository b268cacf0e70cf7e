#!/usr/bin/env bash
# Sets up the environment and holds a conversation with a recording:
#   ./talk.sh [SOUND-OR-VIDEO] [options of python -m core.talk]
# Without CHECKPOINT it uses the embedded model, or a toy with random weights where there is none.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")") # where a symbolic link to this file points

"$here/scripts/setup.sh" worker
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
exec "$here/.venv/bin/python" -P -m launcher.command talk "$@"
