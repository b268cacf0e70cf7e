"""Full duplex as a library: settings and results of views."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from core.schemas import limits
from core.schemas.common import AudioBytes, OpenModel, SliceCount, Temperature, WireModel

FrameList = Annotated[list[str], Field(max_length=limits.FRAMES_PER_MESSAGE_MAX)]
"""Base64 pictures of one unit; the decoder rejects pictures that are too large."""


class DuplexConfig(OpenModel):
    """All settings of one duplex session."""

    generate_audio: bool = Field(True, description="Speak; false: text only.")
    ls_mode: Literal["explicit"] = "explicit"
    """How the model decides to listen or speak; must be explicit."""
    force_listen_count: int = Field(3, ge=0, le=1_000)
    """Initial units in which the model must listen."""
    max_new_speak_tokens_per_chunk: int = Field(
        20,
        ge=1,
        le=200,
        description="Most steps of one unit: the decision to listen or to speak, tokens of text,"
        " and the end of the unit. At most N - 2 tokens are spoken, at least one is allowed.",
    )
    temperature: Temperature = 0.7
    top_k: int = Field(20, ge=0, le=200_000, description="Candidates kept; 0 keeps all.")
    top_p: float = Field(0.8, gt=0, le=1, description="Nucleus: probability mass kept.")
    listen_prob_scale: float = Field(1.0, ge=0, le=100)
    """Above 1 the model speaks less, below 1 more."""
    chunk_ms: int = Field(limits.UNIT_MS, ge=limits.UNIT_MS, le=limits.UNIT_MS)
    """Length of one unit and of each audio_chunk, ms; must be 1000."""
    sample_rate: int = Field(
        limits.INPUT_SAMPLE_RATE_HZ, ge=limits.INPUT_SAMPLE_RATE_HZ, le=limits.INPUT_SAMPLE_RATE_HZ
    )
    """Samples per second of the audio sent; must be 16000."""
    decode_mode: Literal["sampling", "greedy"] = "sampling"
    """Sample, or take the most likely token."""
    listen_top_k: int | None = Field(None, ge=1, le=200_000)
    """Listen if listening is among the k most likely tokens."""
    text_repetition_penalty: float = Field(1.05, ge=0.1, le=5)
    """Above 1 discourages tokens spoken before."""
    text_repetition_window_size: int = Field(512, ge=0, le=40_960)
    """Tokens considered by the repetition penalty."""
    length_penalty: float = Field(1.1, ge=0.1, le=5)
    """Above 1 makes replies longer and harder to interrupt."""
    tts_temperature: float = Field(0.8, ge=0, le=2)
    """Variation of the voice; 0 takes the most likely token."""
    max_slice_nums: SliceCount = Field(1, description="Most tiles per picture.")


class DuplexGenerateResult(WireModel):
    """Outcome of one unit."""

    is_listen: bool = Field(description="The model stayed silent.")
    text: str = Field("", description="New text; empty when listening.")
    audio_data: AudioBytes | None = None
    """New audio: Base64 of float32, mono, 24 kHz; none when listening."""
    end_of_turn: bool = Field(False, description="The model has finished its turn.")
    current_time: int = Field(0, ge=0, description="Audio received so far, ms.")
    cost_llm_ms: float = Field(0.0, ge=0)
    """Time of the language model: reading the unit, deciding, words, ms."""
    cost_read_ms: float = Field(0.0, ge=0)
    """Part of it: reading the unit, where it is measured apart, ms."""
    cost_tts_prep_ms: float | None = Field(None, ge=0)
    """Time to prepare the speech decoder, ms."""
    cost_tts_ms: float = Field(0.0, ge=0, description="Time of the speech decoder, ms.")
    cost_token2wav_ms: float | None = Field(None, ge=0, description="Time of the vocoder, ms.")
    cost_all_ms: float = Field(
        0.0,
        ge=0,
        description="Time of the whole unit, ms; stays under chunk_ms in real time. Prefill, "
        "generate and the finalize that came before this result.",
    )
    n_tokens: int = Field(0, ge=0)
    """Tokens of the language model: decision, words, end."""
    n_tts_tokens: int = Field(0, ge=0, description="Speech tokens drawn.")
    prefill_ms: float = Field(0.0, ge=0)
    """Time to encode the unit's audio and pictures, ms."""
    kv_cache_length: int = Field(0, ge=0, description="Tokens in the KV cache.")
    vision_slices: int = Field(0, ge=0, description="Tiles of the unit's pictures.")
    vision_tokens: int = Field(0, ge=0, description="Tokens of those tiles.")
    server_send_ts: float | None = Field(None, ge=0, description="When it was sent, Unix seconds.")
