// @ts-check
/** What goes into a live call or session, what is known of it and what comes out. Pure: types alone. */

/** @import { EndReason, QueuePlace } from "../../shared/server-messages.js" */
/** @import { Network, WireMessage } from "../../shared/live-socket.js" */
/** @import { VisibilitySource } from "../../shared/page-visibility.js" */
/** @import { DuplexPrepare, DuplexServerMessage, Result } from "../../../types/protocol.js" */
/** @import { AudioPlayer } from "./audio-player.js" */
/** @import { LiveProblem } from "./call-state.js" */
/** @import { CallParts } from "./call.js" */
/** @import { DuplexSession } from "./duplex-session.js" */
/** @import { PhaseEvent } from "./session-state.js" */
/** @import { UnitRecord } from "./unit-log.js" */

/** What happens to a session.
 * @typedef {PhaseEvent
 *  | {type: "server", message: DuplexServerMessage, nowMs: number, unixMs: number}
 *  | {type: "chunk_sent"}
 *  | {type: "picture_sent"}
 *  | {type: "chunk_dropped", why: "upload" | "idle"}
 *  | {type: "pause_asked", isAuto: boolean}
 *  | {type: "drained"}
 *  | {type: "resume_asked"}
 *  | {type: "interrupt_asked"}
 *  | {type: "force_listen", isOn: boolean}
 *  | {type: "playback", aheadMs: number, gapCount?: number, totalShiftMs?: number}
 *  | {type: "gap", gapMs: number}
 * } SessionEvent
 */

/** Clocks; both only ever move on.
 * @typedef {Object} SessionClock
 * @property {() => number} nowMs Steady, for durations.
 * @property {() => number} unixMs Since 1970, for the drift against the server.
 */

/** What both kinds of session take.
 * @typedef {Object} OwnLinkOptions
 * @property {string} [idPrefix] `adx` for sound alone, `omni` with pictures, `hdx` half duplex.
 * @property {() => boolean} [isDrained] All sound handed to the player was played; default true.
 * @property {SessionClock} [clock]
 * @property {VisibilitySource} [visibility] Pass `pageVisibility()`.
 *
 * @typedef {Network & OwnLinkOptions} LinkOptions
 */

/** @typedef {Object} OwnOptions
 * @property {string} idPrefix Chooses the queue.
 * @property {() => number} [getMaxKvTokens] The page's own limit; default 8192.
 * @property {() => boolean} [isAutoPauseOn] Pause while the page is hidden; default on.
 * @property {number} [outputSampleRateHz] Of the model's sound; default 24000.
 *
 * @typedef {LinkOptions & OwnOptions} DuplexSessionOptions
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

/** Something the model said in one unit, or a piece of a half-duplex answer.
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

/** Something was left out and the session continues. `upload_slow`, `frames_left_out` and
 * `malformed_message` are the client's own codes, all others the server's.
 * @typedef {{code: string, message: string, count: number}} SessionWarning
 */

/**
 * @template State
 * @typedef {Object} SessionEvents
 * @property {State} state After every change.
 * @property {QueuePlace | null} queue A place in the queue; null when it waits no more.
 * @property {null} queuedone A worker is there.
 * @property {WireMessage} prepared Start to capture now.
 * @property {SpeakEvent} speak Play this.
 * @property {{turnId: number}} turnend The answer is complete; its sound may still be playing.
 * @property {{cause: FlushCause}} flush
 * @property {{result: Result, unit: UnitRecord}} result Each unit of full duplex, for meters and the timeline.
 * @property {SessionWarning} warning
 * @property {{reason: EndReason, state: State}} ended
 */

/** @typedef {"sent" | "gated" | "upload_dropped" | "not_running"} SendOutcome `gated`: nobody may be heard now */

// What goes into a call and what comes out of it.

/**
 * Where the user's sound comes from: a `Microphone`, or a file in its place. Events: `chunk` {audio},
 * `level` {rms}, `feature`, `window`, `silent`, `audible`, `suspended`, `resumed`, and `ended` with an
 * error (a device that went away) or null (a file that is over).
 *
 * @typedef {EventTarget & {start: () => void, stop: () => Promise<void>, close: () => Promise<void>,
 *   setFeatures: (isOn: boolean) => void, setWindows: (isOn: boolean) => void,
 *   recycle?: (audio: Float32Array) => void, pause?: () => void, resume?: () => void,
 *   output?: AudioNode | null, isMicrophone?: boolean}} LiveSource
 */

/**
 * What may change while the call continues, asked whenever it matters.
 * @typedef {Object} CallSettings
 * @property {number} playbackDelayMs
 * @property {string} speakerId "" for the system's own choice
 *
 * @typedef {Object} DuplexSettings
 * @property {number} maxKvTokens
 * @property {boolean} isAutoPauseOn
 * @property {boolean} isBargeInOn
 *
 * @typedef {CallSettings & DuplexSettings} LiveSettings
 */

/**
 * @template Session
 * @typedef {Object} CallOptions
 * @property {CallParts<Session>} parts of the browser
 * @property {() => Promise<LiveSource>} openSource opens the microphone or file as the settings say
 * @property {() => CallSettings} settings
 */

/**
 * @typedef {Object} OwnDuplexOptions
 * @property {() => LiveSettings} settings
 * @property {() => number} [maxSliceNums] tiles of each picture; the server's own choice when left out
 *
 * @typedef {Omit<CallOptions<DuplexSession>, "settings"> & OwnDuplexOptions} DuplexCallOptions
 */

/**
 * What the devices do.
 * @typedef {Object} DeviceState
 * @property {boolean} isStarting they are being opened
 * @property {boolean} isMuted
 * @property {boolean} canMute there is a microphone to mute
 * @property {boolean} isHeld the answer waits because the user may be interrupting
 */

/**
 * @template State
 * @typedef {Object} CallEvents
 * @property {State} state
 * @property {DeviceState} devices
 * @property {LiveProblem} problem stays until `solved` with its code, or a new start
 * @property {{code: string}} solved
 * @property {SessionWarning} warning
 * @property {{player: AudioPlayer, source: LiveSource}} opened devices are open; meters may connect
 * @property {{audio: Float32Array}} chunk what goes to the model; not to be kept
 * @property {null} assigned the wait is over, a worker is there
 * @property {null} prepared the model listens now
 * @property {null} heard the user's turns grew
 * @property {{reason: EndReason, state: State}} ended everything is closed
 */

export {};
