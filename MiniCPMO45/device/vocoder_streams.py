"""What the device vocoder remembers of one stream: memory of its own, written in place.

Sized by the voice and the ODE steps; a chunk allocates nothing, closing a stream frees it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from MiniCPMO45.device.vocoder_columns import ColumnLedger
from MiniCPMO45.token2wav.config import HISTORY_FRAMES, Token2WavConfig
from MiniCPMO45.token2wav.dit import CONV_KERNEL, GUIDANCE_ROWS
from MiniCPMO45.token2wav.flow_encoder import UPSAMPLING
from MiniCPMO45.token2wav.hift import OVERLAP_FRAMES
from MiniCPMO45.token2wav.vocoder_state import VoiceBase

CONVOLUTIONS = 2  # causal ones in a block of the estimator
TAIL = CONV_KERNEL - 1  # frames a causal convolution of the estimator remembers
LOOKAHEAD_TAIL = 2  # frames of the encoder's second look-ahead convolution
UPSAMPLE_TAIL = 2 * UPSAMPLING  # frames of its upsampling convolution

Ledgers = tuple[ColumnLedger, ColumnLedger, ColumnLedger]  # estimator, token rate, mel rate


@dataclass(frozen=True)
class TailLayout:
    """Where the pieces of fixed size lie in a stream's flat memory of tails.

    Attributes:
        shapes: name to shape, in order of their places.
    """

    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, config: Token2WavConfig, n_steps: int) -> TailLayout:
        """Return the layout for a vocoder and a number of ODE steps."""
        estimator, width = config.flow.estimator, config.flow.encoder.output_size
        held = OVERLAP_FRAMES * config.hift.samples_per_frame
        return cls(
            {
                "convolution": (
                    n_steps,
                    estimator.depth,
                    CONVOLUTIONS,
                    GUIDANCE_ROWS,
                    TAIL,
                    estimator.hidden_size,
                ),
                "lookahead": (LOOKAHEAD_TAIL, width),
                "upsample": (UPSAMPLE_TAIL, width),
                "mel": (OVERLAP_FRAMES, config.hift.in_channels),
                "source": (held,),
                "speech": (held,),
            }
        )

    @property
    def size(self) -> int:
        """Values of one stream."""
        return sum(prod(shape) for shape in self.shapes.values())

    def split(self, tails: Tensor) -> dict[str, Tensor]:
        """Return views of tails [..., size] as [..., *shape] by name."""
        sizes = [prod(shape) for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), tails.split(sizes, dim=-1), strict=True)
        return {name: part.unflatten(-1, shape) for (name, shape), part in parts}


@dataclass(frozen=True)
class StreamMemory:
    """Tensors of one stream; written in place.

    Attributes:
        estimator: keys and values [steps * depth, 2, heads, P + 100, 2 * head_dim].
        token_rate: of the encoder's layers at 25/s [layers, 1, heads, P / 2 + 50, 2 * head_dim].
        mel_rate: of its layers at 50/s [layers, 1, heads, P + 100, 2 * head_dim].
        tails: everything of fixed size, float32, see `TailLayout`.
    """

    estimator: Tensor
    token_rate: Tensor
    mel_rate: Tensor
    tails: Tensor

    @classmethod
    def allocate(
        cls, config: Token2WavConfig, n_steps: int, columns: int, like: Tensor, dtype: torch.dtype
    ) -> StreamMemory:
        """Take memory.

        Args:
            config: sizes.
            n_steps: ODE steps.
            columns: mel frames that can be remembered, P + 100; 0 for a stream of nobody.
            like: where the memory shall be.
            dtype: of keys and values.
        """
        encoder, estimator = config.flow.encoder, config.flow.estimator
        of_encoder = (encoder.attention_heads, 2 * encoder.head_dim)
        shapes = (
            (n_steps * estimator.depth, GUIDANCE_ROWS, columns),
            (encoder.num_blocks, 1, columns // UPSAMPLING),
            (encoder.num_up_blocks, 1, columns),
        )
        widths = ((estimator.num_heads, 2 * estimator.head_dim), of_encoder, of_encoder)
        caches = [
            like.new_empty((layers, group, heads, length, width), dtype=dtype)
            for (layers, group, length), (heads, width) in zip(shapes, widths, strict=True)
        ]
        tails = like.new_zeros(TailLayout.of(config, n_steps).size, dtype=torch.float32)
        return cls(caches[0], caches[1], caches[2], tails)

    @property
    def caches(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values, in the order of a stream's ledgers."""
        return self.estimator, self.token_rate, self.mel_rate

    @property
    def nbytes(self) -> int:
        """Size of everything."""
        return sum(tensor.nbytes for tensor in (*self.caches, self.tails))

    def clone(self) -> StreamMemory:
        """Return an independent copy."""
        return StreamMemory(
            self.estimator.clone(),
            self.token_rate.clone(),
            self.mel_rate.clone(),
            self.tails.clone(),
        )


@dataclass
class VocoderStream:
    """One stream of speech on the device; stands in for `VocoderState`.

    Attributes:
        base: the voice it speaks with.
        layout: of the memory's tails.
        memory: what it remembers.
        ledgers: what the columns of the three caches hold.
        has_started: whether a turn is running, so that the last samples wait for a cross-fade.
        generator: source of the excitation's noise; None leaves the noise out.
        chunks: how many calls have changed it.
    """

    base: VoiceBase
    layout: TailLayout
    memory: StreamMemory
    ledgers: Ledgers
    has_started: bool = False
    generator: torch.Generator | None = None
    chunks: int = 0

    @classmethod
    def open(
        cls,
        base: VoiceBase,
        config: Token2WavConfig,
        *,
        dtype: torch.dtype,
        generator: torch.Generator | None = None,
    ) -> VocoderStream:
        """Allocate a stream at the start of a turn, beside its voice.

        Args:
            base: the voice.
            config: the vocoder's sizes.
            dtype: of keys and values.
            generator: source of the excitation's noise; None leaves the noise out.
        """
        frames, history = base.frames, HISTORY_FRAMES
        memory = StreamMemory.allocate(config, base.n_steps, frames + history, base.speaker, dtype)
        ledgers = (
            ColumnLedger(frames, history, newest_first=True),
            ColumnLedger(frames // UPSAMPLING, history // UPSAMPLING, newest_first=False),
            ColumnLedger(frames, history, newest_first=False),
        )
        layout = TailLayout.of(config, base.n_steps)
        stream = cls(base, layout, memory, ledgers, generator=generator)
        stream.reset()
        return stream

    @property
    def noise_offset(self) -> int:
        """Mel frame at which the next chunk's slice of the flow noise starts."""
        return self.ledgers[0].length

    @property
    def nbytes(self) -> int:
        """Memory this stream owns; the base is not counted."""
        return self.memory.nbytes

    def clone(self) -> VocoderStream:
        """Return a snapshot that goes on exactly like this stream; the base is shared."""
        generator = None
        if self.generator is not None:
            generator = torch.Generator(device=self.generator.device)
            generator.set_state(self.generator.get_state())
        return replace(self, memory=self.memory.clone(), generator=generator)

    def reset(self) -> None:
        """Start a new turn with the same voice; copies the prompt's columns only.

        The generator goes on where it is.
        """
        memory, estimator, encoder = self.memory, self.base.estimator, self.base.encoder
        n_columns, n_tokens = estimator.length, encoder.token_rate.shape[3]
        n_frames = encoder.mel_rate.shape[3]
        prompt = estimator.attention[:, :, :, :, :n_columns]
        memory.estimator[:, :, :, :n_columns] = prompt.flatten(0, 1)
        memory.token_rate[:, :, :, :n_tokens] = encoder.token_rate
        memory.mel_rate[:, :, :, :n_frames] = encoder.mel_rate
        of_estimator, of_tokens, of_frames = self.ledgers
        self.ledgers = (
            of_estimator.filled(estimator.columns),
            of_tokens.filled(range(n_tokens)),
            of_frames.filled(range(n_frames)),
        )
        tails = self.layout.split(memory.tails)
        # [N, depth, 2, 2 * C, 2] as the plain cache has it to [N, depth, convolution, 2, 2, C].
        split = estimator.convolution.unflatten(3, (CONVOLUTIONS, -1))
        tails["convolution"].copy_(split.permute(0, 1, 3, 2, 5, 4))
        tails["lookahead"].copy_(encoder.lookahead[0].T)
        tails["upsample"].copy_(encoder.upsample[0].T)
        self.has_started = False
