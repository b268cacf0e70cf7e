"""Settings of a Realtime session, and the requests to the model. Pure.

Turns with equal keys are equal messages, so that a cache that contains one can be reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from core.protocols.openai_events import Json
from core.protocols.realtime_items import Content, Item, Role
from core.schemas import duplex
from core.schemas import realtime_session as schemas
from core.schemas.common import Function
from core.schemas.duplex_calls import DuplexConfig
from core.tools import Offer, call_text, outputs_text

Engine = Literal["turn", "live"]  # responds by turns, or unit by unit
ENGINES: Final[tuple[Engine, ...]] = ("turn", "live")
"""Suffixes of model ids that select an engine."""
# By eagerness: how much the model prefers to listen.
LISTEN_SCALE: Final = {"low": 1.3, "medium": 1.0, "auto": 1.0, "high": 0.7}


NewId = Callable[[str], str]
"""Returns an id: that of an `item` begins with `item_`."""


@dataclass(frozen=True)
class RealtimeStart:
    model: str  # the served model's id, echoed
    instructions: str  # default system prompt
    new_id: NewId
    session_id: str
    conversation_id: str
    is_beta: bool = False  # use the beta spellings of events
    can_transcribe: bool = False  # the server has a transcriber
    unix_time_s: int = 0  # start of the session


@dataclass(frozen=True)
class OutputConfig:
    instructions: str  # the system prompt
    modality: schemas.Modality = "audio"  # spoken, or text alone
    format: schemas.AudioFormat = field(default_factory=schemas.AudioFormat)
    voice: str = "default"  # name, as requested
    # The voice itself, wire audio; None is the default voice.
    voice_sample: str | None = field(default=None, repr=False)
    tools: tuple[schemas.FunctionTool, ...] = ()
    tool_choice: schemas.ToolChoice = "auto"
    max_output_tokens: schemas.TokenLimit = "inf"  # text tokens
    temperature: float | None = None  # of the text; None is the model's default

    @property
    def speaks(self) -> bool:
        return self.modality == "audio"

    @property
    def can_choose(self) -> bool:
        """Whether a function that `tool_choice` names is among the tools."""
        choice = self.tool_choice
        names = {tool.name for tool in self.tools}
        return not isinstance(choice, schemas.FunctionChoice) or choice.name in names


@dataclass(frozen=True)
class SessionConfig:
    output: OutputConfig
    input_format: schemas.AudioFormat = field(default_factory=schemas.AudioFormat)
    # None: the client ends turns.
    turn_detection: schemas.TurnDetection | None = field(default_factory=schemas.ServerVad)
    truncation: schemas.Truncation = "auto"
    tracing: Any = None  # Any: the client's own JSON, echoed
    can_transcribe: bool = False  # the server has a transcriber
    transcription: schemas.Transcription | None = None  # always None without a transcriber

    def patched(self, patch: schemas.SessionPatch) -> SessionConfig:
        """Return the settings updated by a client; absent fields stay."""
        changed = Json(output=_patched(self.output, patch)) | _given(patch)
        if patch.input_audio_format is not None:
            changed["input_format"] = schemas.AudioFormat.of_beta(patch.input_audio_format)
        if patch.audio is not None:  # the newer spelling takes precedence
            changed |= _given(patch.audio.input)
        if not self.can_transcribe:
            changed["transcription"] = None
        if patch.truncation is not None:
            changed["truncation"] = patch.truncation
        return replace(self, **changed)

    def for_response(self, patch: schemas.ResponsePatch) -> OutputConfig:
        return _patched(self.output, patch)

    def engine(self, model: str) -> Engine:
        for suffix in ENGINES:
            if model.endswith(f"-{suffix}"):
                return suffix
        has_tools = self.output.tools and self.output.tool_choice != "none"
        is_semantic = isinstance(self.turn_detection, schemas.SemanticVad)
        return "live" if is_semantic and not has_tools else "turn"

    @property
    def eagerness(self) -> str:
        rules = self.turn_detection
        return rules.eagerness if isinstance(rules, schemas.SemanticVad) else "auto"

    def prompt(self, *, has_items: bool) -> duplex.Prepare:
        """Return the prompt of the engine by units; items follow it if the conversation has any."""
        output = self.output
        scale = LISTEN_SCALE[self.eagerness]
        config = Json(generate_audio=output.speaks, listen_prob_scale=scale)
        if has_items:
            config["force_listen_count"] = 0
        if output.temperature is not None:
            config["temperature"] = output.temperature
        return duplex.Prepare(
            prefix_system_prompt=output.instructions,
            ref_audio_base64=output.voice_sample,
            early_audio=True,
            config=DuplexConfig.model_validate(config),
        )

    def wire(self, session_id: str, model: str, expires_at: int) -> Json:
        detection, words = self.turn_detection, self.transcription
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": session_id,
            "model": model,
            "output_modalities": [self.output.modality],
            "instructions": self.output.instructions,
            "tools": [tool.model_dump(exclude_none=True) for tool in self.output.tools],
            "tool_choice": _wire(self.output.tool_choice),
            "max_output_tokens": self.output.max_output_tokens,
            "tracing": self.tracing,
            "truncation": _wire(self.truncation),
            "prompt": None,
            "expires_at": expires_at,
            "audio": {
                "input": {
                    "format": format_wire(self.input_format),
                    "transcription": words and words.model_dump(exclude_none=True),
                    "noise_reduction": None,
                    "turn_detection": None if detection is None else detection.model_dump(),
                },
                "output": {
                    "format": format_wire(self.output.format),
                    "voice": self.output.voice,
                    "speed": 1.0,
                },
            },
            "include": None,
            "minicpmo": {"engine": self.engine(model)},
        }


SETTINGS: Final = {
    "format": "input_format",
    "input_audio_transcription": "transcription",
    "transcription": "transcription",
    "turn_detection": "turn_detection",
    "tracing": "tracing",
}
"""Names of settings by those of a client's fields, which may set them to null."""


def _given(patch: schemas.SessionPatch | schemas.AudioInput) -> Json:
    given = patch.model_fields_set & {*SETTINGS}
    return {SETTINGS[field]: value for field, value in patch if field in given}


def format_wire(audio_format: schemas.AudioFormat) -> Json:
    """Return a format's wire form; G.711 has no rate."""
    if not audio_format.is_pcm:
        return {"type": audio_format.type}
    return {"type": audio_format.type, "rate": audio_format.rate_hz}


def _wire(value: schemas.ToolChoice | schemas.Truncation) -> str | Json:
    return value if isinstance(value, str) else value.model_dump()


Patch = schemas.SessionPatch | schemas.ResponsePatch
KEPT: Final = frozenset({"instructions", "tools", "tool_choice", "temperature"})


def _patched(output: OutputConfig, patch: Patch) -> OutputConfig:
    spoken = patch.audio.output if patch.audio is not None else None
    changed: Json = {name: value for name, value in patch if name in KEPT and value is not None}
    modalities = patch.output_modalities or patch.modalities
    if modalities is not None:
        changed["modality"] = "audio" if "audio" in modalities else "text"
    limit = patch.max_output_tokens or patch.max_response_output_tokens
    if limit is not None:
        changed["max_output_tokens"] = limit
    if patch.output_audio_format is not None:
        changed["format"] = schemas.AudioFormat.of_beta(patch.output_audio_format)
    if patch.voice is not None:
        changed |= _voice(patch.voice, None)
    if spoken is not None and "format" in spoken.model_fields_set:
        changed["format"] = spoken.format
    if spoken is not None and "voice" in spoken.model_fields_set:
        changed |= _voice(spoken.voice, spoken.voice_sample)
    return replace(output, **changed)


def _voice(voice: str | schemas.Voice, sample: str | None) -> Json:
    name = voice.id if isinstance(voice, schemas.Voice) else voice
    return {"voice": name, "voice_sample": sample}


Key = tuple[str, int]
MOST_TOKENS: Final = 1_024  # ours: limit of a response that has none


@dataclass(frozen=True)
class Turn:
    """One message to the model."""

    key: Key  # identity and revision
    role: Role
    # Function calls and outputs are text by now.
    content: tuple[Content, ...] = field(repr=False)


@dataclass(frozen=True)
class TurnRequest:
    system: str = field(repr=False)  # the system prompt
    # The conversation, oldest first, without system messages.
    turns: tuple[Turn, ...] = field(repr=False)
    output: OutputConfig
    reply_key: Key  # key of the reply as a later turn
    reply_start: str = ""  # text the reply has to begin with
    is_outside: bool = False  # not part of the conversation
    is_beside_units: bool = False  # the duplex engine retains the conversation meanwhile

    @property
    def has_own_view(self) -> bool:
        return self.is_outside or self.is_beside_units

    @property
    def max_tokens(self) -> int:
        limit = self.output.max_output_tokens
        return limit if isinstance(limit, int) else MOST_TOKENS

    @property
    def input_audio_ms(self) -> int:
        parts = [part for turn in self.turns for part in turn.content]
        return sum(part.audio.duration_ms for part in parts if part.audio and part.audio.pcm)


def offer_of(output: OutputConfig) -> Offer:
    choice, tools = output.tool_choice, output.tools
    if choice == "none":
        return Offer()
    if isinstance(choice, schemas.FunctionChoice):
        tools = tuple(tool for tool in tools if tool.name == choice.name)
    functions = tuple(
        Function(name=tool.name, description=tool.description, parameters=tool.parameters)
        for tool in tools
    )
    return Offer(functions, must_call=choice != "auto" and bool(functions))


def request_of(
    items: Iterable[Item], output: OutputConfig, response_id: str, *, is_outside: bool
) -> TurnRequest:
    """Return the request for a response to items, oldest first."""
    offer, known = offer_of(output), list(items)
    texts = [item.text for item in known if item.role == "system"]
    system = "\n\n".join(text for text in (output.instructions, *texts, offer.prompt) if text)
    turns = _turns(item for item in known if item.role != "system")
    return TurnRequest(
        system, tuple(turns), output, (response_id, 0), offer.reply_start, is_outside
    )


def _turns(items: Iterable[Item]) -> list[Turn]:
    """Return items as messages; the items of one response are one message."""
    turns: list[Turn] = []
    for item in items:
        turn = _turn(item)
        if item.response_id and turns and turns[-1].key[0] == item.response_id:
            before = turns.pop()
            revisions = before.key[1] + item.revision
            content = (*before.content, Content("output_text", "\n"), *turn.content)
            turn = Turn((item.response_id, revisions), "assistant", content)
        turns.append(turn)
    return [turn for turn in turns if turn.content]


def _turn(item: Item) -> Turn:
    key = (item.response_id or item.id, item.revision)
    match item.kind:
        case "function_call":
            call = Content("output_text", call_text(item.name, item.arguments))
            return Turn(key, "assistant", (call,))
        case "function_call_output":
            return Turn(key, "user", (Content("input_text", outputs_text([item.output])),))
        case _:
            assert item.role is not None, "a message has a role"
            return Turn(key, item.role, item.content)
