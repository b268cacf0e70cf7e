"""`MiniCPMOForConditionalGeneration`: the checkpoint's modules under their published names."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.kernels.products import Quantisable
from MiniCPMO45.kernels.quantised import QuantisedWeight
from MiniCPMO45.loading.checkpoint import fill_randomly, load_weights, read_config
from MiniCPMO45.loading.checkpoint_source import CheckpointError, find_checkpoint
from MiniCPMO45.model.audio_encoder import AudioEncoder
from MiniCPMO45.model.transformer import CausalLM, DecoderLayer, MiniCPMTTS, Projector
from MiniCPMO45.model.vision import Resampler, SiglipVisionTransformer
from MiniCPMO45.settings import LoadOptions, Weights

UNUSED_PREFIXES = ("tts.model.embed_tokens.", "tts.projector_spk.")
"""Published tensors without a use (28.3 M parameters)."""

_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_HUB_OPTIONS = ("cache_dir", "local_files_only", "revision", "token")
_DEVICE_RULES = frozenset({"auto", "balanced", "balanced_low_0", "sequential"})
_IGNORED = frozenset(
    {
        *("adapter_kwargs", "code_revision", "trust_remote_code", "_from_auto"),  # of `AutoModel`
        "low_cpu_mem_usage",  # always so; the library ignores it, too
    }
)
_ATTENTION = (None, "sdpa", "eager")


class MiniCPMOForConditionalGeneration(PreTrainedModel):
    """The model's modules, 1,414 tensors at the published size; `Executor` runs them."""

    config_class = MiniCPMOConfig
    config: MiniCPMOConfig
    base_model_prefix = ""
    _supports_sdpa = True

    def __init__(self, config: MiniCPMOConfig) -> None:
        super().__init__(config)
        width, heads = config.hidden_size, config.resampler_heads
        vision, drops_last = config.vision_config, config.drop_vision_last_layer
        self.llm = CausalLM(config)
        if config.init_vision:
            self.vpm = SiglipVisionTransformer(vision, drop_last_layer=drops_last)
            self.resampler = Resampler(config.query_num, width, vision.hidden_size, heads)
        if config.init_audio:
            self.apm = AudioEncoder(config.audio_config)
            self.audio_projection_layer = Projector(config.audio_config.d_model, width)
        if config.init_tts:
            self.tts = MiniCPMTTS(config.tts_config)
        self.post_init()

    def forward(self, *arguments: Any, **options: Any) -> Any:
        raise TypeError(
            "This model is not called as a whole and has no generate(). Conversations run on "
            "UnifiedModel; training calls the parts, such as model.llm (docs/transformers.md)."
        )

    generate = forward

    def get_input_embeddings(self) -> nn.Module:
        return self.llm.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.llm.lm_head

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.llm.model.set_submodule("embed_tokens", value)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.llm.set_submodule("lm_head", new_embeddings)

    def _init_weights(self, module: nn.Module) -> None:
        for name, weight in module.named_parameters(recurse=False):
            fill_randomly(name, weight.data)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # one device, no adapters, no quantisation
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        config: MiniCPMOConfig | None = None,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        device_map: str | int | torch.device | dict[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Load a checkpoint folder or hub id, each tensor directly to the device.

        The library's loader would need `accelerate` for a device, and initialises missing tensors
        randomly instead of refusing the checkpoint.

        `dtype`, formerly `torch_dtype`, defaults to that of the configuration. `device_map` is one
        device; None is torch's default device, "auto" a GPU if there is one. Options are those of
        the hub: `cache_dir`, `local_files_only`, `revision`, `token`; and without a `config` its
        fields, such as `init_tts`. Raises `CheckpointError` if the checkpoint cannot be found, does
        not fit or cannot be read, and `TypeError` or `ValueError` for an option without a meaning.
        """
        options = {n: v for n, v in options.items() if v is not None and n not in _IGNORED}
        hub = {name: options.pop(name) for name in _HUB_OPTIONS if name in options}
        attention = options.pop("attn_implementation", config and config._attn_implementation)
        if attention not in _ATTENTION:
            raise ValueError(
                f"attn_implementation is {attention}; the model has its own attention. Leave the "
                "argument out, or give sdpa or eager, which change nothing"
            )
        unknown = options.keys() - (vars(MiniCPMOConfig()).keys() if config is None else ())
        if unknown:
            raise TypeError(
                f"from_pretrained takes no {', '.join(sorted(unknown))}: the model has a loader of "
                "its own, whose options are in docs/transformers.md"
            )
        device = _device(device_map)
        folder = find_checkpoint(pretrained_model_name_or_path, **hub)
        stored = read_config(folder)  # refuses unusable checkpoints
        config = copy.deepcopy(config) or MiniCPMOConfig.from_pretrained(folder, **options)
        config.__dict__.pop("quantization_config", None)  # as in `read_config`
        config._attn_implementation = attention
        config.dtype = _dtype(dtype or torch_dtype, config.dtype or stored.dtype)
        config.name_or_path = str(pretrained_model_name_or_path)
        model = cls.from_folder(folder, LoadOptions(device, config.dtype), config)
        return model.requires_grad_(True)  # as the library's, so that fine-tuning trains all of it

    @classmethod
    def from_folder(
        cls, folder: Path, options: LoadOptions, config: MiniCPMOConfig | None = None
    ) -> Self:
        """Load a checkpoint folder; raises `CheckpointError`."""
        with torch.device("meta"):
            model = cls(config or read_config(folder))
        load_weights(model, folder, options, model.config.omitted)
        return model

    @property
    def weights(self) -> Weights:
        layer = self.llm.model.layers[0]
        assert isinstance(layer, DecoderLayer)
        down: nn.Module = layer.mlp.down_proj
        stored = down.stored if isinstance(down, Quantisable) else None  # it may be replaced
        return Weights(stored.scheme) if isinstance(stored, QuantisedWeight) else Weights.BF16

    def num_parameters(self, *arguments: Any, **options: Any) -> int:
        """Return the number of parameters; quantised ones count as the published ones."""
        parts = [part for part in self.modules() if isinstance(part, Quantisable)]
        quantised = sum(math.prod(part.stored.shape) for part in parts if part.is_quantised)
        return super().num_parameters(*arguments, **options) + quantised

    def save_pretrained(self, *arguments: Any, **options: Any) -> None:
        """Save the model in the published layout.

        Raises `CheckpointError` if it is quantised, or lacks what `drop_unused` freed.
        """
        if self.weights is not Weights.BF16:
            raise CheckpointError(
                "The weights were quantised while loading and cannot be saved. Load the checkpoint "
                "with weights bf16 and save that."
            )
        if self.config.init_tts and self.tts.model.embed_tokens.weight is None:
            raise CheckpointError(
                "This model was loaded without the tensors that it does not use, and a checkpoint "
                "needs them. Load it with AutoModel.from_pretrained and save that."
            )
        super().save_pretrained(*arguments, **options)

    def drop_unused(self) -> None:
        """Free the unused parameters; the model cannot be saved afterwards."""
        for name in [n for n, _ in self.named_parameters() if n.startswith(UNUSED_PREFIXES)]:
            parent, _, leaf = name.rpartition(".")
            self.get_submodule(parent).register_parameter(leaf, None)


def _dtype(dtype: torch.dtype | str | None, configured: torch.dtype | str | None) -> torch.dtype:
    named = configured if dtype in (None, "auto") else dtype
    if named is None:
        return torch.float32
    found = {str(each).removeprefix("torch."): each for each in _DTYPES}
    if str(named).removeprefix("torch.") not in found:
        raise ValueError(f"dtype is {named}; weights can be {', '.join(found)}")
    return found[str(named).removeprefix("torch.")]


def _device(device_map: str | int | torch.device | dict[str, Any] | None) -> torch.device:
    if device_map is None:
        return torch.get_default_device()
    if isinstance(device_map, str) and device_map in _DEVICE_RULES:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    places = device_map.values() if isinstance(device_map, dict) else [device_map]
    devices, found = [_named_device(place) for place in places], torch.cuda.device_count()
    if len(set(devices)) != 1:
        raise ValueError(f"device_map names {len(set(devices))} devices; the model runs on one")
    device = devices[0]
    if device is None or (device.type == "cuda" and (device.index or 0) >= found):
        raise ValueError(
            f"device_map names {next(iter(places))}, and there are the CPU and {found} GPUs; give "
            "cpu, a GPU that there is, or auto, which takes a GPU if there is one"
        )
    return device


def _named_device(place: str | int | torch.device) -> torch.device | None:
    try:
        return torch.device(place)
    except RuntimeError:  # an unknown name, or a number where there is no GPU
        return None
