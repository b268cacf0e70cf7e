"""What a recorder leaves on disk, and that the session never notices the disk."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from core.audio import encode_wav, encode_wire_audio, to_pcm
from core.schemas.common import AudioContent, ImageContent, Message, Role, TextContent, VideoContent
from recording.folder import is_live, read_meta, read_recording
from recording.recorder import SessionRecorder
from recording.records import TextInput, TurnRecording, TurnTiming, VoiceInput
from tests.unit.recordings import (
    Bench,
    duplex_of,
    end,
    json_of,
    level,
    level_pcm,
    listen,
    make_bench,
    pcm,
    picture,
    record_duplex,
    record_turns,
    speak,
    turns_of,
    wait_until,
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = make_bench(tmp_path)
    yield bench
    bench.threads.close()


def test_a_duplex_session_leaves_the_documented_folder(bench: Bench) -> None:
    results = [listen(), speak("Hel", level(0.5, 24_000)), speak("lo", ends=True), speak("Bye")]
    recorder = record_duplex(bench, "dx", results)
    meta = end(recorder)
    folder = bench.folder("dx")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {
        "meta.json",
        "recording.json",
        "events.jsonl",
        "ai_audio/turn_0_chunk_001.wav",
        *(f"user_audio/00{index}.wav" for index in range(4)),
        *(f"user_frames/00{index}.jpg" for index in range(4)),
    }
    assert pcm(folder / "ai_audio/turn_0_chunk_001.wav")[0] == 24_000
    rate_hz, heard = pcm(folder / "user_audio/002.wav")
    assert (rate_hz, len(heard)) == (16_000, 16_000)
    assert set(heard) == {round(0.03 * 32_767)}
    assert (folder / "user_frames/001.jpg").read_bytes() == picture((20, 0, 0))
    written = json_of(folder / "meta.json")
    sizes = [(folder / name).stat().st_size for name in found if name != "meta.json"]
    assert written.pop("size_bytes") == sum(sizes)
    assert written == {
        "schema_version": 1,
        "session_id": "dx",
        "app_type": "omni_duplex",
        "created_at": "2031-05-06T07:08:09Z",
        "ended_at": "2031-05-06T07:08:13Z",
        "duration_s": 4.0,
        "worker_id": "worker-0",
        "title": "05-06 07:08",
        "config": {"chunk_ms": 1_000, "system_prompt": "Be brief."},
        "end_reason": "stopped",
        "status": "ready",
    }
    assert meta == read_meta(folder)


def test_the_duplex_timeline_has_each_documented_field(bench: Bench) -> None:
    recorder = bench.duplex()
    bench.time.seconds = 0.01234
    recorder.record_event("pause")
    frames: list[bytes | str] = [
        picture((0, 0, 0)),
        base64.b64encode(picture((9, 9, 9), "PNG")).decode(),
    ]
    recorder.record_input(0, level_pcm(0.1, 16_000), frames, receive_ts_ms=1_000.04)
    result = speak("你好", level(0.5, 12_000), ends=True).model_copy(
        update={"cost_llm_ms": 10.06, "cost_tts_ms": 3.0, "prefill_ms": 7.77, "n_tokens": 5}
    )
    recorder.record_result(0, result)
    end(recorder)
    written = json_of(bench.folder("dx") / "recording.json")
    chunk = written["chunks"][0]
    timing = chunk["result"].pop("timing")
    assert {
        "prefill_ms": 7.8,
        "llm_ms": 10.1,
        "tts_ms": 3.0,
        "n_tokens": 5,
    }.items() <= timing.items()
    assert "tts_prep_ms" not in timing  # null is left out
    assert written == {
        "mode": "duplex",
        "session_id": "dx",
        "worker_id": "worker-0",
        "start_ts": "2031-05-06T07:08:09Z",
        "config": {"chunk_ms": 1_000, "system_prompt": "Be brief."},
        "events": [{"ts_ms": 12.3, "type": "pause"}],
        "chunks": [
            {
                "index": 0,
                "receive_ts_ms": 1_000.0,
                "user_audio": "user_audio/000.wav",
                "user_audio_duration_ms": 1_000,
                "user_frame": "user_frames/000.jpg",
                "extra_frames": ["user_frames/000_1.png"],
                "result": {
                    "mode": "SPEAK",
                    "text": "你好",
                    "ai_audio": "ai_audio/turn_0_chunk_000.wav",
                    "ai_audio_duration_ms": 500,
                    "end_of_turn": True,
                    "turn": 0,
                },
            }
        ],
    }
    text = (bench.folder("dx") / "recording.json").read_text(encoding="utf8")
    assert "你好" in text and '\n  "mode"' in text  # UTF-8, indent 2


def test_measurements_of_the_client_have_a_file_of_their_own(bench: Bench) -> None:
    recorder = bench.duplex()
    recorder.record_diagnostic('{"metrics":{"fps":30}}')
    recorder.record_diagnostic('{"metrics":{"note":"一"}}')
    end(recorder)
    lines = (bench.folder("dx") / "diagnostics.jsonl").read_text(encoding="utf8").splitlines()
    assert lines == ['{"metrics":{"fps":30}}', '{"metrics":{"note":"一"}}']


def test_turns_are_counted_when_they_end_or_are_interrupted(bench: Bench) -> None:
    sound = level(0.1, 24_000)
    results = [speak("a", sound), speak("b", sound, ends=True), speak("c", sound)]
    results += [listen(barge_in=True), listen(barge_in=True), speak("d", sound)]
    recorder = record_duplex(bench, "dx", results)
    assert recorder.turn_index == 2
    end(recorder)
    chunks = duplex_of(bench.folder("dx")).chunks
    spoken = [chunk.result.ai_audio for chunk in chunks if chunk.result and chunk.result.ai_audio]
    numbers = [(0, 0), (0, 1), (1, 2), (2, 5)]
    assert spoken == [f"ai_audio/turn_{turn}_chunk_00{index}.wav" for turn, index in numbers]


def test_unanswered_chunks_are_recorded(bench: Bench) -> None:
    recorder = bench.duplex()
    for index in range(70):  # more than may wait
        frames = [picture((1, 2, 3))] if index == 66 else []
        recorder.record_input(index, level_pcm(0.1, 1_600), frames)
    recorder.record_result(67, listen())
    end(recorder)
    chunks = duplex_of(bench.folder("dx")).chunks
    assert [chunk.index for chunk in chunks] == list(range(70))
    assert [chunk.index for chunk in chunks if chunk.result] == [67]
    assert [chunk.index for chunk in chunks if chunk.user_frame] == [66]
    assert all(chunk.user_audio for chunk in chunks)


def test_audio_is_clipped_and_invalid_audio_is_silent_or_left_out(bench: Bench) -> None:
    recorder = bench.duplex()
    recorder.save_user_audio(0, to_pcm(np.array([2.0, -2.0, np.nan, np.inf, 0.5], np.float32)))
    recorder.save_user_audio(1, "no base64!")
    recorder.save_user_frame(2, b"<html>not a picture")
    assert recorder.save_user_frame(3, "äöü") is None
    recorder.save_user_audio(4, level_pcm(0.5, 4))
    end(recorder)
    folder = bench.folder("dx")
    assert list(pcm(folder / "user_audio/000.wav")[1]) == [32_767, -32_767, 0, 32_767, 16_384]
    assert set(pcm(folder / "user_audio/004.wav")[1]) == {16_384}
    assert [chunk.index for chunk in duplex_of(folder).chunks] == [0, 4]


def test_a_clients_samples_are_not_decoded_as_a_file(bench: Bench) -> None:
    sent = encode_wav(level(0.5, 8), 16_000)
    call, talk = bench.duplex("dx"), bench.turns("tb")
    call.record_input(0, sent)
    talk.start_voice_turn(0, sent)
    item = AudioContent(data=base64.b64encode(sent).decode())
    talk.start_message_turn(1, Message(role=Role.USER, content=[item]))
    end(call)
    end(talk)
    for name, number in (("dx", 0), ("tb", 0), ("tb", 1)):
        _, heard = pcm(bench.folder(name) / f"user_audio/00{number}.wav")
        assert len(heard) == len(sent) // 4, "each float32 is a sample"
        assert heard[0] == 32_767, "the mark of a WAV file is a number far above 1"


def test_settings_are_stored_without_their_audio(bench: Bench) -> None:
    voice = encode_wire_audio(level(0.1, 32_000))
    config = {
        "ref_audio_base64": voice,
        "system_content": [{"type": "text", "text": "Hi"}, {"type": "audio", "data": voice}],
        "tts": {"ref_audio_data": voice, "enabled": True, "ref_audio_path": None},
    }
    recorder = SessionRecorder("cfg", "streaming", "0", config, bench.data_dir, bench.options)
    kept = end(recorder).config
    described = kept["ref_audio_base64"]
    assert (described["duration_s"], len(described["sha256"])) == (2.0, 64)
    assert kept["system_content"] == [
        {"type": "text", "text": "Hi"},
        {"type": "audio", "data": described},
    ]
    assert kept["tts"] == {"ref_audio_data": described, "enabled": True, "ref_audio_path": None}
    texts = [path.read_text() for path in bench.folder("cfg").iterdir()]
    assert not any(voice[:100] in text for text in texts)


def test_a_half_duplex_session_has_its_turns(bench: Bench) -> None:
    recorder = record_turns(bench, "hdx", 2)
    recorder.record_words("user_transcript", "Hello.", 0, turn=2)
    recorder.start_voice_turn(2, level_pcm(0.1, 4_000))
    recorder.add_streaming_chunk("cut", None)
    recorder.end_turn(interrupted=True)
    end(recorder, "timeout")
    folder = bench.folder("hdx")
    written = json_of(folder / "recording.json")
    assert (written["mode"], len(written["turns"])) == ("half_duplex_audio", 3)
    assert written["turns"][1] == {
        "turn_index": 1,
        "request_ts_ms": 4_000.0,
        "input": {"type": "voice", "duration_ms": 500, "audio": "user_audio/001.wav"},
        "output": {"text": "1.0 1.1 ", "audio": "ai_audio/turn_1.wav", "audio_duration_ms": 1_000},
        "timing": {"elapsed_ms": 321.0, "tokens": 7, "first_audio_ms": 0.0},
    }
    assert written["turns"][2]["interrupted"] is True
    assert written["turns"][2]["input"]["duration_ms"] == 250
    assert written["turns"][2]["input"]["transcript"] == "Hello."
    assert "transcript" not in written["turns"][1]["input"]
    rate_hz, said = pcm(folder / "ai_audio/turn_1.wav")
    assert (rate_hz, len(said), set(said)) == (24_000, 24_000, {16_384})
    assert json_of(folder / "meta.json")["end_reason"] == "timeout"


def test_a_message_leaves_its_attachments_in_their_own_format(bench: Bench) -> None:
    def text(content: bytes) -> str:
        return base64.b64encode(content).decode()

    sound = AudioContent(data=encode_wire_audio(level(0.2, 1_600)))
    message = Message(
        role=Role.USER,
        content=[
            TextContent(text="Look"),
            ImageContent(data=text(picture((1, 1, 1), "PNG"))),
            ImageContent(data=text(picture((2, 2, 2)))),
            sound,
            sound,
            VideoContent(data=text(b"a film")),
        ],
    )
    recorder = bench.turns()
    recorder.start_message_turn(0, message)
    recorder.end_turn(TurnTiming(cached_tokens=3), text="Nice.")
    recorder.start_message_turn(1, Message(role=Role.USER, content="And?"))
    end(recorder)
    folder = bench.folder("tb")
    first, second = turns_of(folder).turns
    assert first.input == TextInput(
        text="Look",
        images=("user_images/img_0.png", "user_images/img_1.jpg"),
        audio="user_audio/000.wav",
        more_audio=("user_audio/000_1.wav",),
        videos=("user_videos/vid_0.mp4",),
    )
    assert (folder / "user_images/img_0.png").read_bytes() == picture((1, 1, 1), "PNG")
    assert (first.output.text, first.timing.cached_tokens) == ("Nice.", 3)
    assert (second.input, second.output.text) == (TextInput(text="And?"), "")


def test_a_chat_reply_may_come_as_a_wav_file(bench: Bench) -> None:
    recorder = bench.turns("chat_1", "chat")
    wav = base64.b64encode(encode_wav(level(0.5, 24_000), 24_000)).decode()
    recorder.start_turn(0, 1.0, TextInput(text="Hi"))
    recorder.save_ai_audio_turn(0, wav)
    recorder.end_turn(TurnTiming(tokens=2), text="Hello")
    end(recorder)
    _, said = pcm(bench.folder("chat_1") / "ai_audio/turn_0.wav")
    assert len(said) == 24_000 and abs(int(said[12_000]) - 16_384) <= 1
    assert turns_of(bench.folder("chat_1")).turns[0].output.audio_duration_ms == 1_000


def test_voice_and_text_inputs_are_distinguished_when_read(bench: Bench) -> None:
    recorder = bench.turns("mix", "half_duplex_audio")
    recorder.start_turn(0, 0.0, VoiceInput(duration_ms=0))
    recorder.start_turn(1, 0.0, TextInput())
    end(recorder)
    kinds = [type(turn.input) for turn in turns_of(bench.folder("mix")).turns]
    assert kinds == [VoiceInput, TextInput]


def test_a_checkpoint_is_readable_while_the_session_continues(bench: Bench) -> None:
    recorder = record_turns(bench, "live", 1)
    recorder.checkpoint()
    folder = bench.folder("live")
    ready = wait_until(lambda: read_recording(folder))
    assert isinstance(ready, TurnRecording) and ready.turns[0].output.text == "0.0 0.1 "
    meta = read_meta(folder)
    assert meta is not None and meta.status == "recording" and is_live(folder)
    recorder.start_turn(1, 1.0, TextInput(text="More"))
    end(recorder)
    assert len(turns_of(folder).turns) == 2
