"""From what the model did in one unit to the `result` that the client reads. Pure."""

from __future__ import annotations

from typing import Final

from core.protocols.events import MS_PER_S, StepDone
from core.schemas.duplex import AudioChunk, Result, ResultPart
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES

BASE64_GROUP_CHARS: Final = 4
BASE64_GROUP_BYTES: Final = 3


def audio_samples(audio_base64: str) -> int:
    """Return how many float32 samples a Base64 text holds, without decoding it."""
    padding = len(audio_base64) - len(audio_base64.rstrip("="))
    size_bytes = len(audio_base64) // BASE64_GROUP_CHARS * BASE64_GROUP_BYTES - padding
    return max(0, size_bytes // SAMPLE_BYTES)


class ResultWriter:
    """Counts units, speaking turns and the audio heard, over one session."""

    def __init__(self) -> None:
        """Begin at unit 0, turn 0, listening."""
        self._steps = 0
        self._turn_id = 0
        self._is_speaking = False
        self._heard_samples = 0

    @property
    def is_speaking(self) -> bool:
        """The model is in the middle of a turn."""
        return self._is_speaking

    def write_part(self, audio_data: str, elapsed_ms: float) -> ResultPart:
        """Describe the beginning of the sound of a unit that `write` will describe.

        Args:
            audio_data: wire audio.
            elapsed_ms: Time from the chunk's arrival to now.
        """
        return ResultPart(
            audio_data=audio_data,
            turn_id=self._turn_id,
            step=self._steps,
            elapsed_ms=max(0.0, elapsed_ms),
        )

    def write(
        self, done: StepDone, chunk: AudioChunk, wall_clock_ms: float, finalize_ms: float = 0.0
    ) -> Result:
        """Describe one unit; each unit must be described once, in order.

        Args:
            done: What the model did.
            chunk: The audio it did it with.
            wall_clock_ms: Time from the chunk's arrival to now.
            finalize_ms: Time of the bookkeeping since the last result.
        """
        given = done.result
        self._heard_samples += audio_samples(chunk.audio)
        # Listening on for want of audio says nothing about the turn.
        is_barge_in = done.was_fed and given.is_listen and self._is_speaking
        fields = dict(given) | {
            "text": "" if given.is_listen else given.text,
            "audio_data": "" if given.is_listen else given.audio_data or "",
            "current_time": self._heard_samples * MS_PER_S // INPUT_SAMPLE_RATE_HZ,
            "cost_all_ms": given.cost_all_ms + finalize_ms,
            "wall_clock_ms": max(0.0, wall_clock_ms),
            "prefill_ms": done.prefill_ms,
            "kv_cache_length": done.kv_tokens,
            "vision_slices": done.vision_slices,
            "vision_tokens": done.vision_tokens,
            "turn_id": self._turn_id,
            "step": self._steps,
            "barge_in": is_barge_in,
        }
        self._steps += 1
        if is_barge_in or (not given.is_listen and given.end_of_turn):
            self._turn_id += 1
        if done.was_fed:
            self._is_speaking = not given.is_listen and not given.end_of_turn
        return Result.model_validate(fields)
