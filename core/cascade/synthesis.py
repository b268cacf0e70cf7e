"""Speech synthesis with hibari or an endpoint, and spoken replies, sent a second at a time."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

import httpx
import numpy as np
import onnxruntime
from hibari import Hibari

from core.audio import NO_SAMPLES, FloatArray
from core.cascade.language import CONNECT_LIMIT_S, explained, refused
from core.errors import ModelError
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ

SPEECH_LIMIT_S: Final = 30.0  # ours: for a sentence
PCM_SCALE: Final = 32_768.0  # an endpoint's "pcm" is 16-bit little-endian, mono, 24 kHz
GRAPH_FILE: Final = "hibari.onnx"
ERRORS_ONLY: Final = 3  # onnxruntime's log severity
SILENCE_LEVEL: Final = 0.004  # ours, of full scale; trimmed from both ends
LEAD_S: Final = 0.03  # of silence kept before speech
PAUSE_S: Final = 0.18  # of silence kept after a sentence or clause
NO_PAUSE_S: Final = 0.03  # and inside a clause
PUNCTUATION: Final = tuple('.!?…,;:—"”’)')
# Clients may have 200,000 characters spoken: in a row of white space or brackets, the patterns
# below would search to its end from each of its characters.
SPACES: Final = re.compile(r"\s+")
LINK: Final = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")  # of which the text is spoken
PRODUCT: Final = re.compile(r"(?<=\d)\s*\*\s*(?=\d)")
# hibari skips a minus sign; it reads a hyphen between numbers as "to".
MINUS: Final = re.compile(r"(?<=\d) - (?=\d[\d.,]* =)|\s*−\s*(?=\d)")
# Without signs that are spoken: "#1", "8 > 5".
MARKUP: Final = re.compile(r"[*_`|~]+|#(?!\d)|^\s*>|>(?!\s?\d)|\[|\]|^\s*[-•]\s+", re.MULTILINE)
# A sentence ends at its mark and a space, but not after a title, an initial or a list's number.
SENTENCE_END: Final = re.compile(
    r"(?:(?<!\b[A-Z])(?<!\b(?:Dr|Mr|Ms|St))(?<!\bMrs)(?<!^\d)[.!?…][\"”’)\]]*\s+)|\n+", re.MULTILINE
)
# Also at a mark at the end of the text so far, since the space comes with the next token, and
# before conjunctions, verbs and prepositions, where a speaker may pause.
CLAUSE_END: Final = re.compile(
    r"[,;:—]\s+|(?<=[a-z]{3})[.!?,;:]$"
    r"|\s+(?=(?:and|because|but|if|or|so|that|when|where|which|while|who)(?:\s|$))"
    r"|\s+(?=(?:are|can|could|equals|is|may|might|should|was|were|will|would)(?:\s|$))"
    r"|\s+(?=(?:about|as|at|by|for|from|in|into|like|of|on|than|through|to|with)(?:\s|$))"
)
FIRST_WORDS_MIN: Final = 4  # ours: about a second, enough to synthesize the next piece
WORD: Final = re.compile(r"[^ ]+ *| +")  # and the spaces after it
PIECE_CHARS_MAX: Final = 240  # ours: longer sentences are split at a space


class HibariSynthesizer:
    """hibari's English voice "heart"."""

    name = "hibari"

    def __init__(self, folder: Path) -> None:
        """Load the graph found anywhere below a folder; raises `ModelError` if there is none."""
        graph = next(folder.rglob(GRAPH_FILE), None)
        if graph is None:
            raise ModelError(f"{folder} holds no {GRAPH_FILE}.")
        self._voice = Hibari(model=str(graph))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = ERRORS_ONLY
        options.enable_cpu_mem_arena = False  # it never shrinks
        self._voice.sess = onnxruntime.InferenceSession(
            str(graph), options, providers=["CPUExecutionProvider"]
        )
        self.speak("Hello.")  # loads the dictionaries

    def speak(self, text: str) -> FloatArray:
        return _spoken(text, lambda words: np.asarray(self._voice(words), np.float32))


class SpeechEndpoint:
    """An OpenAI-compatible speech endpoint."""

    def __init__(
        self,
        url: str,
        name: str,
        voice: str,
        key: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Connect to nothing yet; `transport` is for tests."""
        self.name = name
        self._url = f"{url.rstrip('/')}/audio/speech"
        self._fields = {"model": name, "voice": voice, "response_format": "pcm"}
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Timeout(SPEECH_LIMIT_S, connect=CONNECT_LIMIT_S)
        self._client = httpx.Client(headers=headers, timeout=limits, transport=transport)

    def speak(self, text: str) -> FloatArray:
        """Raises GenerationFailedError if there is no answer; the text says why."""
        return _spoken(text, self._asked)

    def _asked(self, words: str) -> FloatArray:
        with explained("speech synthesizer"):
            answer = self._client.post(self._url, json=self._fields | {"input": words})
        if answer.is_error:
            raise refused("speech synthesizer", answer)
        content = answer.content[: len(answer.content) // 2 * 2]
        return np.frombuffer(content, "<i2").astype(np.float32) / PCM_SCALE


def _spoken(text: str, synthesize: Callable[[str], FloatArray]) -> FloatArray:
    """Trim a text's speech at both ends down to a lead and to a pause that suits the text."""
    text = SPACES.sub(lambda found: "\n" if "\n" in found[0] else " ", text)
    words = PRODUCT.sub(" × ", LINK.sub(r"\1", text))
    words = MARKUP.sub(" ", MINUS.sub(" minus ", words)).strip()
    wave = synthesize(words) if words else NO_SAMPLES
    loud = np.flatnonzero(np.abs(wave) > SILENCE_LEVEL)
    if not len(loud):
        return NO_SAMPLES
    first = max(0, int(loud[0]) - int(LEAD_S * OUTPUT_SAMPLE_RATE_HZ))
    pause_s = PAUSE_S if words.endswith(PUNCTUATION) else NO_PAUSE_S
    stop = int(loud[-1]) + int(pause_s * OUTPUT_SAMPLE_RATE_HZ)
    return np.pad(wave[first:stop], (0, max(0, stop - len(wave))))


class Sentences:
    """Splits a growing reply into sentences; joined, the pieces and the `rest` are the reply.

    The first piece may be part of a sentence, so that its audio starts sooner.
    """

    def __init__(self) -> None:
        self.rest = ""
        self._is_first = True

    def add(self, words: str) -> list[str]:
        """Add text; return the pieces that it completes."""
        self.rest += words
        pieces = []
        while (end := self._end()) is not None:
            pieces.append(self.rest[:end])
            self.rest = self.rest[end:]
            self._is_first = False
        return pieces

    def _end(self) -> int | None:
        ends = [each.end() for each in SENTENCE_END.finditer(self.rest)]
        ends = [end for end in ends if self.rest[:end].strip()]
        if self._is_first:
            clauses = (each.end() for each in CLAUSE_END.finditer(self.rest))
            ends += [end for end in clauses if len(self.rest[:end].split()) >= FIRST_WORDS_MIN]
        if ends:
            return min(ends)
        if len(self.rest) <= PIECE_CHARS_MAX:
            return None
        return self.rest.rfind(" ") + 1 or len(self.rest)


class Sentence:
    """The unsent rest of a sentence and of its audio, [T] float32 at 24 kHz."""

    def __init__(self, text: str, audio: FloatArray) -> None:
        self.words = WORD.findall(text)
        self.audio = audio

    def take(self, samples: int) -> tuple[str, FloatArray]:
        share = min(1.0, samples / max(1, len(self.audio)))
        count = len(self.words) if share == 1.0 else round(len(self.words) * share)
        taken, self.words = self.words[:count], self.words[count:]
        audio, self.audio = np.split(self.audio, [min(samples, len(self.audio))])
        return "".join(taken), audio


class SpokenReply:
    """A reply that is being generated and sent; `text` has been sent."""

    def __init__(self, sentences: AsyncGenerator[Sentence, None]) -> None:
        self._sentences = sentences
        self._next: asyncio.Task[Sentence] | None = None
        self._ready: deque[Sentence] = deque()
        self.is_complete = False
        self.text = ""

    @property
    def ready_samples(self) -> int:
        return sum(len(piece.audio) for piece in self._ready)

    def start(self) -> asyncio.Task[Sentence]:
        """Generate the next sentence, if none is being generated."""
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._sentences))
        return self._next

    async def wait(self, samples: int, until_s: float) -> None:
        """Wait for this much audio, for the end of the reply, or until a time of `time.monotonic`.

        Raises what the generation raises.
        """
        while not self.is_complete and self.ready_samples < samples:
            task = self.start()
            done, _ = await asyncio.wait({task}, timeout=max(0.0, until_s - time.monotonic()))
            if not done:
                return
            self._next = None
            try:
                self._ready.append(task.result())
            except StopAsyncIteration:
                self.is_complete = True

    def take(self, samples: int) -> tuple[str, FloatArray]:
        texts, audios = [], [NO_SAMPLES]
        while self._ready and samples > 0:
            text, audio = self._ready[0].take(samples)
            samples -= len(audio)
            texts.append(text)
            audios.append(audio)
            if not len(self._ready[0].audio):
                texts.append("".join(self._ready.popleft().words))
        self.text += (text := "".join(texts))
        return text, np.concatenate(audios)

    async def close(self) -> None:
        task, self._next = self._next, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._sentences.aclose()
        self._ready.clear()
