"""The tiny checkpoint's sizes and weights, which depend on their names and a seed only."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import AudioConfig, MiniCPMOConfig, TTSConfig, VisionConfig
from MiniCPMO45.loading.checkpoint import TINY_VARIANT, expected_shapes
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.tiny.tokenizer import PLAIN_SLOTS, TinyVocabulary, spoken_ids

HIDDEN = 128  # one resampler head of 128 channels
WIDTH = 32  # of every other part
LAYERS = 2
EMBEDDING_ROW_STEP = 64  # rows of the speech decoder's text embedding are a multiple of it


def model_config(vocabulary: TinyVocabulary) -> MiniCPMOConfig:
    """Return the configuration for a vocabulary; other fields have the published values."""
    size = vocabulary.size
    return MiniCPMOConfig(
        model_variant=TINY_VARIANT,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HIDDEN // 4,
        vocab_size=size,
        bos_token_id=vocabulary.id_of("<|endoftext|>"),
        eos_token_id=vocabulary.id_of("<|im_end|>"),
        vision_config=VisionConfig(
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=2,
        ),
        audio_config=AudioConfig(
            d_model=WIDTH,
            encoder_layers=LAYERS,
            encoder_attention_heads=2,
            encoder_ffn_dim=4 * WIDTH,
        ),
        tts_config=TTSConfig(
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=2,
            llm_dim=HIDDEN,
            num_text_tokens=-(-size // EMBEDDING_ROW_STEP) * EMBEDDING_ROW_STEP,
            vocab_size=EMBEDDING_ROW_STEP,
            audio_bos_token_id=vocabulary.id_of("<focus>"),
            text_eos_token_id=vocabulary.id_of("</perception>"),
        ),
    )


def vocoder_config() -> dict[str, Any]:
    """Return the vocoder's `config.json`, with the field names of the published `flow.yaml`."""
    return {
        "flow": {
            "input_size": 16,
            "encoder": {
                "input_size": 16,
                "output_size": WIDTH,
                "num_blocks": LAYERS,
                "num_up_blocks": LAYERS,
                "attention_heads": 2,
                "linear_units": 2 * WIDTH,
            },
            "decoder": {
                "estimator": {
                    "mlp_ratio": 2.0,
                    "depth": LAYERS,
                    "num_heads": 2,
                    "head_dim": 16,
                    "hidden_size": WIDTH,
                }
            },
        },
        "hift": {"base_channels": 32, "f0_predictor": {"cond_channels": 16}},
    }


def draw(name: str, shape: tuple[int, ...], seed: int, spread: float = 1.0) -> Tensor:
    """Draw normal values that depend on name and seed only."""
    generator = torch.Generator(torch.get_default_device())
    generator.manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    return torch.randn(shape, generator=generator) * spread


ALWAYS_ON, AT_AUDIO, LOUDNESS = RESERVED = [0, 1, 2]  # channels of the language model
SIGNAL = 4.0  # value of the first two in the residual stream
SIGNAL_AFTER_NORM = 3.3  # approximately, after the final norm

NORM_SPREAD = 0.05  # of gains around 1
BIAS_SPREAD = 0.02
POSITION_SPREAD = 0.1
QUERY_GAIN = 2.0  # sharpens attention, so that history matters
RESIDUAL_GAIN = 0.5  # of output projections at the tiny depth
AUDIO_GAIN = 1.4  # of the audio projection, so that different sounds differ

LOGIT_SPREAD = 1.3
CONTROL_LOGIT_SPREAD = 1.8
WORD_BIAS = 0.0
FRAGMENT_BIAS = -4.0
CONTROL_BIAS = -12.0
UNIT_END_BIAS, TURN_END_BIAS, REPLY_END_BIAS = 2.0, 2.0, 2.0
DECISION_BIAS = 14.0  # of listen and speak, at audio only
LOUDNESS_WEIGHT = 1.0  # of sound for listening and of silence for speaking

MEL_OFFSET = 2.0  # moves the log-mel into the linear range of the activation
LOUDNESS_BORDER = -0.05  # mean log-mel of everyday speech, above that of pauses and noise
LOUDNESS_OFFSET = 2.0  # as `MEL_OFFSET`, for the difference
LOUDNESS_GAIN = 4.0

CODE_GAIN = 1.5  # norm of the rows of the speech head
SPEECH_END_GAIN = 5.0  # norm of the row of the end code

_RESIDUAL_ENDINGS = ("o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2.weight")
_GAIN_ENDINGS = ("norm.weight", "norm1.weight", "norm2.weight", "layernorm.weight")


def tiny_model(
    config: MiniCPMOConfig, vocabulary: TinyVocabulary, seed: int
) -> MiniCPMOForConditionalGeneration:
    with torch.device("meta"):
        model = MiniCPMOForConditionalGeneration(config)
    model.load_state_dict(dict(tiny_tensors(config, vocabulary, seed)), assign=True)
    return model


def tiny_tensors(
    config: MiniCPMOConfig, vocabulary: TinyVocabulary, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of the model under its checkpoint name, as bfloat16."""
    with torch.device("meta"):
        shapes = expected_shapes(MiniCPMOForConditionalGeneration(config))
    for name, shape in shapes.items():
        plain = _plain(name, shape, seed, _residual_gain(name, config))
        tensor = _carry_loudness(name, _carry_signals(name, plain))
        if name == "llm.lm_head.weight":
            tensor = _arrange_head(tensor, vocabulary)
        elif name == "tts.head_code.0.parametrizations.weight.original0":
            tensor = torch.full(shape, CODE_GAIN)
            tensor[config.tts_config.speech_eos_id] = SPEECH_END_GAIN
        yield name, tensor.to(torch.bfloat16).contiguous()


def _residual_gain(name: str, config: MiniCPMOConfig) -> float:
    """Return the gain that keeps the residual stream's scale independent of the depth."""
    depths = {
        "llm": config.num_hidden_layers,
        "vpm": config.vision_config.num_hidden_layers,
        "apm": config.audio_config.encoder_layers,
        "tts": config.tts_config.num_hidden_layers,
    }
    return RESIDUAL_GAIN * math.sqrt(LAYERS / depths.get(name.partition(".")[0], LAYERS))


def _plain(name: str, shape: tuple[int, ...], seed: int, residual_gain: float) -> Tensor:
    """Draw values whose scale keeps activations near one."""
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return draw(name, shape, seed, NORM_SPREAD) + QUERY_GAIN
    if name.endswith(_GAIN_ENDINGS) or (".ln_" in name and name.endswith("weight")):
        return draw(name, shape, seed, NORM_SPREAD) + 1.0
    if len(shape) == 1:
        return draw(name, shape, seed, BIAS_SPREAD)
    if "position" in name:
        return draw(name, shape, seed, POSITION_SPREAD)
    if "embed_tokens" in name or ".emb_" in name or name.endswith(("query", "original1")):
        return draw(name, shape, seed)
    fan_in = shape[0] if name == "resampler.proj" else math.prod(shape[1:])
    gain = residual_gain if name.endswith(_RESIDUAL_ENDINGS) else 1.0
    if name.startswith("audio_projection_layer."):
        gain = AUDIO_GAIN
    return draw(name, shape, seed, gain / math.sqrt(fan_in))


def _carry_signals(name: str, tensor: Tensor) -> Tensor:
    """Reserve channels of the language model's residual stream for the signals."""
    match name:
        case "llm.model.embed_tokens.weight":
            tensor[:, RESERVED] = 0.0
            tensor[:, ALWAYS_ON] = SIGNAL
        case "llm.model.norm.weight":
            tensor[RESERVED] = 1.0
        case "audio_projection_layer.linear2.weight":
            tensor[RESERVED] = 0.0
        case "audio_projection_layer.linear2.bias":
            tensor[RESERVED] = 0.0
            tensor[[ALWAYS_ON, AT_AUDIO]] = SIGNAL
        case "resampler.ln_post.weight":
            tensor[ALWAYS_ON] = 0.0
        case "resampler.ln_post.bias":
            tensor[ALWAYS_ON] = 1.0  # input of the row of `proj` that outputs the signal
        case "resampler.proj":
            tensor[ALWAYS_ON] = 0.0
            tensor[:, RESERVED] = 0.0
            tensor[ALWAYS_ON, ALWAYS_ON] = SIGNAL
        case _ if name.startswith("llm.") and name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[RESERVED] = 0.0
    return tensor


def _carry_loudness(name: str, tensor: Tensor) -> Tensor:
    """Pass the mean of the mel bins through the audio encoder and subtract a border.

    Channel 0 carries the mean, channel 1 the border. Norms shift and scale both alike, so the sign
    of their difference does not depend on the random channels.
    """
    match name:
        case "apm.conv1.weight":
            tensor[:2] = 0.0
            tensor[0, :, 1] = 1.0 / tensor.shape[1]
        case "apm.conv1.bias":
            tensor[0] = MEL_OFFSET
            tensor[1] = MEL_OFFSET + LOUDNESS_BORDER
        case "apm.conv2.weight":
            tensor[:2] = 0.0
            tensor[[0, 1], [0, 1], 1] = 1.0
        case "apm.layer_norm.weight":
            tensor[:2] = 1.0
        case "apm.conv2.bias" | "apm.layer_norm.bias":
            tensor[:2] = 0.0
        case "apm.embed_positions.weight":
            tensor[:, :2] = 0.0
        case "audio_projection_layer.linear1.weight":
            tensor[0] = 0.0
            tensor[0, [0, 1]] = torch.tensor([1.0, -1.0])
        case "audio_projection_layer.linear1.bias":
            tensor[0] = LOUDNESS_OFFSET
        case "audio_projection_layer.linear2.weight":
            tensor[LOUDNESS, 0] = LOUDNESS_GAIN
        case "audio_projection_layer.linear2.bias":
            tensor[LOUDNESS] = -LOUDNESS_GAIN * LOUDNESS_OFFSET
        case _ if name.startswith("apm.layers.") and ("out_proj." in name or ".fc2." in name):
            tensor[:2] = 0.0
    return tensor


def _arrange_head(head: Tensor, vocabulary: TinyVocabulary) -> Tensor:
    n_base = len(vocabulary.base)
    head = head * LOGIT_SPREAD
    bias = torch.full((head.shape[0],), CONTROL_BIAS)
    bias[:n_base] = FRAGMENT_BIAS
    bias[spoken_ids(vocabulary)] = WORD_BIAS
    bias[[vocabulary.id_of(token) for token in PLAIN_SLOTS]] = CONTROL_BIAS
    bias[n_base - vocabulary.n_spare : n_base] = CONTROL_BIAS
    at_audio = torch.zeros(head.shape[0])
    loudness = torch.zeros(head.shape[0])
    for token, sign in (("<|listen|>", 1.0), ("<|speak|>", -1.0)):
        head[vocabulary.id_of(token)] = 0.0  # only loudness decides between the two
        at_audio[vocabulary.id_of(token)] = DECISION_BIAS - CONTROL_BIAS
        loudness[vocabulary.id_of(token)] = sign * LOUDNESS_WEIGHT
    ends = {
        "<|chunk_eos|>": UNIT_END_BIAS,
        "<|turn_eos|>": TURN_END_BIAS,
        "<|tts_eos|>": REPLY_END_BIAS,
    }
    for token, value in ends.items():
        bias[vocabulary.id_of(token)] = value
        head[vocabulary.id_of(token)] *= CONTROL_LOGIT_SPREAD / LOGIT_SPREAD
    head[:, ALWAYS_ON] = bias / SIGNAL_AFTER_NORM
    head[:, AT_AUDIO] = at_audio / SIGNAL_AFTER_NORM
    head[:, LOUDNESS] = loudness
    return head
