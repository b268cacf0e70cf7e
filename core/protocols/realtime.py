"""OpenAI's Realtime protocol: session, input audio, items; turns ended by VAD, client or model.

Client events are handled in order of arrival, and none waits for the engine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from core.errors import BadPayloadError, SessionTimeoutError, ShuttingDownError, TooBigError
from core.protocols import events, openai_events
from core.protocols.effects import Effect, ScoreSpeech, StopTimer
from core.protocols.events import MS_PER_S, Event, Received, TimerName
from core.protocols.machine import SessionMachine, fails, timer
from core.protocols.realtime_input import LEVELS_PER_WINDOW, SpeechClosed, SpeechOpened
from core.protocols.realtime_items import ROOT, Content, item_of
from core.protocols.realtime_response import Response, truncated
from core.protocols.realtime_responses import (
    AS_CONFIGURED,
    CLIENT_CANCELLED,
    UNIT_EVENTS,
    ResponseMachine,
)
from core.protocols.tables import CLOSED, SAME, Row, index_rows
from core.schemas import realtime as messages
from core.schemas.openai_errors import FieldError, socket_code
from core.schemas.realtime_session import FunctionCallItem, FunctionOutputItem, ItemReference

MIN_COMMIT_MS: Final = 100
TRANSCRIPTION: Final = "conversation.item.input_audio_transcription"


class RealtimeMachine(ResponseMachine):
    # --- session ---

    def open(self, event: events.Opened) -> list[Effect]:
        self._choose_engine()
        conversation = {"id": self._start.conversation_id, "object": "realtime.conversation"}
        return [
            *self._event("session.created", session=self._wire()),
            *self._event("conversation.created", conversation=conversation),
            *timer(TimerName.SESSION, self._limits.max_session_s),
        ]

    def update(self, event: Received[messages.SessionUpdate]) -> list[Effect]:
        message = event.message
        before, after = self._config, self._config.patched(message.session)
        if self._state.audible_until_s > 0 and after.output.voice != before.output.voice:
            text = "The voice cannot be changed once the session has produced audio."
            return self._wrong(event, "cannot_update_voice", text, "session.audio.output.voice")
        if message.session.tool_choice is not None and not after.output.can_choose:
            return self._no_tool(event, "session")
        is_input_changed = (before.turn_detection, before.input_format) != (
            after.turn_detection,
            after.input_format,
        )
        effects = self._end_open_segment() if is_input_changed else []
        self._config = after
        if before.prompt(has_items=True) != after.prompt(has_items=True):
            self._changed()
        if is_input_changed:
            self._audio.use(after.input_format, after.turn_detection)
            if before.turn_detection is None:
                self._audio.segmenter.start_at(self._audio.end_ms)
            effects.append(StopTimer(TimerName.IDLE))
        rules = after.turn_detection
        if rules is None or not rules.create_response:
            self._audio.is_unanswered = False
            effects += self._expect_no_response()
        effects += [*self._choose_engine(), *self._event("session.updated", session=self._wire())]
        return [*effects, *self._respond_or_wait()] if is_input_changed else effects

    def reject(self, event: events.Rejected) -> list[Effect]:
        """Report an invalid event; the session continues unless it is too big."""
        problem = event.error
        if isinstance(problem, FieldError):
            code, text, param = problem.openai_code, problem.message, problem.param
            sent = openai_events.error(code, text, param=param, event_id=problem.event_id)
            return self._send(sent)
        if isinstance(problem, BadPayloadError) and not isinstance(problem, TooBigError):
            return self._send(openai_events.error("invalid_event", problem.message))
        return self.fail(problem)

    # --- input audio ---

    def append(self, event: Received[messages.BufferAppend]) -> list[Effect]:
        message = event.message
        audio = self._audio
        if audio.is_too_far_behind:
            text = "Audio arrives faster than it can be processed; this append is dropped."
            return self._wrong(event, "rate_limit_exceeded", text)
        is_scored = self._state.is_live or self._config.turn_detection is not None
        audio.append(message.audio, is_scored=is_scored)
        return self._score_next()

    def score(self, event: events.SpeechScored) -> list[Effect]:
        audio, rules, effects = self._audio, self._config.turn_detection, list[Effect]()
        audio.is_scoring = False
        levels = event.levels
        if rules is not None:
            for probability in event.probabilities:
                of_window, levels = levels[:LEVELS_PER_WINDOW], levels[LEVELS_PER_WINDOW:]
                is_audible = event.at_s < self._state.audible_until_s
                match audio.segmenter.process(probability, rules, of_window, is_audible=is_audible):
                    case SpeechOpened(start_ms):
                        effects += self._speech_began(start_ms)
                    case SpeechClosed(end_ms):
                        effects += self._speech_ended(end_ms)
            if event.at_s < self._state.audible_until_s:
                if opened := audio.segmenter.process_partial(levels, rules):
                    effects += self._speech_began(opened.start_ms)
        if self._state.is_live:
            self.units.buffer.append(event.samples, event.at_s)
            effects += [] if self.units.waits_for_audio else self._continue()
        return [*effects, *self._score_next()]

    def item_transcribed(self, event: events.ItemTranscribed) -> list[Effect]:
        """Send and store the transcript, unless the item was deleted or replaced meanwhile."""
        item = self._store.get(event.item_id)
        if item is None or [part.type for part in item.content] != ["input_audio"]:
            return []
        where = {"item_id": item.id, "content_index": 0}
        if event.problem is not None:
            code, text = socket_code(event.problem.code), event.problem.message
            error = {"type": "server_error", "code": code, "message": text}
            return self._event(f"{TRANSCRIPTION}.failed", **where, error=error)
        [part] = item.content
        duration_ms = 0 if part.audio is None else part.audio.duration_ms
        self._store.put(replace(item, content=(replace(part, text=event.text),)))
        usage = {"type": "duration", "seconds": duration_ms / MS_PER_S}
        kind = f"{TRANSCRIPTION}.completed"
        return self._event(kind, **where, transcript=event.text, usage=usage)

    def commit(self, event: Received[Any]) -> list[Effect]:
        """Make an item of the buffered audio; an open segment ends without its own event."""
        held_ms = self._audio.held_ms
        if held_ms < MIN_COMMIT_MS:
            text = (
                "Error committing input audio buffer: buffer too small. Expected at least 100ms "
                f"of audio, but buffer only has {held_ms:.2f}ms of audio."
            )
            return self._wrong(event, "input_audio_buffer_commit_empty", text)
        was_open = self._audio.is_open
        effects = self._commit(self._audio.end_ms)
        return [*effects, *self._respond_or_wait()] if was_open else effects

    def clear(self, event: Event) -> list[Effect]:
        was_open = self._audio.is_open
        self._audio.drop()
        effects = self._event("input_audio_buffer.cleared")
        # The start of the speech stopped the idle timer; between segments it is not touched.
        return [*effects, *self._respond_or_wait()] if was_open else effects

    def clear_output(self, event: Event) -> list[Effect]:
        """Note that playback ended; the client itself holds unplayed audio."""
        self._end_playback()
        response_id = self._active.id if self._active is not None else ""
        return self._event("output_audio_buffer.cleared", response_id=response_id)

    def break_silence(self, event: events.TimerFired) -> list[Effect]:
        rules = self._config.turn_detection
        if self._active is not None or self._audio.is_open or rules is None:
            return []
        end_ms = self._audio.end_ms
        start_ms = max(0, end_ms - (rules.idle_timeout_ms or 0))
        item_id = self._start.new_id("item")
        self._audio.open(item_id, start_ms)
        span = {"audio_start_ms": start_ms, "audio_end_ms": end_ms, "item_id": item_id}
        sent = self._event("input_audio_buffer.timeout_triggered", **span)
        return [*sent, *self._commit(end_ms), *self._respond()]

    def append_image(self, event: Received[messages.InputImageAppend]) -> list[Effect]:
        if not self._state.is_live:
            text = "Pictures outside items require a model that decides when to speak."
            return self._wrong(event, "invalid_event", text)
        return self._add_pictures([Content("input_image", picture=event.message.image)])

    # --- items ---

    def create_item(self, event: Received[messages.ItemCreate]) -> list[Effect]:
        message, given = event.message, event.message.item
        item_id = given.id or self._start.new_id("item")
        after, store = message.previous_item_id, self._store
        if item_id in store:
            text = f"Item '{item_id}' exists already."
            return self._wrong(event, "item_create_duplicate_item_id", text, "item.id")
        if after not in (None, ROOT) and after not in store:
            text = f"There is no item '{after}' to insert this one after."
            code = "item_create_invalid_previous_item_id"
            return self._wrong(event, code, text, "previous_item_id")
        if isinstance(given, FunctionOutputItem) and not store.has_call(given.call_id):
            return self._no_call(event, given, "item")
        item = item_of(given, item_id, self._config.input_format)
        added = self._added(item, store.add(item, after))
        if not item.is_picture:
            self._changed()
        return [*added, *self._add_pictures(item.content)]

    def retrieve_item(self, event: Received[messages.ItemCommand]) -> list[Effect]:
        message = event.message
        item = self._store.get(message.item_id)
        if item is None:
            return self._no_item(event, "retrieve", message.item_id)
        return self._event("conversation.item.retrieved", item=item.wire(with_audio=True))

    def truncate_item(self, event: Received[messages.ItemTruncate]) -> list[Effect]:
        message = event.message
        item, active = self._store.get(message.item_id), self._active
        if item is None:
            return self._no_item(event, "truncate", message.item_id)
        is_spoken = any(part.type == "output_audio" for part in item.content)
        is_growing = active is not None and active.open_item_id == item.id
        if item.role != "assistant" or not (is_spoken or is_growing):
            text = "Only model output audio messages can be truncated."
            return self._wrong(event, "unsupported_content_type", text, "item_id")
        if is_growing and active is not None:
            active.played_ms = message.audio_end_ms
        else:
            cut = truncated(item, message.audio_end_ms)
            self._store.put(cut)
            if cut.text != item.text:
                self._changed()
        self._end_playback()
        where = {"item_id": item.id, "content_index": message.content_index}
        kind = "conversation.item.truncated"
        return self._event(kind, **where, audio_end_ms=message.audio_end_ms)

    def delete_item(self, event: Received[messages.ItemCommand]) -> list[Effect]:
        message = event.message
        if message.item_id not in self._store:
            return self._no_item(event, "delete", message.item_id)
        del self._store[message.item_id]
        self._changed()
        return self._event("conversation.item.deleted", item_id=message.item_id)

    # --- responses ---

    def create_response(self, event: Received[messages.ResponseCreate]) -> list[Effect]:
        patch = event.message.response or AS_CONFIGURED
        is_outside = patch.conversation == "none"
        if not is_outside and self._active is not None:
            text = f"Conversation already has an active response in progress: {self._active.id}."
            return self._wrong(event, "conversation_already_has_active_response", text)
        if is_outside and len(self._outside) >= self._limits.max_outside:
            text = f"{self._limits.max_outside} responses are queued already."
            return self._wrong(event, "rate_limit_exceeded", text)
        given = [item for item in patch.input or () if isinstance(item, FunctionCallItem)]
        calls = {item.call_id or item.id for item in given}
        for index, item in enumerate(patch.input or ()):
            if isinstance(item, ItemReference) and item.id not in self._store:
                text = f"There is no item '{item.id}'."
                return self._wrong(event, "invalid_value", text, "response.input")
            if isinstance(item, FunctionOutputItem) and item.call_id not in calls:
                if not self._store.has_call(item.call_id):
                    return self._no_call(event, item, f"response.input[{index}]")
        output = self._config.for_response(patch)
        if patch.tool_choice is not None and not output.can_choose:
            return self._no_tool(event, "response")
        if not is_outside:
            return [*self._end_open_segment(), *self._respond(patch)]
        response = Response(output, self._start.new_id, None, patch.metadata)
        items = self._given_items(patch)
        response.items = tuple(self._store.values()) if items is None else items
        self._outside.append(response)
        return [*self._send(response.created()), *self._make_next()]

    def cancel_response(self, event: Received[messages.ResponseCancel]) -> list[Effect]:
        response_id = event.message.response_id
        wanted = [one for one in self._responses if response_id in (None, one.id)]
        if not wanted:
            text = "Cancellation failed: no active response found."
            return self._wrong(event, "response_cancel_not_active", text)
        if not wanted[0].is_outside:
            self._end_playback()
        return self._cut(wanted[0], CLIENT_CANCELLED)

    def stop(self, event: Event) -> list[Effect]:
        return [] if self._active is None else self._cut(self._active, CLIENT_CANCELLED)

    def answer_is_due(self, event: events.TimerFired) -> list[Effect]:
        if not self._state.is_live or self._active is not None or self._audio.is_open:
            return []
        return self._respond()

    def _speech_began(self, start_ms: int) -> list[Effect]:
        item_id = self._start.new_id("item")
        self._audio.open(item_id, start_ms)
        kind = "input_audio_buffer.speech_started"
        sent = self._event(kind, audio_start_ms=start_ms, item_id=item_id)
        effects: list[Effect] = [StopTimer(TimerName.IDLE), *self._expect_no_response(), *sent]
        rules = self._config.turn_detection
        if self._active is None or rules is None or not rules.interrupt_response:
            return effects
        self._end_playback()
        return [*effects, *self._cut(self._active, "turn_detected")]

    def _speech_ended(self, end_ms: int) -> list[Effect]:
        rules = self._config.turn_detection
        effects = self._end_segment(end_ms)
        if rules is None or not rules.create_response:
            return [*effects, *self._respond_or_wait()]
        if self._state.is_live:
            return [*effects, *self._expect_response()]
        if self._active is None:
            return [*effects, *self._respond()]
        self._audio.is_unanswered = True
        return effects

    def _end_playback(self) -> None:
        """Note that the client plays nothing more of what it was sent."""
        self._state.audible_until_s = min(self._state.audible_until_s, self._state.now_s)

    def _score_next(self) -> list[Effect]:
        pcm = self._audio.next_to_score()
        return [ScoreSpeech(pcm, self._audio.format)] if pcm else []

    def _no_call(self, event: Received[Any], given: FunctionOutputItem, path: str) -> list[Effect]:
        text = f"Tool call ID '{given.call_id}' not found in conversation."
        return self._wrong(event, "invalid_tool_call_id", text, f"{path}.call_id")

    def _no_tool(self, event: Received[Any], where: str) -> list[Effect]:
        text = "No tool has the name that tool_choice gives."
        return self._wrong(event, "invalid_value", text, f"{where}.tool_choice")

    def _no_item(self, event: Received[Any], verb: str, item_id: str) -> list[Effect]:
        text = f"There is no item '{item_id}'."
        return self._wrong(event, f"item_{verb}_invalid_item_id", text, "item_id")


MACHINE: Final = RealtimeMachine
RUNNING: Final = "idle responding"
EITHER: Final = f"{SAME} {RUNNING}"
OF_UNITS: Final = " ".join([*(event.KIND for event in UNIT_EVENTS), "frame_timer"])
EXPIRED: Final = fails(SessionTimeoutError, "The session has reached its longest duration.")
SHUT_DOWN: Final = fails(ShuttingDownError, "The server is shutting down.")

TABLE: Final = (
    Row("idle", "opened", SAME, MACHINE.open),
    Row(RUNNING, "session.update", EITHER, MACHINE.update),
    Row(RUNNING, "input_audio_buffer.append", SAME, MACHINE.append),
    Row(RUNNING, "speech_scored", EITHER, MACHINE.score),
    Row(RUNNING, "input_image_buffer.append", SAME, MACHINE.append_image),
    Row(RUNNING, OF_UNITS, f"{EITHER} {CLOSED}", MACHINE.unit_event),
    Row(RUNNING, "pace_timer", EITHER, MACHINE.fill),
    Row(RUNNING, "answer_timer", EITHER, MACHINE.answer_is_due),
    Row(RUNNING, "item_transcribed", SAME, MACHINE.item_transcribed),
    Row(RUNNING, "input_audio_buffer.commit", EITHER, MACHINE.commit),
    Row(RUNNING, "input_audio_buffer.clear", EITHER, MACHINE.clear),
    Row(RUNNING, "output_audio_buffer.clear", SAME, MACHINE.clear_output),
    Row(RUNNING, "idle_timer", EITHER, MACHINE.break_silence),
    Row(RUNNING, "conversation.item.create", SAME, MACHINE.create_item),
    Row(RUNNING, "conversation.item.retrieve", SAME, MACHINE.retrieve_item),
    Row(RUNNING, "conversation.item.truncate", SAME, MACHINE.truncate_item),
    Row(RUNNING, "conversation.item.delete", SAME, MACHINE.delete_item),
    Row(RUNNING, "response.create", EITHER, MACHINE.create_response),
    Row(RUNNING, "response.cancel", EITHER, MACHINE.cancel_response),
    Row(RUNNING, "stop_requested", EITHER, MACHINE.stop),
    Row(RUNNING, "chunk_ready", EITHER, MACHINE.chunk),
    Row(RUNNING, "generate_done", EITHER, MACHINE.generated),
    Row(RUNNING, "turn_failed", f"{EITHER} {CLOSED}", MACHINE.failed),
    Row(RUNNING, "session_timer", CLOSED, EXPIRED),
    Row(RUNNING, "engine_failed", CLOSED, MACHINE.engine_failed),
    Row(RUNNING, "rejected", f"{SAME} {CLOSED}", MACHINE.reject),
    Row(RUNNING, "engine_warning", SAME, SessionMachine.ignore),
    Row(RUNNING, "disconnected", CLOSED, SessionMachine.leave),
    Row(RUNNING, "shutting_down", CLOSED, SHUT_DOWN),
)
"""All transitions. A `stop_requested` without a response stops nothing; warnings are logged."""

RealtimeMachine.rows = index_rows(TABLE)
