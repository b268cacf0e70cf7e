"""Messages of the server, and what a client may set.

Generated from the server's own models by `python -m core.schemas.export`; do not edit.
"""
# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypedDict, get_args, get_type_hints

from minicpmo_live.sound import HasSound

Role = Literal["system", "user", "assistant"]  # Author of a message.
TTSMode = Literal["default", "audio_assistant", "omni", "audio_roleplay", "voice_cloning"]  # Use of the voice sample in the system prompt.
ErrorCode = Literal["queue_full", "queue_cancelled", "no_worker", "shutting_down", "worker_unreachable", "worker_lost", "not_prepared", "already_prepared", "out_of_order", "bad_json", "bad_audio", "bad_frame", "bad_config", "too_big", "unknown_type", "session_in_use", "session_expired", "invalid_session_id", "timeout", "late_chunk", "context_nearly_full", "context_full", "generation_failed", "not_available", "one_voice", "voice_cut", "recording_stopped", "disk_full", "ended_by_admin", "app_disabled", "origin_refused", "unauthorized", "forbidden", "rate_limited", "not_found", "still_writing", "internal"]  # The `code` of an `error` or `warning` message.


class AudioContent(TypedDict, total=False):
    """An audio clip."""

    type: Literal["audio"]
    data: str  # Base64 of little-endian float32 samples, mono, 16 kHz, at most 10 min.
    sample_rate: int  # Samples per second; must be 16000.


class BargeInConfig(TypedDict, total=False):
    """The server interrupts the model when it detects the user's speech."""

    threshold: float  # Probability at which speech begins; lower is more sensitive.
    min_speech_duration_ms: int  # Shorter bursts are ignored, ms.


class DuplexConfig(TypedDict, total=False):
    """All settings of one duplex session."""

    generate_audio: bool  # Speak; false: text only.
    ls_mode: Literal["explicit"]  # How the model decides to listen or speak; must be explicit.
    force_listen_count: int  # Initial units in which the model must listen.
    max_new_speak_tokens_per_chunk: int  # Most steps of one unit: the decision to listen or to speak, tokens of text, and the end of the unit. At most N - 2 tokens are spoken, at least one is allowed.
    temperature: float  # Higher is more varied; 0 takes the likeliest token.
    top_k: int  # Candidates kept; 0 keeps all.
    top_p: float  # Nucleus: probability mass kept.
    listen_prob_scale: float  # Above 1 the model speaks less, below 1 more.
    chunk_ms: int  # Length of one unit and of each audio_chunk, ms; must be 1000.
    sample_rate: int  # Samples per second of the audio sent; must be 16000.
    decode_mode: Literal["sampling", "greedy"]  # Sample, or take the most likely token.
    listen_top_k: int | None  # Listen if listening is among the k most likely tokens.
    text_repetition_penalty: float  # Above 1 discourages tokens spoken before.
    text_repetition_window_size: int  # Tokens considered by the repetition penalty.
    length_penalty: float  # Above 1 makes replies longer and harder to interrupt.
    tts_temperature: float  # Variation of the voice; 0 takes the most likely token.
    max_slice_nums: int  # Most tiles per picture.


class GenerationConfig(TypedDict, total=False):
    """Generation of a reply's text."""

    do_sample: bool  # Draw at random; false takes the likeliest token.
    temperature: float  # Higher is more varied; 0 takes the likeliest token.
    top_p: float  # Nucleus: probability mass kept.
    top_k: int  # Candidates kept; 0 keeps all.
    length_penalty: float  # Above 1 makes replies longer, below 1 shorter.
    max_new_tokens: int  # Most tokens of the reply.
    min_new_tokens: int  # Fewest tokens of the reply.
    max_inp_length: int  # Most tokens of the prompt; the rest is cut.


class HalfDuplexConfig(TypedDict, total=False):
    """All settings of one half-duplex session."""

    vad: VadConfig  # Voice activity detection.
    generation: TurnGenerationConfig  # Generation of the text.
    tts: TurnSpeechConfig  # Whether replies are spoken.
    session: SessionConfig  # Time-out of the session.


class ImageConfig(TypedDict, total=False):
    """How pictures are split into tiles."""

    max_slice_nums: int | None  # Most tiles per picture, 1 to 16; null leaves it to the model.
    use_image_id: bool  # Number the pictures in the prompt.


class ImageContent(TypedDict, total=False):
    """A picture."""

    type: Literal["image"]
    data: str  # Base64 of an encoded picture (JPEG, PNG, WebP, GIF, BMP or TIFF).


class Message(TypedDict, total=False):
    """A message of one party."""

    role: Role  # Its author.
    content: str | list[TextContent | ImageContent | AudioContent | VideoContent]  # A text, or a list of text, image, audio and video items in order.


class SessionConfig(TypedDict, total=False):
    """Time-out of the session."""

    timeout_s: float  # Ends after this long without an audio_chunk, s.


class StreamingConfig(TypedDict, total=False):
    """Speech of a streamed reply."""

    generate_audio: bool  # Speak the reply.
    ref_audio_path: str | None  # Voice sample as a file of the server; library use only.
    ref_audio_data: str | None  # Voice sample, Base64 of float32 at 16 kHz, at most 30 s.
    tts_sampling: TTSSamplingParams  # Sampling of speech tokens.


class TTSConfig(TypedDict, total=False):
    """Whether and with which voice a reply is spoken."""

    enabled: bool  # Speak the reply.
    mode: TTSMode  # Use of the voice sample in the prompt.
    ref_audio_path: str | None  # Voice sample as a file of the server; library use only.
    ref_audio_data: str | None  # Voice sample, Base64 of float32 at 16 kHz, at most 30 s.
    ref_audio_max_ms: int | None  # Use at most this much of the voice sample, ms.
    output_path: str | None  # Where to write the spoken reply; library use only.
    language: str  # Language of the prompt around the voice sample.
    sampling: TTSSamplingParams  # Sampling of speech tokens.


class TTSSamplingParams(TypedDict, total=False):
    """Sampling of speech tokens."""

    top_p: float  # Nucleus: probability mass kept.
    top_k: int  # Candidates kept; 0 keeps all.
    repetition_penalty: float  # Above 1 discourages speech tokens drawn before.
    temperature: float  # Higher is more varied.


class TextContent(TypedDict, total=False):
    """A text."""

    type: Literal["text"]
    text: str  # The text; may be empty.


class TurnGenerationConfig(TypedDict, total=False):
    """Generation of a reply's text."""

    max_new_tokens: int  # Most tokens of the reply.
    length_penalty: float  # Above 1 makes replies longer, below 1 shorter.
    temperature: float  # Higher is more varied; 0 takes the likeliest token.


class TurnSpeechConfig(TypedDict, total=False):
    """Whether replies are spoken."""

    enabled: bool  # Speak the reply; false: text only.


class VadConfig(TypedDict, total=False):
    """Voice activity detection."""

    threshold: float  # Probability at which speech begins; lower is more sensitive.
    min_speech_duration_ms: int  # Shorter bursts are ignored, ms.
    min_silence_duration_ms: int  # Silence that ends the user's turn, ms.
    speech_pad_ms: int  # Padding before and after the speech, ms.


class VideoContent(TypedDict, total=False):
    """A video with its audio."""

    type: Literal["video"]
    data: str  # Base64 of a container file such as MP4 or WebM.
    stack_frames: int  # Pictures taken from each second of video.


class Prefill(TypedDict, total=False):
    """Start of a turn: the whole history, the new user message last."""

    messages: list[Message]  # Full history, the new user message last.
    session_id: str | None  # The session; the path's one counts.
    session_secret: str | None  # From an earlier socket of this session, whose recording continues.
    tts_ref_audio_base64: str | None  # Voice to speak with, Base64 of float32 at 16 kHz, at most 30 s.
    ref_audio_base64: str | None  # The same, used when tts_ref_audio_base64 is absent.
    max_slice_nums: int | None  # Most tiles per picture.
    omni_mode: bool | None  # Interleave pictures and audio second by second.
    use_tts_template: bool | None  # Prompt for a spoken reply.
    enable_thinking: bool  # Let the model think before it answers.
    is_last_chunk: bool  # A reply is generated next.
    generation: GenerationConfig | None  # Defaults for the `generate` that follows.
    streaming: StreamingConfig | None  # Defaults for the `generate` that follows.
    image: ImageConfig | None  # Older place of max_slice_nums.
    tts: TTSConfig | None  # Older place of voice and speech settings.
    transcribe: bool  # Send user_transcript of the new message's audio before done.


class Generate(TypedDict, total=False):
    """Generate the reply to what was prefilled."""

    do_sample: bool  # Draw at random; false takes the likeliest token.
    temperature: float  # Higher is more varied; 0 takes the likeliest token.
    top_p: float  # Nucleus: probability mass kept.
    top_k: int  # Candidates kept; 0 keeps all.
    length_penalty: float  # Above 1 makes replies longer, below 1 shorter.
    session_id: str | None  # The session; the path's one counts.
    generate_audio: bool  # Speak the reply.
    max_new_tokens: int  # Most tokens of the reply.


class HalfDuplexPrepare(TypedDict, total=False):
    """Set up the session; the first message after queue_done."""

    system_prompt: str | None  # The system prompt; ignored with system_content.
    system_content: list[TextContent | ImageContent | AudioContent | VideoContent] | None  # The same as items (text, audio, image); ideally text, voice sample, text.
    ref_audio_base64: str | None  # Voice sample, Base64 of float32 at 16 kHz, at most 30 s.
    tts_ref_audio_base64: str | None  # Voice to speak with, if not that of the system content.
    ref_audio_id: str | None  # Voice sample by its registered name.
    transcribe: bool  # Send user_transcript, if the server can transcribe.
    config: HalfDuplexConfig  # Settings of this session.


class DuplexPrepare(TypedDict, total=False):
    """Set up the session; once, after queue_done."""

    prefix_system_prompt: str  # The system prompt; precedes the voice sample.
    suffix_system_prompt: str | None  # Follows the voice sample.
    config: DuplexConfig  # Settings of this session.
    ref_audio_path: str | None  # Voice sample by path, inside the server's reference folders only.
    ref_audio_base64: str | None  # Voice sample in the prompt, Base64 of float32 at 16 kHz, ≤ 30 s.
    tts_ref_audio_base64: str | None  # Voice sample to speak with; by default the former.
    ref_audio_id: str | None  # The former by its registered name.
    tts_ref_audio_id: str | None  # The latter by its registered name.
    max_slice_nums: int | None  # Most tiles per picture; overrides config.
    deferred_finalize: bool  # Send each result before the unit is finalized.
    early_audio: bool  # Send the beginning of a unit's audio ahead of its result, in result_part.
    transcribe: bool  # Send user_transcript, if the server can transcribe.
    barge_in: BargeInConfig | None  # If set, the user's speech interrupts the model.


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Token counts of one turn."""

    cached_tokens: int  # Tokens already in the KV cache.
    input_tokens: int  # Tokens fed for this turn.
    generated_tokens: int  # Tokens of the reply.
    total_tokens: int  # Tokens in the KV cache afterwards.


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; sent once and only if no worker is free."""

    type: Literal["queued"]
    ticket_id: str  # The ticket.
    position: int  # 1 is next.
    estimated_wait_s: float  # Estimated wait, s.
    queue_length: int  # Waiting requests.
    return_ticket: str  # Keeps the place for a minute: `?ticket=` of another socket; empty on `/ws/chat`.
    session_secret: str | None  # Proves over HTTP that a request is from the session's owner.
    eta_seconds: float  # Same as estimated_wait_s.


@dataclass(frozen=True, slots=True)
class QueueUpdate:
    """The place in the queue or the estimate changed."""

    type: Literal["queue_update"]
    ticket_id: str  # The ticket.
    position: int  # 1 is next.
    estimated_wait_s: float  # Estimated wait, s.
    queue_length: int  # Waiting requests.
    return_ticket: str  # Keeps the place for a minute: `?ticket=` of another socket; empty on `/ws/chat`.
    eta_seconds: float  # Same as estimated_wait_s.


@dataclass(frozen=True, slots=True)
class QueueDone:
    """A worker is assigned; the client may prepare now. Sent again if that worker cannot be reached and another one takes over."""

    type: Literal["queue_done"]
    worker_id: str | None  # Name of the worker.
    position: int  # Always 0.
    session_secret: str | None  # Proves over HTTP that a request is from the session's owner.


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The history is in the KV cache."""

    type: Literal["prefill_done"]
    cached_tokens: int  # Tokens reused; above 0 on a cache hit.
    input_tokens: int  # Tokens prefilled now.
    message_count: int  # Messages prefilled now.
    prompt_length: int  # Characters of the prompt prefilled now.
    cache_hit: bool  # Earlier turns were reused.
    recording_session_id: str | None  # Name of the recording.


@dataclass(frozen=True, slots=True)
class Chunk(HasSound):
    """A chunk of the reply."""

    type: Literal["chunk"]
    chunk_index: int  # Number of the chunk, from 0.
    text_delta: str | None  # New text.
    audio_data: str | None  # New audio: Base64 of float32, mono, at audio_sample_rate.
    audio_sample_rate: int  # Samples per second of audio_data.
    is_final: bool  # The last chunk, without text and audio.
    duration_ms: float  # Time to generate this chunk, ms.


@dataclass(frozen=True, slots=True)
class UserTranscript:
    """Transcript of the user's speech, some time after it."""

    type: Literal["user_transcript"]
    text: str  # The transcript; empty if transcription failed.
    language: str  # ISO 639-1 code, if known.
    start_ms: int  # Position of the speech in the audio sent, ms.
    duration_ms: int  # Length of the speech, ms.
    turn_index: int | None  # Half duplex: number of the turn that replies to it.
    error: str | None  # Why there is no text.


@dataclass(frozen=True, slots=True)
class Done:
    """The turn is over."""

    type: Literal["done"]
    session_id: str  # The session.
    text: str  # The whole reply.
    elapsed_ms: float  # Time from prefill to here, ms.
    stopped: bool  # The reply was cut short on request.
    token_stats: TokenStats  # Token counts of the turn.
    recording_session_id: str | None  # Name of the recording.


@dataclass(frozen=True, slots=True)
class WarningMessage:
    """Something was ignored or dropped; the connection stays open."""

    type: Literal["warning"]
    code: ErrorCode  # What happened, for a program.
    message: str  # What happened, for a person to read.


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """Fatal error; the connection closes after it."""

    type: Literal["error"]
    message: str  # What went wrong, for a person to read.
    code: ErrorCode  # What went wrong, for a program.
    fatal: bool  # Always true: the connection closes.
    error: str  # Same as message.


@dataclass(frozen=True, slots=True)
class SessionResumable:
    """The session may continue over another socket; the first message if requested."""

    type: Literal["session_resumable"]
    session_id: str  # The session's id.
    resume_token: str  # Proves that a socket is the session owner's.
    grace_s: float  # How long the session waits for another socket, s.
    return_ticket: str  # OpenAI's protocols, which have no `queued`: sent with each new place.


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """The session continues over this socket; missed messages follow."""

    type: Literal["session_resumed"]
    last_seq: int  # `seq` of the newest message of the session.
    lost_messages: int  # Missed messages that are lost.
    away_ms: int  # How long the session had no socket, ms.


@dataclass(frozen=True, slots=True)
class HalfDuplexPrepared:
    """The session is ready: send audio now."""

    type: Literal["prepared"]
    session_id: str  # The session.
    timeout_s: float  # Ends after this long without an audio_chunk, s.
    recording_session_id: str | None  # Name of the recording.
    session_secret: str | None  # The session's secret, as in `queue_done`.


@dataclass(frozen=True, slots=True)
class VadState:
    """The user began or stopped speaking; false also if a short burst was discarded."""

    type: Literal["vad_state"]
    speaking: bool  # The user is speaking.


@dataclass(frozen=True, slots=True)
class Generating:
    """The user's turn is over and the reply is being generated: stop sending audio."""

    type: Literal["generating"]
    speech_duration_ms: int  # Length of the user's speech, ms.


@dataclass(frozen=True, slots=True)
class TurnDone:
    """The reply is complete."""

    type: Literal["turn_done"]
    turn_index: int  # Number of the turn, from 0.
    text: str  # The whole reply.
    interrupted: bool  # The reply was cut short on request.
    elapsed_ms: float  # Time the turn took, ms.
    kv_cache_length: int  # Tokens in the KV cache.
    token_stats: TokenStats  # Token counts of the turn.


@dataclass(frozen=True, slots=True)
class HalfDuplexTimeout:
    """No audio arrived for too long, or the session reached its longest duration."""

    type: Literal["timeout"]
    elapsed_s: float  # Duration, s, to one decimal.
    reason: Literal["inactivity", "max_session"]  # The limit reached.


@dataclass(frozen=True, slots=True)
class HalfDuplexStopped:
    """Reply to stop."""

    type: Literal["stopped"]
    session_id: str  # The session.
    recording_session_id: str | None  # Name of the recording.


@dataclass(frozen=True, slots=True)
class DuplexPrepared:
    """The session is ready: start capturing."""

    type: Literal["prepared"]
    prompt_length: int  # Characters of the system prompt.
    prompt_tokens: int  # Tokens of the system prompt.
    recording_session_id: str | None  # Name of the recording.
    session_id: str  # The session.
    session_secret: str | None  # The session's secret, as in `queue_done`.
    chunk_ms: int  # Length of one unit, ms.
    max_kv_tokens: int  # Most tokens the conversation may hold.
    pause_timeout: float  # Longest pause, s.


@dataclass(frozen=True, slots=True)
class ResultPart(HasSound):
    """Beginning of a unit's audio, sent ahead; the rest is in the unit's result."""

    type: Literal["result_part"]
    audio_data: str  # Base64 of float32, mono, 24 kHz; play at once.
    turn_id: int  # Number of the speaking turn.
    step: int  # Number of the unit, from 0.
    elapsed_ms: float  # Time from the chunk's arrival to this message, ms.


@dataclass(frozen=True, slots=True)
class Result(HasSound):
    """Outcome of one unit; one per audio_chunk, in order."""

    type: Literal["result"]
    is_listen: bool  # The model stayed silent.
    text: str  # New text; empty when listening.
    audio_data: str  # New audio: Base64 of float32, mono, 24 kHz; empty when listening.
    end_of_turn: bool  # The model has finished its turn.
    current_time: int  # Audio received so far, ms.
    cost_llm_ms: float  # Time of the language model: reading the unit, deciding, words, ms.
    cost_read_ms: float  # Part of it: reading the unit, where it is measured apart, ms.
    cost_tts_prep_ms: float | None  # Time to prepare the speech decoder, ms.
    cost_tts_ms: float  # Time of the speech decoder, ms.
    cost_token2wav_ms: float | None  # Time of the vocoder, ms.
    cost_all_ms: float  # Time of the whole unit, ms; stays under chunk_ms in real time. Prefill, generate and the finalize that came before this result.
    n_tokens: int  # Tokens of the language model: decision, words, end.
    n_tts_tokens: int  # Speech tokens drawn.
    prefill_ms: float  # Time to encode the unit's audio and pictures, ms.
    kv_cache_length: int  # Tokens in the KV cache.
    vision_slices: int  # Tiles of the unit's pictures.
    vision_tokens: int  # Tokens of those tiles.
    server_send_ts: float | None  # When it was sent, Unix seconds.
    wall_clock_ms: float  # Time from the chunk's arrival to this result, ms.
    turn_id: int  # Number of the speaking turn.
    step: int  # Number of the unit, from 0.
    barge_in: bool  # The model was interrupted: drop audio that was not played yet.


@dataclass(frozen=True, slots=True)
class Paused:
    """Reply to pause."""

    type: Literal["paused"]
    timeout: float  # The worker is released after this long, s.


@dataclass(frozen=True, slots=True)
class Resumed:
    """Reply to resume."""

    type: Literal["resumed"]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Reply to interrupt: the next unit listens."""

    type: Literal["interrupted"]


@dataclass(frozen=True, slots=True)
class DuplexStopped:
    """Reply to stop."""

    type: Literal["stopped"]
    session_id: str  # The session.
    recording_session_id: str | None  # Name of the recording.


@dataclass(frozen=True, slots=True)
class DuplexTimeout:
    """The pause or the session was too long; the connection closes."""

    type: Literal["timeout"]
    reason: Literal["pause", "max_session", "inactivity"]  # The limit reached; inactivity is missing audio without a pause.
    elapsed_s: float  # Duration, s.
    session_id: str  # The session.


@dataclass(frozen=True, slots=True)
class TextAdded:
    """Reply to text_input: it was accepted."""

    type: Literal["text_added"]
    text: str  # The text without surrounding space.
    start_ms: int  # Length of the audio sent before it, ms.


StreamingEvent = Queued | QueueUpdate | QueueDone | PrefillDone | Chunk | UserTranscript | Done | WarningMessage | ErrorMessage
HalfDuplexEvent = Queued | QueueUpdate | QueueDone | SessionResumable | SessionResumed | HalfDuplexPrepared | VadState | Generating | Chunk | TurnDone | HalfDuplexTimeout | HalfDuplexStopped | UserTranscript | WarningMessage | ErrorMessage
DuplexEvent = Queued | QueueUpdate | QueueDone | SessionResumable | SessionResumed | DuplexPrepared | ResultPart | Result | Paused | Resumed | Interrupted | DuplexStopped | DuplexTimeout | TextAdded | UserTranscript | WarningMessage | ErrorMessage

NESTED: Final = MappingProxyType({"TokenStats": TokenStats})  # objects inside of messages


# Any: a union is no class.
def _by_type(union: Any) -> Mapping[str, type[Any]]:
    kinds = {get_args(get_type_hints(kind)["type"])[0]: kind for kind in get_args(union)}
    return MappingProxyType(kinds)


STREAMING: Final[Mapping[str, type[StreamingEvent]]] = _by_type(StreamingEvent)
HALF_DUPLEX: Final[Mapping[str, type[HalfDuplexEvent]]] = _by_type(HalfDuplexEvent)
DUPLEX: Final[Mapping[str, type[DuplexEvent]]] = _by_type(DuplexEvent)
