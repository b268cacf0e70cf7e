"""Decodes one sound file in a process of its own: `python -m gateway_modules.sound_reader f32 30`.

The file comes in on standard input and leaves at 16 kHz, mono, on standard output. So a damaged
file can harm nothing but this process, and the gateway itself never loads a decoder.
"""

from __future__ import annotations

import resource
import sys
from typing import Final

from core.audio import check_audible, encode_wav, read_audio
from core.errors import OmniError
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from gateway_modules.sounds import REFUSED_EXIT, Refusal, SoundForm

MEMORY_LIMIT_BYTES: Final = 4 * 1024**3  # ours: of addresses; the libraries alone take one
CPU_LIMIT_S: Final = 20  # ours


def main(form: SoundForm, max_duration_s: float) -> int:
    """Decode; return the exit status: 0, or `REFUSED_EXIT` with a `Refusal` on standard error.

    Args:
        form: What to write.
        max_duration_s: Longest sound accepted, s.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    try:
        samples = read_audio(sys.stdin.buffer.read(), max_duration_s=max_duration_s)
        check_audible(samples)
    except OmniError as error:
        refusal = Refusal(message=error.message, http_status=error.http_status)
        print(refusal.model_dump_json(), file=sys.stderr)
        return REFUSED_EXIT
    if form is SoundForm.WAV:
        sys.stdout.buffer.write(encode_wav(samples, INPUT_SAMPLE_RATE_HZ))
    else:
        sys.stdout.buffer.write(samples.astype("<f4", copy=False).tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(SoundForm(sys.argv[1]), float(sys.argv[2])))
