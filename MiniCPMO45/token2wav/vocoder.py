"""Speech codes to 24 kHz samples: flow and HiFT with every cache passed in and out.

Never keeps anything of a stream or a voice; the module is weights and options.
Source: docs/specification/model.md#7.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.configuration_minicpmo import SpeechTiming
from MiniCPMO45.token2wav.config import HISTORY_FRAMES, Token2WavConfig
from MiniCPMO45.token2wav.estimator_cache import SPARE_FRAMES
from MiniCPMO45.token2wav.flow import NOISE_SEED, Flow, draw_flow_noise
from MiniCPMO45.token2wav.hift import OVERLAP_FRAMES, HiFT, Overlap
from MiniCPMO45.token2wav.vocoder_state import VocoderState, VoiceBase
from MiniCPMO45.token2wav.voice import MEL_FRAMES_PER_CODE, VoicePrompt

TIMING = SpeechTiming()
MAX_FRAMES = 1000  # prompt, history and one chunk; section 7.1
LARGEST_CHUNK_FRAMES = 56  # 28 codes without look-ahead


class VoiceTooLongError(ValueError):
    """The voice prompt leaves no room for history and a chunk."""


@dataclass(frozen=True)
class VocoderOptions:
    """How the vocoder runs.

    Attributes:
        n_steps: ODE steps of a stream.
        n_steps_whole: ODE steps of a whole utterance.
        noise_seed: seed of the flow's starting noise where none is given.
    """

    n_steps: int = 5
    n_steps_whole: int = 10
    noise_seed: int = NOISE_SEED


@dataclass(frozen=True)
class StreamCall:
    """The next codes of one stream.

    Attributes:
        state: the stream; updated when the call succeeds.
        codes: speech codes, the last 3 of them look-ahead unless `is_last`.
        is_last: nothing follows in this turn.
    """

    state: VocoderState
    codes: Sequence[int]
    is_last: bool = False


class Token2Wav(nn.Module):
    """Flow and HiFT."""

    def __init__(self, config: Token2WavConfig, options: VocoderOptions | None = None) -> None:
        super().__init__()
        self.config = config
        self.options = options or VocoderOptions()
        self.flow = Flow(config.flow)
        self.hift = HiFT(config.hift)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.flow.device

    @torch.no_grad()
    def set_up(
        self, voice: VoicePrompt, *, n_steps: int | None = None, noise: Tensor | None = None
    ) -> VoiceBase:
        """Run the voice prompt once; the result serves any number of streams.

        Args:
            voice: the voice.
            n_steps: ODE steps (default `options.n_steps`).
            noise: starting noise of the flow [1, bins, N], N at least P + 100 + the largest
                chunk's frames (default drawn from `options.noise_seed`).

        Raises:
            VoiceTooLongError: P + 100 + 56 frames are more than 1000.
            ValueError: the noise does not even cover the prompt.
        """
        check_voice_length(voice.frames)
        flow, steps = self.flow, n_steps or self.options.n_steps
        voice = voice.to(self.device)
        noise = self._noise_table(noise, voice.frames + SPARE_FRAMES)
        schedule = flow.make_schedule(steps)
        speaker = flow.project_speaker(voice.speaker)
        ahead = self._prompt_lookahead(voice.codes)
        mu, (encoder,) = flow.encode(
            torch.cat((voice.codes, ahead), dim=1), [flow.encoder.new_cache()], is_last=False
        )
        estimator = flow.new_estimator_cache(steps, voice.frames)
        start = self._noise_slice(noise, 0, voice.frames)
        prompt = voice.mel.to(flow.dtype)
        flow.integrate(mu, speaker, prompt, start, schedule, [estimator], [voice.frames])
        return VoiceBase(voice.frames, speaker, noise, schedule, encoder, estimator)

    @torch.no_grad()
    def new_state(self, base: VoiceBase, generator: torch.Generator | None = None) -> VocoderState:
        """Allocate a stream that starts from `base`.

        Args:
            base: result of `set_up`.
            generator: source of the excitation's noise; None leaves the noise out.
        """
        estimator = self.flow.new_estimator_cache(base.n_steps, base.frames + SPARE_FRAMES)
        estimator.load(base.estimator)
        return VocoderState(base, base.encoder, estimator, generator=generator)

    def stream(self, state: VocoderState, codes: Sequence[int], is_last: bool = False) -> Tensor:
        """Answer one stream.

        Args:
            state: the stream; updated.
            codes: the next codes, the last 3 of them look-ahead unless `is_last`.
            is_last: nothing follows in this turn.

        Returns:
            Samples at 24 kHz, float32 [n]: 960 per code consumed; at the end 3840 more if
            anything came before (the first call of a turn starts with 3840 zeros instead).

        Raises:
            ValueError: too few or too many codes; the state is as before.
        """
        return self.stream_many([StreamCall(state, codes, is_last)])[0]

    @torch.no_grad()
    def stream_many(self, calls: Sequence[StreamCall]) -> list[Tensor]:
        """Answer several streams, together where their shapes agree.

        Args:
            calls: one per stream; a state may occur once.

        Returns:
            Samples per call, see `stream`.

        Raises:
            ValueError: a call is wrong; no state has changed.
        """
        if len({id(call.state) for call in calls}) != len(calls):
            raise ValueError("a stream may be answered only once at a time")
        groups: dict[Hashable, list[int]] = {}
        for index, call in enumerate(calls):
            check_codes(len(call.codes), call.is_last, call.state.hift is not None)
            groups.setdefault(_shape_of(call), []).append(index)
        answers: dict[int, Tensor] = {}
        for indices in groups.values():
            samples = self._answer([calls[index] for index in indices])
            answers.update(zip(indices, samples.unbind(0), strict=True))
        return [answers[index] for index in range(len(calls))]

    @torch.no_grad()
    def mel(self, calls: Sequence[StreamCall]) -> Tensor:
        """Turn the next codes of streams of one shape into mel; the flow half of `stream`.

        Args:
            calls: streams with the same number of codes, steps and end mark.

        Returns:
            mel [S, T, bins]; encoder and estimator caches of the states are updated.
        """
        flow, first = self.flow, calls[0]
        codes = torch.tensor([list(call.codes) for call in calls], device=self.device)
        states = [call.state for call in calls]
        mu, grown = flow.encode(codes, [s.encoder for s in states], is_last=first.is_last)
        n_frames = mu.shape[1]
        noise = [self._noise_slice(s.base.noise, s.noise_offset, n_frames) for s in states]
        mel = flow.integrate(
            mu,
            torch.cat([s.base.speaker for s in states]),
            None,
            torch.cat(noise),
            first.state.base.schedule,
            [s.estimator for s in states],
            [s.base.frames for s in states],
        )
        for state, cache in zip(states, grown, strict=True):
            state.chunks += 1
            state.encoder = cache.trim(state.base.frames)
        return mel

    @torch.no_grad()
    def mel_of_whole(
        self,
        voice: VoicePrompt,
        codes: Sequence[int],
        *,
        n_steps: int | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Turn all codes of an utterance into mel at once, without caches.

        Args:
            voice: the voice.
            codes: all speech codes.
            n_steps: ODE steps (default `options.n_steps_whole`).
            noise: starting noise [1, bins, N], N at least the frames of prompt and codes.

        Returns:
            mel [1, 2 * len(codes), bins], the prompt removed.
        """
        flow = self.flow
        voice = voice.to(self.device)
        spoken = torch.tensor([list(codes)], dtype=torch.long, device=self.device)
        joined = torch.cat((voice.codes, spoken), dim=1)
        mu, _ = flow.encode(joined, [flow.encoder.new_cache()], is_last=True)
        prompt = torch.zeros_like(mu)
        prompt[:, : voice.frames] = voice.mel.to(flow.dtype)
        noise = self._noise_table(noise, mu.shape[1])
        mel = flow.integrate(
            mu,
            flow.project_speaker(voice.speaker),
            prompt,
            self._noise_slice(noise, 0, mu.shape[1]),
            flow.make_schedule(n_steps or self.options.n_steps_whole),
        )
        return mel[:, voice.frames :]

    @torch.no_grad()
    def synthesize(
        self,
        voice: VoicePrompt,
        codes: Sequence[int],
        generator: torch.Generator | None = None,
        *,
        n_steps: int | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Speak a whole utterance at once; arguments as in `mel_of_whole`.

        Returns:
            Samples at 24 kHz, float32 [960 * len(codes)].
        """
        mel = self.mel_of_whole(voice, codes, n_steps=n_steps, noise=noise)
        samples, _ = self.hift(mel.float(), self._source_noise([generator], mel.shape[1]), None)
        return samples[0]

    def _answer(self, calls: Sequence[StreamCall]) -> Tensor:
        """Samples [S, n] of calls of one shape."""
        mel = self.mel(calls).float()  # [S, T, bins]
        states, held = [call.state for call in calls], OVERLAP_FRAMES * self._samples_per_frame
        ends = [state.hift for state in states if state.hift is not None]
        overlap = (
            Overlap(*(torch.cat(parts) for parts in zip(*map(_parts, ends), strict=True)))
            if ends
            else None
        )
        n_frames = mel.shape[1] + (OVERLAP_FRAMES if ends else 0)
        noise = self._source_noise([s.generator for s in states], n_frames)
        samples, kept = self.hift(mel, noise, overlap)
        for row, state in enumerate(states):
            state.hift = Overlap(*(part[row : row + 1].clone() for part in _parts(kept)))
        if calls[0].is_last:
            return samples
        out = samples[:, :-held]
        return out if ends else F.pad(out, (held, 0))

    @property
    def _samples_per_frame(self) -> int:
        return self.config.hift.samples_per_frame

    def _source_noise(
        self, generators: Sequence[torch.Generator | None], n_frames: int
    ) -> Tensor | None:
        """Draws of the excitation's noise [S, L, harmonics + 1]; None when nobody draws."""
        if all(generator is None for generator in generators):
            return None
        config = self.config.hift
        shape = (n_frames * config.samples_per_frame, config.nb_harmonics + 1)
        rows = [
            torch.zeros(shape, device=self.device)
            if generator is None
            else torch.randn(shape, generator=generator, device=generator.device)
            for generator in generators
        ]
        return torch.stack([row.to(self.device) for row in rows])

    def _prompt_lookahead(self, codes: Tensor) -> Tensor:
        n_ahead = self.config.flow.encoder.pre_lookahead_len
        return torch.full_like(codes[:, :1], TIMING.silence_code).expand(1, n_ahead)

    def _noise_table(self, noise: Tensor | None, n_frames: int) -> Tensor:
        """The given noise, or a drawn one, beside the weights [1, bins, N]."""
        if noise is None:
            n_bins = self.config.flow.output_size
            noise = draw_flow_noise(n_frames, n_bins, self.options.noise_seed)
        return noise.to(self.device)

    def _noise_slice(self, noise: Tensor, offset: int, n_frames: int) -> Tensor:
        """Rows of the noise table as the flow takes them [1, n_frames, bins]."""
        part = noise[:, :, offset : offset + n_frames]
        if part.shape[2] < n_frames:
            raise ValueError(f"the flow noise ends at frame {noise.shape[2]}")
        return part.transpose(1, 2).to(self.flow.dtype)


def _parts(overlap: Overlap) -> tuple[Tensor, Tensor, Tensor]:
    return overlap.mel, overlap.source, overlap.speech


def check_voice_length(frames: int) -> None:
    """Refuse a voice prompt that is too long to stream with.

    Args:
        frames: mel frames of the prompt, 50 per second.

    Raises:
        VoiceTooLongError: P + 100 + 56 frames are more than 1000.
    """
    most = MAX_FRAMES - HISTORY_FRAMES - LARGEST_CHUNK_FRAMES
    if frames > most:
        per_second = TIMING.codes_per_second * TIMING.mel_frames_per_code
        raise VoiceTooLongError(
            f"the reference voice lasts {frames / per_second:.1f} s ({frames} mel frames); at "
            f"most {most / per_second:.1f} s ({most} frames) can be used, 3 to 10 s are best"
        )


def check_codes(n_codes: int, is_last: bool, has_started: bool) -> None:
    """Refuse a call that no stream can answer.

    Args:
        n_codes: codes given, look-ahead included.
        is_last: nothing follows in this turn.
        has_started: a call of this turn came before.

    Raises:
        ValueError: too few or too many codes.
    """
    frames = MEL_FRAMES_PER_CODE * (n_codes if is_last else n_codes - TIMING.lookahead_codes)
    if frames <= 0:
        raise ValueError(f"{n_codes} codes are too few for a chunk")
    if frames > SPARE_FRAMES - HISTORY_FRAMES:
        raise ValueError(f"{n_codes} codes are too many for one chunk")
    if not is_last and not has_started and frames < OVERLAP_FRAMES:
        raise ValueError(f"{n_codes} codes are too few for the first chunk of a turn")


def _shape_of(call: StreamCall) -> Hashable:
    """Calls with equal results can be answered in one batch."""
    started = call.state.hift is not None
    return len(call.codes), call.is_last, started, call.state.base.schedule.deltas
