"""`UnifiedModel`: weights, processor, executor and the algorithms of all modes.

The algorithms are generators over a caller's `Session`, driven by the engine or by
`core.engine.passes.run_alone`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.policies import ReplyPolicy, UnitPolicy
from MiniCPMO45.loading.checkpoint_source import CheckpointError
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.modes.duplex import DuplexCapability
from MiniCPMO45.modes.streaming import StreamingCapability
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from MiniCPMO45.settings import LoadOptions
from MiniCPMO45.token2wav.load import load_token2wav
from MiniCPMO45.token2wav.voices import VoiceEncoder, VoiceLibrary, read_fixed_voice

logger = logging.getLogger(__name__)

TOKEN2WAV_FOLDER = Path("assets") / "token2wav"


@dataclass(eq=False)
class UnifiedModel:
    model: MiniCPMOForConditionalGeneration
    processor: MiniCPMOProcessor
    executor: Executor

    def __post_init__(self) -> None:
        config, tokenizer, executor = self.model.config, self.processor.tokenizer, self.executor
        tokens, device = tokenizer.special, executor.device
        units, replies = UnitPolicy(tokens, device), ReplyPolicy(tokens, device)
        self.duplex = DuplexCapability(config, tokenizer, units, executor.options.duplex_defaults)
        self.streaming = StreamingCapability(config, tokenizer, replies)
        self.can_speak = executor.vocoder is not None and executor.voices is not None

    @classmethod
    def from_checkpoint(cls, folder: Path, options: LoadOptions) -> UnifiedModel:
        """Load a checkpoint folder; raises `CheckpointError`."""
        model = MiniCPMOForConditionalGeneration.from_folder(folder, options)
        if model.config.omitted:
            raise CheckpointError(
                f"{folder} is a model without {', '.join(model.config.omitted)} (init_vision, "
                "init_audio or init_tts is false), and conversations need all parts."
            )
        model.drop_unused()
        options.report("loading the voice")
        assets, vocoder, voices = folder / TOKEN2WAV_FOLDER, None, None
        if assets.is_dir():
            vocoder = load_token2wav(assets, options)
            encoder = read_fixed_voice(assets) or VoiceEncoder.from_folder(assets, options.device)
            voices = VoiceLibrary(encoder, vocoder)
            options.report("preparing the engine")
        else:
            logger.warning("%s is missing; replies will be text only", assets)
        executor = Executor(model, vocoder, voices, options=options)
        made = cls(model, MiniCPMOProcessor.from_pretrained(folder), executor)
        logger.info("device map: %s", made.device_map)
        return made

    @property
    def device_map(self) -> dict[str, str]:
        """Device of each component by its published name."""
        parts = dict(self.model.named_children())
        if self.executor.vocoder is not None:
            parts["token2wav"] = self.executor.vocoder.flow
        return {name: str(next(part.parameters()).device) for name, part in parts.items()}
