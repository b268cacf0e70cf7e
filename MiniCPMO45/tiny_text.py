"""What the tiny tokenizer is trained on, and the chat template of the tiny checkpoint."""

from __future__ import annotations

from MiniCPMO45 import prompts
from MiniCPMO45.prompts import Language, PromptMode
from MiniCPMO45.special_tokens import ASCII_MARKS, FULL_WIDTH_MARKS

SPOKEN_TEXT = """
Hello, how are you today? I am fine, thank you. It is good to hear your voice again.
Yes, I can hear you. No, I can not see it yet. Please tell me more about it.
The morning is bright and the window is open. A small bird sings on the old roof.
We walk along the river and talk about the weather. The water is cold and clear.
What time is it now? It is almost seven. The train leaves in a few minutes.
My friend lives near the station and works in a garden with many red flowers.
Can you help me find the right way? Of course, go straight and then turn left.
She reads a long book while he makes some tea in the kitchen.
The children play in the yard, run to the door and laugh very loud.
I like warm bread, green apples and a little honey. Do you want to eat with us?
Let me think for a moment. That is a nice question, and the answer is not easy.
There are three cups on the table, two are white and one is blue.
Last night the moon was round and the whole street was quiet.
One, two, three, four, five, six, seven, eight, nine, ten.
I see a dog, a cat and a big tree in this picture. The light comes from the right.
Maybe we should wait here until the rain stops. Then we can go home together.
Your music sounds great! Could you sing that song once more, but slowly?
Thank you for the call. Have a good day and see you soon. Goodbye!
你好，今天天气很好。请问现在几点了？我听见你的声音了，谢谢你。
我们一起去河边走走吧。桌子上有三个杯子。早上好，晚安，再见！
我喜欢喝茶，也喜欢听音乐。请你慢一点说，我想一想再回答。
"""
"""Everyday sentences; the words of these are what the tiny model prefers to say."""

CHAT_TEMPLATE = """
{%- set turn = namespace(last_question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set turn.last_question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set words = message.content %}
    {%- if message.role == 'assistant' and loop.index0 < turn.last_question %}
        {%- set words = words.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ words ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
    {%- if use_tts_template is defined and use_tts_template %}
        {{- '<|tts_bos|>' }}
    {%- endif %}
{%- endif %}
"""

_REPEATS = 20  # so that roles and marks become single tokens before rare letter pairs do


def training_texts() -> list[str]:
    """Return everything the tokenizer is trained on."""
    system = [
        text
        for mode in PromptMode
        for language in Language
        for text in prompts.system_prompt(mode, language).parts(None)
    ]
    often = ["system\n", "user\n", "assistant\n", "\n\n", *ASCII_MARKS, *FULL_WIDTH_MARKS]
    duplex = [
        prompts.DUPLEX_SYSTEM_PROMPT,
        prompts.SERVICE_DUPLEX_SYSTEM_PROMPT,
        prompts.CONTEXT_MARKER,
    ]
    return [*SPOKEN_TEXT.strip().split("\n"), *system, *duplex, *often * _REPEATS]
