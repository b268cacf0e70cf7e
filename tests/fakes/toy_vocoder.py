"""The vocoder at toy size with random weights; real classes, float32 on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from MiniCPMO45.kernels.stream_memory import store_tails
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.config import (
    EstimatorConfig,
    F0Config,
    FlowConfig,
    FlowEncoderConfig,
    HiFTConfig,
    Token2WavConfig,
)
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.hift import HiFT
from MiniCPMO45.token2wav.load import build_token2wav
from MiniCPMO45.token2wav.vocoder import Token2Wav, run_flow
from MiniCPMO45.token2wav.vocoder_state import (
    ChunkBatch,
    ChunkShape,
    SpeechStream,
    StreamMemory,
    Vocode,
    VoiceBase,
    VoicePrompt,
    rings_for,
)

PROMPT_CODES = 52  # a little over two seconds: P = 104 frames, so that trimming keeps both ends
PITCH_HZ = 150.0


def toy_config() -> Token2WavConfig:
    return Token2WavConfig(
        flow=FlowConfig(
            input_size=16,
            encoder=FlowEncoderConfig(
                input_size=16,
                output_size=16,
                num_blocks=2,
                num_up_blocks=2,
                attention_heads=2,
                linear_units=24,
            ),
            estimator=EstimatorConfig(
                mlp_ratio=2.0, depth=2, num_heads=2, head_dim=8, hidden_size=16
            ),
        ),
        hift=HiFTConfig(base_channels=16, f0_predictor=F0Config(cond_channels=8)),
    )


def toy_weights(
    config: Token2WavConfig | None = None, seed: int = 7
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Random tensors of flow and generator under the checkpoint's names."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = config or toy_config()
        flow, hift = Flow(config.flow).state_dict(), HiFT(config.hift).state_dict()
        hift["f0_predictor.classifier.bias"] = torch.tensor([PITCH_HZ])
        for name in flow:
            if "pos_bias" in name:
                flow[name] = torch.randn(flow[name].shape)
        return flow, hift


def toy_vocoder(options: LoadOptions | None = None, seed: int = 7) -> Token2Wav:
    """A ready vocoder; two ODE steps unless asked otherwise."""
    flow, hift = toy_weights(seed=seed)
    return build_token2wav(toy_config(), flow, hift, options or LoadOptions(flow_steps=2))


def toy_voice(n_codes: int = PROMPT_CODES, seed: int = 3) -> VoicePrompt:
    generator = torch.Generator().manual_seed(seed)
    return VoicePrompt(
        codes=torch.randint(0, 6561, (1, n_codes), generator=generator),
        speaker=torch.randn(1, 192, generator=generator),
        mel=torch.randn(1, 2 * n_codes, 80, generator=generator),
    )


def toy_codes(n_codes: int, seed: int = 11) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 6561, (n_codes,), generator=generator).tolist()


class Outputs:
    """What a module has answered, in order."""

    def __init__(self, module: nn.Module) -> None:
        self.all: list[Tensor] = []
        self._hook = module.register_forward_hook(lambda _, __, answer: self.all.append(answer))

    def close(self) -> None:
        self._hook.remove()


class FlowStreams:
    """Streams of the flow alone that begin with nothing to remember.

    Attributes:
        bases: speaker, noise and memory of each.
        rings: what the columns of their caches hold.
    """

    def __init__(
        self, vocoder: Token2Wav, n_frames: int, n_rows: int = 1, n_steps: int = 2
    ) -> None:
        self.vocoder, flow = vocoder, vocoder.config.flow
        self.n_steps = n_steps
        generator = torch.Generator().manual_seed(5)
        self.bases = [
            VoiceBase(
                n_frames,
                torch.randn(1, flow.output_size, generator=generator),
                torch.randn(1, flow.output_size, n_frames, generator=generator),
                StreamMemory.allocate(
                    vocoder.config, n_steps, n_frames, device=vocoder.device, dtype=torch.float32
                ),
            )
            for _ in range(n_rows)
        ]
        self.rings = [rings_for(n_frames, 0) for _ in range(n_rows)]

    @torch.no_grad()
    def feed(
        self,
        codes: Sequence[Sequence[int]],
        n_codes: Sequence[int],
        rows: Sequence[int] = (0,),
    ) -> Tensor:
        """Feed the next codes of some rows; mel [S, T, bins]."""
        history = max(self.rings[row][0].length for row in rows)
        shape = ChunkShape(len(rows), max(n_codes), history)
        schedule = self.vocoder.flow.make_schedule(self.n_steps)
        batch = ChunkBatch(self.vocoder.config, shape, schedule, torch.float32)
        calls = []
        for row, given, n in zip(rows, codes, n_codes, strict=True):
            stream = SpeechStream(self.bases[row], self.bases[row].memory, self.rings[row])
            calls.append(Vocode(stream, given, is_last=len(given) == n))
            assert calls[-1].n_codes == n
        for row, after in zip(rows, batch.load(calls), strict=True):
            self.rings[row] = after
        mel, _, new = run_flow(self.vocoder.flow, batch)
        store_tails(new, batch.table)
        return mel


def copy_of(stream: SpeechStream) -> SpeechStream:
    """Return a stream that goes on exactly like this one; the base is shared."""
    generator = None
    if stream.generator is not None:
        generator = torch.Generator(device=stream.generator.device)
        generator.set_state(stream.generator.get_state())
    held = stream.memory
    memory = StreamMemory(tuple(each.clone() for each in held.caches), held.tails.clone())
    return replace(stream, memory=memory, generator=generator)
