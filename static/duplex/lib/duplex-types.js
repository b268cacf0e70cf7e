// @ts-check
/**
 * What goes into a full-duplex session and what comes out of it. Pure: types alone.
 */

/** @typedef {import("../../shared/protocol.js").DuplexPrepare} DuplexPrepare */
/** @typedef {import("../../shared/protocol.js").DuplexPrepared} DuplexPrepared */
/** @typedef {import("../../shared/protocol.js").Result} Result */
/** @typedef {import("../../shared/end-reasons.js").EndReason} EndReason */
/** @typedef {import("../../shared/end-reasons.js").ServerProbe} ServerProbe */
/** @typedef {import("../../shared/live-socket.js").SocketFactory} SocketFactory */
/** @typedef {import("../../shared/page-visibility.js").VisibilitySource} VisibilitySource */
/** @typedef {import("./session-state.js").SessionState} SessionState */
/** @typedef {import("../../shared/queue-place.js").QueuePlace} QueuePlace */
/** @typedef {import("./unit-log.js").UnitRecord} UnitRecord */

/** Clocks; both only ever move on.
 * @typedef {Object} SessionClock
 * @property {() => number} nowMs Steady, for durations.
 * @property {() => number} unixMs Since 1970, for the drift against the server.
 */

/** @typedef {Object} DuplexSessionOptions
 * @property {string} idPrefix `adx` for sound alone, `omni` with pictures; chooses the queue.
 * @property {string} [appId] As `/api/apps` calls it, to name why a socket was refused.
 * @property {() => number} [getMaxKvTokens] The page's own limit; default 8192.
 * @property {() => boolean} [isAutoPauseOn] Pause while the page is hidden; default on.
 * @property {() => boolean} [isDrained] All sound handed to the player was played; default true.
 * @property {number} [outputSampleRateHz] Of the model's sound; default 24000.
 * @property {(sessionId: string) => string} [url] Address of the socket.
 * @property {SocketFactory} [socketFactory]
 * @property {SessionClock} [clock]
 * @property {VisibilitySource} [visibility] Pass `pageVisibility()`.
 * @property {() => Promise<ServerProbe>} [probe]
 */

/** What a session begins with; `restart()` uses it again.
 * @typedef {Object} DuplexStart
 * @property {string} systemPrompt
 * @property {Omit<DuplexPrepare, "type" | "prefix_system_prompt">} [prepare] All else of `prepare`.
 */

/** One unit's input.
 * @typedef {Object} DuplexInput
 * @property {Float32Array} audio 16 kHz mono, `chunkMs` long.
 * @property {number} [maxSliceNums] For this unit.
 */

/** Something the model said in one unit.
 * @typedef {Object} SpeakEvent
 * @property {string} text
 * @property {string} audioBase64 float32; "" if the session has no sound.
 * @property {number} sampleRateHz
 * @property {number} turnId
 * @property {number} step
 * @property {boolean} isTurnStart Begin the playback of a new turn.
 * @property {boolean} isTurnEnd No more comes of this turn.
 * @property {number} arrivalMs
 */

/** Why sound not played yet is to be thrown away, with a short fade.
 * @typedef {"barge_in" | "interrupt" | "force_listen" | "stop"} FlushCause
 */

/** Something was left out and the session goes on. `upload_slow`, `frames_left_out` and
 * `malformed_message` are the client's own codes, all others the server's.
 * @typedef {{code: string, message: string, count: number}} SessionWarning
 */

/** @typedef {Object} DuplexEvents
 * @property {SessionState} state After every change.
 * @property {QueuePlace | null} queue A place in the queue; null when it waits no more.
 * @property {null} queuedone A worker is there.
 * @property {DuplexPrepared} prepared Start to capture now.
 * @property {SpeakEvent} speak Play this.
 * @property {{turnId: number}} turnend
 * @property {{cause: FlushCause}} flush
 * @property {{result: Result, unit: UnitRecord}} result Each unit, for meters and the timeline.
 * @property {SessionWarning} warning
 * @property {{reason: EndReason, state: SessionState}} ended
 */

/** @typedef {"sent" | "upload_dropped" | "not_running"} SendOutcome */

export {};
