"""The eleven ordering rules hold for random clients with a scripted engine."""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.errors import ContextFullError, GenerationFailedError
from core.protocols.events import TimerName
from core.protocols.realtime_items import RealtimeLimits
from tests.fakes.realtime_checks import CALL, TOOLS
from tests.fakes.realtime_scene import Raw, RealtimeScene, pcm

REPLIES: list[list[tuple[str, int]]] = [
    [("Hello ", 300), ("there.", 200)],
    [],
    [("One two three four. ", 700), ("Five.", 50), ("", 40)],
    [("Wait. ", 100), (CALL, 0)],
    [("<tool_call>{", 10)],
]
UNITS: list[tuple[str, int, bool]] = [
    ("One two ", 1_000, False),
    ("three.", 300, True),
    ("", 0, False),
    ("Four", 0, False),
    ("", 500, True),
]
MODELS = ["minicpm-o-4.5", "minicpm-o-4.5-live", "minicpm-o-4.5-turn"]
DETECTIONS: list[Any] = [
    None,
    {"type": "server_vad"},
    {"type": "server_vad", "interrupt_response": False},
    {"type": "server_vad", "create_response": False, "idle_timeout_ms": 5_000},
    {"type": "semantic_vad", "eagerness": "high"},
    {"type": "semantic_vad", "interrupt_response": False},
    {"type": "semantic_vad", "create_response": False},
]
RESPONSES: list[Any] = [
    None,
    {"output_modalities": ["text"], "metadata": {"k": "v"}},
    {"conversation": "none", "input": []},
    {"tools": TOOLS},
]
STEPS = st.one_of(
    st.tuples(st.just("hear"), st.integers(20, 900), st.booleans()),
    st.tuples(st.just("make"), st.integers(1, 4)),
    st.tuples(st.just("units"), st.lists(st.sampled_from(UNITS), max_size=4)),
    st.tuples(st.just("fire"), st.sampled_from([TimerName.PACE, TimerName.ANSWER])),
    st.tuples(st.just("detect"), st.sampled_from(DETECTIONS)),
    st.tuples(st.just("respond"), st.sampled_from(RESPONSES)),
    st.tuples(st.just("item"), st.sampled_from(["user", "system", "assistant"])),
    st.tuples(st.sampled_from(["truncate", "delete", "retrieve"]), st.integers(0, 5)),
    st.tuples(st.sampled_from(["commit", "clear", "cancel", "idle", "break", "look", "show"])),
)


class Client:
    """Client that performs random steps, and checks the reply to each event."""

    def __init__(self, data: st.DataObject) -> None:
        replies = data.draw(st.lists(st.sampled_from(REPLIES), min_size=1, max_size=4))
        limits = RealtimeLimits(max_outside=2)
        model = data.draw(st.sampled_from(MODELS))
        self.scene = RealtimeScene(replies=replies, limits=limits, model=model)
        self.count = 0

    def do(self, step: tuple[Any, ...]) -> None:
        scene = self.scene
        match step:
            case ("hear", ms, speech):
                scene.hear(ms, speech=speech)
            case ("make", count):
                scene.make(count)
            case ("units", units):
                scene.engine.units += units
            case ("fire", name):
                scene.fire(name, 1.5)
            case ("look",):
                scene.say("input_image_buffer.append", image="AAAA")
            case ("show",):
                content = [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]
                item = {"type": "message", "role": "user", "content": content}
                self.ask("conversation.item.create", "conversation.item.added", item=item)
            case ("detect", detection):
                audio = {"input": {"turn_detection": detection}}
                self.ask("session.update", "session.updated", session={"audio": audio})
            case ("respond", response):
                fields = {} if response is None else {"response": response}
                self.ask("response.create", "response.created", **fields)
            case ("item", role):
                content = [{"type": "input_text", "text": "word"}]
                item = {"type": "message", "role": role, "content": content}
                self.ask("conversation.item.create", "conversation.item.added", item=item)
            case ("idle",):
                pass
            case ("break",):
                errors = [None, GenerationFailedError(), ContextFullError()]
                scene.engine.error = errors[self.count % len(errors)]
            case (verb, number):
                items = [one["item"]["id"] for one in scene.told if "item" in one] or ["none"]
                fields = {"audio_end_ms": number * 100} if verb == "truncate" else {}
                answer = {"truncate": "truncated", "delete": "deleted"}.get(verb, "retrieved")
                self.ask(
                    f"conversation.item.{verb}",
                    f"conversation.item.{answer}",
                    item_id=items[number % len(items)],
                    **fields,
                )
            case ("cancel",):
                self.ask("response.cancel", "response.done")
            case (verb,):
                answer = {"commit": "committed", "clear": "cleared"}[verb]
                self.ask(f"input_audio_buffer.{verb}", f"input_audio_buffer.{answer}")

    def ask(self, kind: str, answer: str, **fields: Any) -> None:
        """Send an event; expect one reply of its type, or one error with its id (rule 11)."""
        self.count += 1
        name = f"client_{self.count}"
        told = self.scene.say(kind, event_id=name, **fields)
        errors = [one for one in told if one["type"] == "error"]
        if errors:
            (error,) = told
            assert error["error"]["event_id"] == name
        else:
            assert answer in [one["type"] for one in told]


def check_order(told: list[Raw]) -> None:
    kinds = [event["type"] for event in told]
    assert kinds[0] == "session.created" and kinds.count("session.created") == 1  # 1
    check_responses(told)
    check_segments(told)
    check_items(told)


def check_responses(told: list[Raw]) -> None:
    active: str | None = None
    is_speaking = False
    states: dict[str, str] = {}
    words: dict[str, str] = defaultdict(str)
    for event in told:
        kind = event["type"]
        if kind == "input_audio_buffer.speech_started":
            is_speaking = True
        if kind in ("input_audio_buffer.committed", "input_audio_buffer.cleared"):
            is_speaking = False
        if kind == "response.created":
            response = event["response"]
            assert states.setdefault(response["id"], "open") == "open"
            if response["conversation_id"] is not None:
                assert active is None and not is_speaking
                active = response["id"]
        elif kind == "response.done":
            response = event["response"]
            assert states[response["id"]] == "open", "one end of each response"
            states[response["id"]] = "done"
            active = None if active == response["id"] else active
            for item in response["output"]:
                if item["type"] == "message":
                    (part,) = item["content"]
                    assert words[item["id"]] == part.get("transcript", part.get("text"))
        elif kind.startswith("response."):
            assert states[event["response_id"]] == "open", "nothing follows the end"
            if kind.endswith(("transcript.delta", "text.delta")):
                words[event["item_id"]] += event["delta"]


def check_segments(told: list[Raw]) -> None:
    """Rules 6 and 8; a manual commit ends a segment without an event."""
    opened: str | None = None
    stopped: str | None = None
    last_ms = 0
    for event in told:
        match event["type"]:
            case "input_audio_buffer.speech_started":
                assert opened is None
                opened = event["item_id"]
                assert event["audio_start_ms"] >= last_ms
                last_ms = event["audio_start_ms"]
            case "input_audio_buffer.speech_stopped":
                assert opened == event["item_id"]
                stopped = opened
                assert event["audio_end_ms"] >= last_ms
                last_ms = event["audio_end_ms"]
            case "input_audio_buffer.committed":
                assert opened in (None, event["item_id"])
                assert stopped in (None, event["item_id"])
                opened = stopped = None
            case "input_audio_buffer.cleared":
                opened = stopped = None


def check_items(told: list[Raw]) -> None:
    places: dict[str, dict[str, int]] = defaultdict(dict)
    for at, event in enumerate(told):
        item_id = event.get("item_id") or event.get("item", {}).get("id")
        if item_id is not None and event["type"] != "conversation.item.retrieved":
            places[item_id].setdefault(event["type"], at)
            places[item_id].setdefault(f"last {event['type']}", at)
            places[item_id][f"last {event['type']}"] = at
    orders = (
        ("input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"),
        (
            "response.output_item.added",
            "response.content_part.added",
            "response.content_part.done",
            "response.output_item.done",
        ),
        ("response.output_item.added", "conversation.item.added", "conversation.item.done"),
        ("response.content_part.added", "response.output_audio_transcript.delta"),
        ("last response.output_audio.delta", "response.output_audio.done"),
        ("last response.output_audio_transcript.delta", "response.output_audio_transcript.done"),
        ("response.output_audio_transcript.done", "response.content_part.done"),
    )
    for seen in places.values():
        for order in orders:
            found = [seen[kind] for kind in order if kind in seen]
            assert found == sorted(found), order


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_the_order_of_events_holds(data: st.DataObject) -> None:
    client = Client(data)
    for step in data.draw(st.lists(STEPS, max_size=30)):
        client.do(step)
    scene = client.scene
    scene.engine.error = None
    scene.settle()
    check_order(scene.told)
    created = Counter(event["type"] for event in scene.told)
    assert created["response.created"] == created["response.done"]
    scene.leave()
    assert scene.releases == 1


def are_few_events(sizes: list[int]) -> bool:
    """Whether events are long enough on average: one of a byte is drawn beside longer ones."""
    return sum(sizes) >= 100 * len(sizes)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=12).filter(are_few_events))
@example([1])
def test_the_division_of_audio_into_events_does_not_matter(sizes: list[int]) -> None:
    scenes = []
    sound = pcm(400, speech=False) + pcm(300, speech=True) + pcm(700, speech=False)
    for cuts in (sizes, [len(sound)]):
        scene = RealtimeScene()
        at, number = 0, 0
        while at < len(sound):
            piece = sound[at : at + cuts[number % len(cuts)]]
            at, number = at + len(piece), number + 1
            scene.say("input_audio_buffer.append", audio=base64.b64encode(piece).decode())
            while (event := scene.engine.hear()) is not None:
                scene.tell(event)
        scene.make()
        scenes.append([event["type"] for event in scene.told])
    assert scenes[0] == scenes[1]
