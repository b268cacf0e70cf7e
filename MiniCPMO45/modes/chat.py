"""One-shot chat: the whole history in, one whole reply out, spoken as a whole if asked for.

Also the non-streaming reply over a kept cache. Holds no conversation.
Source: docs/specification/model.md#5.2, #5.5 and #5.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.engine.policies import ReplyPolicy
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import LlmForward, Steps, TokenIds
from MiniCPMO45.modes.prompt_input import MessageInput, PieceOptions
from MiniCPMO45.modes.speech import ReplySpeech
from MiniCPMO45.modes.streaming import StreamingCapability
from MiniCPMO45.processing.processor import Message, Prompt, PromptOptions
from MiniCPMO45.processing.prompts import SPEECH_END
from MiniCPMO45.settings import GenerationSettings


@dataclass(frozen=True, eq=False)
class Draft:
    """What was written in one go.

    Attributes:
        ids: tokens drawn, without the terminator.
        hidden: state [hidden] of the tokens fed, from the first on.
    """

    ids: tuple[int, ...]
    hidden: tuple[Tensor, ...] = ()
    has_ended: bool = False
    was_stopped: bool = False

    @property
    def hit_limit(self) -> bool:
        return not (self.has_ended or self.was_stopped)


@dataclass(frozen=True, eq=False)
class ChatReply:
    """A whole reply.

    Attributes:
        waveform: float32 [samples] at 24 kHz; None when it is not spoken.
        prompt: the text it answers, media as markers; empty over a kept cache.
    """

    text: str
    waveform: np.ndarray | None = None
    prompt: str = ""
    ids: tuple[int, ...] = ()
    was_stopped: bool = False
    hit_limit: bool = False
    prompt_tokens: int = 0

    @property
    def n_tokens(self) -> int:
        return len(self.ids)


class ChatCapability:
    def __init__(self, messages: MessageInput, policy: ReplyPolicy, speech: ReplySpeech) -> None:
        self.messages = messages
        self.tokenizer = messages.processor.tokenizer
        self.policy = policy
        self.speech = speech

    def reply(
        self,
        session: Session,
        messages: Sequence[Message],
        settings: GenerationSettings,
        options: PieceOptions | None = None,
    ) -> Steps[ChatReply]:
        """Answer a history.

        `session` is fresh; afterwards its cache holds prompt and reply. Speech needs an open voice,
        and `session.stop` ends everything early. By default pictures are cut as the checkpoint says
        and parts are joined by a line feed.

        Raises:
            ProcessingError: a part of a message cannot be used.
            PromptTooLongError: the prompt exceeds `settings.max_input_tokens`; nothing was run.
            ValueError: the conversation has begun already.
        """
        if session.kv.length:
            raise ValueError("a one-shot reply needs a fresh conversation")
        prompt = self._render(messages, settings, options)
        pieces = yield from self.messages.embed_history(session, prompt)
        if session.stop.is_set():
            return ChatReply("", prompt=prompt.text, was_stopped=True)
        output = yield LlmForward(session.kv, pieces)
        speaks = (
            settings.generate_audio
            and session.speech.vocoder is not None
            and self.policy.tokens.tts_bos in prompt.ids
        )
        draft = yield from self._write(session, output.logits, settings)
        waveform = None
        if speaks and not session.stop.is_set():
            hidden = torch.cat((output.hidden, *(row[None] for row in draft.hidden)))
            waveform = yield from self._speak_span(session, prompt, draft, hidden, settings)
        return ChatReply(
            self._clean(draft.ids),
            waveform,
            prompt.text,
            draft.ids,
            draft.was_stopped,
            draft.hit_limit,
            len(prompt.ids),
        )

    def reply_over_cache(
        self, streaming: StreamingCapability, session: Session, settings: GenerationSettings
    ) -> Steps[ChatReply]:
        """Write a reply behind what the cache holds, then speak it as a whole."""
        result, hidden = yield from streaming.write_with_hidden(session, settings)
        waveform = None
        speaks = settings.generate_audio and session.speech.vocoder is not None
        said = result.ids[: self.policy.tokens.spoken_count(result.ids)]
        if speaks and said and not session.stop.is_set():
            assert hidden is not None
            waveform = yield from self.speech.speak_whole(
                session, said, hidden[: len(said)], settings.speech
            )
        return ChatReply(
            result.text,
            waveform,
            ids=result.ids,
            was_stopped=result.was_stopped,
            hit_limit=result.hit_limit,
        )

    def _render(
        self,
        messages: Sequence[Message],
        settings: GenerationSettings,
        options: PieceOptions | None,
    ) -> Prompt:
        rendering = replace(options or PromptOptions(), max_tokens=settings.max_input_tokens)
        return self.messages.processor.render(
            messages,
            rendering,
            add_generation_prompt=True,
            enable_thinking=settings.enable_thinking,
            use_tts_template=settings.use_speech_template,
        )

    def _write(
        self, session: Session, logits: Tensor, settings: GenerationSettings
    ) -> Steps[Draft]:
        """Feed what the reply begins with, then draw one token after another.

        The last token drawn is not fed.
        """
        ids = self.tokenizer.encode_text(settings.reply_start)
        hidden: list[Tensor] = []
        if settings.reply_start and not ids:  # there is nothing to say
            return Draft((), has_ended=True)
        if ids:
            output = yield LlmForward(session.kv, (TokenIds(tuple(ids)),))
            hidden, logits = list(output.hidden), output.logits
        terminators, generator = self.policy.tokens.chat_terminators, session.sampler.generator
        limit = settings.max_new_tokens
        while len(ids) < limit and not session.stop.is_set():
            token = self.policy.next_one_shot(logits, ids, settings, generator)
            if token in terminators:
                return Draft(tuple(ids), tuple(hidden), has_ended=True)
            ids.append(token)
            if len(ids) < limit:
                output = yield LlmForward(session.kv, (TokenIds((token,)),))
                hidden.append(output.hidden[-1])
                logits = output.logits
        return Draft(tuple(ids), tuple(hidden), was_stopped=len(ids) < limit)

    def _clean(self, ids: Sequence[int]) -> str:
        if ids and ids[0] == self.policy.tokens.im_start:
            ids = ids[1:]
        return self.tokenizer.decode(ids).removesuffix(SPEECH_END)

    def _speak_span(
        self,
        session: Session,
        prompt: Prompt,
        draft: Draft,
        hidden: Tensor,
        settings: GenerationSettings,
    ) -> Steps[np.ndarray | None]:
        """Speak what stands between the speech marks of prompt and reply.

        `hidden` [n, hidden] belongs to the prompt's and the reply's rows that were fed.
        """
        tokens = self.policy.tokens
        ids = (*prompt.ids, *draft.ids[: tokens.spoken_count(draft.ids)])
        start = _last(ids, tokens.tts_bos, 0) + 1
        stop = _last(ids, tokens.tts_eos, start)
        stop = min(stop if stop >= 0 else len(ids), len(hidden))
        if stop <= start:
            return None
        return (
            yield from self.speech.speak_whole(
                session, ids[start:stop], hidden[start:stop], settings.speech
            )
        )


def _last(ids: Sequence[int], token: int, start: int) -> int:
    """Index of the last `token` from `start` on, -1 if there is none."""
    for index in range(len(ids) - 1, start - 1, -1):
        if ids[index] == token:
            return index
    return -1
