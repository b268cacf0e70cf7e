"""Registers the model's classes with the `Auto` classes of `transformers`.

Registered classes take precedence over a checkpoint's `auto_map`, so `trust_remote_code` is not
needed and no code of the checkpoint is executed.
"""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoProcessor, AutoTokenizer

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.processing.processor import MiniCPMOProcessor
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast

AutoConfig.register(MiniCPMOConfig.model_type, MiniCPMOConfig, exist_ok=True)
AutoModel.register(MiniCPMOConfig, MiniCPMOForConditionalGeneration, exist_ok=True)
AutoTokenizer.register(MiniCPMOConfig, fast_tokenizer_class=MiniCPMOTokenizerFast, exist_ok=True)
AutoProcessor.register(MiniCPMOConfig, MiniCPMOProcessor, exist_ok=True)
