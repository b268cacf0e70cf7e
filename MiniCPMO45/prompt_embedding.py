"""From a rendered prompt to the rows the language model is fed: ids with media in their slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from MiniCPMO45.audio_features import clip_mels
from MiniCPMO45.processing_minicpmo import Prompt
from MiniCPMO45.steps import Embeddings, EncodeClips, EncodeImages, Steps, TokenIds

Pieces = tuple[TokenIds | Embeddings, ...]


def embed_pictures(prompt: Prompt) -> Steps[list[Tensor]]:
    """Encode every slice of the prompt's pictures; one [64, hidden] per image span."""
    slices = tuple(each for picture in prompt.pictures for each in picture.slices)
    if not slices:
        return []
    rows = yield EncodeImages(slices)
    return list(rows)


def embed_clips(prompt: Prompt, block_frames: int | None) -> Steps[list[Tensor]]:
    """Encode the prompt's whole sounds.

    Args:
        prompt: the rendered prompt.
        block_frames: encoder frames per attention block; None for full attention.

    Returns:
        One [t, hidden] per clip; a clip above 30 s is encoded in pieces and joined.
    """
    mels = [clip_mels(clip) for clip in prompt.clips]
    if not mels:
        return []
    rows = yield EncodeClips(tuple(mel for of_clip in mels for mel in of_clip), block_frames)
    remaining = iter(rows)
    return [torch.cat([next(remaining) for _ in of_clip]) for of_clip in mels]


def lay_out(prompt: Prompt, pictures: Sequence[Tensor], sounds: Sequence[Tensor]) -> Pieces:
    """Put embeddings in the place of the prompt's slots.

    Args:
        prompt: ids and spans.
        pictures: [64, hidden] per image span.
        sounds: [t, hidden] per audio span.
    """
    slots = sorted(
        [*zip(prompt.image_spans, pictures, strict=True)]
        + [*zip(prompt.audio_spans, sounds, strict=True)],
        key=lambda slot: slot[0],
    )
    pieces: list[TokenIds | Embeddings] = []
    position = 0
    for (start, stop), rows in slots:
        pieces.append(TokenIds(prompt.ids[position:start]))
        if len(rows):
            pieces.append(Embeddings(rows))
        position = stop
    if position < len(prompt.ids):
        pieces.append(TokenIds(prompt.ids[position:]))
    return tuple(pieces)
