"""One record that says which defects of the reference implementation are reproduced.

Every field defaults to False, the corrected behaviour. `Compat.reference()` switches all of them
on, which is what comparisons with recorded reference outputs need. No other flag anywhere selects
between reference and corrected behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Compat:
    """Reference defects, by number (D1 ... D34); True reproduces the defect.

    Source: docs/specification/model.md#10.
    """

    rope_in_model_dtype: bool = False  # D1 frequencies rounded to the dtype the model runs in
    exact_rope_reindex: bool = False  # D2 moved keys use exact frequencies, two rotations
    padding_mask_in_mel_frames: bool = False  # D3 encoder steps compared with mel lengths
    leak_mel_floor: bool = False  # D4 a stream's floor mode applies to later whole clips
    merge_clips: bool = False  # D5 clips of one message are joined before the mel
    keep_cnn_context: bool = False  # D6 turn-based streaming leaves context frames in
    strip_terminator_characters: bool = False  # D7 rstrip with a character set
    three_beams: bool = False  # D8 beam sampling by default, speech from beam 0
    iterate_string_content: bool = False  # D9 string content handled per character
    approximate_round_lengths: bool = False  # D10 rounds miss the reply prefix
    full_width_marks_allowed: bool = False  # D11 full-width marks are not forbidden
    raise_on_empty_reply: bool = False  # D12 a terminator as first token raises
    drop_held_token: bool = False  # D13 the token limit loses a token and the text end
    ignore_sampling_options: bool = False  # D14 caller's temperature ignored, doubled <|im_end|>
    non_streaming_raises: bool = False  # D15 the non-streaming reply path fails
    unfiltered_first_code: bool = False  # D16 first speech code unfiltered, gap at the limit
    require_final_hidden: bool = False  # D17 no speech when the last hidden state is missing
    swallow_speech_errors: bool = False  # D18 a failure in speech becomes a text-only reply
    ignore_session_settings: bool = False  # D19 per-session settings have no effect
    dangling_unit: bool = False  # D20 short audio leaves an open unit in the cache
    lose_turn_tail: bool = False  # D21 listen right after the turn end loses the tail
    keep_speech_cache_on_force_listen: bool = False  # D22 speech cache survives an interruption
    ignore_break: bool = False  # D23 the break flag does nothing
    listen_bias_on_im_end: bool = False  # D24 listen scale and rank act on <|im_end|>
    unsigned_repetition_penalty: bool = False  # D25 divides negative logits, never cleared
    sample_in_model_dtype: bool = False  # D26 unit decisions are drawn in the model's dtype
    plain_duplex_speech_sampling: bool = False  # D27 ignores an asked-for filtered sampling
    freeze_token_rate_cache: bool = False  # D28 token-rate history frozen after 50 codes
    keep_sixteen_flow_steps: bool = False  # D29 flow caches sized for 16 steps
    repeat_window_tail: bool = False  # D30 a window ending on the last code repeats 3 codes
    zero_vision_tokens: bool = False  # D31 vision token count is reported as 0
    debug_checksums: bool = False  # D32 cache checksums are computed and logged per turn
    keep_hearing_across_sessions: bool = False  # D33 prepare keeps the audio-encoder cache
    drop_first_audio_cache: bool = False  # D34 the first prefill's audio cache is dropped
    recompute_per_dropped_unit: bool = False  # section 6.9: carried text is fed again per unit
    close_units_at_once: bool = False  # section 6.6: a unit is closed in a forward pass of its own
    quantise_voice_to_16_bits: bool = False  # section 7.1: a voice passes through a 16-bit file

    @classmethod
    def reference(cls) -> Compat:
        """Return the record with every defect reproduced."""
        return cls(**{field.name: True for field in fields(cls)})
