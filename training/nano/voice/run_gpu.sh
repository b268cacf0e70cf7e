#!/usr/bin/env bash
# The voice on one GPU, in commands of under ten minutes; weights come back in $OUT:
#   run_gpu.sh record            speaks the texts (about a minute on 16 cores)
#   run_gpu.sh sound [FLOW_MINUTES [HIFT_MINUTES]]   side by side, 0 for none; again to go on
#   run_gpu.sh speech [MINUTES]  the speech decoder, after the language model
# Needs .nano/2/hibari, .nano/2/voice/texts.json (`python -m training.nano.voice texts`), and for
# `speech` what training/nano/run_gpu.sh left in .nano/work.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
export PYTHONPATH=$PWD:$PWD/.nano/2${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
work=${NANO_WORK:-.nano/work}
out=${OUT:-.nano/out}
device=${DEVICE:-cuda}
data=$work/voice weights=$work/listening
mkdir -p "$data" "$weights" "$out"

voice() { "${PYTHON:-python3}" -m training.nano.voice "$@"; }

save() { for name in "$@"; do cp "$weights/$name" "$out/" 2>/dev/null || true; done; }

case ${1:-} in
    record)
        [ ! -e "$data/voice.npz" ] || exit 0 # brought along
        voice record --texts .nano/2/voice/texts.json --data "$data" ${MOST:+--most "$MOST"}
        ;;
    sound)
        flow_minutes=${2:-8} hift_minutes=${3:-14} status=0 flow=''
        if [ "$flow_minutes" != 0 ]; then
            voice flow --data "$data" --out "$weights" --device "${FLOW_DEVICE:-$device}" \
                --minutes "$flow_minutes" --steps "${STEPS:-1000000}" \
                --batch "${FLOW_BATCH:-32}" >"$out/flow.log" 2>&1 &
            flow=$!
        fi
        if [ "$hift_minutes" != 0 ]; then
            going_on=0.15
            [ ! -e "$weights/hift_judges.pt" ] || going_on=0
            voice hift --data "$data" --out "$weights" --device "$device" \
                --minutes "$hift_minutes" --steps "${STEPS:-1000000}" \
                --batch "${HIFT_BATCH:-32}" --judges-from "$going_on" \
                >"$out/hift.log" 2>&1 || status=$?
        fi
        [ -z "$flow" ] || wait "$flow" || status=$?
        for log in "$out/flow.log" "$out/hift.log"; do
            [ ! -e "$log" ] || tail -c 300 "$log"
        done
        save flow.pt hift.pt hift_judges.pt
        exit "$status"
        ;;
    speech)
        talks=()
        [ ! -d "$work/bank" ] || talks=(--bank "$work/bank" --encoder .nano/3/encoder.pt)
        voice tts --data "$data" --out "$weights" --device "$device" --minutes "${2:-7}" \
            --steps "${STEPS:-1000000}" ${talks[@]+"${talks[@]}"}
        save tts.pt
        ;;
    *)
        sed -n 's/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | head -6
        exit 2
        ;;
esac
