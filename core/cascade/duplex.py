"""Full duplex over a cascade, in the model's rhythm: a second of audio, then it listens or speaks.

The end of the user's turn, a barge-in and the cascade's own echo are found by voice activity and
by the transcript. A reply is synthesized sentence by sentence and sent second by second.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from PIL import Image

from core.audio import FloatArray, to_pcm
from core.cascade.parts import Line, Parts, Sampling
from core.cascade.prompts import asks_to_see
from core.cascade.reply import Sentence, SpokenReply
from core.cascade.turn_based import COOLING, SPOKEN_TOKENS_MAX, CascadeView
from core.cascade.turns import (
    PAUSE_S,
    is_backchannel,
    is_echo,
    is_finished,
    is_over,
    is_stop,
    words_of,
)
from core.cascade.user_turn import Heard, UserTurn
from core.modes import OnSound, Threads
from core.protocols.events import MS_PER_S
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ

DEFAULT_PROMPT: Final = "You are on a live voice call."
UNIT_S: Final = 1.0
# Ours: a unit may take this long; a reply that is not ready then begins with a later one.
PATIENCE_S: Final = 0.9
# Ours: of silence behind a finished sentence. A reply begins, and is withdrawn if the user goes on.
SHORT_PAUSE_S: Final = 0.06
DRAFT_TURN_MAX_S: Final = 10.0  # ours: longer turns are transcribed only when they may be over
SPEECH_MIN_S: Final = 0.2  # shorter sounds are noise
SYLLABLE_S: Final = 0.1  # ours: no word is shorter, so the transcript stays as it is
NOISE_OVER_S: Final = 0.6  # of silence behind such a sound, then it is forgotten
BARGE_IN_S: Final = 0.4  # voice over the cascade's own before it is transcribed
ECHO_TAIL_S: Final = 0.6  # what a player holds back, and a room
# Ours: an echo that goes on is transcribed as a whole, for Whisper mishears a rest of two words; a
# longer one is not, for the user's words have to stand out in it.
ECHO_PIECE_MAX_S: Final = 2.0
SAID_WORDS_MAX: Final = 60  # of the last half minute, to know an echo by
CHARACTER_S: Final = 0.06  # of speech; measured with the voice


@dataclass(frozen=True)
class PictureAhead:
    """A picture that waits for its unit.

    Attributes:
        picture: RGB.
        max_slices: as asked; pictures are not cut here.
    """

    picture: Image.Image
    max_slices: int


@dataclass(frozen=True)
class _Draft:
    """A reply to what may be the end of the user's turn, or only a part of it.

    Attributes:
        words: of the turn.
        lines: of the conversation before it.
        heard: the turn.
    """

    reply: SpokenReply
    words: str
    lines: list[Line]
    heard: Heard


class CascadeDuplexView(CascadeView):
    """A live call.

    Attributes:
        slice_limit: most slices per picture; pictures are not cut here.
        patience_s: how long a unit waits for a reply.
    """

    slice_limit = 1
    patience_s = PATIENCE_S

    def __init__(self, parts: Parts, threads: Threads) -> None:
        super().__init__(parts, threads)
        self._config = DuplexConfig()
        self._state = _CallState(UserTurn(parts.detector))
        self._reply: SpokenReply | None = None
        self._draft: _Draft | None = None  # not sent yet
        self._withdrawable: _Draft | None = None  # sent since the last unit
        self._has_early_sound = False

    async def begin(
        self,
        system_prompt: str | None = None,
        *,
        ref_audio: FloatArray | None = None,
        tts_audio: FloatArray | None = None,
        suffix_text: str | None = None,
        config: DuplexConfig,
        early_audio: bool = False,
    ) -> str:
        self._check_voice(ref_audio if tts_audio is None else tts_audio)
        if self._reply is not None:
            await self._end_reply()
        await self._discard_draft()
        self._withdrawable = None
        self._config, self._has_early_sound = config, early_audio
        self.slice_limit = config.max_slice_nums
        self._state = _CallState(
            UserTurn(self._parts.detector), listens_for=config.force_listen_count
        )
        self._lines = []
        system = f"{system_prompt or DEFAULT_PROMPT} {suffix_text or ''}".strip()
        prompt = await self._feed(Line("system", system))
        self._prefetch_prompt()
        return prompt

    @property
    def recently_said(self) -> tuple[str, ...]:
        """The last words that were sent, by which an echo is recognized."""
        return tuple(self._state.said)

    def stop(self) -> None:
        super().stop()
        if self._reply is not None:
            self._reply.cancel()
        if self._draft is not None:
            self._draft.reply.cancel()

    def set_break(self) -> None:
        self._state.has_break = True

    async def encode_ahead(self, picture: Image.Image, max_slice_nums: int) -> PictureAhead:
        """Keep a picture for its unit: it is looked at when it is asked about."""
        return PictureAhead(picture, max_slice_nums)

    async def unit(
        self,
        audio: FloatArray,
        frames: Sequence[Image.Image | PictureAhead],
        max_slice_nums: int | None = None,
        *,
        force_listen: bool,
        force_speak: bool,
        due_s: float | None,
        on_sound: OnSound,
    ) -> DuplexGenerateResult | None:
        """Process one second, then listen or speak; None if there was too little audio."""
        began_s = time.monotonic()
        state = self._state
        second = state.take_second(audio)
        if second is None:
            return None
        if frames:
            newest = frames[-1]
            state.picture = newest.picture if isinstance(newest, PictureAhead) else newest
        await self._threads.run(lambda: state.turn.add(second))
        must_listen = state.must_listen(force_listen, force_speak)
        if must_listen or force_speak:
            await self._discard_draft()
        withdrawable, self._withdrawable = self._withdrawable, None
        if self._reply is not None and (must_listen or await self._is_interrupted()):
            if withdrawable is not None and state.turn.has_speech and not must_listen:
                await self._withdraw(withdrawable)
            else:
                await self._end_reply()
        elif self._reply is None and not must_listen:
            await self._answer_if_asked(force_speak=force_speak)
        prefill_ms = (time.monotonic() - began_s) * MS_PER_S
        made = await self._spoken_unit(began_s + self.patience_s, on_sound)
        spent_ms = (time.monotonic() - began_s) * MS_PER_S
        return made.model_copy(
            update={
                "current_time": int(state.turn.received_s * MS_PER_S),
                "cost_llm_ms": spent_ms - prefill_ms,
                "cost_all_ms": spent_ms,
                "prefill_ms": prefill_ms,
                "kv_cache_length": self.kv_cache_length,
                "vision_slices": len(frames),
            }
        )

    async def finish_unit(self) -> None:
        """Do nothing: a unit leaves nothing open."""

    # --- turns ---

    async def _answer_if_asked(self, *, force_speak: bool) -> None:
        """Begin a reply if the user's turn seems over, or the caller wants one."""
        turn = self._state.turn
        if turn.speech_s < SPEECH_MIN_S and not force_speak:
            await self._discard_draft()
            if turn.has_speech and turn.silence_s > NOISE_OVER_S:
                turn.clear()
            return
        words = await self._words_so_far()
        is_sure = force_speak or turn.is_full or is_over(words, turn.silence_s)
        may_be_over = is_sure or turn.silence_s >= SHORT_PAUSE_S
        is_echoed = self._state.is_echo(words)
        if (is_echoed or is_stop(words)) and not force_speak:
            if is_sure or (is_echoed and may_be_over):
                turn.clear()
            return
        if not is_sure and not (may_be_over and is_finished(words)):
            await self._prepare_answer(words)
            return
        words = "" if is_echoed else words
        if words or force_speak:
            draft = self._draft or await self._drafted(words)
            self._reply, self._draft = draft.reply, None
            self._withdrawable = None if is_sure else replace(draft, heard=turn.heard)
        turn.clear()

    async def _words_so_far(self) -> str:
        """Transcribe the turn; a draft that does not answer it any more is discarded."""
        turn, draft = self._state.turn, self._draft
        if draft is not None and turn.speech_s < draft.heard.speech_s + SYLLABLE_S:
            return draft.words
        if draft is not None and turn.speech_s >= draft.heard.speech_s + SPEECH_MIN_S:
            await self._discard_draft()
        is_long = len(turn.sound) > DRAFT_TURN_MAX_S * INPUT_SAMPLE_RATE_HZ
        if not turn.has_speech or (is_long and turn.silence_s < SHORT_PAUSE_S and not turn.is_full):
            return ""
        words = await self._transcribe(turn.sound)
        if draft is not None and words_of(words) != words_of(draft.words):
            await self._discard_draft()
        return words

    async def _prepare_answer(self, words: str) -> None:
        """Begin a reply to a turn that may be over with the next second, or read what it will."""
        may_be_over = self._state.turn.silence_s >= SHORT_PAUSE_S and is_over(words, PAUSE_S)
        if self._draft is None and (may_be_over or is_finished(words)):
            self._draft = await self._drafted(words)
            self._draft.reply.start()
        elif self._draft is None and words:
            self._prefetch_prompt(Line("user", words))

    async def _drafted(self, words: str) -> _Draft:
        turn, lines = self._state.turn, self._lines
        line = Line("user", words or "(Say something.)")
        picture = self._state.picture
        if picture is not None and asks_to_see(words):
            line = Line("user", f"{words} {await self._seen(picture, words)}")
        await self._feed(line)
        return _Draft(SpokenReply(self._made()), words, lines, turn.heard)

    async def _discard_draft(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            await draft.reply.close()
            self._lines = draft.lines

    async def _withdraw(self, sent: _Draft) -> None:
        """Stop a reply whose question was not over: what follows belongs to the same turn."""
        self._reply = None
        await sent.reply.close()
        self._lines = sent.lines
        self._state.turn.resume(sent.heard)

    async def _is_interrupted(self) -> bool:
        """Return whether the user speaks over the reply, and not only to show that they listen."""
        turn = self._state.turn
        is_short = turn.speech_s < BARGE_IN_S
        if turn.speech_s < SPEECH_MIN_S or (is_short and turn.silence_s < PAUSE_S):
            if turn.has_speech and turn.silence_s > NOISE_OVER_S:
                turn.clear()
            return False
        words = await self._transcribe(turn.sound)
        if is_short:  # a word at most, and only one of them ends a reply
            turn.clear()
            return is_stop(words)
        if not words or self._state.is_echo(words):
            if turn.silence_s >= SHORT_PAUSE_S or turn.speech_s > ECHO_PIECE_MAX_S:
                turn.clear()
            return False
        if is_backchannel(words):
            if is_over(words, turn.silence_s):
                turn.clear()
            return False
        if is_stop(words):
            turn.clear()
        return True

    # --- replies ---

    async def _made(self) -> AsyncGenerator[Sentence, None]:
        """Yield the reply to what was said, sentence by sentence with its sound."""
        speaks = self._config.generate_audio
        is_greedy = self._config.decode_mode == "greedy"
        sampling = Sampling(
            max_tokens=SPOKEN_TOKENS_MAX,
            temperature=0.0 if is_greedy else self._config.temperature * COOLING,
            top_p=self._config.top_p,
        )
        pieces = self._pieces(sampling, is_spoken=True)
        try:
            async for text in pieces:
                length = int(len(text) * CHARACTER_S * OUTPUT_SAMPLE_RATE_HZ)
                sound = np.zeros(length, np.float32)  # without a voice: how long the words would be
                if speaks:
                    sound = await self._threads.run(partial(self._parts.synthesizer.speak, text))
                yield Sentence(text, sound)
        finally:
            await pieces.aclose()

    async def _spoken_unit(self, until_s: float, on_sound: OnSound) -> DuplexGenerateResult:
        reply = self._reply
        if reply is None:
            return DuplexGenerateResult(is_listen=True, n_tokens=1)
        unit = int(UNIT_S * OUTPUT_SAMPLE_RATE_HZ)
        is_first = not reply.text
        await reply.wait(1 if is_first else unit + 1, until_s)
        if is_first and not reply.ready_samples and not reply.is_made:
            return DuplexGenerateResult(is_listen=True, n_tokens=1)
        text, sound = "", np.zeros(0, np.float32)
        if self._has_early_sound and is_first and self._config.generate_audio:
            text, early = reply.take(unit // 2)
            await on_sound(early)
            unit -= len(early)
        if is_first and not reply.is_made:
            await reply.wait(unit, until_s)
        more, sound = reply.take(unit)
        text += more
        is_last = reply.is_made and not reply.ready_samples
        self._state.spoke(text, UNIT_S)
        if is_last:
            await self._end_reply()
        speaks = self._config.generate_audio and len(sound) > 0
        return DuplexGenerateResult(
            is_listen=False,
            text=text,
            audio_data=to_pcm(sound) if speaks else None,
            end_of_turn=is_last,
            n_tokens=len(words_of(text)) + 1,
        )

    async def _end_reply(self) -> None:
        reply, self._reply = self._reply, None
        assert reply is not None, "there is one"
        await reply.close()
        if reply.text.strip():
            self._lines.append(Line("assistant", reply.text.strip()))


class _CallState:
    """What was received and said in a call, as far as turns depend on it."""

    def __init__(self, turn: UserTurn, listens_for: int = 0) -> None:
        self.turn = turn
        self.picture: Image.Image | None = None
        self.has_break = False
        self._listens_for = listens_for
        self._received = np.zeros(0, np.float32)
        self.said: deque[str] = deque(maxlen=SAID_WORDS_MAX)
        self._own_audio_until_s = (
            0.0  # when the cascade's own sound ends, on the clock of the received audio
        )

    def take_second(self, audio: FloatArray) -> FloatArray | None:
        """Add audio; return one second of it, None if there is less."""
        self._received = np.concatenate([self._received, audio])
        length = int(UNIT_S * INPUT_SAMPLE_RATE_HZ)
        if len(self._received) < length:
            return None
        second, self._received = np.split(self._received, [length])
        return second

    def must_listen(self, force_listen: bool, force_speak: bool) -> bool:
        """Return whether this unit has to listen; a break counts once."""
        is_bound = self._listens_for > 0 and not force_speak
        self._listens_for = max(0, self._listens_for - 1)
        must, self.has_break = force_listen or self.has_break or is_bound, False
        return must

    def spoke(self, text: str, length_s: float) -> None:
        self.said.extend(words_of(text))
        self._own_audio_until_s = max(self._own_audio_until_s, self.turn.received_s) + length_s

    def is_echo(self, text: str) -> bool:
        """Return whether the user's turn began within the cascade's own sound, and repeats it."""
        is_within = self.turn.began_s < self._own_audio_until_s + ECHO_TAIL_S
        return is_within and is_echo(text, self.said)
