"""Client library of the MiniCPM-o server: `Client`, or `AsyncClient` for asyncio."""

from minicpmo_live import events
from minicpmo_live.blocking import Chat, Client, Duplex, HalfDuplex
from minicpmo_live.client import AsyncClient
from minicpmo_live.errors import (
    ConnectionLostError,
    LiveError,
    ProtocolError,
    ServerError,
    SoundError,
)
from minicpmo_live.link import ConnectionLost
from minicpmo_live.sessions import AsyncChat, AsyncDuplex, AsyncHalfDuplex
from minicpmo_live.sound import INPUT_RATE_HZ, OUTPUT_RATE_HZ, read_wav

__all__ = [
    "INPUT_RATE_HZ",
    "OUTPUT_RATE_HZ",
    "AsyncChat",
    "AsyncClient",
    "AsyncDuplex",
    "AsyncHalfDuplex",
    "Chat",
    "Client",
    "ConnectionLost",
    "ConnectionLostError",
    "Duplex",
    "HalfDuplex",
    "LiveError",
    "ProtocolError",
    "ServerError",
    "SoundError",
    "events",
    "read_wav",
]
