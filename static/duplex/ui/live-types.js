// @ts-check
/**
 * What goes into a live call and what comes out of it. Pure: types alone.
 */

/** @typedef {import("../lib/session-state.js").SessionState} SessionState */
/** @typedef {import("../lib/live-problems.js").LiveProblem} LiveProblem */
/** @typedef {import("../lib/duplex-types.js").SessionWarning} SessionWarning */
/** @typedef {import("../../shared/end-reasons.js").EndReason} EndReason */

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
 * What may change while the call goes on, asked whenever it matters.
 * @typedef {Object} LiveSettings
 * @property {number} maxKvTokens
 * @property {number} playbackDelayMs
 * @property {boolean} isAutoPauseOn
 * @property {boolean} isBargeInOn
 * @property {string} speakerId "" for the system's own choice
 */

/**
 * @typedef {Object} LiveCallOptions
 * @property {string} idPrefix of session ids: "adx" or "omni"
 * @property {() => Promise<LiveSource>} openSource opens the microphone or file as the settings say
 * @property {() => LiveSettings} settings
 * @property {() => number} [maxSliceNums] tiles of each picture; the server's own choice when left out
 * @property {Pick<import("../lib/duplex-types.js").DuplexSessionOptions, "url" | "socketFactory" | "visibility" | "probe">} [session]
 */

/**
 * What the devices do.
 * @typedef {Object} DeviceState
 * @property {boolean} isStarting they are being opened
 * @property {boolean} isMuted
 * @property {boolean} canMute there is a microphone to mute
 * @property {boolean} isHeld the answer waits because the user may be interrupting
 */

/** @typedef {Object} LiveCallEvents
 * @property {SessionState} state
 * @property {DeviceState} devices
 * @property {LiveProblem} problem stays until `solved` with its code, or a new start
 * @property {{code: string}} solved
 * @property {SessionWarning} warning
 * @property {{player: import("../lib/audio-player.js").AudioPlayer, source: LiveSource, sendPicture: (base64: string) => boolean}} opened
 *   devices are open; meters may connect. `sendPicture` sends one ahead of its unit and tells whether it went out
 * @property {{audio: Float32Array}} chunk what goes to the model while it listens; not to be kept
 * @property {null} sourceended a file is over
 * @property {null} assigned the wait is over, a worker is there
 * @property {null} prepared the model listens now
 * @property {null} heard the user's turns grew
 * @property {{reason: EndReason, state: SessionState}} ended everything is closed
 */

export {};
