/** What goes into a live call or session and what comes out. */

import type { AudioPlayer } from "../static/duplex/lib/audio-player.js";
import type { LiveProblem } from "../static/duplex/lib/call-state.js";
import type { CallParts } from "../static/duplex/lib/call.js";
import type { DuplexSession } from "../static/duplex/lib/duplex-session.js";
import type { UnitRecord } from "../static/duplex/lib/full-duplex.js";
import type { Network, WireMessage } from "../static/shared/live-socket.js";
import type { VisibilitySource } from "../static/shared/page-visibility.js";
import type { MicrophoneOptions } from "./devices.js";
import type { EndReason, QueuePlace } from "../static/shared/server-messages.js";
import type { DuplexPrepare, Result } from "./protocol.js";

/** Clocks; both only ever move on. */
export type SessionClock = {
  nowMs: () => number; // steady, for durations
  unixMs: () => number; // since 1970, for the drift against the server
};

/** What both kinds of session take. */
export type LinkOptions = Network & {
  idPrefix?: string; // `adx` for sound alone, `omni` with pictures, `hdx` half duplex
  isDrained?: () => boolean; // all sound handed to the player was played; default true
  clock?: SessionClock;
  visibility?: VisibilitySource; // pass `pageVisibility()`
};

export type DuplexSessionOptions = LinkOptions & {
  idPrefix: string; // chooses the queue
  getMaxKvTokens?: () => number; // the page's own limit; default 8192
  isAutoPauseOn?: () => boolean; // pause while the page is hidden; default on
  outputSampleRateHz?: number; // of the model's sound; default 24000
};

/** What a session begins with; `restart()` uses it again. */
export type DuplexStart = {
  systemPrompt: string;
  prepare?: Omit<DuplexPrepare, "type" | "prefix_system_prompt">; // all else of `prepare`
};

/** One unit's input. */
export type DuplexInput = {
  audio: Float32Array; // 16 kHz mono, `chunkMs` long
  maxSliceNums?: number; // for this unit
};

/** Something the model said in one unit, or a piece of a half-duplex answer. */
export type SpeakEvent = {
  text: string;
  audioBase64: string; // float32; "" if the session has no sound
  sampleRateHz: number;
  turnId: number;
  step: number;
  isTurnStart: boolean; // begin the playback of a new turn
  isTurnEnd: boolean; // no more comes of this turn
  arrivalMs: number;
};

/** Why sound not played yet is to be thrown away, with a short fade. */
export type FlushCause = "barge_in" | "interrupt" | "force_listen" | "stop";

/** Something was left out and the session continues. `upload_slow`, `frames_left_out` and `malformed_message` are the
 * client's own codes, all others the server's. */
export type SessionWarning = { code: string; message: string; count: number };

export type SessionEvents<State> = {
  state: State; // after every change
  queue: QueuePlace | null; // null when it waits no more
  queuedone: null; // a worker is there
  prepared: WireMessage; // start to capture now
  speak: SpeakEvent; // play this
  turnend: { turnId: number }; // the answer is complete; its sound may still be playing
  flush: { cause: FlushCause };
  result: { result: Result; unit: UnitRecord }; // each unit of full duplex, for meters and the timeline
  warning: SessionWarning;
  ended: { reason: EndReason; state: State };
};

/** `gated`: nobody may be heard now. */
export type SendOutcome = "sent" | "gated" | "upload_dropped" | "not_running";

/** Where the user's sound comes from: a `Microphone`, or a file in its place. Events: `chunk` {audio}, `level` {rms},
 * `feature`, `window`, `silent`, `audible`, `suspended`, `resumed`, and `ended` with an error (a device that went away) or
 * null (a file that is over). */
export type LiveSource = EventTarget & {
  start: () => void;
  stop: () => Promise<void>;
  close: () => Promise<void>;
  setFeatures: (isOn: boolean) => void;
  setWindows: (isOn: boolean) => void;
  recycle?: (audio: Float32Array) => void;
  pause?: () => void;
  resume?: () => void;
  output?: AudioNode | null;
  isMicrophone?: boolean;
  useMicrophone?: (wish: MicrophoneOptions) => Promise<void>; // of a file, in place of its own
};

/** What may change while the call continues, asked whenever it matters. */
export type CallSettings = {
  playbackDelayMs: number;
  speakerId: string; // "" for the system's own choice
};

export type LiveSettings = CallSettings & { maxKvTokens: number; isAutoPauseOn: boolean; isBargeInOn: boolean };

export type CallOptions<Session> = {
  parts: CallParts<Session>; // of the browser
  // Opens the microphone or file as the settings say; `before` was opened earlier in the same call, and may be returned again.
  openSource: (before: LiveSource | null) => Promise<LiveSource>;
  settings: () => CallSettings;
};

export type DuplexCallOptions = Omit<CallOptions<DuplexSession>, "settings"> & {
  settings: () => LiveSettings;
  maxSliceNums?: () => number; // tiles of each picture; the server's own choice when left out
};

/** What the devices do. */
export type DeviceState = {
  isStarting: boolean; // they are being opened
  isMuted: boolean;
  canMute: boolean; // there is a microphone to mute
  isHeld: boolean; // the answer waits because the user may be interrupting
};

export type CallEvents<State> = {
  state: State;
  devices: DeviceState;
  problem: LiveProblem; // stays until `solved` with its code, or a new start
  solved: { code: string };
  warning: SessionWarning;
  opened: { player: AudioPlayer; source: LiveSource }; // devices are open; meters may connect
  chunk: { audio: Float32Array }; // what goes to the model; not to be kept
  assigned: null; // the wait is over, a worker is there
  prepared: null; // the model listens now
  heard: null; // the user's turns grew
  ended: { reason: EndReason; state: State }; // everything is closed
};
