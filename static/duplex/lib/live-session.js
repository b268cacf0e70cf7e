/**
 * Base of both live sessions: one conversation over a socket, or over several where one was lost. Pure.
 *
 * Emits codes, never texts. It owns no devices: the page passes chunks in, plays the audio of
 * `speak`, drops it on `flush`, and reports when everything was played.
 */

import { Emitter } from "../../shared/async.js";
import { LOST_CODES, newSessionId, openLiveSocket, retryDelayMs } from "../../shared/live-socket.js";
import { endReason, messageText, needsProbe, queuePlace, reasonOfClose, reasonOfError } from "../../shared/server-messages.js";
import { isOver } from "./session-state.js";

/** @import { LiveSocket, SocketFactory, WireMessage } from "../../shared/live-socket.js" */
/** @import { EndReason, SocketEnd } from "../../shared/server-messages.js" */
/** @import { LinkOptions, SessionEvents } from "../../../types/duplex.js" */
/** @import { VisibilitySource } from "../../shared/page-visibility.js" */
/** @import { PhaseState } from "./session-state.js" */

/** For programs without a page. @type {VisibilitySource} */
const ALWAYS_SEEN = { isHidden: () => false, onChange: () => () => {}, onPageHide: () => () => {} };
const STOP_LIMIT_MS = 8_000; // how long the server has to answer `stop`; it waits up to 5 s for a running unit itself
const TRIES = 40; // to stop a lost session, for about a minute, after which the server keeps none
const MS_PER_S = 1_000;

/** Connection of an active session. @typedef {ReturnType<typeof newLink>} Link */
const newLink = (/** @type {string} */ url) => ({
  url,
  socket: /** @type {LiveSocket | null} */ (null),
  wished: /** @type {EndReason | null} */ (null), // why the session is being left
  offer: /** @type {{token: string, graceS: number} | null} */ (null), // how to come back
  lastSeq: 0,
  place: /** @type {Record<string, string>} */ ({}), // query of the next socket, which returns to the place in the queue
  lostAtMs: /** @type {number | null} */ (null),
  tries: 0,
  lastError: /** @type {EndReason | null} */ (null), // applies if the server does not start again
  timer: /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined), // of the next try, or of the end
});

/** URL of the first socket, or of one that continues the session. @param {Link} link */
function socketUrl({ url, offer, lastSeq, place }) {
  const made = new URL(url);
  const query = offer ? { resume_token: offer.token, last_seq: String(lastSeq), ...place } : { resumable: "1" };
  for (const [name, value] of Object.entries(query)) made.searchParams.set(name, value);
  return made.href;
}

/** Stops a session that was left while its socket was lost, so that its worker is free for the next one. */
function stopOnReturn(/** @type {Link} */ link, /** @type {SocketFactory} */ factory, tries = 0) {
  const handlers = {
    onMessage: (/** @type {WireMessage} */ { type }) => {
      if (type === "session_resumed") socket.send({ type: "stop" }); // the server drops what comes before
    },
    onClosed: (/** @type {SocketEnd} */ { closeCode }) => {
      if (LOST_CODES.has(closeCode) && tries < TRIES) setTimeout(stopOnReturn, retryDelayMs(tries), link, factory, tries + 1);
    },
  };
  const socket = openLiveSocket(socketUrl(link), handlers, factory);
}

/**
 * @template {PhaseState & {activity: string}} State
 * @template {object} Given
 * @extends {Emitter<SessionEvents<State>>}
 */
export class LiveSession extends Emitter {
  state; // immutable state of the session, replaced on each change
  /** @type {Link | null} */ #link = null;
  /** @type {Given | null} */ #given = null;
  #initial;
  #activityOf;
  #options;
  #offs;

  /** @param {LinkOptions & {idPrefix: string}} options @param {() => State} initial @param {(state: State) => State["activity"]} activityOf */
  constructor(options, initial, activityOf) {
    super();
    this.#initial = initial;
    this.#activityOf = activityOf;
    this.state = initial();
    this.#options = options;
    const { clock = { nowMs: () => performance.now(), unixMs: () => Date.now() }, visibility = ALWAYS_SEEN } = options;
    /** @protected */
    this.clock = clock;
    /** @protected */
    this.visibility = visibility;
    this.#offs = [visibility.onChange((isHidden) => this.onVisibility(isHidden)), visibility.onPageHide(() => this.#drop())];
  }

  get isActive() {
    return !isOver(this.state);
  }

  /** `prepared` or `ended` follows; ignored while a session is active. @param {Given} given @returns {string} The session's id. */
  start(given) {
    if (this.isActive) return this.state.sessionId;
    const sessionId = newSessionId(this.#options.idPrefix, this.clock.unixMs());
    this.#given = given;
    this.#link = newLink(this.#options.url(sessionId));
    this.#connect(this.#link);
    this.change({ ...this.#initial(), phase: "connecting", sessionId, startedAtMs: this.clock.nowMs() });
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

  /** Asks the server to stop; ends with this reason. @param {EndReason} reason @protected */
  leave(reason) {
    const link = this.#link;
    if (!link || link.wished) return;
    link.wished = reason;
    this.change({ phase: "stopping", isLost: false, queue: null, ...this.endChange(null) });
    this.emit("flush", { cause: "stop" });
    this.onLeave();
    if (this.send({ type: "stop" }) > 0) link.timer = setTimeout(() => this.#end(reason), STOP_LIMIT_MS);
    else {
      this.#end(reason);
      if (link.lostAtMs !== null) stopOnReturn(link, this.#options.socketFactory);
    }
  }

  /** The same without waiting for the server's answer. */
  #drop() {
    if (!this.#link) return;
    this.onLeave();
    if (!this.#link.wished) this.send({ type: "stop" });
    this.#end(endReason("page_left"));
  }

  /** @param {string} code @param {string} [message] @param {number} [count] @protected */
  warn(code, message = "", count = 1) {
    this.emit("warning", { code, message, count });
  }

  /** @param {Partial<State> | Partial<PhaseState>} change @protected */
  change(change) {
    const { queue } = this.state;
    const next = { ...this.state, ...change };
    next.activity = this.#activityOf(next);
    this.state = next;
    this.emit("state", next);
    if (next.queue !== queue) this.emit("queue", next.queue);
  }

  /** Whether the server hears what is sent now. @protected */
  get isConnected() {
    return this.#link?.lostAtMs === null && this.#link.socket?.isOpen() === true;
  }

  /** @protected */
  get bufferedBytes() {
    return this.#link?.socket?.bufferedBytes() ?? 0;
  }

  /** @param {object} message @returns {number} of characters sent; 0 without an open socket @protected */
  send(message) {
    return this.#link?.socket?.send(message) ?? 0;
  }

  #connect(/** @type {Link} */ link) {
    const handlers = {
      onMessage: (/** @type {WireMessage} */ message) => this.#onMessage(link, message),
      onMalformed: () => this.warn("malformed_message"),
      onClosed: (/** @type {SocketEnd} */ end) => void this.#onClosed(link, end),
    };
    link.socket = openLiveSocket(socketUrl(link), handlers, this.#options.socketFactory);
  }

  #onMessage(/** @type {Link} */ link, /** @type {WireMessage} */ message) {
    this.#options.noteOwner?.(message);
    if (message.type === "error") {
      const reason = reasonOfError(message);
      const isConsequence = message.code === "session_expired"; // of the server's end, if that was said before
      if (isConsequence && link.lastError) return this.#end(link.lastError);
      if (!link.offer || message.code !== "shutting_down") return this.#end(reason);
      link.lastError = reason;
      return;
    }
    if (message.type === "timeout") {
      const kind = typeof message.reason === "string" ? message.reason : "inactivity";
      return this.#end(endReason("timeout", messageText(message), kind));
    }
    if (typeof message.seq === "number") link.lastSeq = message.seq;
    if (message.return_ticket) link.place = { ticket: String(message.return_ticket) };
    if (message.type === "session_resumable") {
      link.offer = { token: String(message.resume_token), graceS: Number(message.grace_s) };
      return;
    }
    if (link.lostAtMs !== null) {
      Object.assign(link, { lostAtMs: null, lastError: null, tries: 0 });
      this.change({ isLost: false });
      this.warn("reconnected");
      this.onReturn();
    }
    this.#follow(message);
    if (message.type === "stopped") this.#end(endReason("stopped"));
  }

  /** @param {any} message `any`: the types describe what the server should send; each field is validated */
  #follow(message) {
    const { phase } = this.state;
    const isWaiting = phase === "connecting" || phase === "queued";
    const recordingSessionId = message.recording_session_id ?? null;
    switch (message.type) {
      case "queued":
      case "queue_update":
        if (isWaiting) this.change({ phase: "queued", queue: queuePlace(message) });
        return;
      case "queue_done":
      case "session_resumed":
        if (isWaiting) {
          this.change({ phase: "preparing", queue: null });
          this.emit("queuedone", null);
        } else if (phase !== "preparing" || message.type === "queue_done") return;
        // Also if it was sent before: it may be lost with the socket, and a second one is only warned about.
        this.send(this.prepareMessage(/** @type {Given} */ (this.#given)));
        return;
      case "prepared":
        if (phase !== "preparing") return;
        this.change({ phase: "running", preparedAtMs: this.clock.nowMs(), recordingSessionId, ...this.preparedChange(message) });
        this.emit("prepared", message);
        this.onVisibility(this.visibility.isHidden());
        return;
      case "stopped":
        if (recordingSessionId) this.change({ recordingSessionId });
        return;
      case "warning":
        if (message.code === "already_prepared") return; // `prepare` was sent again
        if (message.code === "context_nearly_full") this.change({ isContextNearlyFull: true });
        this.onTalk(message);
        return this.warn(String(message.code), messageText(message));
      default:
        this.onTalk(message);
        if (message.type === "user_transcript" && message.error) this.warn("no_captions", String(message.error));
    }
  }

  async #onClosed(/** @type {Link} */ link, /** @type {SocketEnd} */ end) {
    if (link.wished) return this.#end(link.wished);
    if (link.offer && LOST_CODES.has(end.closeCode) && this.#comesBack(link, link.offer)) return;
    if (link.lastError) return this.#end(link.lastError);
    const probe = needsProbe(end) ? await this.#options.probe() : null;
    if (link === this.#link) this.#end(reasonOfClose(end, probe));
  }

  /** The first attempt is made regardless of the time limit. @param {Link} link @param {{graceS: number}} offer */
  #comesBack(link, { graceS }) {
    const nowMs = this.clock.unixMs();
    if (link.lostAtMs === null) {
      link.lostAtMs = nowMs;
      this.change({ isLost: true });
      this.warn("reconnecting");
    } else if (nowMs - link.lostAtMs > graceS * MS_PER_S) return false;
    link.timer = setTimeout(() => this.#connect(link), retryDelayMs(link.tries));
    link.tries += 1;
    return true;
  }

  /** @param {EndReason} reason unless the session is being left for another */
  #end(reason) {
    const link = this.#link;
    if (!link) return;
    this.#link = null;
    clearTimeout(link.timer);
    link.socket?.close();
    this.onOver();
    const [end, endedAtMs] = [link.wished ?? reason, this.clock.nowMs()];
    this.change({ phase: "ended", isLost: false, queue: null, end, endedAtMs, ...this.endChange(endedAtMs) });
    this.emit("ended", { reason: end, state: this.state });
  }

  // Hooks of the subclasses.

  /** @param {Given} given @returns {object} @protected */
  prepareMessage(given) {
    return { ...given, type: "prepare" };
  }

  /** @param {any} _message `prepared`; `any`: as above @returns {Partial<State>} @protected */
  preparedChange(_message) {
    return {};
  }

  /** @param {number | null} _endedAtMs null: it is only being left @returns {Partial<State>} @protected */
  endChange(_endedAtMs) {
    return {};
  }

  /** @param {any} _message other than those above; `any`: as above @protected */
  onTalk(_message) {}

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
