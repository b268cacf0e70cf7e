"""State of one conversation, and the sliding window over its cache.

Nothing in a session is shared; closing it frees it. Window plans are pure functions that
`maintain_units` and `maintain_rounds` apply to a cache. Positions stay dense: tokens behind a
dropped range move up and their keys are rotated.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby

import torch
from torch import Tensor

from MiniCPMO45.engine.kv_cache import KvHandle, KvStore, Rows
from MiniCPMO45.engine.steps import LlmForward, Steps
from MiniCPMO45.model.audio_encoder import AudioCache
from MiniCPMO45.processing.mel import MelState
from MiniCPMO45.processing.prompts import TurnOpening
from MiniCPMO45.settings import DuplexSettings, WindowMode, WindowSettings
from MiniCPMO45.token2wav.vocoder import SpeechBuffer
from MiniCPMO45.token2wav.vocoder_state import SpeechStream


@dataclass(frozen=True)
class Unit:
    length: int  # cached tokens
    text_ids: tuple[int, ...]  # without control tokens; empty for a listen unit


@dataclass(frozen=True)
class Round:
    number: int  # user turn it belongs to, from 0
    role: str  # "system", "user" or "assistant"
    length: int  # cached tokens


@dataclass
class WindowState:
    """Segments of a cache."""

    preserved: int = 0  # leading tokens that are never dropped: system prompt and carried text
    prefix: int = 0  # leading tokens before the carried text
    suffix_ids: tuple[int, ...] = ()  # ids that follow the carried text
    marker_ids: tuple[int, ...] = ()  # ids that precede it
    carried_ids: tuple[int, ...] = ()  # text of dropped units, without the marker
    units: list[Unit] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    evictions: int = 0  # how often units or rounds were dropped

    def clone(self) -> WindowState:
        return replace(self, units=list(self.units), rounds=list(self.rounds))

    @property
    def tokens(self) -> int:
        return self.preserved + sum(unit.length for unit in self.units)

    def add_unit(self, length: int, text_ids: Sequence[int]) -> None:
        self.units.append(Unit(length, tuple(text_ids)))


# Conversations share a pool of pages and occupy what they have written. While less than
# `SHRINK_BELOW` of it is free, those longer than an equal share drop their oldest units or rounds;
# below 0.15 new clients wait (`core/serving/runtime.py`); below `LAST_FREE` windows shrink as far
# as necessary, so that running conversations continue. A card that is short of time shrinks them
# as well (`core/serving/capacity.py`).
SHRINK_BELOW = 0.3  # ours: free share of the pool
SHARED = 0.8  # ours: share of the pool that is divided equally
LEAST_TOKENS = 2_048  # ours: shorter windows are not shrunk before `LAST_FREE`
LAST_FREE = 0.1  # ours: free share of the pool
LAST_SHARED = 0.95  # ours: share divided equally then; new clients keep waiting
LOW, HIGH = 15, 16  # ours: ratio of low to high mark, so that windows are seldom cut


def tokens_allowed(free: int, total: int, holders: int, least: int = LEAST_TOKENS) -> int | None:
    """Return the tokens a conversation may hold, or None without memory pressure."""
    if free >= SHRINK_BELOW * total:
        return None
    share = int(SHARED * total) // max(holders, 1)
    if share >= least or free >= LAST_FREE * total:
        return max(share, least)
    return int(LAST_SHARED * total) // holders


def share_of(store: KvStore, least: int = LEAST_TOKENS) -> int | None:
    """Return `tokens_allowed` in a store; None also if it grows."""
    if store.can_grow:
        return None
    total, free = (count * store.page_tokens for count in (store.pool.shape[1], store.free_pages))
    holders = sum(handle.capacity > 0 for handle in store.handles)
    return tokens_allowed(free, total, holders, least)


def narrowed(settings: WindowSettings, allowed: int | None) -> WindowSettings:
    """Return settings of a window no longer than allowed; windows of whole units are short."""
    if allowed is None:
        return settings
    low = allowed * LOW // HIGH
    is_off = settings.mode is WindowMode.OFF
    return replace(
        settings,
        mode=WindowMode.BASIC if is_off else settings.mode,
        basic_high_tokens=allowed if is_off else min(settings.basic_high_tokens, allowed),
        basic_low_tokens=low if is_off else min(settings.basic_low_tokens, low),
        text_high_tokens=min(settings.text_high_tokens, allowed),
        text_low_tokens=min(settings.text_low_tokens, low),
    )


def window_now(kv: KvHandle, settings: WindowSettings) -> WindowSettings:
    """Return settings of the window that memory and time allow."""
    store, allowed = kv.store, share_of(kv.store)
    if store.most_tokens is not None:
        allowed = min(allowed or store.most_tokens, store.most_tokens)
    return narrowed(settings, allowed)


def units_to_drop(window: WindowState, settings: WindowSettings) -> int:
    if settings.mode is WindowMode.CONTEXT:
        return max(0, len(window.units) - settings.context_max_units)
    if settings.mode is WindowMode.OFF or window.tokens <= settings.basic_high_tokens:
        return 0
    excess = window.tokens - settings.basic_low_tokens
    *before, _ = accumulate((unit.length for unit in window.units), initial=0)
    return sum(length < excess for length in before)


def maintain_units(kv: KvHandle, window: WindowState, settings: WindowSettings) -> Steps[None]:
    """Apply the duplex window between units. Source: docs/specification/model.md#6.9."""
    count = units_to_drop(window, settings)
    if count == 0:
        return
    window.evictions += 1
    dropped, said = window.units[:count], list[int]()
    stop = window.preserved + sum(unit.length for unit in dropped)
    if settings.mode is not WindowMode.BASIC:
        said = [token for unit in dropped for token in unit.text_ids]
        carried = (*window.carried_ids, *said)
        window.carried_ids = carried[max(0, len(carried) - settings.context_previous_max_tokens) :]
    if said and window.carried_ids:
        kept = kv.rows(stop, kv.length)
        kv.truncate(window.prefix)
        rebuilt = window.marker_ids + window.carried_ids + window.suffix_ids
        yield LlmForward(kv, Rows(rebuilt), wants_logits=False)
        window.preserved = kv.length
        kv.put(kept)
    else:
        kv.drop(window.preserved, stop)
    del window.units[:count]


def rounds_to_drop(window: WindowState, length: int, settings: WindowSettings) -> set[int]:
    """Return the numbers of the oldest rounds to drop from a cache of `length` tokens.

    Rounds with a system message stay, and so does the newest round.
    """
    rounds, dropped = window.rounds, set[int]()
    if length <= settings.text_high_tokens or not rounds:
        return dropped
    staying = {each.number for each in rounds if each.role == "system"} | {rounds[-1].number}
    for number, messages in groupby(rounds, key=lambda each: each.number):
        if number not in staying and length > settings.text_low_tokens:
            length -= sum(each.length for each in messages)
            dropped.add(number)
    return dropped


def maintain_rounds(kv: KvHandle, window: WindowState, settings: WindowSettings) -> int:
    """Drop old rounds and return the tokens dropped. Source: docs/specification/model.md#5.8."""
    before = kv.length
    dropped = rounds_to_drop(window, before, settings)
    stop = sum(each.length for each in window.rounds)
    # From the end, so that earlier positions stay valid; adjacent rounds in one move.
    for is_dropped, run in groupby(reversed(window.rounds), lambda each: each.number in dropped):
        start = stop - sum(each.length for each in run)
        if is_dropped:
            kv.drop(start, stop)
        stop = start
    window.rounds = [each for each in window.rounds if each.number not in dropped]
    window.evictions += bool(dropped)
    return before - kv.length


@dataclass
class AudioInputState:
    """Input audio that is not in the language model's cache yet."""

    cache: AudioCache
    mel: MelState = field(default_factory=MelState)
    pending: Tensor = field(default_factory=lambda: torch.zeros(0))  # float32 [n], not consumed
    units: int = 0  # duplex units so far
    audio_units: int = 0  # units of audio encoded so far

    def clone(self) -> AudioInputState:
        return replace(
            self, mel=replace(self.mel), cache=self.cache.clone(), pending=self.pending.clone()
        )


@dataclass
class SpeechState:
    """The speaking half of a turn."""

    kv: KvHandle  # of the speech decoder; its length is the position of the next row
    codes: list[int] = field(default_factory=list)
    buffer: SpeechBuffer = field(default_factory=SpeechBuffer)  # codes without their look-ahead
    vocoder: SpeechStream | None = None  # voice and streaming caches; None for text output only


@dataclass
class UnitDraft:
    """Text of a unit until its terminators are in the cache."""

    ids: list[int] = field(default_factory=list)  # spoken, without the unit's first decision
    hidden: list[Tensor] = field(default_factory=list)  # state [1, hidden] of each id
    terminator: int | None = None  # id to feed when the unit is finalized
    is_listen: bool = False
    end_of_turn: bool = False
    barge_in: bool = False


@dataclass
class TurnState:
    has_ended: bool = True
    logits: Tensor | None = None  # [vocabulary] after the last prefill, until the decision
    unit_start: int | None = None  # cache length at the start of the open unit, if there is one
    pending: UnitDraft | None = None
    closing: tuple[int, ...] = ()  # ids that end the last unit, fed with the next prefill
    decisions: int = 0  # generate calls
    force_next_listen: bool = False  # set by a break; the next unit listens
    vision_slices: int = 0  # encoded in the open unit
    opening: TurnOpening = TurnOpening.FIRST  # how the next turn-based user piece goes on
    round: int = 0


@dataclass
class SamplerState:
    generator: torch.Generator
    history: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Rollback point of a turn-based conversation, for one use.

    Lengths of what can be truncated, copies of the rest.
    """

    kv_length: int
    audio_input: AudioInputState
    turn: TurnState
    window: WindowState
    history: tuple[int, ...]
    random_state: Tensor


@dataclass
class Session:
    """State of one conversation.

    `settings` are those of duplex, set by `prepare`. `stop` may be set by any thread; work ends at
    the next forward pass.
    """

    id: str
    kv: KvHandle
    audio_input: AudioInputState
    speech: SpeechState
    sampler: SamplerState
    window: WindowState = field(default_factory=WindowState)
    turn: TurnState = field(default_factory=TurnState)
    settings: DuplexSettings = field(default_factory=DuplexSettings)
    snapshot: Snapshot | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the conversation, including those fed with the next prefill."""
        return self.kv.length + len(self.turn.closing)

    def take_snapshot(self) -> None:
        self.snapshot = Snapshot(
            kv_length=self.kv.length,
            audio_input=self.audio_input.clone(),
            turn=replace(self.turn),
            window=self.window.clone(),
            history=tuple(self.sampler.history),
            random_state=self.sampler.generator.get_state(),
        )

    @property
    def can_rollback(self) -> bool:
        """Whether a snapshot exists and no tokens were dropped since."""
        point = self.snapshot
        return point is not None and point.window.evictions == self.window.evictions

    def rollback(self) -> int:
        """Restore and discard the snapshot; return the cache length in tokens.

        Raises:
            SnapshotError: there is no snapshot, or tokens were dropped since.
        """
        if self.snapshot is None or not self.can_rollback:
            raise SnapshotError("no valid rollback point: none taken, used up or evicted since")
        point, self.snapshot = self.snapshot, None
        self.kv.truncate(point.kv_length)
        self.audio_input, self.turn, self.window = point.audio_input, point.turn, point.window
        self.sampler.history = list(point.history)
        self.sampler.generator.set_state(point.random_state)
        self.reset_speech()
        return self.kv.length

    def reset_speech(self) -> None:
        """Discard the speech of the running turn, except the voice."""
        self.speech.kv.truncate(0)
        self.speech.codes = []
        self.speech.buffer = SpeechBuffer()
        if self.speech.vocoder is not None:
            with torch.inference_mode():  # its caches are inference tensors, written in place
                self.speech.vocoder.reset()

    def close(self) -> None:
        self.stop.set()
        self.kv.close()
        self.speech.kv.close()
        self.speech.vocoder = None
        cache = self.audio_input.cache
        cache.clear()
        self.audio_input = AudioInputState(cache.clone())  # without its storage
        self.turn = TurnState()
        self.snapshot = None


class SnapshotError(RuntimeError):
    """There is no valid point to roll back to."""
