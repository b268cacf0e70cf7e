"""Audio encoder and language model as one trainable module, with the losses of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import DecoderConfig, MiniCPMOConfig
from MiniCPMO45.kernels.attention import rotated_heads
from MiniCPMO45.kernels.products import Rope
from MiniCPMO45.model.audio_encoder import AudioEncoder, pool
from MiniCPMO45.model.transformer import CausalLM, Norms, Projector
from MiniCPMO45.processing.mel import FIRST_PAD_SAMPLES, FIRST_UNIT_SAMPLES, POOL_STEP, UNIT_SAMPLES
from training.nano.augment import Augmenter
from training.nano.bank import INT16_PEAK
from training.nano.batches import Batch
from training.nano.hearing import ROWS_PER_UNIT, clip_frames, stream_frames, stream_mels


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """Flattened, right-padded sequences; `cos` and `sin` are float32 [B * T, d]."""

    n_sequences: int
    shape: DecoderConfig
    cos: Tensor
    sin: Tensor

    @classmethod
    def build(
        cls, n_sequences: int, length: int, shape: DecoderConfig, device: torch.device
    ) -> PaddedBatch:
        theta = shape.rope_parameters["rope_theta"]
        rope = Rope.build(shape.head_dim, theta, device=device)
        positions = torch.arange(length, device=device)
        cos, sin = rope.tables(positions, torch.float32)
        return cls(n_sequences, shape, cos.repeat(n_sequences, 1), sin.repeat(n_sequences, 1))

    def attend(self, layer: int, qkv: Tensor, norms: Norms) -> Tensor:
        """Attend causally within each sequence."""
        shape = self.shape
        heads = rotated_heads(
            qkv, shape.num_key_value_heads, norms, shape.rms_norm_eps, self.cos, self.sin
        )
        q, k, v = (
            each.unflatten(0, (self.n_sequences, -1)).transpose(1, 2)  # [B, heads, T, d]
            for each in heads
        )
        repeats = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(repeats, dim=1) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        return mixed.transpose(1, 2).flatten(0, 1).flatten(1)


INITIAL_DEVIATION = 0.02
AUDIO_DROPOUT = 0.15
NOISE_DEVIATION, CAPTION_NOISE = 0.02, 0.01  # of picture rows; embeddings begin at 0.02


@dataclass(frozen=True, eq=False)
class Prediction:
    """Hidden states [B, T, width] after the final norm, with loss and accuracy.

    `loss` is the weighted cross-entropy in nats, `accuracy` the weighted share of top-1 tokens.
    """

    hidden: Tensor
    loss: Tensor
    accuracy: Tensor


class NanoModel(nn.Module):
    def __init__(self, config: MiniCPMOConfig) -> None:
        super().__init__()
        self.config = config
        self.apm = AudioEncoder(config.audio_config).requires_grad_(False)
        self.audio_projection_layer = Projector(config.audio_config.d_model, config.hidden_size)
        self.llm = CausalLM(config)
        for name, parameter in self.llm.named_parameters():
            if parameter.ndim > 1:
                deeper = (2 * config.num_hidden_layers) ** -0.5
                is_out = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=INITIAL_DEVIATION * (deeper if is_out else 1.0))

    def load_encoder(self, path: Path) -> None:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        self.apm.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})

    def trained_state(self) -> dict[str, Tensor]:
        """Return all tensors but the frozen encoder's, by checkpoint name."""
        return {n: t for n, t in self.state_dict().items() if not n.startswith("apm.")}

    def forward(self, batch: Batch, augment: Augmenter | None = None) -> Prediction:
        """Predict a batch; with `augment` as in training, with changed audio and dropout."""
        hidden = self.hidden(self._embedded(batch, augment))
        weights = batch.weights[:, 1:].flatten()
        targets = weights.nonzero()[:, 0]
        weights, ids = weights[targets], batch.ids[:, 1:].flatten()[targets]
        logits = self.llm.lm_head(hidden[:, :-1].flatten(0, 1)[targets]).float()
        losses = F.cross_entropy(logits, ids, reduction="none")
        right = (logits.argmax(-1) == ids).float()
        total = weights.sum().clamp(min=1e-6)
        return Prediction(hidden, (losses * weights).sum() / total, (right * weights).sum() / total)

    def transcription_loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the CTC loss of the transcript over the units' audio rows, in nats per token.

        The last row of a unit, where the decision is made, is excluded; at the others the output
        is unused in serving.
        """
        n_words = len(batch.transcript)
        if not n_words:
            return hidden.new_zeros(())
        units = hidden.flatten(0, 1)[batch.unit_places].unflatten(
            0, (len(hidden), -1, ROWS_PER_UNIT)
        )
        rows = units[:, :, :-1].flatten(1, 2).transpose(0, 1)  # [rows, B, width]
        total = F.ctc_loss(
            self.llm.lm_head(rows).float().log_softmax(-1),
            batch.transcript,
            torch.full((len(hidden),), len(rows)),
            torch.tensor(batch.transcript_sizes),
            blank=batch.blank,
            reduction="sum",
            zero_infinity=True,
        )
        return total / n_words

    def hidden(self, rows: Tensor) -> Tensor:
        """Run the language model over whole sequences [B, T, width]."""
        padded = PaddedBatch.build(rows.shape[0], rows.shape[1], self.config, rows.device)
        return self.llm.model(rows.flatten(0, 1), padded).unflatten(0, rows.shape[:2])

    def _embedded(self, batch: Batch, augment: Augmenter | None) -> Tensor:
        """Embed whole sequences [B, T, width]."""
        flat = self.llm.model.embed_tokens(batch.ids).float().flatten(0, 1)
        places, values = [], []
        dropout = AUDIO_DROPOUT if augment else 0.0

        def embed(frames: Tensor) -> Tensor:
            projected = self.audio_projection_layer(F.dropout(frames, dropout))
            return pool(projected, POOL_STEP).flatten(0, 1)

        if len(batch.unit_places):
            places.append(batch.unit_places)
            values.append(embed(self._encoded_stream(batch, augment)))
        if len(batch.clips):
            places.append(batch.clip_places)
            values.append(embed(self._encoded_clips(batch, augment))[batch.clip_rows])
        if len(batch.picture_places):
            places.append(batch.picture_places)
            values.append(self._embed_pictures(batch.picture_words))
        if places:
            flat = flat.index_copy(0, torch.cat(places), torch.cat([v.float() for v in values]))
        return flat.unflatten(0, batch.ids.shape)

    @torch.no_grad()
    def _encoded_stream(self, batch: Batch, augment: Augmenter | None) -> Tensor:
        audio = batch.stream.float() / INT16_PEAK
        if augment is not None:
            audio = augment(audio)
            audio[:, : FIRST_PAD_SAMPLES - UNIT_SAMPLES] = 0.0
        n_units = (audio.shape[1] - FIRST_UNIT_SAMPLES) // UNIT_SAMPLES + 1
        mels = stream_mels(audio, n_units)
        return stream_frames(self.apm, augment.spectrograms(mels) if augment else mels)

    @torch.no_grad()
    def _encoded_clips(self, batch: Batch, augment: Augmenter | None) -> Tensor:
        audio = batch.clips.float() / INT16_PEAK
        block = self.config.audio_block_frames if batch.has_blocked_clips else None
        if augment is None:
            return clip_frames(self.apm, audio, batch.clip_sizes, block)
        is_sound = torch.arange(audio.shape[1], device=audio.device) < batch.clip_sizes[:, None]
        changed, change = augment(audio) * is_sound, augment.spectrogram
        return clip_frames(self.apm, changed, batch.clip_sizes, block, change)

    def _embed_pictures(self, words: Tensor) -> Tensor:
        """Return rows in place of encoded pictures: the embeddings of their captions, repeated."""
        noise = torch.randn(len(words), self.config.hidden_size, device=words.device)
        rows = self.llm.model.embed_tokens(words.clamp(min=0)) + noise * CAPTION_NOISE
        return torch.where((words < 0)[:, None], noise * NOISE_DEVIATION, rows)


@dataclass(frozen=True, eq=False)
class SpokenUnits:
    """One reply as input of the speech decoder."""

    text: str
    ids: tuple[tuple[int, ...], ...]  # spoken ids of each unit, with `<|turn_eos|>` at the end
    hidden: tuple[Tensor, ...]  # states [n, width] of the ids of each unit
    has_ended: bool
    is_duplex: bool


@torch.no_grad()
def spoken_units(model: NanoModel, batch: Batch) -> Iterator[SpokenUnits]:
    hidden = model(batch).hidden
    is_duplex = batch.stream.shape[1] > 0
    for row, replies in enumerate(batch.replies):
        for reply in replies:
            ids = tuple(tuple(batch.ids[row, slice(*span)].tolist()) for span in reply.units)
            states = tuple(hidden[row, slice(*span)] for span in reply.units)
            yield SpokenUnits(reply.text, ids, states, reply.has_ended, is_duplex)
