// @ts-check
/**
 * What goes into a call and what comes out of it. Pure: types alone.
 */

/** @typedef {import("./audio-player.js").AudioPlayer} AudioPlayer */
/** @typedef {import("./duplex-types.js").DuplexSessionOptions} DuplexSessionOptions */
/** @typedef {import("./duplex-types.js").SessionWarning} SessionWarning */
/** @typedef {import("./live-problems.js").LiveProblem} LiveProblem */
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
 * @typedef {Object} CallOptions
 * @property {() => Promise<LiveSource>} openSource opens the microphone or file as the settings say
 * @property {() => CallSettings} settings
 * @property {() => import("./wake-lock.js").WakeLock} [awaken] for tests
 * @property {(options: import("./audio-player.js").PlayerOptions) => AudioPlayer | Promise<AudioPlayer>} [makePlayer] for tests
 *
 * @typedef {Object} OwnDuplexOptions
 * @property {string} idPrefix of session ids: "adx" or "omni"
 * @property {() => LiveSettings} settings
 * @property {() => number} [maxSliceNums] tiles of each picture; the server's own choice when left out
 * @property {Pick<DuplexSessionOptions, "url" | "socketFactory" | "visibility" | "probe">} [session]
 *
 * @typedef {Omit<CallOptions, "settings"> & OwnDuplexOptions} DuplexCallOptions
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
 * @property {null} sourceended a file is over
 * @property {null} assigned the wait is over, a worker is there
 * @property {null} prepared the model listens now
 * @property {null} heard the user's turns grew
 * @property {{reason: EndReason, state: State}} ended everything is closed
 */

export {};
