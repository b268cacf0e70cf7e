"""Recorded transcripts of Realtime and GPT-Live: client steps and server events, line by line.

Run as `python -m tests.fakes.transcripts` to write the answers anew; a test compares them. A line
is JSON: `client` is an event of the client's, `server` one of the server's, every other one lets
something happen: sound, time, work of the scripted engine.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from core.endpointing import SpeechStarted
from core.errors import GenerationFailedError
from core.protocols.effects import Transcribe
from core.protocols.events import EngineFailed, ItemTranscribed, TimerName
from core.schemas.duplex_calls import DuplexGenerateResult
from tests.fakes.live_scenes import LiveScene, speak
from tests.fakes.realtime_scene import RealtimeScene
from tests.source_tree import ROOT

FOLDER = ROOT / "docs" / "protocol" / "transcripts"
NAME = re.compile(r"\b(?:item|resp|call)_\d+\b")
Line = dict[str, Any]


class RealtimeTalk:
    """A Realtime session with a scripted engine."""

    def __init__(self, head: Line) -> None:
        self.scene = RealtimeScene(can_transcribe=True, model=head.get("model", "minicpm-o-4.5"))
        self.told = self.scene.told

    def play(self, line: Line) -> None:
        scene = self.scene
        match line:
            case {"client": event}:
                scene.say_text(json.dumps(event))
            case {"sound_ms": ms, "speech": speech, "engine": "rests"}:
                for _ in range(ms // 100):
                    scene.hear(100, speech=speech)
            case {"sound_ms": ms, "speech": speech}:
                scene.talk(ms, speech=speech)
            case {"reply_steps": count}:
                scene.make(count)
            case {"replies": replies}:
                scene.engine.replies = replies
            case {"units": units}:
                scene.engine.units = [tuple(unit) for unit in units]
            case {"transcript": text}:
                asked = next(one for one in scene.effects if isinstance(one, Transcribe))
                scene.tell(ItemTranscribed(asked.item_id, text))
            case {"timer": name}:
                scene.fire(TimerName(name))
            case {"worker": "fails"}:
                scene.tell(EngineFailed(GenerationFailedError()))
            case {"client_leaves": True}:
                scene.leave()
            case _:
                raise ValueError(line)


class LiveTalk:
    """A GPT-Live session with a scripted engine; its audio is summarized by its audible length."""

    def __init__(self, head: Line) -> None:
        self.scene = LiveScene(transcribes=head.get("transcribes", False))
        self.told = self.scene.told

    def play(self, line: Line) -> None:
        scene, before = self.scene, len(self.scene.sound)
        match line:
            case {"client": event}:
                scene.say_text(json.dumps(event))
            case {"silence_s": seconds}:
                scene.run(seconds)
            case {"units": units}:
                scene.plan = [
                    speak(text, end_of_turn=is_last)
                    if text
                    else DuplexGenerateResult(is_listen=True)
                    for text, is_last in units
                ]
            case {"speech_begins": True}:
                scene.speech_events = [SpeechStarted(0)]
            case _:
                raise ValueError(line)
        sound = bytes(scene.sound[before:])
        if sound:
            pieces = [sound[at : at + 4_800] for at in range(0, len(sound), 4_800)]
            audible = sum(any(piece) for piece in pieces)
            kind = "session.output_audio.delta"
            self.told.append({"type": kind, "pieces": len(pieces), "audible": audible})


class Names:
    """Ids of items, responses and calls, replaced by counters."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def given(self, event: Line) -> Line:
        real = {known: name for name, known in self._known.items()}
        return self._replaced(event, lambda name: real.get(name, name))

    def masked(self, event: Line) -> Line:
        """Return a server event without random parts and audio."""
        kept = {key: value for key, value in event.items() if key != "event_id"}
        if event["type"] == "response.output_audio.delta":
            kept["delta"] = f"<{len(base64.b64decode(event['delta']))} bytes>"
        return self._replaced(kept, self._name)

    def _name(self, name: str) -> str:
        if name not in self._known:
            kind = name.partition("_")[0]
            self._counts[kind] += 1
            self._known[name] = f"{kind}_{self._counts[kind]}"
        return self._known[name]

    @staticmethod
    def _replaced(event: Line, name: Callable[[str], str]) -> Line:
        text = NAME.sub(lambda found: name(found[0]), json.dumps(event))
        replaced: Line = json.loads(text)
        return replaced


TALKS: dict[str, Callable[[Line], RealtimeTalk | LiveTalk]] = {"S": RealtimeTalk, "L": LiveTalk}


def played(lines: list[Line]) -> Iterator[Line]:
    head, *steps = lines
    talk, names = TALKS[head["scenario"][0]](head), Names()
    yield head
    told = 0 if head["scenario"] == "S1" else len(talk.told)
    for step in [{}, *(line for line in steps if "server" not in line)]:
        if step:
            talk.play({"client": names.given(step["client"])} if "client" in step else step)
            yield step
        yield from ({"server": names.masked(event)} for event in talk.told[told:])
        told = len(talk.told)


def read(file: Path) -> list[Line]:
    return [json.loads(line) for line in file.read_text(encoding="utf8").splitlines()]


def text_of(lines: list[Line]) -> str:
    """Return the text of a transcript file."""
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def main() -> None:
    for file in sorted(FOLDER.glob("*.jsonl")):
        file.write_text(text_of(list(played(read(file)))), encoding="utf8")


if __name__ == "__main__":
    main()
