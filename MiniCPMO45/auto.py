"""Registers the model with `transformers`: after `import MiniCPMO45.auto`, `AutoModel` loads it.

A registered class takes precedence over the code that a checkpoint's `auto_map` names, so no
`trust_remote_code` is needed and nothing of the checkpoint is executed.
"""

from __future__ import annotations

from transformers import AutoConfig, AutoModel

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration

AutoConfig.register(MiniCPMOConfig.model_type, MiniCPMOConfig, exist_ok=True)
AutoModel.register(MiniCPMOConfig, MiniCPMOForConditionalGeneration, exist_ok=True)
