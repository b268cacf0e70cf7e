"""The causal HiFT vocoder: mel in pieces of any length, waveform out, equal to one long piece.

Source: CosyVoice 3's causal generator, as carried by minicpmo-utils 1.0.7. Every convolution keeps
the end of its input, so nothing is computed twice. Where a stream stands is in `CausalHiftState`.
The recordings were made without noise in the excitation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from MiniCPMO45.token2wav.config import HiFTConfig
from tests.goldens.causal_layers import (
    CausalConv,
    CausalDownsample,
    CausalF0Predictor,
    CausalResBlock,
    CausalUpsample,
    ContextTape,
    LookAheadConv,
)
from tests.goldens.causal_source import CausalHarmonicSource

CONV_PRE_LOOK_RIGHT = 4  # mel frames
ISTFT_HOLD_FRAMES = 1  # mel frames at the end whose overlap-add is not complete
POST_KERNEL = 7
LARGEST_MAGNITUDE = 100.0  # limit of the spectrum
LAST_LEAKY_SLOPE = 0.01  # before the last convolution only


@dataclass(frozen=True)
class CausalHiftState:
    """One stream's past. Never changed: every piece gives a new state.

    Attributes:
        mel: [B, 80, *], mel frames that are not decoded yet.
        source: [B, *], excitation that the next spectrogram columns still need.
        phase: float64 [B, 1, harmonics], cycles at the end of the last mel frame.
        spectrum: [B, n_fft + 2, *], columns whose waveform is not out yet.
        f0_contexts: left context of the f0 predictor's convolutions; empty at the start.
        contexts: left context of the decoder's convolutions; empty at the start.
        n_sourced: mel frames with an excitation.
        n_decoded: mel frames that passed the decoder.
        is_finished: whether the last piece was taken.
    """

    mel: Tensor
    source: Tensor
    phase: Tensor
    spectrum: Tensor
    f0_contexts: list[Tensor]
    contexts: list[Tensor]
    n_sourced: int = 0
    n_decoded: int = 0
    is_finished: bool = False

    @property
    def n_emitted(self) -> int:
        return max(0, self.n_decoded - (0 if self.is_finished else ISTFT_HOLD_FRAMES))


class CausalHift(nn.Module):
    """Mel frames (50 per second) to waveform (24 kHz).

    A piece comes out `delay_frames` mel frames late, except at the end of the stream.
    """

    def __init__(self, config: HiFTConfig, look_right: int = CONV_PRE_LOOK_RIGHT) -> None:
        """Build the layers.

        Args:
            config: sizes, the same as of the vocoder that is not causal.
            look_right: mel frames of the future the first convolution sees.
        """
        super().__init__()
        self.config = config
        bins = config.n_fft + 2  # real and imaginary part, or magnitude and phase
        widths = [config.base_channels >> stage for stage in range(len(config.upsample_rates) + 1)]
        f0 = config.f0_predictor
        self.f0_predictor = CausalF0Predictor(f0.in_channels, f0.cond_channels, f0.num_class)
        self.m_source = CausalHarmonicSource(config)
        self.conv_pre = weight_norm(LookAheadConv(config.in_channels, widths[0], look_right))
        self.ups = nn.ModuleList(
            weight_norm(CausalUpsample(widths[stage], widths[stage + 1], kernel, factor))
            for stage, (kernel, factor) in enumerate(
                zip(config.upsample_kernel_sizes, config.upsample_rates, strict=True)
            )
        )
        self.source_downs = nn.ModuleList(
            CausalDownsample(bins, width, math.prod(config.upsample_rates[stage + 1 :]))
            for stage, width in enumerate(widths[1:])
        )
        self.source_resblocks = nn.ModuleList(
            CausalResBlock(width, kernel, dilations)
            for width, kernel, dilations in zip(
                widths[1:],
                config.source_resblock_kernel_sizes,
                config.source_resblock_dilation_sizes,
                strict=True,
            )
        )
        self.resblocks = nn.ModuleList(
            CausalResBlock(width, kernel, dilations)
            for width in widths[1:]
            for kernel, dilations in zip(
                config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True
            )
        )
        self.conv_post = weight_norm(CausalConv(widths[-1], bins, POST_KERNEL))

    @property
    def columns_per_frame(self) -> int:
        return math.prod(self.config.upsample_rates)

    @property
    def delay_frames(self) -> int:
        return CausalF0Predictor.LOOK_RIGHT + self.conv_pre.look_right + ISTFT_HOLD_FRAMES

    @property
    def delay_samples(self) -> int:
        return self.delay_frames * self.config.samples_per_frame

    def new_state(self) -> CausalHiftState:
        """Return the state of a stream that has not begun, for a batch of one."""
        like = self.conv_pre.bias
        return CausalHiftState(
            mel=like.new_zeros(1, self.config.in_channels, 0),
            source=like.new_zeros(1, 0),
            phase=like.new_zeros(1, 1, self.config.nb_harmonics + 1, dtype=torch.float64),
            spectrum=like.new_zeros(1, self.config.n_fft + 2, 0),
            f0_contexts=[],
            contexts=[],
        )

    def stream(
        self, mel: Tensor, state: CausalHiftState, *, is_last: bool
    ) -> tuple[Tensor, CausalHiftState]:
        """Take the next mel frames and give the waveform that is complete.

        Args:
            mel: float32 [B, 80, n], n may be 0.
            state: from `new_state` or from the previous piece; not changed.
            is_last: whether the stream ends here; then everything still due comes out.

        Returns:
            Waveform float32 [B, samples], and the state for the next piece. After all pieces the
            samples are 480 for every mel frame.

        Raises:
            ValueError: the stream has ended already.
        """
        if state.is_finished:
            raise ValueError("the vocoder's stream has ended; begin a new one")
        state = replace(state, mel=torch.cat((state.mel, mel), dim=2))
        state = self._extend_source(state, is_last)
        held_back = 0 if is_last else self.conv_pre.look_right
        n_ready = state.n_sourced - held_back - state.n_decoded
        if n_ready <= 0:
            wave = mel.new_zeros(mel.shape[0], 0)
            return wave, replace(state, is_finished=is_last)
        return self._decode(state, n_ready, is_last)

    def predict_f0(self, mel: Tensor) -> Tensor:
        """Return the fundamental frequency of a whole utterance.

        Args:
            mel: [B, 80, T].

        Returns:
            Hz, [B, T] in the dtype of `mel`.
        """
        padded = F.pad(mel, (0, CausalF0Predictor.LOOK_RIGHT))
        return self.f0_predictor(padded, ContextTape([])).to(mel.dtype)

    def _extend_source(self, state: CausalHiftState, is_last: bool) -> CausalHiftState:
        """Excite the mel frames whose f0 can be told now."""
        look_right = CausalF0Predictor.LOOK_RIGHT
        mel = state.mel[:, :, state.n_sourced - state.n_decoded :]
        if is_last:
            mel = F.pad(mel, (0, look_right))
        n_new = mel.shape[2] - look_right
        if n_new <= 0:
            return state
        tape = ContextTape(state.f0_contexts)
        f0 = self.f0_predictor(mel, tape).to(mel.dtype)  # [B, n_new]
        source, phase = self.m_source(f0, state.phase)
        return replace(
            state,
            source=torch.cat((state.source, source), dim=1),
            phase=phase,
            f0_contexts=tape.new,
            n_sourced=state.n_sourced + n_new,
        )

    def _decode(
        self, state: CausalHiftState, n_ready: int, is_last: bool
    ) -> tuple[Tensor, CausalHiftState]:
        """Pass the next `n_ready` mel frames through the network and overlap-add the result."""
        look_right = self.conv_pre.look_right
        is_first = state.n_decoded == 0
        mel = state.mel[:, :, : n_ready + look_right]
        if is_last:
            mel = F.pad(mel, (0, look_right))
        n_columns = n_ready * self.columns_per_frame + (1 if is_first else 0)
        columns, source = self._source_spectrum(state.source, n_columns, is_first, is_last)
        tape = ContextTape(state.contexts)
        fresh = self._network(self.conv_pre(mel), columns, tape, is_first)
        spectrum = torch.cat((state.spectrum, fresh), dim=2)
        after = replace(
            state,
            mel=state.mel[:, :, n_ready:].clone(),
            source=source,
            contexts=tape.new,
            n_decoded=state.n_decoded + n_ready,
            is_finished=is_last,
        )
        # Columns before the first sample due are there only to complete its overlap-add.
        surplus = state.n_emitted * self.columns_per_frame - self._first_column(state)
        wave = self._synthesise(spectrum)[:, surplus * self.config.hop_len :]
        if not is_last:
            wave = wave[:, : -ISTFT_HOLD_FRAMES * self.config.samples_per_frame]
        outdated = self._first_column(after) - self._first_column(state)
        kept = spectrum[:, :, outdated:].clone()
        limit = self.config.audio_limit
        return wave.clamp(-limit, limit), replace(after, spectrum=kept)

    def _first_column(self, state: CausalHiftState) -> int:
        """Number of the first spectrogram column that a state keeps."""
        overlap = self.config.n_fft // self.config.hop_len
        return max(0, state.n_emitted * self.columns_per_frame - overlap)

    def _source_spectrum(
        self, source: Tensor, n_columns: int, is_first: bool, is_last: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the next columns [B, n_fft + 2, n_columns] and the excitation later ones need."""
        n_fft, hop = self.config.n_fft, self.config.hop_len
        edges = (n_fft // 2 if is_first else 0, n_fft // 2 if is_last else 0)
        source = F.pad(source[:, None], edges, mode="reflect")[:, 0]
        columns = torch.stft(
            source[:, : n_fft + hop * (n_columns - 1)],
            n_fft,
            hop,
            window=torch.hann_window(n_fft, device=source.device, dtype=source.dtype),
            center=False,
            return_complex=True,
        )
        joined = torch.cat((columns.real, columns.imag), dim=1)
        return joined, source[:, hop * n_columns :].clone()

    def _network(self, x: Tensor, columns: Tensor, tape: ContextTape, is_first: bool) -> Tensor:
        n_stages, n_kernels = len(self.ups), len(self.config.resblock_kernel_sizes)
        for stage in range(n_stages):
            x = self.ups[stage](F.leaky_relu(x, self.config.lrelu_slope), tape)
            if is_first and stage == n_stages - 1:
                x = F.pad(x, (1, 0), mode="reflect")  # a centred transform has one column more
            injected = self.source_downs[stage](columns, tape)
            x = x + self.source_resblocks[stage](injected, tape)
            blocks = self.resblocks[stage * n_kernels : (stage + 1) * n_kernels]
            x = torch.stack([block(x, tape) for block in blocks]).sum(dim=0) / n_kernels
        return self.conv_post(F.leaky_relu(x, LAST_LEAKY_SLOPE), tape)

    def _synthesise(self, spectrum: Tensor) -> Tensor:
        """Turn log magnitude and phase [B, n_fft + 2, columns] into [B, hop * (columns - 1)]."""
        config = self.config
        log_magnitude, angle = spectrum.chunk(2, dim=1)
        magnitude = log_magnitude.exp().clamp(max=LARGEST_MAGNITUDE)
        window = torch.hann_window(config.n_fft, device=spectrum.device, dtype=spectrum.dtype)
        return torch.istft(
            torch.polar(magnitude, angle.sin()), config.n_fft, config.hop_len, window=window
        )


def stream_with_lead_in(
    vocoder: CausalHift,
    mel: Tensor,
    state: CausalHiftState,
    *,
    is_last: bool,
) -> tuple[Tensor, CausalHiftState]:
    """Like `CausalHift.stream`, with silence in front that makes up for the vocoder's delay.

    So the first piece is as long as its mel. A stream that is a single piece gets no silence.
    Arguments and results are those of `CausalHift.stream`.
    """
    was_silent = state.n_emitted == 0
    wave, state = vocoder.stream(mel, state, is_last=is_last)
    if was_silent and wave.shape[1] > 0 and not is_last:
        wave = F.pad(wave, (vocoder.delay_samples, 0))
    return wave, state
