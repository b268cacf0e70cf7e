"""Audio encoder at toy size: streams equal whole clips, and are independent of each other."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from MiniCPMO45.configuration_minicpmo import AudioConfig
from MiniCPMO45.model.audio_encoder import (
    AudioCache,
    AudioEmbedder,
    AudioEncoder,
    EncodeStream,
    new_audio_cache,
    pool,
)
from MiniCPMO45.model.transformer import Projector
from MiniCPMO45.processing.mel import MelState, embedding_count, push
from tests.fakes.textbook_mel import textbook_log_mel

CONFIG = AudioConfig(d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128)
LLM_WIDTH = 24
BLOCK = 50
FIRST_SAMPLES, UNIT_SAMPLES = 16_480, 16_000
FIRST_RESET_UNIT = 29


@dataclass(frozen=True)
class ToyEncoder:
    """Encoder and projection with toy weights."""

    encoder: AudioEncoder
    projection: Projector

    @cached_property
    def frames(self) -> AudioEmbedder:
        return AudioEmbedder(self.encoder, nn.Identity(), pool_step=1)

    @cached_property
    def embedder(self) -> AudioEmbedder:
        return AudioEmbedder(self.encoder, self.projection)


@pytest.fixture(scope="module")
def toy() -> ToyEncoder:
    generator = torch.Generator().manual_seed(7)
    modules = ToyEncoder(AudioEncoder(CONFIG), Projector(CONFIG.d_model, LLM_WIDTH))
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
    """Split a mel like a stream: 102 frames, then 104 each."""
    n_units = (mel.shape[1] - 2) // 100
    return [mel[:, max(0, unit * 100 - 2) : unit * 100 + 102] for unit in range(n_units)]


def _run(toy: ToyEncoder, units: list[Tensor], cache: AudioCache | None = None) -> list[Tensor]:
    cache = cache or new_audio_cache(CONFIG)
    return [
        toy.frames.embed_streams([EncodeStream(mel, cache, is_first=index == 0)])[0]
        for index, mel in enumerate(units)
    ]


def test_other_activations_are_rejected() -> None:
    with pytest.raises(ValueError, match="relu"):
        AudioEncoder(AudioConfig(activation_function="relu"))


def test_units_through_the_cache_equal_one_pass_with_blocks(toy: ToyEncoder) -> None:
    mel, cache = _mel(802), new_audio_cache(CONFIG)
    frames = torch.cat(_run(toy, _units(mel), cache))
    whole = toy.frames.embed_clips([mel], BLOCK)[0][:400]
    torch.testing.assert_close(frames, whole, atol=1e-4, rtol=0)
    assert cache.length == 400


def test_a_stream_of_audio_equals_the_whole_clip(toy: ToyEncoder) -> None:
    generator = torch.Generator().manual_seed(1)
    audio = 0.1 * torch.randn(FIRST_SAMPLES + 3 * UNIT_SAMPLES, generator=generator)
    state, cache = MelState(), new_audio_cache(CONFIG)
    embeddings = []
    for index, piece in enumerate([audio[:FIRST_SAMPLES], *audio[FIRST_SAMPLES:].split(16_000)]):
        item = EncodeStream(push(state, piece), cache, is_first=index == 0)
        embeddings += toy.embedder.embed_streams([item])
    assert [len(rows) for rows in embeddings] == [10] * 4
    mel = textbook_log_mel(audio, has_fixed_floor=True)
    whole = toy.embedder.embed_clips([mel], BLOCK)[0]
    torch.testing.assert_close(torch.cat(embeddings), whole[:40], atol=1e-4, rtol=0)


class Stock:
    """The layers of `transformers` with our weights."""

    def __init__(self, encoder: AudioEncoder) -> None:
        config = WhisperConfig(
            d_model=CONFIG.d_model,
            encoder_layers=CONFIG.encoder_layers,
            encoder_attention_heads=CONFIG.encoder_attention_heads,
            encoder_ffn_dim=CONFIG.encoder_ffn_dim,
            max_source_positions=CONFIG.max_source_positions,
        )
        self.encoder = WhisperEncoder._from_config(config, attn_implementation="eager").eval()
        self.encoder.load_state_dict(encoder.state_dict())

    def frames(self, units: list[EncodeStream]) -> Tensor:
        """Frames of a stream's units: each sees itself and those before it."""
        rows = [self.convolve(item.mel)[item.context :][: item.n_new] for item in units]
        return self.transform(rows)

    @torch.no_grad()
    def convolve(self, mel: Tensor) -> Tensor:
        hidden = F.gelu(self.encoder.conv1(mel[None]))
        return F.gelu(self.encoder.conv2(hidden))[0].T

    @torch.no_grad()
    def transform(self, rows: list[Tensor]) -> Tensor:
        number = torch.cat([torch.full((len(each),), n) for n, each in enumerate(rows)])
        hidden = (torch.cat(rows) + self.encoder.embed_positions.weight[: len(number)])[None]
        hides = (number[None, :] > number[:, None])[None, None]
        mask = torch.zeros(hides.shape).masked_fill(hides, float("-inf"))
        for layer in self.encoder.layers:
            hidden = layer(hidden, mask)
        return self.encoder.layer_norm(hidden)[0]


def test_clips_equal_the_library_layers(toy: ToyEncoder) -> None:
    stock = Stock(toy.encoder)
    mels = [_mel(n, seed=n) for n in (340, 77, 200)]
    together = toy.frames.embed_clips(mels, None)
    for mel, frames in zip(mels, together, strict=True):
        expected = stock.transform([stock.convolve(mel)])
        torch.testing.assert_close(frames, expected, atol=1e-5, rtol=0)
        [alone] = toy.frames.embed_clips([mel], None)
        torch.testing.assert_close(alone, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("has_fixed_passes", [False, True])
def test_units_equal_the_library_layers(toy: ToyEncoder, has_fixed_passes: bool) -> None:
    """Full and short units, with and without context, at different stream positions."""
    frames = AudioEmbedder(
        toy.encoder, nn.Identity(), pool_step=1, has_fixed_passes=has_fixed_passes
    )
    shapes = [(102, True), (104, False), (61, False), (100, True), (9, False), (7, False)]
    caches = [new_audio_cache(CONFIG) for _ in range(3)]
    streams: list[list[EncodeStream]] = [[], [], []]
    embedded: list[list[Tensor]] = [[], [], []]
    for step in range(len(shapes) + 2):
        indices = [i for i in range(3) if 0 <= step - i < len(shapes)]
        items = []
        for i in indices:
            usual = (104, False) if step > i else (102, True)
            n_frames, is_first = usual if i else shapes[step]
            mel = _mel(n_frames, 10 * step + i)
            items.append(EncodeStream(mel, caches[i], is_first))
        for i, item, rows in zip(indices, items, frames.embed_streams(items), strict=True):
            streams[i].append(item)
            embedded[i].append(rows)
    stock = Stock(toy.encoder)
    for units, parts in zip(streams, embedded, strict=True):
        torch.testing.assert_close(torch.cat(parts), stock.frames(units), atol=2e-5, rtol=0)


def test_fused_weights_receive_gradients(toy: ToyEncoder) -> None:
    encoder = AudioEncoder(CONFIG)
    encoder.load_state_dict(toy.encoder.state_dict())
    AudioEmbedder(encoder, nn.Identity())
    mel = torch.stack([_mel(120, seed=1), _mel(120, seed=2)])
    frames = encoder(mel, encoder.clip_batch(120, torch.tensor([120, 80]), BLOCK))
    frames.square().mean().backward()
    assert all(weight.grad is not None for weight in encoder.parameters())
    frames.detach_()
    [served, *_] = AudioEmbedder(encoder, nn.Identity(), pool_step=1).embed_clips([mel[0]], BLOCK)
    torch.testing.assert_close(frames[0], served, atol=1e-5, rtol=0)


def test_dropped_streams_free_their_memory(toy: ToyEncoder) -> None:
    caches = [new_audio_cache(CONFIG) for _ in range(2)]
    toy.frames.embed_streams([EncodeStream(_mel(102), cache, is_first=True) for cache in caches])
    watched = [weakref.ref(cache.kv) for cache in caches]
    caches.clear()
    assert [ref() for ref in watched] == [None, None]


def test_cache_is_reset_before_the_last_position(toy: ToyEncoder) -> None:
    units = _units(_mel(100 * 60 + 2))
    cache = new_audio_cache(CONFIG)
    frames, lengths = [], []
    for index, mel in enumerate(units):
        item = EncodeStream(mel, cache, is_first=index == 0)
        frames += toy.frames.embed_streams([item])
        lengths.append(cache.length)
    assert lengths == [50 * (unit % FIRST_RESET_UNIT + 1) for unit in range(60)]
    fresh = new_audio_cache(CONFIG)
    again = [
        toy.frames.embed_streams([EncodeStream(mel, fresh)])[0]
        for mel in units[FIRST_RESET_UNIT : FIRST_RESET_UNIT + 3]
    ]
    for one, other in zip(frames[FIRST_RESET_UNIT:], again, strict=False):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_streams_in_one_step_equal_streams_alone(toy: ToyEncoder) -> None:
    streams = [_units(_mel(100 * n + 2, seed=n)) for n in (2, 31, 5)]
    alone = [_run(toy, units)[-1] for units in streams]
    caches = [new_audio_cache(CONFIG) for _ in streams]
    for units, cache in zip(streams, caches, strict=True):
        _run(toy, units[:-1], cache)
    newcomer = _mel(102, seed=9)
    items = [EncodeStream(units[-1], cache) for units, cache in zip(streams, caches, strict=True)]
    items.insert(1, EncodeStream(newcomer, new_audio_cache(CONFIG), is_first=True))
    together = toy.frames.embed_streams(items)
    for one, other in zip([together[0], *together[2:]], alone, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    torch.testing.assert_close(together[1], _run(toy, [newcomer])[0], atol=1e-5, rtol=0)


def test_interleaved_streams_equal_streams_alone(toy: ToyEncoder) -> None:
    first, second = (_units(_mel(502, seed=seed)) for seed in (1, 2))
    expected = _run(toy, first)
    caches = new_audio_cache(CONFIG), new_audio_cache(CONFIG)
    for index, (mine, other) in enumerate(zip(first, second, strict=True)):
        got = toy.frames.embed_streams([EncodeStream(mine, caches[0], index == 0)])[0]
        toy.frames.embed_streams([EncodeStream(other, caches[1], index == 0)])
        assert torch.equal(got, expected[index])


def test_duplicate_cache_in_a_batch_is_rejected(toy: ToyEncoder) -> None:
    cache = new_audio_cache(CONFIG)
    with pytest.raises(ValueError, match="two units of one stream"):
        toy.frames.embed_streams([EncodeStream(_mel(104), cache), EncodeStream(_mel(104), cache)])


@pytest.mark.parametrize(("n_frames", "reason"), [(4, "only context"), (105, "more than a unit")])
def test_rejected_unit_size_leaves_the_cache_unchanged(
    toy: ToyEncoder, n_frames: int, reason: str
) -> None:
    cache = new_audio_cache(CONFIG)
    with pytest.raises(ValueError, match=reason):
        toy.frames.embed_streams([EncodeStream(_mel(n_frames), cache)])
    assert cache.length == 0


@pytest.mark.parametrize("block_frames", [BLOCK, None])
@pytest.mark.parametrize("short", [9, 167, 400])
def test_clips_in_a_batch_are_independent(
    toy: ToyEncoder, block_frames: int | None, short: int
) -> None:
    mels = [_mel(601, seed=1), _mel(short, seed=2)]
    together = toy.frames.embed_clips(mels, block_frames)
    for mel, frames in zip(mels, together, strict=True):
        alone = toy.frames.embed_clips([mel], block_frames)[0]
        torch.testing.assert_close(frames, alone, atol=1e-5, rtol=0)


def test_attention_blocks_are_causal(toy: ToyEncoder) -> None:
    mel = _mel(400)
    changed = mel.clone()
    changed[:, 202:] += 1.0
    one, other = toy.frames.embed_clips([mel, changed], BLOCK)
    torch.testing.assert_close(one[:100], other[:100], atol=1e-5, rtol=0)
    assert (one[100:150] - other[100:150]).abs().max() > 1e-3


@pytest.mark.parametrize("n_samples", [800, 1281, 16_560])
def test_number_of_clip_embeddings(toy: ToyEncoder, n_samples: int) -> None:
    mel = _mel(-(-n_samples // 160))
    rows = toy.embedder.embed_clips([mel], BLOCK)[0]
    assert rows.shape == (embedding_count(n_samples), LLM_WIDTH)


def test_empty_batches_return_nothing(toy: ToyEncoder) -> None:
    assert toy.embedder.embed_clips([], None) == []
    assert toy.embedder.embed_streams([]) == []


def test_clips_beyond_the_last_position_are_rejected(toy: ToyEncoder) -> None:
    with pytest.raises(ValueError, match="positions"):
        toy.frames.embed_clips([_mel(3002)], BLOCK)


def test_pooling_averages_whole_groups() -> None:
    rows = torch.arange(12.0)[:, None]
    assert pool(rows, 5).tolist() == [[2.0], [7.0]]


def test_bfloat16_weights_take_float32_mels(toy: ToyEncoder) -> None:
    with torch.device("meta"):
        encoder = AudioEncoder(CONFIG)
        projection = Projector(CONFIG.d_model, LLM_WIDTH)
    encoder.load_state_dict(toy.encoder.state_dict(), assign=True)
    projection.load_state_dict(toy.projection.state_dict(), assign=True)
    encoder, projection = encoder.bfloat16(), projection.bfloat16()
    mel = _mel(102)
    unit = EncodeStream(mel, new_audio_cache(CONFIG, dtype=torch.bfloat16), is_first=True)
    rows = AudioEmbedder(encoder, projection).embed_streams([unit])[0]
    exact_cache = new_audio_cache(CONFIG)
    exact = toy.embedder.embed_streams([EncodeStream(mel, exact_cache, is_first=True)])
    assert rows.dtype is torch.bfloat16
    torch.testing.assert_close(rows.float(), exact[0], atol=0.06, rtol=0.05)


def test_truncated_cache_reproduces_a_unit(toy: ToyEncoder) -> None:
    first, second, third = _units(_mel(302))
    cache = new_audio_cache(CONFIG)
    _run(toy, [first], cache)
    expected = toy.frames.embed_streams([EncodeStream(second, cache)])[0]
    cache.length = 50
    toy.frames.embed_streams([EncodeStream(third, cache)])
    cache.length = 50
    assert torch.equal(toy.frames.embed_streams([EncodeStream(second, cache)])[0], expected)


@pytest.mark.parametrize("n_units", [1, 2])
def test_cloned_cache_is_independent(toy: ToyEncoder, n_units: int) -> None:
    units = _units(_mel(402))
    cache = new_audio_cache(CONFIG)
    _run(toy, units[:n_units], cache)
    copy = cache.clone()
    kept = copy.kv.clone()
    assert copy.kv.nbytes == 2 * 2 * CONFIG.d_model * 50 * n_units * 4  # layers, keys and values
    cache.clear()
    _run(toy, _units(_mel(402, seed=1)), cache)
    assert torch.equal(copy.kv, kept)


def test_a_cache_grows_to_the_last_position_and_is_freed_with_its_stream(toy: ToyEncoder) -> None:
    cache = new_audio_cache(CONFIG)
    assert cache.kv.nbytes == 0
    _run(toy, _units(_mel(2902)), cache)
    assert cache.length == 1450
    assert cache.kv.nbytes == 2 * 2 * CONFIG.d_model * 1500 * 4
    storage = weakref.ref(cache.kv)
    del cache
    assert storage() is None


@torch.no_grad()
def test_convolutions_are_products_on_a_card() -> None:
    torch.manual_seed(0)
    encoder, mel = AudioEncoder(CONFIG), torch.randn(2, 80, 31)
    is_sound = torch.arange(31) < torch.tensor([[20], [31]])
    wanted = encoder.convolve(mel, is_sound)
    for conv in (encoder.conv1, encoder.conv2):
        conv.pack()
    torch.testing.assert_close(encoder.convolve(mel, is_sound), wanted)
