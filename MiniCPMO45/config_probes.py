"""What the stored tensors say about each configuration field that decides a shape.

A probe reads headers only. Where its tensor is absent it says nothing: a missing tensor is reported
by the loader, under its own name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Fields = Mapping[str, object]


@dataclass(frozen=True)
class Contradiction:
    """A field's value that cannot be true of the tensors.

    Attributes:
        field: the field to name.
        tensor: a tensor that contradicts it.
        reason: the rest of the sentence "field is value, but …".
    """

    field: str
    tensor: str
    reason: str


Probe = Callable[[Fields, Shapes], Contradiction | None]


def contradictions(fields: Fields, shapes: Shapes) -> list[Contradiction]:
    """Compare the fields that decide shapes with the tensors.

    Args:
        fields: value of every such field by its path; all of the right type.
        shapes: shape of every stored tensor by its name.

    Returns:
        One entry per contradicted field, in the order of the configuration.
    """
    found: dict[str, Contradiction] = {}
    for probe in _PROBES:
        contradiction = probe(fields, shapes)
        if contradiction is not None:
            found.setdefault(contradiction.field, contradiction)
    return list(found.values())


def _number(fields: Fields, path: str) -> int:
    value = fields[path]
    assert isinstance(value, int)
    return value


def _size(path: str, tensor: str, axis: int) -> Probe:
    """The field is the tensor's size along `axis`."""

    def probe(fields: Fields, shapes: Shapes) -> Contradiction | None:
        shape = shapes.get(tensor, ())
        if axis >= len(shape) or shape[axis] == fields[path]:
            return None
        return Contradiction(path, tensor, f"{_has(tensor, shape)}, which makes it {shape[axis]}")

    return probe


def _layers(path: str, prefix: str, dropped: str | None = None) -> Probe:
    """The field is the number of numbered layers; `dropped` names a switch that takes one away."""
    numbered = re.compile(re.escape(prefix) + r"(\d+)\.")

    def probe(fields: Fields, shapes: Shapes) -> Contradiction | None:
        last = max(
            ((int(m[1]), name) for name in shapes if (m := numbered.match(name))), default=None
        )
        if last is None:
            return None
        count, wanted = last[0] + 1, _number(fields, path)
        drops_one = dropped is not None and bool(fields[dropped])
        if count == wanted - drops_one:
            return None
        reason = f"the tensors have {count} layers (the last holds {last[1]})"
        if dropped is not None and drops_one and count == wanted:
            return Contradiction(dropped, last[1], f"{reason}, as many as {path} says")
        return Contradiction(path, last[1], reason)

    return probe


def _heads(path: str, tensor: str, head_tensor: str) -> Probe:
    """The field times the head size, which `head_tensor` shows, is the tensor's first size."""

    def probe(fields: Fields, shapes: Shapes) -> Contradiction | None:
        shape, head = shapes.get(tensor), shapes.get(head_tensor)
        if not shape or not head or shape[0] == _number(fields, path) * head[0]:
            return None
        says = f"which makes it {shape[0] // head[0]} heads of {head[0]}"
        return Contradiction(path, tensor, f"{_has(tensor, shape)}, {says}")

    return probe


def _presence(
    path: str, prefix: str, if_present: object, if_absent: object = None, beside: str = ""
) -> Probe:
    """Whether tensors begin with `prefix` decides the field's value.

    Without `if_absent` the absence says nothing. `beside` begins the names of other tensors without
    which the absence says nothing either: then a whole part is missing, not this field wrong.
    """

    def probe(fields: Fields, shapes: Shapes) -> Contradiction | None:
        present = next((name for name in shapes if name.startswith(prefix)), None)
        if present is not None:
            says, tensor, reason = if_present, present, f"the checkpoint holds {present}"
        elif if_absent is not None and any(name.startswith(beside) for name in shapes):
            says, tensor, reason = if_absent, prefix, f"the checkpoint holds no {prefix}…"
        else:
            return None
        return None if fields[path] == says else Contradiction(path, tensor, reason)

    return probe


def _position_table(fields: Fields, shapes: Shapes) -> Contradiction | None:
    path, tensor = "vision_config.image_size", "vpm.embeddings.position_embedding.weight"
    patch = shapes.get("vpm.embeddings.patch_embedding.weight", ())
    if tensor not in shapes or not patch:
        return None
    rows = shapes[tensor][0]
    if (_number(fields, path) // patch[-1]) ** 2 == rows:
        return None
    size = math.isqrt(rows) * patch[-1]
    return Contradiction(path, tensor, f"{_has(tensor, shapes[tensor])}, which makes it {size}")


def _speech_heads(fields: Fields, shapes: Shapes) -> Contradiction | None:
    """Key rows are kv heads × (width / heads): one equation for two fields, so both are named."""
    kv_path, heads_path = "tts_config.num_key_value_heads", "tts_config.num_attention_heads"
    tensor = "tts.model.layers.0.self_attn.k_proj.weight"
    shape = shapes.get(tensor)
    heads, kv_heads = _number(fields, heads_path), _number(fields, kv_path)
    if not shape or shape[0] * heads == kv_heads * shape[1]:
        return None
    reason = f"{_has(tensor, shape)}, which with {heads_path} {heads} makes it "
    return Contradiction(kv_path, tensor, f"{reason}{shape[0] * heads / shape[1]:g}")


def _divides(path: str, of: str) -> Probe:
    """The field divides another one without remainder; no tensor shows it, but none can be made."""

    def probe(fields: Fields, shapes: Shapes) -> Contradiction | None:
        value, whole = _number(fields, path), _number(fields, of)
        if whole % value == 0:
            return None
        return Contradiction(path, "", f"it does not divide {of}, which is {whole}")

    return probe


def _has(tensor: str, shape: Shape) -> str:
    return f"{tensor} has shape {list(shape)}"


_LLM, _VPM, _APM, _TTS = "llm.model.", "vpm.", "apm.", "tts."
_LLM_0, _VPM_0, _APM_0, _TTS_0 = (
    f"{_LLM}layers.0.",
    f"{_VPM}encoder.layers.0.",
    f"{_APM}layers.0.",
    f"{_TTS}model.layers.0.",
)

_PROBES: tuple[Probe, ...] = (
    _size("hidden_size", f"{_LLM}embed_tokens.weight", 1),
    _size("vocab_size", f"{_LLM}embed_tokens.weight", 0),
    _size("intermediate_size", f"{_LLM_0}mlp.gate_proj.weight", 0),
    _layers("num_hidden_layers", f"{_LLM}layers."),
    _size("head_dim", f"{_LLM_0}self_attn.q_norm.weight", 0),
    _heads(
        "num_attention_heads",
        f"{_LLM_0}self_attn.q_proj.weight",
        f"{_LLM_0}self_attn.q_norm.weight",
    ),
    _heads(
        "num_key_value_heads",
        f"{_LLM_0}self_attn.k_proj.weight",
        f"{_LLM_0}self_attn.k_norm.weight",
    ),
    _divides("num_key_value_heads", "num_attention_heads"),
    _presence("tie_word_embeddings", "llm.lm_head.", False),
    _presence(
        "attention_bias",
        f"{_LLM_0}self_attn.q_proj.bias",
        True,
        if_absent=False,
        beside=f"{_LLM_0}self_attn.q_proj.weight",
    ),
    _size("query_num", "resampler.query", 0),
    _presence("init_vision", _VPM, True, if_absent=False),
    _presence("init_audio", _APM, True, if_absent=False),
    _presence("init_tts", _TTS, True, if_absent=False),
    _size("vision_config.hidden_size", f"{_VPM}post_layernorm.weight", 0),
    _layers(
        "vision_config.num_hidden_layers",
        f"{_VPM}encoder.layers.",
        dropped="drop_vision_last_layer",
    ),
    _size("vision_config.intermediate_size", f"{_VPM_0}mlp.fc1.weight", 0),
    _size("vision_config.num_channels", f"{_VPM}embeddings.patch_embedding.weight", 1),
    _size("vision_config.patch_size", f"{_VPM}embeddings.patch_embedding.weight", 3),
    _position_table,
    _divides("vision_config.num_attention_heads", "vision_config.hidden_size"),
    _size("audio_config.d_model", f"{_APM}conv1.weight", 0),
    _size("audio_config.num_mel_bins", f"{_APM}conv1.weight", 1),
    _layers("audio_config.encoder_layers", f"{_APM}layers."),
    _size("audio_config.encoder_ffn_dim", f"{_APM_0}fc1.weight", 0),
    _size("audio_config.max_source_positions", f"{_APM}embed_positions.weight", 0),
    _divides("audio_config.encoder_attention_heads", "audio_config.d_model"),
    _size("tts_config.hidden_size", f"{_TTS}emb_text.weight", 1),
    _size("tts_config.num_text_tokens", f"{_TTS}emb_text.weight", 0),
    _size("tts_config.intermediate_size", f"{_TTS_0}mlp.gate_proj.weight", 0),
    _layers("tts_config.num_hidden_layers", f"{_TTS}model.layers."),
    _divides("tts_config.num_attention_heads", "tts_config.hidden_size"),
    _speech_heads,
    _divides("tts_config.num_key_value_heads", "tts_config.num_attention_heads"),
    _presence("tts_config.projector_type", f"{_TTS}projector_semantic.linear1.", "mlp"),
    _size("tts_config.llm_dim", f"{_TTS}projector_semantic.linear1.weight", 1),
    _size("tts_config.num_audio_tokens", f"{_TTS}emb_code.0.weight", 0),
    _layers("tts_config.num_vq", f"{_TTS}emb_code."),
    _size("tts_config.vocab_size", f"{_TTS}model.embed_tokens.weight", 0),
)
