"""Size and count limits of the wire format, for all schemas and decoders.

Source: docs/specification/service.md#2.1, #2.4.1 and #2.5.4, unless a line says otherwise.
"""

from __future__ import annotations

from typing import Final

INPUT_SAMPLE_RATE_HZ: Final = 16_000
OUTPUT_SAMPLE_RATE_HZ: Final = 24_000
UNIT_MS: Final = 1_000  # of duplex: the only length that the model was trained on
SAMPLE_BYTES: Final = 4  # one little-endian 32-bit float

MIB: Final = 1024 * 1024
CHAT_SOCKET_LIMIT_BYTES: Final = 64 * MIB  # /ws/streaming and /ws/chat, client to server
PREPARE_LIMIT_BYTES: Final = 8 * MIB  # half-duplex and duplex `prepare`
LIVE_SOCKET_LIMIT_BYTES: Final = 2 * MIB  # any other half-duplex or duplex message
EVENT_LIMIT_BYTES: Final = 20 * MIB  # OpenAI's protocols: 15 MiB of audio in Base64

CHUNK_MAX_S: Final = 2.0
REFERENCE_MAX_S: Final = 30.0
CHAT_AUDIO_MAX_S: Final = 600.0

FRAME_MAX_BYTES: Final = 4 * MIB
FRAME_MAX_SIDE_PX: Final = 4096
PICTURE_MAX_BYTES: Final = 20 * MIB  # ours: a camera's largest JPEG
PICTURE_MAX_SIDE_PX: Final = 16_384  # ours
PICTURE_MAX_PIXELS: Final = 64_000_000  # ours: 192 MB once decoded
PICTURES_MAX: Final = 64  # ours: of one request; as many as the model uses of a video
PICTURES_MAX_PIXELS: Final = 192_000_000  # ours: of one request; 16 of a telephone's 12 million
# Ours: pixels of one request's pictures and videos once they are shrunk to what the model uses.
MEDIA_MAX_PIXELS: Final = 128_000_000
VIDEO_MAX_BYTES: Final = 48 * MIB  # what fits into CHAT_SOCKET_LIMIT_BYTES as Base64

TEXT_MAX_CHARS: Final = 200_000  # ours: far above what 8,192 tokens can hold
REPLY_START_MAX_CHARS: Final = 4_096  # spoken whole; source: input of OpenAI's speech API
MESSAGES_MAX: Final = 1_024  # ours
ITEMS_MAX: Final = 256  # ours: content items of one message
JSON_VALUES_MAX: Final = 100_000  # ours: in one message; the longest history needs a tenth
FRAMES_PER_MESSAGE_MAX: Final = 64  # ours: only the newest few are used

WORKERS_MAX = 1_000  # ours: places where a gateway looks for workers
SLOTS_MAX: Final = 256  # ours: sessions one worker takes at once
MAX_SLICES: Final = 16  # tiles of one picture
DURATION_MAX_S: Final = 86_400.0  # ours: a day; longest duration a request is expected to take
ID_MAX_CHARS: Final = 128  # ours: names of voices and recordings
PATH_MAX_CHARS: Final = 4_096  # ours: the usual limit of file systems


def base64_chars(size_bytes: int) -> int:
    return 4 * ((size_bytes + 2) // 3)


def audio_chars(duration_s: float) -> int:
    return base64_chars(audio_bytes(duration_s))


def audio_bytes(duration_s: float) -> int:
    return round(duration_s * INPUT_SAMPLE_RATE_HZ) * SAMPLE_BYTES
