"""Token ids that stand where pictures and sounds will be embedded.

Source: docs/specification/model.md#3.2 and #4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from MiniCPMO45.special_tokens import SpecialTokens

Span = tuple[int, int]


@dataclass(frozen=True)
class Placeholder:
    """Ids with slots in them.

    Attributes:
        ids: markers and `<unk>` slots.
        spans: (start, stop) of every run of slots inside `ids`, in order.
    """

    ids: tuple[int, ...]
    spans: tuple[Span, ...]


def audio_placeholder(n_embeddings: int, special: SpecialTokens) -> Placeholder:
    """Return the placeholder of one clip.

    Args:
        n_embeddings: slots, 10 per second of sound.
        special: control ids.
    """
    ids = (special.audio_start, *(special.unk,) * n_embeddings, special.audio_end)
    return Placeholder(ids, ((1, 1 + n_embeddings),))


def image_placeholder(
    grid: tuple[int, int] | None,
    query_num: int,
    special: SpecialTokens,
    newline: tuple[int, ...],
    number: tuple[int, ...] | None = None,
) -> Placeholder:
    """Return the placeholder of one picture: overview first, then its slices row by row.

    Args:
        grid: (columns, rows) of slices, or None for a picture left whole.
        query_num: slots per slice.
        special: control ids.
        newline: ids of the line feed between two rows of slices.
        number: ids of the picture's number, or None to leave the number out.
    """
    slots = (special.unk,) * query_num
    overview = (special.image_start, *slots, special.image_end)
    cell = (special.slice_start, *slots, special.slice_end)
    parts = [Placeholder(overview, ((1, 1 + query_num),))]
    if number is not None:
        parts.insert(0, Placeholder((special.image_id_start, *number, special.image_id_end), ()))
    columns, rows = grid or (0, 0)
    for row in range(rows):
        if row:
            parts.append(Placeholder(newline, ()))
        parts += [Placeholder(cell, ((1, 1 + query_num),))] * columns
    return _joined(parts)


def _joined(parts: list[Placeholder]) -> Placeholder:
    ids: list[int] = []
    spans: list[Span] = []
    for part in parts:
        spans += [(start + len(ids), stop + len(ids)) for start, stop in part.spans]
        ids += part.ids
    return Placeholder(tuple(ids), tuple(spans))
