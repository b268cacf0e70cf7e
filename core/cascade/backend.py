"""Backend of the embedded models: nano first, the cascade once its files are there.

A conversation keeps the backend it began with.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from core.cascade.duplex import CascadeDuplexView
from core.cascade.language import ChatEndpoint, LocalLanguageModel
from core.cascade.parts import Parts, Synthesizer, describe
from core.cascade.prompts import CONTEXT_TOKENS, count_tokens
from core.cascade.synthesis import HibariSynthesizer, SpeechEndpoint
from core.cascade.turn_based import CascadeChatView, CascadeStreamingView
from core.engine.engine import Engine
from core.errors import ModelError
from core.modes import ChatMode, DuplexMode, Report, StreamingMode, Threads
from core.process_memory import trim_heap
from core.schemas.worker import ModelFacts, ModelKind
from core.serving.transcribers import WhisperTranscriber
from core.transcription import Transcriber
from core.vad import SileroVad
from settings.embedded import CascadeFiles
from settings.sections import CascadeSettings

if TYPE_CHECKING:  # it imports the tensor library
    from core.processors.backend import RealBackend

LANGUAGE_NAME: Final = "Qwen2.5-Coder 0.5B"
POLL_S: Final = 5.0  # ours: between two checks for the files
TRY_SAYING: Final = (
    "Hello, who are you?",
    "My name is Anna.",
    "Tell me a joke.",
    "What could I cook with eggs and spinach?",
    "How do I prepare for a job interview?",
    "What is my name?",
    "Stop.",
)

log = logging.getLogger(__name__)

LoadParts = Callable[["RealBackend"], Parts | None]
"""Loads the parts, or returns None while files are missing; blocks."""


class CascadeBackend:
    """Serves conversations with the cascade, and with the small model until it is loaded."""

    def __init__(
        self, base: RealBackend, load_parts: LoadParts, *, waits: bool, shares_transcriber: bool
    ) -> None:
        """Load nothing yet. If it `waits`, missing files delay the cascade, else loading fails.

        With `shares_transcriber` captions are by the cascade's transcriber, too.
        """
        self._base = base
        self.media, self.check, self.memory_mb = base.media, base.check, base.memory_mb
        self.limit_windows = base.limit_windows
        self._load_parts = load_parts
        self._waits, self._shares_transcriber = waits, shares_transcriber
        self._parts: Parts | None = None
        self._is_closing = threading.Event()
        self._watch = threading.Thread(target=self._watch_files, name="cascade", daemon=True)

    @property
    def own_transcriber(self) -> Transcriber | None:
        return self._parts.transcriber if self._parts and self._shares_transcriber else None

    @property
    def unit_s_by_sessions(self) -> dict[int, float]:
        """As measured by the small model; the cascade has no measurement."""
        return self._base.unit_s_by_sessions if self._parts is None else {}

    @property
    def context_tokens(self) -> int | None:
        return self._base.context_tokens if self._parts is None else CONTEXT_TOKENS

    def count_tokens(self, text: str) -> int:
        return self._base.count_tokens(text) if self._parts is None else count_tokens(text)

    def load(self, engine: Engine, report: Report) -> None:
        self._base.load(engine, report)
        if self._waits:
            self._watch.start()
            return
        report("loading the cascade", None)
        self._parts = self._load_parts(self._base)
        if self._parts is None:
            raise ModelError(
                'model.embedded is "cascade", and its files are not there or damaged: '
                "python -m core.cascade.assets DATA_DIR/cascade"
            )
        trim_heap()

    def open_streaming(self, threads: Threads) -> StreamingMode:
        parts = self._parts
        return CascadeStreamingView(parts, threads) if parts else self._base.open_streaming(threads)

    def open_duplex(self, threads: Threads) -> DuplexMode:
        parts = self._parts
        return CascadeDuplexView(parts, threads) if parts else self._base.open_duplex(threads)

    def open_chat(self, threads: Threads) -> ChatMode:
        parts = self._parts
        return CascadeChatView(parts, threads) if parts else self._base.open_chat(threads)

    def tidy(self) -> None:
        self._base.tidy()
        trim_heap()

    def facts(self) -> ModelFacts:
        if self._parts is None:
            return self._base.facts()
        names = " → ".join(self._parts.names)
        return ModelFacts(name=names, kind=ModelKind.CASCADE, device="cpu", try_saying=TRY_SAYING)

    def close(self) -> None:
        self._is_closing.set()
        if self._watch.is_alive():
            self._watch.join()
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.language_model.close()
            parts.transcriber.close()
        self._base.close()

    def _watch_files(self) -> None:
        """Load the cascade once its files are there; runs on its own thread."""
        while not self._is_closing.is_set():
            try:
                parts = self._load_parts(self._base)
            except Exception:
                log.exception("the cascade cannot be loaded; the small model stays")
                return
            if parts is not None:
                self._parts = parts
                trim_heap()
                log.info("new conversations are with the cascade: %s", self.facts().name)
                return
            self._is_closing.wait(POLL_S)


def parts_of(
    base: RealBackend,
    files: CascadeFiles,
    settings: CascadeSettings,
    whisper_path: Path | None,
    conversations: int,
) -> Parts:
    """Load the parts for concurrent conversations, or raise `ModelError`.

    The settings may name another language model and another voice, and `whisper_path` another
    transcriber, in CTranslate2's format; `base` is loaded, and describes pictures if it is nano.
    """
    synthesizer: Synthesizer
    if settings.speech_url is not None:
        synthesizer = SpeechEndpoint(
            settings.speech_url,
            settings.speech_model,
            settings.speech_voice,
            _revealed(settings.speech_key),
        )
    else:
        synthesizer = HibariSynthesizer(files.voice)
    transcriber = WhisperTranscriber(whisper_path or files.whisper, niceness=0)
    language_model: ChatEndpoint
    if settings.llm_url is not None:
        key = _revealed(settings.llm_key)
        language_model = ChatEndpoint(settings.llm_url, settings.llm_model, key)
    else:
        local = LocalLanguageModel(files.language_model, LANGUAGE_NAME, conversations=conversations)
        local.start()
        language_model = local
    sees = partial(describe, base.open_chat) if base.facts().kind is ModelKind.NANO else None
    voice = base.context.default_voice
    return Parts(transcriber, language_model, synthesizer, SileroVad(), sees, voice)


def _revealed(key: SecretStr | None) -> str | None:
    return key.get_secret_value() if key else None
