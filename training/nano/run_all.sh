#!/usr/bin/env bash
# The whole nano on one rented GPU machine that takes one command of at most ten minutes at a time,
# brings a limited number of bytes with each, and may clear the working tree in between:
#   run_all.sh pack INPUTS PROGRAMS [WEIGHTS [BANK]]   lays .nano/1 to 5 out (each below 55 MB), before
#                              renting; WEIGHTS: what an earlier run brought back, to begin with;
#                              BANK: what was recorded already
#   run_all.sh stash           keeps what this command brought in .nano/, outside the working tree
#   run_all.sh start MINUTES   stashes, copies the code, starts everything in the background, holds
#   run_all.sh hold MINUTES    holds the machine, shows progress, keeps the newest weights in $OUT
#   run_all.sh unpack OUT TO   takes the weights apart that came back
# Bring the parts of .nano/ with one `stash` each, then `start` once, then `hold` until it says done.
# Machine settings: NANO_RUN (a folder of its own), CORES, and the minutes below.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
run=${NANO_RUN:-/tmp/nano_run}
out=${OUT:-$here/.nano/out}
src=$run/src logs=$run/logs parts=$run/parts work=$run/work
export CORES=${CORES:-$(nproc --all)}
quick_minutes=${QUICK_MINUTES:-1.2} foreign_minutes=${FOREIGN_MINUTES:-0.3}
held_out_minutes=${HELD_OUT_MINUTES:-0.5}
kokoro_minutes=${KOKORO_MINUTES:-3 3 3} # in parts; the brain learns from one while the next is made
brain_minutes=${BRAIN_MINUTES:-7.5} # after that, with all of them
flow_minutes=${FLOW_MINUTES:-8} hift_minutes=${HIFT_MINUTES:-14} see_minutes=${SEE_MINUTES:-11}
speech_minutes=${SPEECH_MINUTES:-9} # with the language model as it is at first
last_speech_minutes=${LAST_SPEECH_MINUTES:-3} look_minutes=${LOOK_MINUTES:-4} # as it is at last
quick=flite,espeak,pico,hibari
composers=12 # at most, for each GPU of the brain; each makes 2 to 4 batches of conversations a second

part() { dd if="$1" of="$4" bs=1000000 skip="$2" count="$3" status=none; }

pack() {
    local to=$here/.nano program
    for program in bin/espeak-ng bin/flite share/espeak-ng-data; do
        [ -e "$2/$program" ] || { echo "no $program in $2" >&2 && exit 1; }
    done
    mkdir -p "$to/1" "$to/2" "$to/3"
    part "$1/kokoro.onnx" 0 8 "$to/3/kokoro.0"
    part "$1/kokoro.onnx" 8 53 "$to/1/kokoro.1"
    part "$1/kokoro.onnx" 61 1000 "$to/2/kokoro.2"
    cp -a "$1/hibari" "$1/py_nanotts" "$to/2/"
    rm -f "$to/2/py_nanotts/lang/"{de,es,fr,it}-* # it speaks English alone here
    cp -a "$1/styles" "$1/encoder.pt" "$to/3/"
    tar czf "$to/3/engines.tar.gz" -C "$2" .
    if [ -n "${3:-}" ]; then
        mkdir -p "$to/4"
        cp "$3"/*.pt "$to/4/"
    fi
    if [ -n "${4:-}" ]; then
        "${PYTHON:-python3}" -m training.nano compress --bank "$4" --out "$to/5/bank"
    fi
    du -sb "$to"/*
}

# Says what was not brought; everything is found out before the first minute is paid for.
lack() {
    local file missing=0
    for file in 1/kokoro.1 2/kokoro.2 2/hibari 2/py_nanotts 2/voice/texts.json 3/kokoro.0 \
        3/styles 3/encoder.pt 3/engines.tar.gz 3/vision/stencils.npz; do
        [ -e "$parts/$file" ] && continue
        echo "not brought: .nano/$file" >&2
        missing=1
    done
    [ $missing = 1 ]
}

# Stages go on from what they find.
take_earlier_work() {
    local path name
    for path in "$parts"/4/*.pt; do
        [ -e "$path" ] || continue
        name=$(basename "$path")
        case $name in
            vision*) cp "$path" "$work/vision/" ;;
            *) cp "$path" "$work/listening/" ;;
        esac
    done
    if [ -e "$parts/4/voice.npz" ]; then
        cp "$parts"/4/voice*.npz "$work/voice/"
    fi
}

expand_brought_bank() {
    [ ! -e "$parts/5/bank" ] || PYTHONPATH=$src${PYTHONPATH:+:$PYTHONPATH} stage expand \
        "${PYTHON:-python3}" -m training.nano expand --compressed "$parts/5/bank" --out "$work/bank"
}

stash() {
    mkdir -p "$parts"
    cp -a "$here/.nano/." "$parts/"
    du -sb "$parts"/*
}

begin() {
    if lack; then exit 1; fi
    mkdir -p "$src" "$logs" "$run/out"
    cp -a "$here/MiniCPMO45" "$here/training" "$here/core" "$src/"
    ln -sfn "$parts" "$src/.nano"
    setsid nohup bash "$src/training/nano/run_all.sh" everything \
        >"$logs/everything.log" 2>&1 </dev/null &
}

gpus=$( (nvidia-smi --list-gpus 2>/dev/null || true) | wc -l)
brain_gpus=${BRAIN_GPUS:-$((gpus > 2 ? gpus - 2 : 1))}

# The GPU of what is not the brain: 0 speech and flow, 1 eyes, 2 vocoder; the last is shared.
device() {
    local number=$((brain_gpus + $1))
    echo "${DEVICE:-cuda:$((number < gpus ? number : gpus > 0 ? gpus - 1 : 0))}"
}

# On all that is recorded: for so many minutes of so many, with so many processes a GPU.
listen() { GPUS=$brain_gpus stage listen training/nano/run_gpu.sh listen "$@"; }

# One line in steps.log when a stage ends, whatever becomes of it.
stage() {
    local name=$1 status=0
    shift
    "$@" >>"$logs/$name.log" 2>&1 || status=$?
    echo "$SECONDS s: $name ended with $status" >>"$logs/steps.log"
}

# A stage that may be left out: 0 minutes.
timed() {
    local minutes=$1 name=$2 script=$3
    [ "$minutes" = 0 ] || stage "$name" "$script" "${name#last_}" "$minutes"
}

speak_and_sound() {
    local voice=training/nano/voice/run_gpu.sh sound for_speech for_vocoder
    for_speech=$(device 0) for_vocoder=$(device 2)
    stage voice_record "$voice" record
    DEVICE=$for_vocoder FLOW_DEVICE=$for_speech stage sound "$voice" sound "$flow_minutes" \
        "$hift_minutes" &
    sound=$!
    DEVICE=$for_speech timed "$speech_minutes" speech "$voice"
    wait "$sound"
}

record_beside() {
    local ears=training/nano/run_gpu.sh number=$1
    if [ "$number" = 1 ]; then
        stage record_foreign nice -n 3 "$ears" record foreign "$quick" \
            "$foreign_minutes" "$spare" --no-own-voice --foreign .nano/2/voice/texts.json
        [ "$held_out_minutes" = 0 ] ||
            stage record_held_out "$ears" held-out "$held_out_minutes" "$CORES"
    fi
    SEED=$number stage "record_kokoro_$number" nice -n 5 "$ears" record "kokoro$number" kokoro \
        "$2" "$spare" --no-own-voice
}

everything() {
    cd "$src"
    export OUT=$run/out NANO_WORK=$work
    local ears=training/nano/run_gpu.sh voice=training/nano/voice/run_gpu.sh
    local eyes=training/nano/vision/run_gpu.sh
    local some=$((CORES / 3 / brain_gpus)) all=$((CORES * 3 / 4 / brain_gpus))
    some=$((some < composers ? some : composers)) all=$((all < composers ? all : composers))
    local spare=$((CORES - brain_gpus * (some + 1) - 2))
    spare=$((spare > 1 ? spare : 1))
    mkdir -p "$NANO_WORK/listening" "$NANO_WORK/vision" "$NANO_WORK/voice" "$OUT"
    echo "0 s: begun on $CORES cores, the brain on $brain_gpus of $gpus GPUs" >"$logs/steps.log"
    take_earlier_work
    expand_brought_bank &
    local expanding=$!
    local for_speech for_eyes
    for_speech=$(device 0) for_eyes=$(device 1)
    speak_and_sound &
    local voices=$! seeing recording minutes number=0 all_minutes
    DEVICE=$for_eyes timed "$see_minutes" see "$eyes" &
    seeing=$!
    stage unpack "$ears" unpack
    stage record_quick nice -n 3 "$ears" record quick "$quick" "$quick_minutes" "$CORES"
    wait "$expanding"
    all_minutes=$(awk "BEGIN { print ${kokoro_minutes// / + } + $brain_minutes }")
    for minutes in $kokoro_minutes; do
        number=$((number + 1))
        record_beside "$number" "$minutes" &
        recording=$!
        listen "$minutes" "$all_minutes" "$some"
        wait "$recording"
    done
    listen "$brain_minutes" "$all_minutes" "$all"
    [ "$held_out_minutes" = 0 ] || stage examine "$ears" examine &
    local exam=$!
    wait "$voices" "$seeing"
    DEVICE=$for_speech timed "$last_speech_minutes" last_speech "$voice" &
    local speech=$!
    timed "$look_minutes" look "$eyes"
    wait "$speech" "$exam"
    echo "$SECONDS s: done" >>"$logs/steps.log"
    touch "$run/done"
}

# Few files, none large: the newest weights as a tar in parts.
bring() {
    mkdir -p "$out" "$run/bringing"
    cp "$work"/listening/*.pt "$work"/vision/vision*.pt "$run/bringing/" 2>/dev/null || true
    tar cf "$run/weights.tar" -C "$run/bringing" .
    split -b 15000000 -d "$run/weights.tar" "$out/weights.tar."
}

hold() {
    local end=$((SECONDS + $(awk "BEGIN { print int(60 * $1) }")))
    while [ $SECONDS -lt $end ] && [ ! -e "$run/done" ]; do
        sleep 10
        bring
    done
    bring
    cat "$logs/steps.log"
    for log in "$logs"/*.log; do
        printf '== %s\n' "$(basename "$log")"
        tr '\r' '\n' <"$log" | sed '/^$/d' | tail -n 4 | cut -c1-200
    done
    [ -e "$run/done" ] && echo "done" || echo "not done yet: hold on"
}

case ${1:-} in
    pack) pack "$2" "$3" "${4:-}" "${5:-}" ;;
    stash) stash ;;
    start)
        [ ! -d "$here/.nano" ] || stash
        begin
        hold "${2:-9}"
        ;;
    hold) hold "${2:-9}" ;;
    unpack)
        mkdir -p "$3"
        cat "$2"/weights.tar.* | tar xf - -C "$3"
        ;;
    everything) everything ;;
    *)
        sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 2
        ;;
esac
