/**
 * Base of both live sessions: a socket around a reducer. Pure.
 *
 * Emits codes, never texts. It owns no devices: the page passes chunks in, plays the audio of
 * `speak`, drops it on `flush`, and reports when everything was played.
 */

import { Emitter } from "../../shared/async.js";
import { endReason, messageText, queuePlace } from "../../shared/server-messages.js";
import { newSessionId, openSessionLink } from "../../shared/live-socket.js";
import { isOver } from "./session-state.js";

/** @import { EndReason } from "../../shared/server-messages.js" */
/** @import { Queued } from "../../../types/protocol.js" */
/** @import { SessionLink, WireMessage } from "../../shared/live-socket.js" */
/** @import { LinkOptions, SessionEvents } from "../../../types/duplex.js" */
/** @import { VisibilitySource } from "../../shared/page-visibility.js" */
/** @import { PhaseEvent, PhaseState } from "./session-state.js" */

/** For programs without a page. @type {VisibilitySource} */
const ALWAYS_SEEN = { isHidden: () => false, onChange: () => () => {}, onPageHide: () => () => {} };

/**
 * @template {PhaseState} State
 * @template {{type: string}} Event
 * @template {object} Given
 * @extends {Emitter<SessionEvents<State>>}
 */
export class LiveSession extends Emitter {
  /** @type {SessionLink | null} @protected */ link = null;
  /** @type {Given | null} */ #given = null;
  state; // immutable state of the session, replaced on each change
  #reduce;
  #options;
  /** @type {(() => void)[]} */ #offs = [];

  /**
   * @param {LinkOptions & {idPrefix: string}} options
   * @param {State} initial
   * @param {(state: State, event: Event | PhaseEvent) => State} reduce
   */
  constructor(options, initial, reduce) {
    super();
    this.state = initial;
    this.#reduce = reduce;
    this.#options = options;
    const { clock = { nowMs: () => performance.now(), unixMs: () => Date.now() }, visibility = ALWAYS_SEEN } = options;
    /** @protected */
    this.clock = clock;
    /** @protected */
    this.visibility = visibility;
    this.#offs.push(visibility.onChange((isHidden) => this.onVisibility(isHidden)));
    this.#offs.push(visibility.onPageHide(() => this.#drop()));
  }

  get isActive() {
    return this.state.phase !== "idle" && this.state.phase !== "ended";
  }

  /** `prepared` or `ended` follows; ignored while a session is active. @param {Given} given @returns {string} The session's id. */
  start(given) {
    if (this.isActive) return this.state.sessionId;
    const { idPrefix, url, socketFactory, probe, noteOwner } = this.#options;
    const sessionId = newSessionId(idPrefix, this.clock.unixMs());
    this.#given = given;
    this.link = openSessionLink({
      url: url(sessionId),
      socketFactory,
      noteOwner,
      probe,
      onMessage: (message) => this.#onMessage(message),
      onMalformed: () => this.warn("malformed_message"),
      onConnection: (isThere) => {
        this.warn(isThere ? "reconnected" : "reconnecting");
        if (isThere) this.onReturn();
      },
      onEnd: (reason) => this.#onEnd(reason),
    });
    this.apply({ type: "start", sessionId, nowMs: this.clock.nowMs() });
    this.onStarted();
    return sessionId;
  }

  /** Starts again with the same settings and a new id. @returns {string} The session's id; "" if none was started before. */
  restart() {
    return this.#given ? this.start(this.#given) : "";
  }

  stop() {
    const { phase } = this.state;
    this.leave(endReason(phase === "connecting" || phase === "queued" ? "cancelled" : "stopped"));
  }

  /** Ends at once and removes all listeners; the object must not be used afterwards. */
  close() {
    this.#drop();
    for (const off of this.#offs.splice(0)) off();
  }

  /** @param {EndReason} reason @protected */
  leave(reason) {
    if (!this.isActive || this.state.phase === "stopping") return;
    this.apply({ type: "stop_asked" });
    this.emit("flush", { cause: "stop" });
    this.onLeave();
    this.link?.leave(reason);
  }

  /** @param {string} code @param {string} [message] @param {number} [count] @protected */
  warn(code, message = "", count = 1) {
    this.emit("warning", { code, message, count });
  }

  /** @param {Event | PhaseEvent} event @returns {boolean} whether it changed anything @protected */
  apply(event) {
    const next = this.#reduce(this.state, event);
    if (next === this.state) return false;
    this.state = next;
    this.emit("state", next);
    return true;
  }

  #onMessage(/** @type {WireMessage} */ message) {
    const before = this.state;
    const times = { nowMs: this.clock.nowMs(), unixMs: this.clock.unixMs() };
    // The types describe what the server should send; the reducer validates each field.
    const isNew = this.apply(/** @type {Event} */ (/** @type {unknown} */ ({ type: "server", message, ...times })));
    if (message.type === "warning") return this.warn(String(message.code), messageText(message));
    if (message.type === "user_transcript" && message.error) this.warn("no_captions", String(message.error));
    if (!isNew) return;
    if (this.state.queue !== before.queue) this.emit("queue", this.state.queue);
    if (message.type === "queue_done") {
      this.emit("queuedone", null);
      this.link?.send(this.prepareMessage(/** @type {Given} */ (this.#given)));
    } else if (message.type === "prepared") {
      this.emit("prepared", message);
      this.onVisibility(this.visibility.isHidden());
    } else this.onTalk(message, before);
  }

  #drop() {
    if (!this.isActive) return;
    this.onLeave();
    this.link?.drop(endReason("page_left"));
  }

  #onEnd(/** @type {EndReason} */ reason) {
    this.onOver();
    this.link = null;
    const wasQueued = this.state.queue !== null;
    this.apply({ type: "ended", reason, nowMs: this.clock.nowMs() });
    if (wasQueued) this.emit("queue", null);
    this.emit("ended", { reason, state: this.state });
  }

  // Hook of the subclasses.

  /** @param {Given} given @returns {object} @protected */
  prepareMessage(given) {
    return { ...given, type: "prepare" };
  }

  /** @param {WireMessage} _message that changed the state @param {State} _before @protected */
  onTalk(_message, _before) {}

  /** @param {boolean} _isHidden @protected */
  onVisibility(_isHidden) {}

  /** @protected */
  onStarted() {}

  /** Another socket continues the session: what was sent while there was none is lost. @protected */
  onReturn() {}

  /** Called while the server can still receive messages. @protected */
  onLeave() {}

  /** @protected */
  onOver() {}
}

// The reducer common to both kinds, from start through queue to end; a strategy of each kind handles the
// running session.

/**
 * Strategy of a kind of session; each function returns the same state if an event does not apply.
 * @template {PhaseState & {activity: string}} State
 * @typedef {Object} Strategy
 * @property {() => State} initial
 * @property {(state: State) => State["activity"]} activityOf
 * @property {(state: State, event: any) => State} client events of the page and its devices; `any`: the kind's own events
 * @property {(state: State, event: any) => State} server messages that do not concern the phases; `any`: as above
 * @property {(message: any, nowMs: number) => Partial<State>} prepared initial values from `prepared`
 * @property {(state: State, type: "stop_asked" | "ended", nowMs: number) => Partial<State>} over
 */

/**
 * @template {PhaseState & {activity: string}} State
 * @template {{type: string}} Event
 * @param {Strategy<State>} strategy
 * @returns {(state: State, event: Event) => State} the next state; unchanged if the event does not apply
 */
export const sessionReducer = (strategy) => (state, event) => {
  const next = reduced(strategy, state, event);
  if (next === state) return state;
  const activity = strategy.activityOf(next);
  return activity === next.activity ? next : { ...next, activity };
};

/**
 * @template {PhaseState & {activity: string}} State
 * @param {Strategy<State>} strategy
 * @param {State} state
 * @param {any} event `any`: of the phases or the kind's own
 */
function reduced(strategy, state, event) {
  const { type, nowMs } = event;
  switch (type) {
    case "start":
      if (!isOver(state)) return state;
      return { ...strategy.initial(), phase: "connecting", sessionId: event.sessionId, startedAtMs: nowMs };
    case "stop_asked":
      if (isOver(state) || state.phase === "stopping") return state;
      return { ...state, phase: "stopping", queue: null, ...strategy.over(state, type, nowMs) };
    case "ended":
      if (isOver(state)) return state;
      return { ...state, phase: "ended", queue: null, end: event.reason, endedAtMs: nowMs, ...strategy.over(state, type, nowMs) };
    case "server": {
      const { message } = event;
      const change = messageChange(state, message, nowMs);
      if (!change) return strategy.server(state, event);
      return { ...state, ...change, ...(message.type === "prepared" && strategy.prepared(message, nowMs)) };
    }
    default:
      return strategy.client(state, event);
  }
}

/**
 * Changes by messages that both kinds of session receive; none if a message is out of place.
 * @param {PhaseState} state
 * @param {{type: string, code?: string, recording_session_id?: string | null} & Partial<Omit<Queued, "type">>} message
 * @param {number} nowMs
 */
function messageChange(state, message, nowMs) {
  const recordingSessionId = message.recording_session_id ?? null;
  const isWaiting = state.phase === "connecting" || state.phase === "queued";
  switch (message.type) {
    case "queued":
    case "queue_update":
      return isWaiting ? { phase: "queued", queue: queuePlace(message) } : null;
    case "queue_done":
      return isWaiting ? { phase: "preparing", queue: null } : null;
    case "prepared":
      return state.phase === "preparing" ? { phase: "running", preparedAtMs: nowMs, recordingSessionId } : null;
    case "stopped":
      return isOver(state) || !recordingSessionId ? null : { recordingSessionId };
    case "warning":
      return message.code === "context_nearly_full" && !isOver(state) ? { isContextNearlyFull: true } : null;
    default:
      return null;
  }
}
