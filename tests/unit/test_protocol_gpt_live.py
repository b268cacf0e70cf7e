"""GPT-Live, scenario by scenario: client events, server events, and their times."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from core.endpointing import SpeechDiscarded, SpeechStarted, SpeechSuspected
from core.errors import GenerationFailedError, PictureError
from core.protocols.effects import Cancel, Close
from core.protocols.events import (
    AudioReady,
    ClientAway,
    Disconnected,
    EngineFailed,
    EngineWarning,
    Prefetched,
    PrefillDone,
    Received,
    Segment,
    ShuttingDown,
    StopRequested,
    TimerFired,
    TimerName,
    Transcribed,
)
from core.protocols.gpt_live import IDLE_S
from core.schemas.gpt_live import AudioReceived
from core.schemas.realtime_session import AudioFormat
from core.serving.fake_backend import tone
from core.serving.openai_clients import encoded
from tests.fakes.live_scenes import LISTEN, LiveScene, append, kinds, pcm, speak

AUDIBLE = np.count_nonzero(np.frombuffer(encoded(tone(), AudioFormat()), "<i2"))


@pytest.fixture
def live() -> LiveScene:
    scene = LiveScene()
    scene.start()
    return scene


def samples(scene: LiveScene) -> Any:
    return np.frombuffer(bytes(scene.sound), "<i2")


# --- L1 start ---


def test_l1_the_first_event_is_started_and_silence_follows_at_once() -> None:
    scene = LiveScene()
    told = scene.start(audio={"output": {"voice": "marin"}}, store=True)
    assert kinds(told) == ["session.started", "info"]
    assert told[0] == {
        "event_id": "event_abc000000001",
        "client_event_id": "start",
        "type": "session.started",
        "session": {
            "id": "live_1",
            "status": "active",
            "expires_at": 4_600,
            "model": "nano",
            "instructions": "Be kind.",
            "audio": {
                "format": {"type": "audio/pcm", "rate": 24_000},
                "output": {"voice": "marin"},
            },
            "store": True,
        },
    }
    assert told[1]["code"] == "input_transcript_unavailable"
    assert scene.prompts[0].prefix_system_prompt == "Be kind."
    assert len(samples(scene)) == 2_400
    scene.run(1.0)
    assert len(samples(scene)) == 26_400 and not samples(scene).any()


def test_a_voice_is_used_and_not_echoed() -> None:
    scene = LiveScene()
    told = scene.start(audio={"output": {"voice": "Ada", "voice_sample": "AAAA"}})
    assert told[0]["session"]["audio"]["output"] == {"voice": "Ada"}
    assert scene.prompts[0].ref_audio_base64 == "AAAA"
    append(scene, "thinking")
    assert scene.prompts[1].ref_audio_base64 == "AAAA", "and with the same after a rebase"


def test_settings_without_effect_are_reported() -> None:
    scene = LiveScene()
    told = scene.start(delegation={"type": "client"}, magic=1, wand=2)
    codes = [event["code"] for event in told if event["type"] == "info"]
    assert codes == ["input_transcript_unavailable", "delegation_unsupported", "unknown_parameter"]
    assert "magic, wand" in told[-1]["message"]
    assert told[0]["session"]["delegation"] == {"type": "client"}


def test_earlier_messages_are_in_the_prompt() -> None:
    scene = LiveScene()
    said = [("user", "Hi."), ("user", "I am Ada."), ("assistant", "Hello."), ("developer", "Sing.")]
    scene.start(input=[{"role": r, "content": [{"text": t}]} for r, t in said])
    expected = "previous: User: Hi. I am Ada.\nAssistant: Hello.\nNote: Sing."
    assert expected in scene.prompts[0].suffix_system_prompt


def test_a_missing_start_times_out() -> None:
    scene = LiveScene()
    told = scene.tell(TimerFired(TimerName.PREPARE), 30.0)
    assert [event["error"]["code"] for event in told] == ["session_expired"]
    assert scene.stage.only(Close).code == 1008


# --- L2 talk ---


def test_l2_a_unit_begins_as_soon_as_its_second_is_complete(live: LiveScene) -> None:
    for _ in range(3):
        live.say("session.input_audio.append", audio=pcm(333))
    assert live.steps == []
    live.say("session.input_audio.append", audio=pcm(60))  # resampling keeps a little back
    assert [step.index for step in live.steps] == [0]


def test_l2_text_and_audio_are_paced_by_the_clock(live: LiveScene) -> None:
    live.plan = [speak("I am here.")]
    told = live.run(2.5)
    words = [event for event in told if event["type"] == "session.output_transcript.delta"]
    assert "".join(event["delta"] for event in words) == "I am here."
    assert all(event["end_ms"] >= event["start_ms"] + 40 for event in words)
    assert words[-1]["end_ms"] - words[0]["start_ms"] == pytest.approx(1_000, abs=40)
    assert 900 <= words[0]["start_ms"] <= 1_100
    loud = np.flatnonzero(samples(live))
    assert (loud[-1] - loud[0]) / 24_000 == pytest.approx(1.0, abs=0.01)
    assert 2_500 <= len(samples(live)) / 24 <= 2_600


def test_l2_early_audio_is_sent_before_its_unit_is_complete(live: LiveScene) -> None:
    live.is_held = True
    live.run(1.1)
    live.tell(AudioReady(b"", np.ones(4_800, "<i2").tobytes()))
    live.run(0.4)
    assert (samples(live) == 1).sum() == 4_800


def test_missing_input_is_filled_with_silence(live: LiveScene) -> None:
    live.run(1.0, talks=False)
    assert live.steps == []
    live.run(9.0, talks=False)
    assert len(live.steps) in (9, 10)


def test_audio_far_ahead_of_the_clock_is_dropped(live: LiveScene) -> None:
    for _ in range(20):
        live.tell(Received(AudioReceived(samples=bytes(64_000))))
    assert len(live.steps) == 3, "three seconds, the rest comes too early"


def test_l2_user_transcripts_are_sent_and_part_of_a_restarted_prompt() -> None:
    scene = LiveScene(transcribes=True)
    assert kinds(scene.start()) == ["session.started"], "no note says that it is missing"
    assert scene.prompts[0].transcribe
    segment = Segment(start_samples=16_000, pcm=bytes(4 * 8_000))
    scene.speech_events = [SpeechStarted(0)]
    scene.run(1.0)
    told = scene.tell(Transcribed(segment, "My name is Anna."))
    assert kinds(told) == ["session.input_transcript.delta"]
    assert told[0]["delta"] == "My name is Anna. "
    assert (told[0]["start_ms"], told[0]["end_ms"]) == (1_000, 1_500)
    assert scene.tell(Transcribed(segment, problem=GenerationFailedError("x"))) == []
    append(scene, "thinking", "It rains.")
    scene.run(1.0)
    assert "User: My name is Anna." in scene.prompts[-1].suffix_system_prompt


# --- L3 overlap ---


def test_l3_the_users_speech_silences_the_model_within_200_ms(live: LiveScene) -> None:
    live.plan = [speak("one two three four five six seven eight nine ten")]
    live.run(1.3)
    live.speech_events = [SpeechStarted(0)]
    decided = len(samples(live))
    live.run(1.5)
    assert not samples(live)[decided + 4_800 :].any()
    read = [event["delta"] for event in live.told if "delta" in event]
    assert "ten" not in "".join(read)
    assert "error" not in kinds(live.told)


def test_l3_the_rest_of_the_current_unit_is_dropped_too(live: LiveScene) -> None:
    live.is_held = True
    live.run(1.1)
    live.tell(AudioReady(b"", np.ones(24_000, "<i2").tobytes()))
    live.run(0.2)
    live.speech_events = [SpeechStarted(0)]
    live.plan = [speak()]
    live.is_held = False
    live.answer()
    decided = len(samples(live))
    live.run(0.8)
    assert not samples(live)[decided + 4_800 :].any()


def test_l3_a_cough_delays_the_audio_without_loss(live: LiveScene) -> None:
    live.plan = [speak("one two three four five six seven eight nine ten")]
    live.run(1.3)
    live.speech_events = [SpeechSuspected(0)]
    live.run(0.1)
    held = len(samples(live))
    live.run(0.2)
    assert not samples(live)[held:].any(), "silent before it is known to be speech"
    live.speech_events = [SpeechDiscarded(0, 1_024)]
    live.run(0.1)
    live.speech_events = [SpeechSuspected(2_048)]
    live.run(1.5)

    assert np.count_nonzero(samples(live)) == AUDIBLE
    read = "".join(event["delta"] for event in live.told if "delta" in event)
    assert read == "one two three four five six seven eight nine ten"
    assert "error" not in kinds(live.told)


# --- L4 greeting and other words ---


def test_l4_commentary_is_spoken_about_at_once(live: LiveScene) -> None:
    live.plan = [speak("Welcome!")]
    live.run(0.3)
    (told,) = append(live, "commentary", "Greet the caller.")
    assert told["type"] == "session.commentary.appended"
    assert (told["client_event_id"], told["start_ms"], told["end_ms"]) == ("e1", 300, 300)
    assert "Speak about this now: Greet the caller." in live.prompts[-1].suffix_system_prompt
    assert [step.must_speak for step in live.steps] == [True]
    live.run(1.2)
    assert samples(live).any()
    live.run(3.0)
    assert [step.chunk.force_speak for step in live.steps[1:]] == [False] * (len(live.steps) - 1)


def test_appended_text_waits_for_the_end_of_the_models_turn(live: LiveScene) -> None:
    live.plan = [speak("Let me tell you"), speak(" a story.", end_of_turn=True)]
    live.run(1.0)
    assert append(live, "instructions", "Be funny.") == []
    told = live.run(1.2)
    assert "session.instructions.appended" in kinds(told)
    assert live.prompts[-1].prefix_system_prompt == "Be kind.\nBe funny."
    assert "Assistant: Let me tell you" in live.prompts[-1].suffix_system_prompt
    assert live.prompts[-1].config.force_listen_count == 0


def test_thinking_enters_the_prompt_and_is_not_spoken(live: LiveScene) -> None:
    append(live, "thinking", "It rains.")
    append(live, "thinking", "It is cold.")
    live.run(1.0)
    assert "Known: It rains.\n\nKnown: It is cold." in live.prompts[-1].suffix_system_prompt
    assert not any(step.chunk.force_speak for step in live.steps)


def test_audio_that_arrives_during_a_restart_is_not_lost(live: LiveScene) -> None:
    live.is_held = True
    append(live, "thinking", "It rains.")
    live.run(1.5)
    assert live.steps == []
    live.is_held = False
    live.answer()
    assert len(live.steps) == 1


def test_a_full_context_restarts_instead_of_ending() -> None:
    scene = LiveScene(max_kv_tokens=2_000)
    scene.start()
    scene.kv_tokens = 1_600
    scene.run(3.0)
    assert len(scene.prompts) >= 2 and not scene.stage.machine.is_closed


# --- L5 mute, pictures, recordings ---


def test_l5_muted_input_is_silence(live: LiveScene) -> None:
    assert kinds(live.say("session.input_audio.mute")) == ["session.input_audio.muted"]
    loud = base64.b64encode(b"\1\x7f" * 24_000).decode()
    live.say("session.input_audio.append", audio=loud)
    live.say("session.input_audio.append", audio=loud)
    assert not any(step.chunk.audio.strip(b"\0") for step in live.steps)
    assert kinds(live.say("session.input_audio.unmute")) == ["session.input_audio.unmuted"]
    live.say("session.input_audio.append", audio=loud)
    assert live.steps[-1].chunk.audio.strip(b"\0")


def test_a_picture_goes_into_the_next_unit(live: LiveScene) -> None:
    live.say("session.input_image.append", image="AAAA")
    live.run(1.1)
    assert [frame.data for frame in live.steps[0].frames] == ["AAAA"]
    assert live.tell(EngineWarning(PictureError("It is no picture.")))[0]["code"] == "bad_frame"


def test_a_recording_replaces_the_models_audio(live: LiveScene) -> None:
    live.plan = [speak()]
    loud = base64.b64encode(b"\0\x40" * 12_000).decode()
    told = live.say("session.output_audio.fixture.play", audio=loud, event_id="f")
    assert kinds(told) == ["session.output_audio.fixture.playing"]
    again = live.say("session.output_audio.fixture.play", audio=loud)
    assert again[0]["error"]["code"] == "fixture_active"
    assert append(live, "commentary")[0]["error"]["code"] == "fixture_active"
    told = live.run(0.8)
    assert kinds(told) == ["session.output_audio.fixture.played"]
    assert told[0]["client_event_id"] == "f"
    assert (samples(live) == 0x4000).sum() == 12_000


def test_usage_is_reported_every_15_seconds(live: LiveScene) -> None:
    live.kv_tokens = 2_048
    usage = [event for event in live.run(31.0) if event["type"] == "session.usage.updated"]
    assert [round(event["usage"]["seconds"]) for event in usage] == [15, 30]
    assert usage[0]["context_window"] == {"usage_ratio": 0.25}


# --- L6 close ---


def test_l6_close_is_answered_with_reason_and_usage(live: LiveScene) -> None:
    live.run(2.0)
    (told,) = live.say("session.close")
    assert (told["type"], told["reason"]) == ("session.closed", "close_requested")
    assert told["usage"] == {"seconds": 2.0} and told["session"]["id"] == "live_1"
    assert live.stage.only(Close).code == 1000


def test_l6_close_waits_for_the_current_unit_for_a_second_at_most(live: LiveScene) -> None:
    live.is_held = True
    live.run(1.1)
    assert live.say("session.close") == []
    assert kinds(live.tell(TimerFired(TimerName.STOPPING), 1.0)) == ["session.closed"]


def test_a_session_that_ends_during_a_restart_cancels_it(live: LiveScene) -> None:
    live.is_held = True
    append(live, "thinking")
    assert live.say("session.close") == []
    assert isinstance(live.stage.effects[0], Cancel)
    assert kinds(live.tell(PrefillDone())) == ["session.closed"]
    labels = [type(effect).__name__ for effect in live.stage.effects]
    assert labels == ["Send", "Release", "Close"]


def test_unrequested_ends_of_the_session() -> None:
    def ended(event: Any) -> tuple[list[dict[str, Any]], LiveScene]:
        scene = LiveScene(max_session_s=60.0)
        scene.start()
        return scene.tell(event), scene

    told, _ = ended(TimerFired(TimerName.SESSION))
    assert (kinds(told), told[0]["reason"]) == (["session.closed"], "expired")
    told, scene = ended(EngineFailed(GenerationFailedError()))
    assert (told[0]["error"]["type"], told[0]["error"]["code"]) == (
        "server_error",
        "internal_error",
    )
    assert scene.stage.only(Close).code == 1011
    told, scene = ended(ShuttingDown())
    assert (told[0]["error"]["code"], scene.stage.only(Close).code) == ("shutting_down", 1001)
    assert ended(Disconnected())[0] == []
    assert kinds(ended(StopRequested())[0]) == ["session.closed"]


def test_an_idle_session_expires(live: LiveScene) -> None:
    told = live.run(IDLE_S + 1.0, talks=False)
    assert (told[-1]["type"], told[-1]["reason"]) == ("session.closed", "expired")


# --- a client that is away, and a slow reader ---


def test_unsent_audio_is_kept_while_the_client_is_away(live: LiveScene) -> None:
    live.plan = [LISTEN, speak(), speak(end_of_turn=True)]
    live.run(2.5)
    heard, units = len(samples(live)), len(live.steps)
    live.tell(ClientAway())
    live.tell(Prefetched(), 30.0)
    assert len(samples(live)) == heard and len(live.steps) == units
    live.tell(ClientAway(is_away=False))
    assert len(samples(live)) == heard + 960, "no burst"
    live.run(3.0)
    assert np.count_nonzero(samples(live)) == 2 * AUDIBLE, "and nothing is lost"


def test_a_slow_reader_is_disconnected(live: LiveScene) -> None:
    assert kinds(live.tell(TimerFired(TimerName.PACE), 19.0)) == ["session.usage.updated"]
    assert len(samples(live)) == 191 * 2_400, "what is late is sent at once"
    (told,) = live.tell(TimerFired(TimerName.PACE), 21.0)
    assert told["error"]["type"] == "rate_limit_error" and "20 s" in told["error"]["message"]
    assert live.stage.only(Close).code == 1013
