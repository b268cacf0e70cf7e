#!/usr/bin/env bash
# Starts everything: sets up the environment, then workers and gateway; watches and stops them.
#   ./start_all.sh [--workers N] [--http] [--port P] [--config FILE] [--detach]
#   ./start_all.sh --status | --stop | --help
#   ./start_all.sh --ray ADDRESS [--workers N|MIN:MAX] ...   # over many machines: docs/ray.md
# Settings: config.example.json, copied to config.json; or OMNI_<SECTION>_<KEY>.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")") # where a symbolic link to this file points
python=$here/.venv/bin/python
extras=gateway,worker
case " $* " in *" --ray"*) extras+=,ray ;; esac

# Without the pages' libraries everything works but their pictures: said there, and no reason to stop.
install() {
    "$here/scripts/setup.sh" "$extras" && { "$here/scripts/setup.sh" pages || true; }
}

# In a process group of its own, so that whatever ends this script ends pip as well.
set_up() {
    trap 'interrupted 130' INT
    trap 'interrupted 143' TERM HUP
    set -m
    install </dev/null &
    set +m
    wait "$!"
    trap - INT TERM HUP
}

interrupted() {
    kill -TERM -- "-${!:-}" 2>/dev/null || true
    wait "${!:-}" || true
    exit "$1"
}

if ! [ -x "$python" ]; then
    case " $* " in
        *" --status "*) echo "Not running: nothing is installed here yet."; exit 3 ;;
        *" --stop "*) echo "Not running."; exit 0 ;;
        *" --help "* | *" -h "*) sed -n '2,/^set /s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    esac
fi
case " $* " in
    *" --status "* | *" --stop "* | *" --help "* | *" -h "*) ;; # must work at once, whatever pyproject.toml says by now
    *) set_up ;;
esac

export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
exec "$python" -P -m launcher "$@"
