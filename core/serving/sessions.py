"""Conversations that a worker keeps between turns, found by their history.

Together with the sessions that hold a slot there are never more than slots: a session that takes a
slot evicts the conversation that was used longest ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from core.history import (
    CacheOptions,
    RawMessage,
    canonical_history,
    compute_history_hash,
)
from core.modes import StreamingMode
from core.schemas.streaming import WorkerPrefill


@dataclass(eq=False)
class Conversation:
    """A turn-based conversation: what the model remembers, and the history that is.

    Attributes:
        view: the model's side.
        history: messages in the cache, in the form that is hashed.
        options: settings that changed the cache.
        history_hash: of the history; None while a turn is going on.
    """

    view: StreamingMode
    history: list[RawMessage] = field(default_factory=list)
    options: CacheOptions = field(default_factory=CacheOptions)
    history_hash: str | None = None
    _marked: int = 0

    def mark(self) -> None:
        """Remember where the turn begins."""
        self._marked = len(self.history)

    def add_messages(self, message: WorkerPrefill) -> None:
        """Note what was fed; hashes media, so not on the event loop."""
        if not self.history:
            self.options = CacheOptions.of(message)
        self.history += canonical_history(message.messages)

    def add_reply(self, text: str) -> None:
        """Note what the model answered."""
        self.history += canonical_history([{"role": "assistant", "content": text}])

    def roll_back(self) -> None:
        """Forget the messages of the turn."""
        del self.history[self._marked :]

    def settle(self) -> str:
        """The turn is over: return the hash by which the next one will ask."""
        self.history_hash = compute_history_hash(self.history, self.options)
        return self.history_hash


class SessionStore:
    """Keeps conversations, least recently used first; bounded, and the surplus is handed out.

    The caller closes the conversations it gets back.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: list[Conversation] = []

    def __len__(self) -> int:
        """How many conversations are kept."""
        return len(self._kept)

    @property
    def kv_tokens(self) -> int:
        return sum(conversation.view.kv_cache_length for conversation in self._kept)

    @property
    def newest(self) -> Conversation | None:
        """The conversation used last."""
        return self._kept[-1] if self._kept else None

    def keep(self, conversation: Conversation, active: int) -> list[Conversation]:
        """Keep a conversation whose turn is over.

        Args:
            conversation: Its hash is set.
            active: How many sessions hold a slot, this one not counted.

        Returns:
            What has to go: others of the same history, and what is too much.
        """
        same = [other for other in self._kept if other.history_hash == conversation.history_hash]
        self._kept = [other for other in self._kept if other not in same]
        self._kept.append(conversation)
        return same + self.make_room(active)

    def take(self, history_hash: str) -> Conversation | None:
        """Hand out the conversation that contains exactly this history."""
        for conversation in self._kept:
            if conversation.history_hash == history_hash:
                self._kept.remove(conversation)
                return conversation
        return None

    def take_back(self, conversation: Conversation) -> bool:
        """Hand out a given conversation, if it is still kept."""
        if conversation not in self._kept:
            return False
        self._kept.remove(conversation)
        return True

    def make_room(self, active: int) -> list[Conversation]:
        """Let go what is too much beside so many active sessions; least recently used first."""
        surplus = max(0, len(self._kept) + active - self._capacity)
        gone, self._kept = self._kept[:surplus], self._kept[surplus:]
        return gone

    def clear(self) -> Sequence[Conversation]:
        """Let everything go."""
        gone, self._kept = self._kept, []
        return gone
