"""Audio encoder at toy size: streams equal whole clips, sessions do not touch each other."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from MiniCPMO45.audio_cache import AudioCache, new_audio_cache
from MiniCPMO45.audio_encoder import (
    AudioEncoder,
    AudioProjection,
    StreamItem,
    encode_clip_frames,
    encode_clips,
    encode_stream_frames,
    encode_streams,
    pool,
)
from MiniCPMO45.audio_features import LogFloor, embedding_count, log_mel
from MiniCPMO45.configuration_minicpmo import AudioConfig
from MiniCPMO45.streaming_mel import MelState, push

CONFIG = AudioConfig(d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128)
LLM_WIDTH = 24
BLOCK = 50
FIRST_SAMPLES = 16_480
UNIT_SAMPLES = 16_000
FIRST_RESET_UNIT = 29


@dataclass(frozen=True)
class Ears:
    """Toy weights."""

    encoder: AudioEncoder
    projection: AudioProjection


@pytest.fixture(scope="module")
def ears() -> Ears:
    generator = torch.Generator().manual_seed(7)
    modules = Ears(AudioEncoder(CONFIG), AudioProjection(CONFIG.d_model, LLM_WIDTH))
    for module in (modules.encoder, modules.projection):
        module.requires_grad_(False)
        for name, weight in module.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            is_norm = "norm" in name and name.endswith("weight")
            weight.copy_(1 + 0.1 * noise if is_norm else noise * weight[0].numel() ** -0.5)
    return modules


def _mel(n_frames: int, seed: int = 0) -> Tensor:
    return torch.randn(80, n_frames, generator=torch.Generator().manual_seed(seed)) * 0.5


def _units(mel: Tensor) -> list[Tensor]:
    """Cut a mel as a stream hands it out: 102 frames, then 104 at a time."""
    n_units = (mel.shape[1] - 2) // 100
    return [mel[:, max(0, unit * 100 - 2) : unit * 100 + 102] for unit in range(n_units)]


def _item(mel: Tensor, cache: AudioCache, is_first: bool = False) -> StreamItem:
    return StreamItem(mel, cache, 0 if is_first else 2, 2)


def _run(ears: Ears, units: list[Tensor], cache: AudioCache | None = None) -> list[Tensor]:
    cache = cache or new_audio_cache(CONFIG)
    return [
        encode_stream_frames(ears.encoder, [_item(mel, cache, is_first=index == 0)])[0]
        for index, mel in enumerate(units)
    ]


def test_parameters_bear_the_checkpoint_names() -> None:
    with torch.device("meta"):
        encoder = AudioEncoder(CONFIG)
        projection = AudioProjection(CONFIG.d_model, LLM_WIDTH)
    names = {"conv1", "conv2", "layer_norm"}
    for i in range(CONFIG.encoder_layers):
        parts = "self_attn.q_proj self_attn.v_proj self_attn.out_proj fc1 fc2"
        parts += " self_attn_layer_norm final_layer_norm"
        names |= {f"layers.{i}.{part}" for part in parts.split()}
    expected = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}
    expected |= {f"layers.{i}.self_attn.k_proj.weight" for i in range(CONFIG.encoder_layers)}
    assert set(encoder.state_dict()) == expected | {"embed_positions.weight"}
    linears = {f"linear{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")}
    assert set(projection.state_dict()) == linears


def test_other_activations_are_refused() -> None:
    with pytest.raises(ValueError, match="relu"):
        AudioEncoder(AudioConfig(activation_function="relu"))


def test_trimmed_convolutions_of_units_equal_one_over_the_stream(ears: Ears) -> None:
    mel = _mel(602)
    whole = ears.encoder.convolve(mel[None])[0]
    units = [ears.encoder.convolve(unit[None])[0] for unit in _units(mel)]
    assert [len(rows) for rows in units] == [51] + [52] * 5
    trimmed = [rows[0 if index == 0 else 1 : -1] for index, rows in enumerate(units)]
    torch.testing.assert_close(torch.cat(trimmed), whole[:300], atol=1e-5, rtol=0)


def test_units_through_the_cache_equal_one_pass_with_blocks(ears: Ears) -> None:
    mel = _mel(802)
    cache = new_audio_cache(CONFIG)
    frames = torch.cat(_run(ears, _units(mel), cache))
    whole = encode_clip_frames(ears.encoder, [mel], block_frames=BLOCK)[0][:400]
    torch.testing.assert_close(frames, whole, atol=1e-4, rtol=0)
    assert cache.length == 400


def test_a_stream_of_audio_equals_the_whole_clip(ears: Ears) -> None:
    generator = torch.Generator().manual_seed(1)
    audio = 0.1 * torch.randn(FIRST_SAMPLES + 3 * UNIT_SAMPLES, generator=generator)
    state, cache = MelState(), new_audio_cache(CONFIG)
    embeddings = []
    for index, piece in enumerate([audio[:FIRST_SAMPLES], *audio[FIRST_SAMPLES:].split(16_000)]):
        item = _item(push(state, piece), cache, is_first=index == 0)
        embeddings += encode_streams(ears.encoder, ears.projection, [item])
    assert [len(rows) for rows in embeddings] == [10] * 4
    mel = log_mel(audio, LogFloor.FIXED)
    whole = encode_clips(ears.encoder, ears.projection, [mel], block_frames=BLOCK)[0]
    torch.testing.assert_close(torch.cat(embeddings), whole[:40], atol=1e-4, rtol=0)


def test_the_cache_is_emptied_before_positions_run_out(ears: Ears) -> None:
    units = _units(_mel(100 * 60 + 2))
    cache = new_audio_cache(CONFIG)
    frames, lengths = [], []
    for index, mel in enumerate(units):
        item = _item(mel, cache, is_first=index == 0)
        frames += encode_stream_frames(ears.encoder, [item])
        lengths.append(cache.length)
    assert lengths == [50 * (unit % FIRST_RESET_UNIT + 1) for unit in range(60)]
    fresh = new_audio_cache(CONFIG)
    again = [
        encode_stream_frames(ears.encoder, [_item(mel, fresh)])[0]
        for mel in units[FIRST_RESET_UNIT : FIRST_RESET_UNIT + 3]
    ]
    for one, other in zip(frames[FIRST_RESET_UNIT:], again, strict=False):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_streams_in_one_step_equal_streams_alone(ears: Ears) -> None:
    streams = [_units(_mel(100 * n + 2, seed=n)) for n in (2, 31, 5)]
    alone = [_run(ears, units)[-1] for units in streams]
    caches = [new_audio_cache(CONFIG) for _ in streams]
    for units, cache in zip(streams, caches, strict=True):
        _run(ears, units[:-1], cache)
    newcomer = _mel(102, seed=9)
    items = [_item(units[-1], cache) for units, cache in zip(streams, caches, strict=True)]
    items.insert(1, _item(newcomer, new_audio_cache(CONFIG), is_first=True))
    together = encode_stream_frames(ears.encoder, items)
    for one, other in zip([together[0], *together[2:]], alone, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    torch.testing.assert_close(together[1], _run(ears, [newcomer])[0], atol=1e-5, rtol=0)


def test_turns_taken_by_two_streams_change_nothing(ears: Ears) -> None:
    first, second = (_units(_mel(502, seed=seed)) for seed in (1, 2))
    expected = _run(ears, first)
    caches = new_audio_cache(CONFIG), new_audio_cache(CONFIG)
    for index, (mine, other) in enumerate(zip(first, second, strict=True)):
        got = encode_stream_frames(ears.encoder, [_item(mine, caches[0], index == 0)])[0]
        encode_stream_frames(ears.encoder, [_item(other, caches[1], index == 0)])
        assert torch.equal(got, expected[index])


def test_a_cache_cannot_take_part_twice(ears: Ears) -> None:
    cache = new_audio_cache(CONFIG)
    with pytest.raises(ValueError, match="only once"):
        encode_stream_frames(ears.encoder, [_item(_mel(104), cache), _item(_mel(104), cache)])


def test_a_unit_of_context_only_is_refused_and_changes_nothing(ears: Ears) -> None:
    cache = new_audio_cache(CONFIG)
    with pytest.raises(ValueError, match="context"):
        encode_stream_frames(ears.encoder, [_item(_mel(4), cache)])
    assert cache.length == 0


@pytest.mark.parametrize("block_frames", [BLOCK, None])
@pytest.mark.parametrize("short", [9, 167, 400])
def test_a_clip_does_not_depend_on_its_neighbours(
    ears: Ears, block_frames: int | None, short: int
) -> None:
    mels = [_mel(601, seed=1), _mel(short, seed=2)]
    together = encode_clip_frames(ears.encoder, mels, block_frames=block_frames)
    for mel, frames in zip(mels, together, strict=True):
        alone = encode_clip_frames(ears.encoder, [mel], block_frames=block_frames)[0]
        torch.testing.assert_close(frames, alone, atol=1e-5, rtol=0)


def test_blocks_hide_what_comes_later(ears: Ears) -> None:
    mel = _mel(400)
    changed = mel.clone()
    changed[:, 202:] += 1.0
    one, other = encode_clip_frames(ears.encoder, [mel, changed], block_frames=BLOCK)
    torch.testing.assert_close(one[:100], other[:100], atol=1e-5, rtol=0)
    assert (one[100:150] - other[100:150]).abs().max() > 1e-3


@pytest.mark.parametrize("n_samples", [800, 1281, 16_560])
def test_clips_give_the_promised_number_of_embeddings(ears: Ears, n_samples: int) -> None:
    mel = _mel(-(-n_samples // 160))
    rows = encode_clips(ears.encoder, ears.projection, [mel], block_frames=BLOCK)[0]
    assert rows.shape == (embedding_count(n_samples), LLM_WIDTH)


def test_no_clips_and_no_streams_give_nothing(ears: Ears) -> None:
    assert encode_clips(ears.encoder, ears.projection, [], block_frames=None) == []
    assert encode_streams(ears.encoder, ears.projection, []) == []


def test_clips_past_the_last_position_are_refused(ears: Ears) -> None:
    with pytest.raises(ValueError, match="positions"):
        encode_clip_frames(ears.encoder, [_mel(3002)], block_frames=BLOCK)


def test_pooling_averages_whole_groups() -> None:
    rows = torch.arange(12.0)[:, None]
    assert pool(rows, 5).tolist() == [[2.0], [7.0]]


def test_modules_are_the_same_after_use(ears: Ears) -> None:
    before = {name: weight.clone() for name, weight in ears.encoder.state_dict().items()}
    attributes = [set(vars(module)) for module in ears.encoder.modules()]
    _run(ears, _units(_mel(302)))
    encode_clip_frames(ears.encoder, [_mel(200), _mel(300)], block_frames=BLOCK)
    assert all(torch.equal(w, before[name]) for name, w in ears.encoder.state_dict().items())
    assert [set(vars(module)) for module in ears.encoder.modules()] == attributes


def test_bfloat16_weights_take_float32_mels(ears: Ears) -> None:
    with torch.device("meta"):
        encoder = AudioEncoder(CONFIG)
        projection = AudioProjection(CONFIG.d_model, LLM_WIDTH)
    encoder.load_state_dict(ears.encoder.state_dict(), assign=True)
    projection.load_state_dict(ears.projection.state_dict(), assign=True)
    encoder, projection = encoder.bfloat16(), projection.bfloat16()
    mel = _mel(102)
    cache = new_audio_cache(CONFIG, dtype=torch.bfloat16)
    rows = encode_streams(encoder, projection, [_item(mel, cache, is_first=True)])[0]
    exact_cache = new_audio_cache(CONFIG)
    exact = encode_streams(ears.encoder, ears.projection, [_item(mel, exact_cache, is_first=True)])
    assert rows.dtype is torch.bfloat16
    torch.testing.assert_close(rows.float(), exact[0], atol=0.06, rtol=0.05)


def test_a_cut_cache_repeats_a_unit(ears: Ears) -> None:
    first, second, third = _units(_mel(302))
    cache = new_audio_cache(CONFIG)
    _run(ears, [first], cache)
    expected = encode_stream_frames(ears.encoder, [_item(second, cache)])[0]
    cache.truncate(50)
    encode_stream_frames(ears.encoder, [_item(third, cache)])
    cache.truncate(50)
    assert torch.equal(encode_stream_frames(ears.encoder, [_item(second, cache)])[0], expected)
    with pytest.raises(ValueError, match="cannot cut"):
        cache.truncate(101)


@pytest.mark.parametrize("n_units", [1, 2])
def test_a_cloned_cache_goes_its_own_way(ears: Ears, n_units: int) -> None:
    units = _units(_mel(402))
    cache = new_audio_cache(CONFIG)
    _run(ears, units[:n_units], cache)
    copy = cache.clone()
    kept = copy.kv.clone()
    assert copy.nbytes == 2 * 2 * CONFIG.d_model * 50 * n_units * 4  # layers, keys and values
    cache.truncate(0)
    _run(ears, units[2:], cache)
    assert torch.equal(copy.kv, kept)


def test_a_cache_grows_to_the_last_position_and_is_freed_with_its_stream(ears: Ears) -> None:
    cache = new_audio_cache(CONFIG)
    assert cache.nbytes == 0
    _run(ears, _units(_mel(2902)), cache)
    assert cache.length == 1450
    assert cache.nbytes == 2 * 2 * CONFIG.d_model * 1500 * 4
    storage = weakref.ref(cache.kv)
    del cache
    assert storage() is None


def test_room_taken_at_once_is_not_taken_again(ears: Ears) -> None:
    cache = new_audio_cache(CONFIG, capacity_frames=CONFIG.max_source_positions)
    storage = cache.kv
    _run(ears, _units(_mel(502)), cache)
    assert cache.kv is storage
