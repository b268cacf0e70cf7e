"""The chat page as a person uses it."""

from __future__ import annotations

import base64
import json
import re
import wave
from pathlib import Path

import av
import numpy as np
from playwright.sync_api import JSHandle, Locator, Page, expect

from tests.browser.media_files import RECORDINGS, speech_16k
from tests.system.client import Samples

PATH = "/turnbased"
SLOW = "prefill=100 piece=2000"  # seven words: time to act on a busy machine, too
PICTURE = RECORDINGS / "frame_0.png"
SOUND = RECORDINGS / "question_1.wav"
ANSWER_LIMIT_MS = 120_000  # generous, for the machine may be busy
FILM_HZ = 10
FILM_SIZE = (160, 96)
VOICE_BLOCK = 960  # samples of one packet
PCM_SCALE = 32_768
MARKDOWN = """# A heading

Some **bold** and `code`, [a link](https://example.org/), ![a picture](https://example.org/a.png).

1. one
2. two

| Colour | Angle |
| --- | --- |
| Red | 42.4° |

```
a_very_long_line_of_code(that, is, wider, than, any, telephone, and, has, to, scroll, by, itself)
```
"""
IS_OVER = re.compile("^(done|stopped|failed)$")
FILE_SCRIPT = """([name, type, text]) => {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], name, { type }));
    return transfer;
}"""


def box(page: Page) -> Locator:
    """Return where questions are written."""
    return page.get_by_role("textbox", name="Message")


def compose(field: Locator, key: str) -> None:
    """Press a key that an input method takes, such as Enter to accept what it proposes."""
    field.evaluate(
        """(field, key) => {
            const how = { key, isComposing: true, bubbles: true, cancelable: true };
            field.dispatchEvent(new KeyboardEvent("keydown", how));
        }""",
        key,
    )


def messages(page: Page, role: str) -> Locator:
    """Return what one party said."""
    return page.locator(f'.message[data-role="{role}"]')


def wait_until_answered(page: Page, count: int = 1) -> Locator:
    """Wait until the last of so many answers is over; return it."""
    answers = messages(page, "assistant")
    expect(answers).to_have_count(count)
    expect(answers.last).to_have_attribute("data-status", IS_OVER, timeout=ANSWER_LIMIT_MS)
    return answers.last


def ask(page: Page, text: str, count: int = 1) -> Locator:
    """Ask and wait until the answer, number `count` on the page, is over; return it."""
    box(page).fill(text)
    box(page).press("Enter")
    expect(messages(page, "user").last).to_contain_text(text)
    return wait_until_answered(page, count)


def figure(answer: Locator, name: str) -> str:
    """Open an answer's figures and return one."""
    if answer.locator("details.figures").get_attribute("open") is None:
        answer.locator("details.figures > summary").click()
    return answer.locator(f'[data-figure="{name}"]').inner_text()


def wait_until_draft_kept(page: Page) -> None:
    """Wait until attachments that are not sent yet are written to the browser's storage."""
    page.wait_for_function(
        """() => new Promise((resolve) => {
            const opening = indexedDB.open("minicpmo_turnbased");
            opening.onsuccess = () => {
                const counting = opening.result.transaction("drafts").objectStore("drafts").count();
                counting.onsuccess = () => {
                    opening.result.close();
                    resolve(counting.result > 0);
                };
            };
        })"""
    )


def in_hand(page: Page, path: Path, media_type: str) -> JSHandle:
    """Return a file as pages see what is pasted or dropped."""
    text = base64.b64encode(path.read_bytes()).decode()
    return page.evaluate_handle(FILE_SCRIPT, [path.name, media_type, text])


def drop(page: Page, path: Path, media_type: str) -> None:
    """Drop a file onto the middle of the page."""
    hand = in_hand(page, path, media_type)
    page.dispatch_event("#scroll", "dragenter", {"dataTransfer": hand})
    page.dispatch_event("#scroll", "dragover", {"dataTransfer": hand})
    expect(page.get_by_text("Drop audio, pictures or a video here")).to_be_visible()
    page.dispatch_event("#scroll", "drop", {"dataTransfer": hand})
    expect(page.locator("#drop")).to_be_hidden()


def sent_texts(page: Page) -> list[str]:
    """Return a list that fills with what the page says over its sockets."""
    sent: list[str] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda text: sent.append(str(text))))
    return sent


def open_file(page: Page, file: Path) -> None:
    """Choose a saved conversation to open: beside the list or, on a phone, in the dialog."""
    button = page.locator("[data-action=import]")
    if not button.first.is_visible():
        page.locator("[data-action=transfer]").click()
    with page.expect_file_chooser() as chooser:
        button.locator("visible=true").first.click()
    chooser.value.set_files(file)


def write_video(path: Path, duration_s: int) -> Path:
    """Write a WebM film with a voice."""
    width, height = FILM_SIZE
    with av.open(str(path), "w", format="webm") as file:
        film = file.add_stream("libvpx", rate=FILM_HZ)
        voice = file.add_stream("libopus", rate=48_000, layout="mono")
        assert isinstance(film, av.VideoStream)
        assert isinstance(voice, av.AudioStream)
        film.width, film.height, film.pix_fmt = width, height, "yuv420p"
        for index in range(duration_s * FILM_HZ):
            picture = np.full((height, width, 3), 40 + index * 4, np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = index
            file.mux(film.encode(frame))
        file.mux(film.encode(None))
        samples = np.repeat(speech_16k()[: duration_s * 16_000], 3)  # 48 kHz, roughly
        for first in range(0, len(samples) - VOICE_BLOCK + 1, VOICE_BLOCK):
            block = np.ascontiguousarray(samples[None, first : first + VOICE_BLOCK])
            heard = av.AudioFrame.from_ndarray(block, format="flt", layout="mono")
            heard.sample_rate, heard.pts = 48_000, first
            file.mux(voice.encode(heard))
        file.mux(voice.encode(None))
    return path


def read_answer(path: Path) -> Samples:
    """Read an answer's voice, a 16-bit mono file of 24 kHz."""
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        pcm = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    return (pcm / PCM_SCALE).astype(np.float32)


def conversation_with_everything(folder: Path) -> Path:
    """Write a conversation as a file: long texts, Markdown, sound, a picture, a video, figures."""
    sound = base64.b64encode(speech_16k("question_1").astype("<f4").tobytes()).decode()
    picture = base64.b64encode(PICTURE.read_bytes()).decode()
    film = base64.b64encode(write_video(folder / "film.webm", 3).read_bytes()).decode()
    voice = base64.b64encode((RECORDINGS / "speech_8s.wav").read_bytes()).decode()
    names = [
        {"name": "", "durationS": 1.9},
        {"name": "frame_0.png", "mimeType": "image/png", "widthPx": 320, "heightPx": 240},
        {"name": "film.webm", "mimeType": "video/webm", "durationS": 3},
    ]
    tokens = {"cached_tokens": 1_210, "input_tokens": 84, "generated_tokens": 173}
    figures = {
        "transport": "socket",
        "requestId": "stream_mwoucmfv_2c3c42",
        "recordingSessionId": "stm_a8bzb70eki",
        "queueEstimateS": 24,
        "queueActualMs": 19_400,
        "prefillMs": 260,
        "ttftMs": 510,
        "ttfaMs": 930,
        "generateMs": 4_200,
        "totalMs": 24_100,
        "chunkCount": 31,
        "tokenStats": tokens | {"total_tokens": 7_460},
    }
    content = [
        {"type": "audio", "data": sound},
        {"type": "image", "data": picture},
        {"type": "video", "data": film},
        {"type": "text", "text": "What is this?\n" + "A long question. " * 20},
    ]
    messages = [
        {"role": "user", "content": content, "media": names},
        {
            "role": "assistant",
            "content": MARKDOWN,
            "figures": figures,
            "voice_wav": voice,
            "status": "stopped",
        },
        {"role": "user", "content": "Yes?"},
    ]
    file = folder / "everything.json"
    file.write_text(json.dumps({"title": "Everything", "messages": messages}))
    return file
