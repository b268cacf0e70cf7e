"""Every field of every client event of Realtime and GPT-Live, mutated in every way.

The events are made from the schemas. Each is right but for one field, so whatever is wrong with it
has to be named by that field, or by what it stands in; the session goes on, and ends once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

import pytest

from core.errors import OmniError
from core.protocols.effects import Release
from core.protocols.events import Disconnected
from core.schemas import gpt_live, realtime
from core.schemas.openai_errors import FieldError, event_types
from tests.fakes.live_scenes import LiveScene
from tests.fakes.realtime_scene import RealtimeScene, pcm

Json = Any
Path = tuple[str | int, ...]

PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
SOUND = base64.b64encode(pcm(20, speech=False)).decode()
KNOWN: Final = {
    "image_url": f"data:image/png;base64,{PICTURE}",
    "image": PICTURE,
    "audio": SOUND,
    "rate": 24_000,
}
"""Values that have to be more than their schemas say, by their fields."""
GONE: Final = object()
HUGE: Final = "x" * 70_000
DEEP: Final = json.loads("[" * 60 + "]" * 60)
CHANGES: Final[tuple[Json, ...]] = (GONE, None, 5, -1, 10**30, "", "wrong_id", HUGE, [], {}, DEEP)
FEWEST: Final = 2_000


def examples(schema: Json, defs: Json, name: str = "") -> list[Json]:
    """Return values that fit a schema: every field, and every form that one may have."""
    if "$ref" in schema:
        return examples(defs[schema["$ref"].rpartition("/")[2]], defs, name)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return [each for form in schema[union] for each in examples(form, defs, name)]
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return list(schema["enum"][: None if name == "type" else 1])
    match schema.get("type"):
        case "object":
            fields = {key: examples(form, defs, key) for key, form in _fields(schema)}
            fields = {key: forms for key, forms in fields.items() if forms}
            whole = {key: forms[0] for key, forms in fields.items()}
            others = [{**whole, key: form} for key, forms in fields.items() for form in forms[1:]]
            return [whole, *others]
        case "array":
            items = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
            return [[each] for each in examples(items, defs, name)]
        case "string":
            return [KNOWN.get(name, "a" * max(1, schema.get("minLength", 1)))]
        case "integer" | "number":
            return [KNOWN.get(name, max(1, schema.get("minimum", 1)))]
        case "boolean":
            return [True]
    return []


def _fields(schema: Json) -> Iterator[tuple[str, Json]]:
    yield from schema.get("properties", {}).items()


def events(module: Any) -> list[Json]:
    """Return right events of every type; their schemas do not say which rate a format has."""
    schema = module.EVENT.json_schema()
    made = examples(schema, schema["$defs"])
    return [event for event in made if is_right(module.parse_event, json.dumps(event))]


def places(value: Json, path: Path = ()) -> Iterator[Path]:
    """Yield where something is in a value, itself aside."""
    if not isinstance(value, dict | list):
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        yield from places(part, (*path, key))


def inside(value: Json, path: Path) -> Json:
    for step in path:
        value = value[step]
    return value


def changed(event: Json, path: Path, value: Json) -> Json:
    """Return an event with another value at a place, or without one."""
    made = deepcopy(event)
    inner = inside(made, path[:-1])
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


def written(path: Path) -> str:
    parts = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(parts).removeprefix(".")


def mutants(module: Any) -> Iterator[tuple[str, str]]:
    """Yield texts of events, each wrong in one place at most, and the place."""
    seen: set[str] = set()
    for event in events(module):
        for path in places(event):
            around = json.dumps([event["type"], path, inside(event, path[:-1])])
            if around in seen:  # the forms of other fields do not matter here
                continue
            seen.add(around)
            for value in CHANGES:
                yield json.dumps(changed({**event, "event_id": "mine"}, path, value)), written(path)


def check_named(errors: list[Json], place: str, is_wrong: bool) -> None:
    """Check that one error names the field, and the event if it has a name."""
    if is_wrong:
        (error,) = errors
        param = error.get("param")
        place = place.removesuffix(".type")  # another type has other fields
        assert param and (place.startswith(param) or param.startswith(place)), (place, error)
    for error in errors:
        assert error["message"] and len(json.dumps(error)) < 4_000, "what was sent is not sent back"


def is_right(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except OmniError:
        return False
    return True


@pytest.mark.parametrize("module", [realtime, gpt_live], ids=["realtime", "live"])
def test_there_is_an_event_of_every_type(module: Any) -> None:
    assert {event["type"] for event in events(module)} == set(event_types(module.ClientEvent))


@pytest.mark.parametrize("module", [realtime, gpt_live], ids=["realtime", "live"])
def test_half_a_character_is_no_json_and_not_sent_back(module: Any) -> None:
    with pytest.raises(FieldError) as refused:
        module.parse_event(r'{"type": "session.update", "session": {}, "event_id": "\ud800"}')
    assert str(refused.value) == "This is not valid JSON."


def test_every_mutation_of_a_realtime_event_is_named_and_ends_no_session() -> None:
    # Not checked: items are echoed as they came, in forms that no stock client would send.
    scene, count = RealtimeScene(is_checked=False), 0
    for text, place in mutants(realtime):
        count += 1
        sent = scene.say_text(text)
        wrong = not is_right(realtime.parse_event, text)
        check_named([one["error"] for one in sent if one["type"] == "error"], place, wrong)
        assert scene.closed is None, (place, text[:200])
        scene.make()
    assert scene.types(scene.say("session.update", session={})) == ["session.updated"]
    scene.leave()
    assert scene.releases == 1 and count >= FEWEST / 2, count


def test_every_mutation_of_a_live_event_is_named_and_ends_no_session() -> None:
    scene, count = LiveScene(), 0
    scene.start()
    for text, place in mutants(gpt_live):
        if '"session.close"' in text and is_right(gpt_live.parse_event, text):
            continue
        count += 1
        sent = scene.say_text(text)
        wrong = not is_right(gpt_live.parse_event, text)
        check_named([one["error"] for one in sent if one["type"] == "error"], place, wrong)
        assert not scene.stage.machine.is_closed, (place, text[:200])
        if '"type": "session.start"' in text:  # a session that has begun refuses every start
            fresh = LiveScene()
            sent = fresh.say_text(text)
            errors = [one["error"] for one in sent if one["type"] == "error"]
            assert wrong <= len(errors) <= 1 and all(error.get("param") for error in errors)
            assert not fresh.stage.machine.is_closed, (place, text[:200])
    scene.tell(Disconnected())
    releases = [effect for effect in scene.stage.history if isinstance(effect, Release)]
    assert len(releases) == 1 and count >= FEWEST / 2, count
