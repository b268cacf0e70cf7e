"""Invariants under any order of events: nothing raises, work never overlaps, one `Release`."""

from __future__ import annotations

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from core.protocols import duplex
from core.protocols.effects import label
from core.protocols.events import (
    ChunkReady,
    Disconnected,
    EngineFailed,
    Event,
    Opened,
    Prefetched,
    ShuttingDown,
    StopRequested,
)
from core.protocols.tables import index_rows, mermaid, transitions
from core.schemas.export.pages import MACHINES
from core.schemas.streaming import StreamingChunk
from tests.fakes.protocols import (
    ENDS,
    FAILURE,
    HEARD,
    OUTSIDE,
    PROTOCOLS,
    SOUND,
    Engine,
    Protocol,
)
from tests.fakes.scenes import Scene


def play(protocol: Protocol, data: st.DataObject, most: int = 40) -> tuple[Scene, Engine]:
    """Run a machine from any phase on a random sequence of possible events."""
    phase = data.draw(st.sampled_from(list(protocol.paths)), label="phase")
    scene, engine = protocol.lead_to(phase)
    said = protocol.said()
    # Messages come often, so that not every session ends at once.
    weighted = [*said * 4, *OUTSIDE]
    for _ in range(data.draw(st.integers(0, most), label="events")):
        answers = engine.answers()
        # The index is drawn, since Hypothesis takes a digest of each list of events to draw from.
        possible = [*answers * 8, *weighted]
        event = possible[data.draw(st.integers(0, len(possible) - 1))]
        note(event)
        if event in answers:
            engine.said(event)
        scene.tell(event, data.draw(st.sampled_from([0.0, 0.005, 1.0])))
        engine.ask(scene.effects)
        if scene.machine.is_closed:
            break
    return scene, engine


def check_end(scene: Scene) -> None:
    """One release, at most one close, one last message, and nothing afterwards."""
    labels = [label(effect) for effect in scene.history]
    assert labels.count("Release") == 1
    assert labels.count("Close") <= 1
    last_words = [name for name in labels if name in LAST_WORDS]
    assert len(last_words) <= 1
    after = labels[labels.index("Release") + 1 :]
    assert after in ([], ["Close"])


LAST_WORDS = ("Send(stopped)", "Send(timeout)", "Send(error)")


@pytest.mark.parametrize("name", PROTOCOLS)
@given(data=st.data())
def test_any_sequence_ends_in_one_release(name: str, data: st.DataObject) -> None:
    scene, engine = play(PROTOCOLS[name], data)
    if not scene.machine.is_closed:
        was_busy = engine.work is not None or engine.is_prefetching
        told = scene.tell(Disconnected())
        cancelled = any(label(effect) == "Cancel" for effect in scene.history)
        assert told[-1] == "Release"
        assert cancelled or not was_busy
    check_end(scene)
    for event in [*PROTOCOLS[name].said(), *OUTSIDE, *HEARD]:
        assert scene.tell(event) == [], "nothing leaves the last phase"


ANSWERS = tuple(event for events in ENDS.values() for event in events)
PIECE = ChunkReady(StreamingChunk(chunk_index=0, audio_data=SOUND))


@pytest.mark.parametrize("name", PROTOCOLS)
@given(data=st.data())
def test_unrequested_engine_events_break_nothing(name: str, data: st.DataObject) -> None:
    scene = PROTOCOLS[name].scene()
    scene.engine_may_lie = True
    said = PROTOCOLS[name].said()
    events = st.sampled_from([*said * 4, *OUTSIDE, *HEARD, *ANSWERS, PIECE, Prefetched(), Opened()])
    for event in data.draw(st.lists(events, max_size=40)):
        scene.tell(event, data.draw(st.sampled_from([0.0, 1.0])))
    scene.tell(Disconnected())
    check_end(scene)


PLACES = [(name, phase) for name, protocol in PROTOCOLS.items() for phase in protocol.paths]


@pytest.mark.parametrize(("name", "phase"), PLACES)
def test_every_phase_handles_every_event(name: str, phase: str) -> None:
    """The stage compares each event with the table."""
    protocol = PROTOCOLS[name]
    answers = [*HEARD, *ANSWERS, PIECE, Prefetched(), EngineFailed(FAILURE)]
    for event in [*protocol.said(), *OUTSIDE, *answers]:
        scene, _ = protocol.lead_to(phase)
        scene.engine_may_lie = True
        scene.tell(event)
        scene.tell(Disconnected())
        check_end(scene)


def test_every_row_is_reached() -> None:
    for protocol in PROTOCOLS.values():
        phases = {phase.split("/")[0] for phase in protocol.paths}
        assert phases == {arrow.phase for arrow in transitions(protocol.table)}


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(
    "ending", [Disconnected(), EngineFailed(FAILURE), ShuttingDown(), StopRequested(), "stop"]
)
@given(data=st.data())
def test_every_phase_can_be_left(name: str, ending: Event | str, data: st.DataObject) -> None:
    """`stop` of streaming ends the turn, not the connection; the following `close` does."""
    scene, engine = play(PROTOCOLS[name], data, most=15)
    if isinstance(ending, str):
        scene.say(ending)
    else:
        scene.tell(ending)
    engine.ask(scene.effects)
    if isinstance(ending, Disconnected | EngineFailed | ShuttingDown):
        stopping = scene.machine.phase == "stopping"
        assert scene.machine.is_closed or stopping
    while not scene.machine.is_closed and engine.work is not None:
        event = data.draw(st.sampled_from(engine.answers()))
        engine.said(event)
        scene.tell(event)
        engine.ask(scene.effects)
        if isinstance(ending, str) and name != "streaming":
            break
    scene.tell(Disconnected())
    check_end(scene)


@pytest.mark.parametrize("name", ["duplex", "half_duplex"])
@given(data=st.data())
def test_stop_gets_its_reply_when_the_work_has_ended(name: str, data: st.DataObject) -> None:
    scene, engine = play(PROTOCOLS[name], data, most=20)
    if scene.machine.is_closed:
        return
    already_stopping = scene.machine.phase == "stopping"
    told = scene.say("stop")
    if engine.work is None:
        halts = ["Cancel"] if engine.is_prefetching else []
        assert told == [*halts, "Send(stopped)", "Release", "Close"]
    elif not already_stopping:
        assert told == ["Cancel", "StartTimer(stopping)"]
        assert scene.tell(data.draw(st.sampled_from(engine.ends()))) == [
            "Send(stopped)",
            "Release",
            "Close",
        ]


@pytest.mark.parametrize("name", MACHINES)
def test_the_tables_can_be_drawn(name: str) -> None:
    table = MACHINES[name].table
    index_rows(table)
    text = mermaid(table)
    assert text.startswith("stateDiagram-v2\n    [*] --> ")
    phases = {arrow.phase for arrow in transitions(table)}
    targets = {arrow.target for arrow in transitions(table)}
    assert phases | {"closed"} == targets | phases, "every target is a phase"
    assert "closed" in targets
    reached = {transitions(table)[0].phase}
    for _ in phases:
        reached |= {arrow.target for arrow in transitions(table) if arrow.phase in reached}
    assert reached == phases | {"closed"}, "every phase can be reached"


def test_two_rows_for_one_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows"):
        index_rows([*duplex.TABLE, duplex.TABLE[0]])
