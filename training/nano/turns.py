"""Training examples of turn-based conversations, spoken or typed: streamed and one-shot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import numpy as np
from PIL import Image

from MiniCPMO45.modes.prompt_input import pad_first_audio
from MiniCPMO45.processing import prompts
from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from MiniCPMO45.processing.processor import Message, MiniCPMOProcessor, Part, PromptOptions
from MiniCPMO45.processing.prompts import PromptMode, SystemPrompt, TurnOpening
from training.nano.asking import RESTATED_UNTIL, Dialogue
from training.nano.bank import Bank, Samples
from training.nano.domain.camera import shown_words
from training.nano.domain.facts import ROLES
from training.nano.domain.kinds import Question, capitalised
from training.nano.domain.spoken_numbers import cardinal
from training.nano.layout import TurnsLayout
from training.nano.sessions import Example

SPOKEN = 0.5  # of the questions
ONE_SHOT = 0.5  # of the conversations
PICTURED = 0.3  # of the conversations
MOST_ROUNDS, PRACTISED_ROUNDS = 6, 6
BARE, PRACTISED_BARE = 0.25, 0.5  # of the conversations have no system prompt
CHUNK_OPTIONS = PromptOptions(max_slice_nums=1, use_image_id=False, omni_mode=True)
_DIGITS = {cardinal(n): str(n) for n in range(101)}
_PICTURE = Image.new("RGB", (448, 448))


class TurnsSession:
    def __init__(
        self,
        bank: Bank,
        processor: MiniCPMOProcessor,
        random: Random,
        *,
        is_one_shot: bool | None = None,
        practises: bool = False,
        substitutes: bool = False,
    ) -> None:
        """Draw the setting. With `practises` everything is typed, and arithmetic is frequent."""
        self.random = random
        self.processor = processor
        self.practises = practises
        self.has_pictures = not practises and random.random() < PICTURED
        self.has_system = random.random() >= (PRACTISED_BARE if practises else BARE)
        self.dialogue = Dialogue.begin(
            bank,
            random,
            has_pictures=self.has_pictures,
            has_system=self.has_system,
            substitutes=substitutes,
        )
        self.layout = TurnsLayout(processor.tokenizer)
        self.clips: list[Samples] = []
        self.messages: list[Message] = []
        self.is_one_shot = random.random() < ONE_SHOT if is_one_shot is None else is_one_shot
        self.can_be_spoken = random.random() < 0.8

    def compose(self) -> Example:
        (self._one_shot if self.is_one_shot else self._streamed)()
        caption = self.processor.tokenizer.encode(shown_words(self.dialogue.context.scene))
        nothing = np.zeros(0, np.float32)
        return Example(
            self.layout, nothing, self.clips, caption, has_blocked_clips=self.is_one_shot
        )

    def _streamed(self) -> None:
        content = self._system_content()
        if content:
            self.messages.append(Message("system", content))
            self._add_chunk(
                content, lambda text: prompts.message_text("system", text), is_first_sound=False
            )
        rounds = PRACTISED_ROUNDS if self.practises else self.random.randint(1, MOST_ROUNDS)
        for number in range(rounds):
            question, asked = self._question()
            if number == 0 and self.has_pictures:
                asked = [_PICTURE, *asked]
            opening = self.layout.opening
            self.messages.append(Message("user", asked))
            self._add_chunk(
                asked, partial(prompts.user_chunk, opening=opening), is_first_sound=number == 0
            )
            self.layout.open_reply(can_be_spoken=self.can_be_spoken)
            self.messages.append(Message("assistant", self._answer(question, is_one_shot=False)))

    def _one_shot(self) -> None:
        messages = self.messages
        content = self._system_content()
        if content:
            messages.append(Message("system", content))
        for _ in range(self.random.randint(0, 3)):
            question, asked = self._question()
            messages.append(Message("user", asked))
            messages.append(Message("assistant", self.dialogue.reply(question)))
        question, asked = self._question()
        if self.has_pictures:
            asked = [_PICTURE, *asked]
        messages.append(Message("user", asked))
        prompt = self.processor.render(
            messages,
            PromptOptions(max_slice_nums=1),
            add_generation_prompt=True,
            use_tts_template=self.can_be_spoken,
        )
        self.clips += [np.asarray(clip, np.float32) for clip in prompt.clips]
        self.layout.add_media(prompt.ids, prompt.audio_spans, prompt.image_spans)
        messages.append(Message("assistant", self._answer(question, is_one_shot=True)))

    def _answer(self, question: Question, *, is_one_shot: bool) -> str:
        other = self.dialogue.substitute(question)
        reply = self.dialogue.reply(other or question)
        self.layout.answer(reply, is_one_shot=is_one_shot, intent=question.intent)
        if other:
            self.layout.mask_until(RESTATED_UNTIL)
        return reply

    def _add_chunk(
        self, content: list[Part], frame: Callable[[str], str], *, is_first_sound: bool
    ) -> None:
        if is_first_sound:
            content = list(content)
            pad_first_audio(content)
        prompt = self.processor.render_content(content, frame, CHUNK_OPTIONS)
        self.clips += [np.asarray(clip, np.float32) for clip in prompt.clips]
        # `answer` has already appended the end token that begins the next chunk.
        dropped = int(self.layout.opening is TurnOpening.AFTER_REPLY)
        assert not dropped or prompt.ids[0] == self.layout.tokens.tts_eos
        self.layout.add_media(
            prompt.ids[dropped:],
            [(start - dropped, stop - dropped) for start, stop in prompt.audio_spans],
            [(start - dropped, stop - dropped) for start, stop in prompt.image_spans],
        )

    def _system_content(self) -> list[Part]:
        random, text = self.random, self.dialogue.system_text
        if not self.has_system:
            return []
        voice = np.zeros(0, np.float32) if self.practises else self.dialogue.voice_sample()
        if random.random() < 0.5:
            mode = random.choice(list(PromptMode))
            prompt = prompts.system_prompt(mode, has_voice=True)
        else:
            prompt = SystemPrompt("Speak with the voice of this sample.", random.choice(ROLES))
        facts = [text] if text else []
        if not len(voice):
            return [prompts.DEFAULT_SYSTEM_PROMPT.before, *facts]
        return [*prompt.parts(voice), *facts]

    def _question(self) -> tuple[Question, list[Part]]:
        if self.practises or self.random.random() >= SPOKEN:
            question = self.dialogue.ask_in_writing(practises=self.practises)
            return question, [self._typed(question.text)]
        asked = self.dialogue.ask()
        before, after = (
            np.zeros(int(self.random.uniform(0.0, most_s) * SAMPLE_RATE_HZ), np.float32)
            for most_s in (0.5, 1.0)
        )
        return asked.question, [np.concatenate((before, asked.samples, after))]

    def _typed(self, text: str) -> str:
        """Vary capitals, punctuation and digits."""
        random = self.random
        if random.random() < 0.5:
            text = capitalised(text)
        if random.random() < 0.35:
            text = text.rstrip(".?!")
        if random.random() < 0.4:
            words = (_DIGITS.get(word, word) for word in text.split(" "))
            text = " ".join(words)
        return text.lower() if random.random() < 0.2 else text
