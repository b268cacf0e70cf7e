"""Full duplex over a cascade, in units of one second that listen or speak.

Voice activity and the transcript decide on the end of the user's turn, on barge-in and on echo.
A reply is synthesized sentence by sentence and sent a second at a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from PIL import Image

from core.audio import FloatArray, to_pcm
from core.cascade.language import Line, Sampling
from core.cascade.parts import Parts
from core.cascade.pictures import PrefetchedPicture, SeenPictures
from core.cascade.predefined import asks_about_picture
from core.cascade.prompts import split_suffix, with_added
from core.cascade.synthesis import Sentence, SpokenReply
from core.cascade.turn_based import (
    SAY_SOMETHING,
    SPOKEN_TOKENS_MAX,
    TEMPERATURE_SCALE,
    CascadeView,
)
from core.cascade.turns import (
    ECHO_SHARE,
    INTERRUPTING_ECHO_SHARE,
    PAUSE_S,
    UserTurn,
    is_backchannel,
    is_echo,
    is_finished,
    is_over,
    is_stop,
    words_of,
)
from core.modes import OnSound, Threads
from core.protocols.events import MS_PER_S
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ

DEFAULT_PROMPT: Final = "You are on a live voice call."
UNIT_S: Final = 1.0
# Ours: longest time of a unit; a reply that is not ready by then begins with a later one.
PATIENCE_S: Final = 0.9
# Ours: silence after which a complete sentence is answered; the reply is withdrawn if the user
# continues.
SHORT_PAUSE_S: Final = 0.06
DRAFT_TURN_MAX_S: Final = 10.0  # ours: longer turns are transcribed only after silence
SPEECH_MIN_S: Final = 0.2  # shorter speech is noise
SYLLABLE_S: Final = 0.1  # ours: less further speech adds no word
NOISE_OVER_S: Final = 0.6  # of silence, then noise is dropped
BARGE_IN_S: Final = 0.4  # of speech during a reply, then it is transcribed
ECHO_TAIL_S: Final = 0.6  # of playback buffer and reverberation
# Ours: a continuing echo is transcribed as a whole, since Whisper mishears two words alone, up to
# this length, since the user's words must be a large part of it.
ECHO_SEGMENT_MAX_S: Final = 2.0
SPOKEN_WORDS_MAX: Final = 60  # about half a minute, for recognizing echo
CHARACTER_S: Final = 0.06  # of speech, measured with hibari


@dataclass(frozen=True)
class _Draft:
    """A reply prepared before the user's turn is certainly over."""

    reply: SpokenReply
    words: str  # transcript of the turn
    lines: list[Line]  # the conversation before the turn
    snapshot: UserTurn


class CascadeDuplexView(CascadeView):
    """A live call; a unit waits at most `patience_s` for a reply."""

    slice_limit = 1
    patience_s = PATIENCE_S

    def __init__(self, parts: Parts, threads: Threads) -> None:
        super().__init__(parts, threads)
        self._config = DuplexConfig()
        self._state = _CallState(UserTurn(parts.detector))
        self._reply: SpokenReply | None = None
        self._draft: _Draft | None = None  # not sent yet
        self._withdrawable: _Draft | None = None  # begun with the last unit
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
        """Begin a call, or continue the same one with text that was added to it.

        The user may be speaking meanwhile, so what was heard of the current turn stays.
        """
        self._check_voice(ref_audio if tts_audio is None else tts_audio)
        await self._end_reply()
        await self._discard_draft()
        self._withdrawable = None
        self._config, self._has_early_sound = config, early_audio
        self.slice_limit = config.max_slice_nums
        instructions, said = split_suffix(suffix_text or "")
        heard = [line for line in self._lines if said and line.role != "system"]
        self._state.listens_for = config.force_listen_count
        self._lines = []
        system = f"{system_prompt or DEFAULT_PROMPT} {instructions}".strip()
        prompt = await self._feed(Line("system", system), *with_added(heard, said))
        await self._prefetch_prompt()
        return prompt

    @property
    def recently_said(self) -> tuple[str, ...]:
        """Latest words of the model, in lower case; an echo repeats them."""
        return tuple(self._state.spoken_words)

    async def close(self) -> None:
        await self._end_reply()
        await self._discard_draft()
        await super().close()

    def set_break(self) -> None:
        self._state.has_break = True

    async def encode_ahead(self, picture: Image.Image, max_slice_nums: int) -> PrefetchedPicture:
        """Keep a picture for its unit; it is described only if a question is about it."""
        return PrefetchedPicture(picture, max_slice_nums)

    async def unit(
        self,
        audio: FloatArray,
        frames: Sequence[Image.Image | PrefetchedPicture],
        max_slice_nums: int | None = None,
        *,
        force_listen: bool,
        force_speak: bool,
        due_s: float | None,
        on_sound: OnSound,
    ) -> DuplexGenerateResult | None:
        """Process one second, then listen or speak; None if less was received so far."""
        began_s = time.monotonic()
        state = self._state
        second = state.take_second(audio)
        if second is None:
            return None
        if frames:
            newest = frames[-1]
            picture = newest.picture if isinstance(newest, PrefetchedPicture) else newest
            state.pictures.add(picture, state.turn.received_s)
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
        elif must_listen and state.turn.is_full:
            await self._keep_turn()
        elif self._reply is None and not must_listen:
            await self._reply_if_turn_ended(force_speak=force_speak)
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

    async def _reply_if_turn_ended(self, *, force_speak: bool) -> None:
        """Begin a reply if the user's turn seems over or the caller forces one."""
        turn = self._state.turn
        if turn.speech_s < SPEECH_MIN_S and not force_speak:
            await self._discard_draft()
            if turn.has_speech and turn.silence_s > NOISE_OVER_S:
                turn.clear()
            return
        words = await self._transcript_so_far()
        is_sure = force_speak or turn.is_full or is_over(words, turn.silence_s)
        may_be_over = is_sure or turn.silence_s >= SHORT_PAUSE_S
        is_echoed = self._state.is_echo(words)
        if (is_echoed or is_stop(words)) and not force_speak:
            if is_sure or (is_echoed and may_be_over):
                turn.clear()
            return
        if not is_sure and not (may_be_over and is_finished(words)):
            await self._draft_or_prefetch(words)
            return
        words = "" if is_echoed else words
        if words or force_speak:
            draft = self._draft or await self._drafted(words)
            self._reply, self._draft = draft.reply, None
            self._withdrawable = None if is_sure else replace(draft, snapshot=turn.snapshot())
        turn.clear()

    async def _keep_turn(self) -> None:
        """Keep what the user said as text, for a later reply."""
        turn = self._state.turn
        if turn.speech_s >= SPEECH_MIN_S:
            words = await self._transcribe(turn.audio, turn.speech_s)
            if words and not self._state.is_echo(words):
                await self._feed(Line("user", words))
        turn.clear()

    async def _transcript_so_far(self) -> str:
        """Transcribe the turn; discard a draft that does not answer it any more."""
        turn, draft = self._state.turn, self._draft
        if draft is not None and turn.speech_s < draft.snapshot.speech_s + SYLLABLE_S:
            return draft.words
        if draft is not None and turn.speech_s >= draft.snapshot.speech_s + SPEECH_MIN_S:
            await self._discard_draft()
        is_long = len(turn.audio) > DRAFT_TURN_MAX_S * INPUT_SAMPLE_RATE_HZ
        if not turn.has_speech or (is_long and turn.silence_s < SHORT_PAUSE_S and not turn.is_full):
            return ""
        words = await self._transcribe(turn.audio, turn.speech_s)
        if draft is not None and words_of(words) != words_of(draft.words):
            await self._discard_draft()
        return words

    async def _draft_or_prefetch(self, words: str) -> None:
        """Draft a reply if the turn may end with the next second, else prefetch its prompt."""
        may_be_over = self._state.turn.silence_s >= SHORT_PAUSE_S and is_over(words, PAUSE_S)
        if self._draft is None and (may_be_over or is_finished(words)):
            self._draft = await self._drafted(words)
            self._draft.reply.start()
        elif self._draft is None and words:
            await self._prefetch_prompt(Line("user", words))

    async def _drafted(self, words: str) -> _Draft:
        """Begin a reply to these words, or without words to what was typed."""
        turn, lines, asked = self._state.turn, self._lines, words
        if not words and lines[-1].role == "user":
            self._lines, asked = lines[:-1], lines[-1].content
        line = Line("user", asked or SAY_SOMETHING)
        picture = self._state.pictures.newest(turn.received_s)
        if picture is not None and asks_about_picture(asked):
            line = Line("user", f"{asked} {await self._seen(picture, asked)}")
        await self._feed(line)
        return _Draft(SpokenReply(self._sentences()), words, lines, turn.snapshot())

    async def _discard_draft(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            await draft.reply.close()
            self._lines = draft.lines

    async def _withdraw(self, sent: _Draft) -> None:
        """Stop a reply to an incomplete question; what follows belongs to the same turn."""
        self._reply, self._draft = None, sent
        await self._discard_draft()
        self._state.turn.resume(sent.snapshot)

    async def _is_interrupted(self) -> bool:
        """Return whether the user interrupts the reply, by more than a backchannel or an echo."""
        turn = self._state.turn
        is_short = turn.speech_s < BARGE_IN_S
        if turn.speech_s < SPEECH_MIN_S or (is_short and turn.silence_s < PAUSE_S):
            if turn.has_speech and turn.silence_s > NOISE_OVER_S:
                turn.clear()
            return False
        words = await self._transcribe(turn.audio, turn.speech_s)
        if is_short:  # one word at most; only a stop word ends a reply
            turn.clear()
            return is_stop(words)
        if not words or self._state.is_echo(words):
            if turn.silence_s >= SHORT_PAUSE_S or turn.speech_s > ECHO_SEGMENT_MAX_S:
                turn.clear()
            return False
        if is_backchannel(words):
            if is_over(words, turn.silence_s):
                turn.clear()
            return False
        turn.has_interrupted = True
        if is_stop(words):
            turn.clear()
        return True

    # --- replies ---

    async def _sentences(self) -> AsyncGenerator[Sentence, None]:
        speaks = self._config.generate_audio
        is_greedy = self._config.decode_mode == "greedy"
        sampling = Sampling(
            max_tokens=SPOKEN_TOKENS_MAX,
            temperature=0.0 if is_greedy else self._config.temperature * TEMPERATURE_SCALE,
            top_p=self._config.top_p,
        )
        async with aclosing(self._pieces(sampling, is_spoken=True)) as pieces:
            async for text in pieces:
                length = int(len(text) * CHARACTER_S * OUTPUT_SAMPLE_RATE_HZ)
                audio = np.zeros(length, np.float32)  # without speech: a pause of the same length
                if speaks:
                    audio = await self._threads.run(partial(self._parts.synthesizer.speak, text))
                yield Sentence(text, audio)

    async def _spoken_unit(self, until_s: float, on_sound: OnSound) -> DuplexGenerateResult:
        reply = self._reply
        if reply is None:
            return DuplexGenerateResult(is_listen=True, n_tokens=1)
        unit = int(UNIT_S * OUTPUT_SAMPLE_RATE_HZ)
        is_first = not reply.text
        await reply.wait(1 if is_first else unit + 1, until_s)
        if is_first and not reply.ready_samples and not reply.is_complete:
            return DuplexGenerateResult(is_listen=True, n_tokens=1)
        text = ""
        if self._has_early_sound and is_first and self._config.generate_audio:
            text, early = reply.take(unit // 2)
            await on_sound(early)
            unit -= len(early)
        if is_first and not reply.is_complete:
            await reply.wait(unit, until_s)
        more, audio = reply.take(unit)
        text += more
        is_last = reply.is_complete and not reply.ready_samples
        if self._config.generate_audio:  # else there is no echo
            self._state.note_spoken(text, UNIT_S)
        if is_last:
            await self._end_reply()
        speaks = self._config.generate_audio and len(audio) > 0
        return DuplexGenerateResult(
            is_listen=False,
            text=text,
            audio_data=to_pcm(audio) if speaks else None,
            end_of_turn=is_last,
            n_tokens=len(words_of(text)) + 1,
        )

    async def _end_reply(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            await reply.close()
            if said := reply.text.strip():
                self._lines.append(Line("assistant", said))


class _CallState:
    def __init__(self, turn: UserTurn) -> None:
        self.turn = turn
        self.listens_for = 0  # units
        self.pictures = SeenPictures()
        self.has_break = False
        self._received = np.zeros(0, np.float32)
        self.spoken_words: deque[str] = deque(maxlen=SPOKEN_WORDS_MAX)
        self._speaks_until_s = 0.0  # end of the model's speech, on the clock of received audio

    def take_second(self, audio: FloatArray) -> FloatArray | None:
        """Add audio; return the oldest second, or None if there is less."""
        self._received = np.concatenate([self._received, audio])
        length = int(UNIT_S * INPUT_SAMPLE_RATE_HZ)
        if len(self._received) < length:
            return None
        second, self._received = np.split(self._received, [length])
        return second

    def must_listen(self, force_listen: bool, force_speak: bool) -> bool:
        """Return whether this unit has to listen; a break holds for one unit."""
        is_bound = self.listens_for > 0 and not force_speak
        self.listens_for = max(0, self.listens_for - 1)
        must, self.has_break = force_listen or self.has_break or is_bound, False
        return must

    def note_spoken(self, text: str, length_s: float) -> None:
        self.spoken_words.extend(words_of(text))
        self._speaks_until_s = max(self._speaks_until_s, self.turn.received_s) + length_s

    def is_echo(self, text: str) -> bool:
        """Return whether the user's turn began during the model's speech and repeats it."""
        is_during = self.turn.began_s < self._speaks_until_s + ECHO_TAIL_S
        words = words_of(text)
        if self.turn.silence_s < SHORT_PAUSE_S and len(words) > 2:
            del words[-1]  # cut off by the end of the unit, so often misheard
        share = INTERRUPTING_ECHO_SHARE if self.turn.has_interrupted else ECHO_SHARE
        return is_during and is_echo(" ".join(words), self.spoken_words, share)
