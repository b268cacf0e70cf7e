# Sourced in the project's folder. `one_at_a_time NAME` waits for its turn, which ends with the script.
# The lock is a symbolic link to the holder's process id; that of a process that has died is taken over.
# In a container that starts again, the holder before may have had this process's id.
one_at_a_time() {
    local holder printed=
    mkdir -p .venv
    lock=.venv/$1.lock
    until ln -s $$ "$lock" 2>/dev/null; do
        holder=$(readlink "$lock" || true)
        if [ "$holder" = $$ ] || { [ -n "$holder" ] && ! kill -0 "$holder" 2>/dev/null; }; then
            take_from "$holder" && continue
        fi
        if [ -n "$holder" ] && [ -z "$printed" ]; then
            echo "Waiting for process $holder, which holds $lock" >&2
            printed=yes
        fi
        sleep 0.2
    done
    trap 'rm -f "$lock"' EXIT
}

# Removes the link of a dead holder, unless another program is doing it: a second removal would remove
# the link of the one that holds the lock by then. Fails if it has to be tried again later.
take_from() {
    local turn=$lock.$1
    if ! ln -s $$ "$turn" 2>/dev/null; then
        kill -0 "$(readlink "$turn")" 2>/dev/null || rm -f "$turn"
        return 1
    fi
    [ "$(readlink "$lock" || true)" != "$1" ] || rm -f "$lock"
    rm -f "$turn"
}
