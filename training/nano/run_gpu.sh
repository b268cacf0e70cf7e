#!/usr/bin/env bash
# Listening on one GPU, unattended; everything stops by itself and can be started again:
#   run_gpu.sh unpack
#   run_gpu.sh record NAME ENGINES MINUTES [PROCESSES] [OPTION …]   speaks a part of the bank
#   run_gpu.sh held-out MINUTES [PROCESSES]                         speaks for the examination
#   run_gpu.sh listen MINUTES_NOW MINUTES_IN_ALL [PROCESSES]        trains on the parts that are complete,
#                                                                  on the first $GPUS GPUs of several
#   run_gpu.sh examine
# What it needs lies in .nano/ (README.md says what); weights go to $OUT, the rest to .nano/work.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
work=${NANO_WORK:-.nano/work}
out=${OUT:-.nano/out}
cores=${CORES:-$(nproc --all)} # plain nproc obeys OMP_NUM_THREADS
seed=${SEED:-0}
mkdir -p "$work/bank" "$work/listening" "$out"

gpus=${GPUS:-1}

nano() { "${PYTHON:-python3}" -m training.nano "$@"; }

nano_on_all_gpus() {
    if [ "$gpus" = 1 ]; then
        nano "$@"
    else
        NCCL_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo "${PYTHON:-python3}" -m torch.distributed.run \
            --nproc-per-node "$gpus" --master-addr 127.0.0.1 -m training.nano "$@"
    fi
}

voices() {
    nano record --hibari .nano/2 --kokoro "$work/kokoro.onnx" --styles .nano/3/styles \
        --programs "$work/engines" "$@"
}

# A part joins the bank when it is whole, so that training can begin before the others are.
record() {
    local name=$1 engines=$2 minutes=$3 processes=${4:-$cores}
    shift $(($# < 4 ? $# : 4))
    voices --out "$work/making_$name" --engines "$engines" --minutes "$minutes" \
        --processes "$processes" --seed "$seed" "$@"
    for folder in "$work/making_$name"/*; do
        mv "$folder" "$work/bank/$name-$(basename "$folder")"
    done
}

case ${1:-} in
    unpack)
        mkdir -p "$work/engines"
        tar xzf .nano/3/engines.tar.gz -C "$work/engines"
        cat .nano/3/kokoro.0 .nano/1/kokoro.1 .nano/2/kokoro.2 >"$work/kokoro.onnx"
        ;;
    record)
        shift
        record "$@"
        ;;
    held-out)
        voices --out "$work/held_out" --engines kokoro,flite,espeak --held-out --no-own-voice \
            --minutes "$2" --processes "${3:-$cores}" --seed 77
        ;;
    listen) # on the weights that are there, if any
        plan=(--bank "$work/bank" --encoder .nano/3/encoder.pt --out "$work/listening"
            --steps 1000000 --minutes-now "$2" --minutes "$3" --units "${UNITS:-1024}"
            --rate "${RATE:-1.5e-3}" --processes "${4:-$((cores - 2))}"
            --device "${DEVICE:-cuda}" --seed "$seed")
        # Where GPUs cannot meet, one is better than none.
        nano_on_all_gpus listen "${plan[@]}" || { [ "$gpus" -gt 1 ] && nano listen "${plan[@]}"; }
        cp "$work/listening/listening.pt" "$out/"
        ;;
    examine)
        nano examine --bank "$work/held_out" --encoder .nano/3/encoder.pt \
            --out "$work/listening" --batches "${BATCHES:-6}" --device "${DEVICE:-cuda}"
        ;;
    *)
        sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 2
        ;;
esac
