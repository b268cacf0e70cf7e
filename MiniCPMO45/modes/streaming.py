"""Turn-based conversations: prefill of messages, and replies, streamed or as a whole.

Serves streaming, half duplex and one-shot chat. Methods are generators of requests over one
`Session`. Source: docs/specification/model.md#5.2 to #5.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.engine.kv_cache import CacheFullError, Rows
from MiniCPMO45.engine.policies import ReplyPolicy
from MiniCPMO45.engine.session import Round, Session, maintain_rounds, window_now
from MiniCPMO45.engine.steps import Emit, LlmForward, Steps
from MiniCPMO45.modes.prompt_input import (
    PrefillOptions,
    embed_clips,
    embed_pictures,
    embed_stream,
    lay_out,
)
from MiniCPMO45.modes.speech import ReplyChunk, finish_speech, speak_group, speak_whole
from MiniCPMO45.processing import prompts
from MiniCPMO45.processing.mel import MelState
from MiniCPMO45.processing.processor import Prompt
from MiniCPMO45.processing.prompts import SPEECH_END, TurnOpening
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.settings import GenerationSettings

GROUP_TOKENS = 10  # text tokens synthesised together; source: docs/specification/model.md#5.4
INCOMPLETE_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class ReplyResult:
    """A complete reply."""

    text: str
    ids: tuple[int, ...]
    was_stopped: bool = False
    hit_limit: bool = False
    # float32 [samples] at 24 kHz, if the speech was not streamed.
    waveform: np.ndarray | None = field(default=None, compare=False)
    prompt: str = ""  # prompt of a one-shot reply, with media markers
    prompt_tokens: int = 0


@dataclass
class _Reply:
    """A reply under generation; `text_sent` characters after token `text_from` were emitted."""

    session: Session
    settings: GenerationSettings
    start: int  # cache length before it, in tokens
    speaks: bool  # its text is spoken
    next_rows: Rows  # input of the next forward pass
    is_one_shot: bool = False
    # The last one is not fed until its successor is generated.
    ids: list[int] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)  # state [hidden] of each token fed
    prefix: Tensor | None = None  # states [n, hidden] of the rows fed before the reply
    given: tuple[int, ...] = ()  # tokens still to be fed instead of generated
    grouped: int = 0  # number of tokens passed to speech or emitted
    text_from: int = 0
    text_sent: int = 0
    has_ended: bool = False
    hit_limit: bool = False


@dataclass(eq=False)
class StreamingCapability:
    config: MiniCPMOConfig
    tokenizer: MiniCPMOTokenizerFast
    policy: ReplyPolicy

    def prefill(self, session: Session, prompt: Prompt, options: PrefillOptions) -> Steps[str]:
        """Append a message, or a chunk of a user turn; return the text fed, with media markers.

        The prompt is what `render_message` made of it with the same options.
        """
        turn, audio_input = session.turn, session.audio_input
        [role] = prompt.roles
        is_user = role == "user"
        if is_user and options.stream_input:
            pictures = yield from embed_pictures(prompt)
            audio = yield from embed_stream(audio_input, prompt, is_last=options.is_last_chunk)
            rows = lay_out(prompt, pictures, audio)
        else:
            rows = yield from self._embed(prompt, None, role == "system")
        yield from self._feed(session, rows, role)
        if is_user:
            audio_input.audio_units += len(prompt.clips) if not options.stream_input else 0
            turn.opening = TurnOpening.CONTINUED
        elif role == "assistant" and turn.opening is not TurnOpening.FIRST:
            turn.opening = TurnOpening.AFTER_REPLY
            turn.round += 1
        if not is_user:
            audio_input.cache.clear()
        return prompt.text

    def prefill_history(self, session: Session, prompt: Prompt) -> Steps[str]:
        """Prefill a complete history into a fresh session; return its text with media markers.

        The prompt is what `render_history` made of it.
        """
        rows = yield from self._embed(prompt, self.config.audio_block_frames, False)
        yield from self._feed(session, rows, "user")
        self._split_into_rounds(session, prompt)
        return prompt.text

    def generate(self, session: Session, settings: GenerationSettings) -> Steps[ReplyResult]:
        """Generate a reply, streamed as `ReplyChunk`s.

        With an open voice the text is spoken in groups of tokens. Otherwise, and for function
        calls, it is emitted token by token. `session.stop` ends the reply. If the memory for the
        speech of all conversations is used up, speech ends early.
        """
        reply = self._begin(session, settings)
        while not (reply.has_ended or reply.hit_limit or session.stop.is_set()):
            group = GROUP_TOKENS if reply.speaks else 1
            size = group if reply.ids else group + 1  # the last token is not fed yet
            yield from self._extend(reply, size)
            if session.stop.is_set():
                break
            if reply.hit_limit:
                yield from self._feed_last(reply)
            is_silent = self._has_call(reply)
            try:
                yield from self._emit_group(reply)
            except CacheFullError:  # of the speech of all conversations; the text goes on
                is_silent = True
            if reply.speaks and is_silent:
                yield from finish_speech(session, lambda: self._new_text(reply))
                reply.speaks = False
        if session.stop.is_set():
            reply.grouped = len(reply.hidden)
            session.reset_speech()  # a retained conversation leaves the speech cache to others
        elif reply.speaks:
            yield from finish_speech(session, lambda: self._new_text(reply))
        if rest := self._new_text(reply, is_final=True):
            yield Emit(ReplyChunk(rest))
        return self._end(reply)

    def reply_over_cache(
        self, session: Session, settings: GenerationSettings
    ) -> Steps[ReplyResult]:
        """Generate a whole reply to the cached conversation, then its speech."""
        reply = self._begin(session, settings)
        yield from self._generate_whole(reply)
        if reply.hit_limit:
            yield from self._feed_last(reply)
        result = self._end(reply)
        spoken = result.ids[: self.policy.tokens.spoken_count(result.ids)]
        if not spoken or not reply.speaks or session.stop.is_set():
            return result
        hidden = torch.stack(reply.hidden[: len(spoken)])
        config = self.config.tts_config
        wave = yield from speak_whole(session, spoken, hidden, config, settings.speech)
        return replace(result, waveform=wave)

    def reply(
        self, session: Session, prompt: Prompt, settings: GenerationSettings
    ) -> Steps[ReplyResult]:
        """Answer a complete history in a fresh session: generate the whole reply, then its speech.

        The prompt is what `render_question` made of it with the same settings. The last token of a
        reply that hits its limit is neither fed nor spoken. Raises `ValueError`, before anything is
        run, if the conversation has begun already.
        """
        if session.kv.length:
            raise ValueError("a one-shot reply needs a fresh conversation")
        reply = self._begin(session, settings)
        reply.next_rows = yield from self._embed(prompt, self.config.audio_block_frames, False)
        reply.is_one_shot, given = True, reply.given
        yield from self._generate_whole(reply)
        if reply.hit_limit and len(reply.ids) == len(given):
            yield from self._feed_last(reply)
        was_stopped = session.stop.is_set() and not reply.has_ended
        ids = tuple(reply.ids[: len(reply.hidden)] if was_stopped else reply.ids)
        waveform = None
        if reply.speaks and not was_stopped:
            waveform = yield from self._speak_span(reply, prompt)
        is_marked = ids[:1] == (self.policy.tokens.im_start,)
        text = self.tokenizer.decode(ids[1:] if is_marked else ids)
        return ReplyResult(
            text=text.removesuffix(SPEECH_END),
            ids=ids,
            was_stopped=was_stopped,
            hit_limit=reply.hit_limit and not was_stopped,
            waveform=waveform,
            prompt=prompt.text,
            prompt_tokens=len(prompt.ids),
        )

    def _embed(self, prompt: Prompt, block_frames: int | None, is_voice: bool) -> Steps[Rows]:
        """Encode a prompt's media; clips attend in blocks of encoder frames, or fully."""
        pictures = yield from embed_pictures(prompt)
        audio = yield from embed_clips(prompt.mels, block_frames, is_voice)
        return lay_out(prompt, pictures, audio)

    def _split_into_rounds(self, session: Session, prompt: Prompt) -> None:
        """Record the messages of a history as rounds, which the window can drop one by one."""
        start, ids, roles = self.policy.tokens.im_start, prompt.ids, prompt.roles
        starts = [index for index, token in enumerate(ids) if token == start]
        if len(starts) != len(roles):  # a message contains the control token
            return
        session.window.rounds.pop()
        stops = [*starts[1:], len(ids)]
        for role, first, last in zip(roles, [0, *starts[1:]], stops, strict=True):
            if role == "user" and any(r.role != "system" for r in session.window.rounds):
                session.turn.round += 1
            session.window.rounds.append(Round(session.turn.round, role, last - first))

    def _feed(self, session: Session, rows: Rows, role: str) -> Steps[None]:
        if not len(rows):  # an empty part of an open turn; a forward pass needs a row
            return
        window, limits = session.window, session.settings.window
        maintain_rounds(session.kv, window, window_now(session.kv, limits))
        before = session.kv.length
        yield LlmForward(session.kv, rows, wants_logits=False)
        window.rounds.append(Round(session.turn.round, role, session.kv.length - before))
        maintain_rounds(session.kv, window, window_now(session.kv, limits))

    def _begin(self, session: Session, settings: GenerationSettings) -> _Reply:
        session.reset_speech()
        session.audio_input.cache.clear()
        session.audio_input.mel = MelState()
        prefix = prompts.reply_prefix(
            enable_thinking=settings.enable_thinking,
            use_tts_template=settings.use_speech_template,
            is_user_turn_open=session.turn.opening is TurnOpening.CONTINUED,
        )
        # Without the control tokens that the text spells out.
        controls, spelled = self.policy.tokens.non_text_ids, settings.reply_start
        given = tuple(token for token in self.tokenizer.encode(spelled) if token not in controls)
        return _Reply(
            session,
            settings,
            start=session.kv.length,
            speaks=settings.generate_audio and session.speech.vocoder is not None,
            given=given,
            has_ended=bool(settings.reply_start) and not given,
            next_rows=Rows.of(self.tokenizer.encode(prefix)),
        )

    def _generate_whole(self, reply: _Reply) -> Steps[None]:
        if not (reply.has_ended or reply.session.stop.is_set()):
            most = max(reply.settings.max_new_tokens, len(reply.given))
            yield from self._extend(reply, most)

    def _extend(self, reply: _Reply, size: int) -> Steps[None]:
        """Append up to `size` tokens: given ones, then generated ones."""
        session, settings = reply.session, reply.settings
        tokens, choose = self.policy.tokens, self.policy.next_token
        terminators = tokens.chat_terminators if reply.is_one_shot else tokens.reply_terminators
        size -= yield from self._take_given(reply, size)
        for _ in range(size):
            reply.hit_limit = len(reply.ids) >= settings.max_new_tokens
            if session.stop.is_set() or reply.hit_limit:
                return
            output = yield LlmForward(session.kv, reply.next_rows)
            if reply.ids:
                reply.hidden.append(output.hidden[-1])
            else:
                reply.prefix = output.hidden
            given = output.logits, reply.ids, settings, session.sampler.generator
            token = choose(*given, is_one_shot=reply.is_one_shot)
            if token in terminators:
                reply.has_ended = True
                return
            reply.ids.append(token)
            reply.next_rows = Rows((token,))
        reply.hit_limit = not reply.given and len(reply.ids) >= settings.max_new_tokens

    def _take_given(self, reply: _Reply, size: int) -> Steps[int]:
        """Append given tokens in one forward pass, the last one unfed; return their number."""
        taken, reply.given = reply.given[:size], reply.given[size:]
        if taken:
            fed = reply.next_rows
            rows, waiting = replace(fed, ids=fed.ids + taken[:-1]), len(reply.ids[-1:])
            output = yield LlmForward(reply.session.kv, rows, wants_logits=False)
            known = len(output.hidden) - (waiting + len(taken) - 1)  # rows before the reply's
            if not waiting:
                reply.prefix = output.hidden[:known]
            reply.hidden += output.hidden[known:]
            reply.ids += taken
            reply.next_rows = Rows(taken[-1:])
        return len(taken)

    def _has_call(self, reply: _Reply) -> bool:
        return self.policy.tokens.spoken_count(reply.ids) < len(reply.ids)

    def _feed_last(self, reply: _Reply) -> Steps[None]:
        """Feed the last token, to obtain its state and complete the cache."""
        output = yield LlmForward(reply.session.kv, reply.next_rows, wants_logits=False)
        reply.hidden.append(output.hidden[-1])

    def _emit_group(self, reply: _Reply) -> Steps[None]:
        """Synthesise the tokens whose states are known, or emit their text."""
        start, reply.grouped = reply.grouped, len(reply.hidden)
        ids = reply.ids[start : reply.grouped]
        if not reply.speaks:
            if text := self._new_text(reply):
                yield Emit(ReplyChunk(text))
            return
        ids = ids[: self.policy.tokens.spoken_count(ids)]
        if not reply.ids or (not ids and not reply.session.speech.codes):
            return
        yield from speak_group(
            reply.session,
            ids,
            torch.stack(reply.hidden[start:])[: len(ids)],
            self.config.tts_config,
            reply.settings.speech,
            is_text_end=reply.has_ended or reply.hit_limit or self._has_call(reply),
            take_text=lambda: self._new_text(reply),
        )

    def _new_text(self, reply: _Reply, *, is_final: bool = False) -> str:
        """Return text of grouped tokens not yet emitted, without an incomplete character."""
        text = self.tokenizer.decode(reply.ids[reply.text_from : reply.grouped])
        new = text[reply.text_sent :]
        if not is_final:
            new = new.rstrip(INCOMPLETE_CHARACTER)
        reply.text_sent += len(new)
        if reply.text_sent == len(text):
            reply.text_from, reply.text_sent = reply.grouped, 0
        return new

    def _end(self, reply: _Reply) -> ReplyResult:
        session, turn = reply.session, reply.session.turn
        was_stopped = session.stop.is_set() and not reply.has_ended
        length = session.kv.length - reply.start
        if not length:  # stopped before the first pass: the turn is still open
            return ReplyResult("", (), was_stopped)
        ids = reply.ids[: len(reply.hidden)] if was_stopped else reply.ids
        session.window.rounds.append(Round(turn.round, "assistant", length))
        turn.round += 1
        turn.opening = TurnOpening.AFTER_REPLY
        return ReplyResult(self.tokenizer.decode(ids), tuple(ids), was_stopped, reply.hit_limit)

    def _speak_span(self, reply: _Reply, prompt: Prompt) -> Steps[np.ndarray | None]:
        """Synthesise the fed tokens between the speech tokens of prompt and reply."""
        tokens = self.policy.tokens
        if tokens.tts_bos not in prompt.ids or reply.prefix is None:
            return None
        hidden = torch.cat((reply.prefix, *(row[None] for row in reply.hidden)))
        ids = (*prompt.ids, *reply.ids[: tokens.spoken_count(reply.ids)])
        start = max(index for index, token in enumerate(ids) if token == tokens.tts_bos) + 1
        ends = (index for index in range(start, len(ids)) if ids[index] == tokens.tts_eos)
        stop = min(max(ends, default=len(ids)), len(hidden))
        if stop <= start:
            return None
        spoken, states, config = ids[start:stop], hidden[start:stop], self.config.tts_config
        sampling = reply.settings.speech
        return (yield from speak_whole(reply.session, spoken, states, config, sampling))
