"""Audio input and its caches: D3 to D6, D33, D34."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from MiniCPMO45.engine.steps import EncodeClips
from MiniCPMO45.model.audio_encoder import AudioEmbedder, EncodeStream
from MiniCPMO45.processing.mel import clip_mels
from tests.fakes.textbook_mel import textbook_log_mel
from tests.goldens.audio import HIDDEN_RTOL_OF_MAX, load_hearing
from tests.goldens.recorded_model import recorded_clip_frames
from tests.model.scripted_duplex import SETTINGS, Bench
from tests.model.toy import Toy, prepare, speech
from tests.model.turns import ToyTurns
from tests.reference_defects.conftest import Recorded

UNIT_FRAMES, CONTEXT_FRAMES = 50, 2  # of the encoder, a second and both edges of it


def test_d3_a_clip_does_not_see_its_padding(recorded: Recorded) -> None:
    hearing = load_hearing(recorded("audio_offline"))
    long, short = (
        torch.randn(80, n, generator=torch.Generator().manual_seed(n)) for n in (300, 99)
    )
    with torch.inference_mode():
        embedder = AudioEmbedder(hearing.encoder, nn.Identity(), pool_step=1)
        [alone] = embedder.embed_clips([short], None)
        beside = embedder.embed_clips([long, short], None)[1]
        rule = recorded_clip_frames(hearing.encoder, [long, short], None)[1]
    limit = HIDDEN_RTOL_OF_MAX * alone.abs().max()
    assert (beside - alone).abs().max() < limit < (rule - alone).abs().max()


def test_d4_a_whole_clip_has_a_floor_of_its_own(toy: Toy) -> None:
    sample = np.random.default_rng(0).normal(0.0, 0.5, 16_000).astype(np.float32)
    sample[8_000:] = 0.0
    rule, [ours] = (
        textbook_log_mel(torch.from_numpy(sample), has_fixed_floor=True),
        clip_mels(sample),
    )
    assert not torch.equal(rule, ours), "the floor that an earlier stream left behind"
    bench = Bench(toy)
    bench.unit(bench.tokens.listen)  # a stream, which begins with a fixed floor
    bench.do(prepare(bench.duplex, bench.executor.open_session(), SETTINGS, None, sample))
    [mel] = bench.executor.of_kind(EncodeClips)[-1].mels
    assert torch.equal(mel, ours)


def test_d5_each_clip_is_read_by_itself(toy: Toy) -> None:
    clips = [speech(0.95, 1), speech(0.95, 2)]
    talk = ToyTurns(toy)
    talk.prefill_history([("user", clips)])
    [request] = talk.recorder.of_kind(EncodeClips)
    [rule] = clip_mels(np.concatenate(clips))
    assert [mel.shape[1] for mel in request.mels] == [95, 95]
    assert rule.shape[1] == 190, "and its rows are dealt out to the slots of both"


def test_d6_context_frames_do_not_enter_the_cache(toy: Toy) -> None:
    talk = ToyTurns(toy)
    talk.prefill("user", [speech(3.1, 1)], stream_input=True)
    rule = 3 * UNIT_FRAMES + 2 * 3 * CONTEXT_FRAMES // 2 - 1  # nothing lies before the first
    assert (talk.session.audio_input.cache.length, rule) == (150, 155)


def test_every_turn_of_live_audio_is_heard_from_its_beginning(toy: Toy) -> None:
    talk = ToyTurns(toy)
    for seed in (1, 2):
        talk.prefill("user", [speech(3.1, seed)], stream_input=True)
        assert talk.session.audio_input.cache.length == 3 * UNIT_FRAMES
        talk.generate()
    units = talk.recorder.of_kind(EncodeStream)
    heard = [(unit.mel.shape[1], unit.is_first) for unit in units]
    assert heard == 2 * [(102, True), (104, False), (104, False)]


def test_d33_a_conversation_starts_deaf(toy: Toy) -> None:
    executor, duplex = toy.executor(), toy.duplex()
    first, second = (executor.open_session(name, seed=0) for name in ("first", "second"))
    first.audio_input.cache.length += UNIT_FRAMES
    for _ in prepare(duplex, second):
        break
    assert second.audio_input.cache.length == 0, "the reference keeps the first one's cache"


def test_d34_the_first_second_is_remembered(toy: Toy) -> None:
    talk, rule = ToyTurns(toy), []
    for seed in (1, 2):
        is_first = talk.session.kv.length == 0
        talk.prefill("user", [speech(1.1, seed)], stream_input=True)
        rule.append(0 if is_first else UNIT_FRAMES)  # the first prefill's cache is dropped
    assert (talk.session.audio_input.cache.length, rule[-1]) == (2 * UNIT_FRAMES, UNIT_FRAMES)
