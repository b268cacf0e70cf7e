"""The one place where an exception of the model layer becomes one of the project's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from core.errors import (
    AudioError,
    BadPayloadError,
    ContextFullError,
    GenerationFailedError,
    ModelError,
    OmniError,
    OutOfOrderError,
)
from MiniCPMO45.checkpoint_error import CheckpointError
from MiniCPMO45.executor import MissingVoiceError
from MiniCPMO45.kv_cache import CacheFullError
from MiniCPMO45.processing_minicpmo import ProcessingError, PromptTooLongError
from MiniCPMO45.session import SnapshotError
from MiniCPMO45.token2wav.batch import VoiceTooLongError
from MiniCPMO45.token2wav.prompt import VoiceSampleError
from MiniCPMO45.token2wav.speech_tokenizer_onnx import SpeechTokenizerFileError
from MiniCPMO45.tokenization_minicpmo_fast import TokenizerError
from MiniCPMO45.unit_results import UnitOrderError

# Subclasses stand before what they derive from.
TRANSLATIONS: Final[tuple[tuple[type[Exception], type[OmniError]], ...]] = (
    (PromptTooLongError, ContextFullError),
    (ProcessingError, BadPayloadError),
    (CacheFullError, ContextFullError),
    (VoiceSampleError, AudioError),
    (VoiceTooLongError, AudioError),
    (MissingVoiceError, GenerationFailedError),
    (UnitOrderError, OutOfOrderError),
    (SnapshotError, OutOfOrderError),
    (CheckpointError, ModelError),
    (TokenizerError, ModelError),
    (SpeechTokenizerFileError, ModelError),
)
KNOWN: Final = tuple(kind for kind, _ in TRANSLATIONS)


def translate(error: Exception) -> OmniError:
    """Return the project's error for one of the model layer's; its sentence is kept.

    Args:
        error: one of `KNOWN`.
    """
    kind = next(ours for theirs, ours in TRANSLATIONS if isinstance(error, theirs))
    sentence = str(error)
    ending = "" if sentence.endswith(".") else "."
    return kind(sentence[:1].upper() + sentence[1:] + ending)


@contextmanager
def model_errors() -> Iterator[None]:
    """Raise what the model layer raises inside as the project's errors."""
    try:
        yield
    except KNOWN as error:
        raise translate(error) from error
