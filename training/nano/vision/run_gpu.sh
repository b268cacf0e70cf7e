#!/usr/bin/env bash
# The eyes on one GPU; weights come back in $OUT:
#   run_gpu.sh see [MINUTES]             attributes of pictures; needs no language model
#   run_gpu.sh look [MINUTES] [PROCESSES]  through the trained language model, half of the time each:
#                                        in its words, then on questions about pictures
# Needs .nano/3/vision/stencils.npz, and for `look` what training/nano/run_gpu.sh left in .nano/work.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
work=${NANO_WORK:-.nano/work}
out=${OUT:-.nano/out}
eyes=$work/vision listening=$work/listening
mkdir -p "$eyes" "$out"

vision() {
    "${PYTHON:-python3}" -m training.nano.vision "$@" --stencils .nano/3/vision/stencils.npz \
        --out "$eyes" --device "${DEVICE:-cuda}"
}

case ${1:-} in
    see) # on the weights that are there, if any
        vision see --minutes "${2:-6}"
        ;;
    look)
        half=$(awk "BEGIN { print ${2:-4} / 2 }")
        banks=()
        for folder in "$work"/bank/*/; do banks+=(--bank "$folder"); done
        vision tell --llm "$listening" --minutes "$half"
        cp "$eyes/vision.pt" "$eyes/vision_told.pt"
        vision asked --llm "$listening" "${banks[@]}" --encoder .nano/3/encoder.pt \
            --minutes "$half" --processes "${3:-4}"
        ;;
    *)
        sed -n 's/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | head -6
        exit 2
        ;;
esac
cp "$eyes"/vision*.pt "$out/"
