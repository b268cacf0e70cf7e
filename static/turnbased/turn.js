/** A turn of the chat: settings as protocol fields, progress from sending to its end, figures. Pure. */

import { GENERATE_DEFAULTS, GENERATE_RANGES } from "../shared/protocol.js";
import { choiceField, flagField, numberField } from "../shared/settings-store.js";
import { base64ToBytes, base64ToFloats, encodeWav, joinChunks } from "../shared/pcm.js";
import { numberOr0, queuePlace } from "../shared/server-messages.js";

/** @import { Chunk, Generate, Message, Prefill, StreamingServerMessage, TokenStats } from "../../types/protocol.js" */
/** @import { SettingsStore } from "../shared/settings-store.js" */
/** @import { ChatSettings } from "../../types/chat.js" */
/** @import { QueuePlace } from "../shared/server-messages.js" */
/** @import { Voice } from "./conversation.js" */

/** The user's settings; omitted ones take the server's default. `voiceBase64`: float32 at 16 kHz, at most 30 s.
 * @typedef {Partial<{[N in keyof typeof TURN_FIELDS]: (typeof TURN_FIELDS)[N]["initial"]}> & {voiceBase64?: string | null}} TurnSettings
 */

/** @typedef {{prefill: Omit<Prefill, "type" | "messages">, generate: Omit<Generate, "type">}} TurnOptions */

const SLICES = 1;
const SLICES_HD = 2;

/**
 * A video interleaves frames and audio, so high-resolution pictures are not possible.
 * @param {TurnSettings} settings
 * @param {readonly Message[]} messages
 */
export function turnOptions(settings, messages) {
  const hasVoice = settings.hasVoice ?? false;
  const isOmni = messages.some(hasVideo);
  return {
    prefill: {
      max_slice_nums: settings.isHd && !isOmni ? SLICES_HD : SLICES,
      omni_mode: isOmni,
      use_tts_template: hasVoice,
      enable_thinking: settings.isThinking ?? false,
      ...(settings.hasCaptions && { transcribe: true }),
      ...(hasVoice && settings.voiceBase64 && { tts_ref_audio_base64: settings.voiceBase64 }),
    },
    generate: { generate_audio: hasVoice, ...sampling(settings) },
  };
}

export function chatRequest(/** @type {readonly Message[]} */ messages, /** @type {TurnOptions} */ { prefill, generate }) {
  const { generate_audio: hasVoice, ...generation } = generate;
  const mode = prefill.omni_mode ? "omni" : "audio_assistant";
  return {
    messages,
    generation,
    image: { max_slice_nums: prefill.max_slice_nums },
    tts: { enabled: hasVoice, mode, ref_audio_data: prefill.tts_ref_audio_base64 ?? null },
    use_tts_template: prefill.use_tts_template,
    omni_mode: prefill.omni_mode,
    enable_thinking: prefill.enable_thinking,
  };
}

function sampling(/** @type {TurnSettings} */ settings) {
  const defaults = GENERATE_DEFAULTS;
  return {
    max_new_tokens: clamped("max_new_tokens", settings.maxNewTokens ?? defaults.max_new_tokens),
    length_penalty: clamped("length_penalty", settings.lengthPenalty ?? defaults.length_penalty),
    temperature: clamped("temperature", settings.temperature ?? defaults.temperature),
    ...(settings.topP !== undefined && settings.topP > 0 && { top_p: Math.min(1, settings.topP) }),
    ...(settings.topK !== undefined && { top_k: clamped("top_k", settings.topK) }),
    ...(settings.isGreedy && { do_sample: false }),
  };
}

function clamped(/** @type {"max_new_tokens" | "length_penalty" | "temperature" | "top_k"} */ name, /** @type {number} */ value) {
  const { min, max } = GENERATE_RANGES[name];
  if (!Number.isFinite(value)) return GENERATE_DEFAULTS[name];
  const within = Math.min(max, Math.max(min, value));
  return Number.isInteger(GENERATE_DEFAULTS[name]) ? Math.round(within) : within;
}

/** @param {Message} message @returns {boolean} */
const hasVideo = (message) => Array.isArray(message.content) && message.content.some((item) => item.type === "video");

// Settings of the chat page.

export const SETTINGS_KEY = "turnbased_settings";

const TURN_FIELDS = Object.freeze({
  hasVoice: flagField(false), // the answer is spoken
  isHd: flagField(false), // pictures are split into slices
  isThinking: flagField(false), // the model thinks before it answers
  hasCaptions: flagField(false), // questions are transcribed
  isGreedy: flagField(false), // always the likeliest token
  maxNewTokens: numberField(256, 1, 2048, 1),
  lengthPenalty: numberField(1.1, 0.1, 5, 0.05),
  temperature: numberField(0.7, 0, 2, 0.05),
  topP: numberField(0.8, 0.05, 1, 0.05),
  topK: numberField(100, 0, 1000, 1),
});

export const FIELDS = Object.freeze({
  ...TURN_FIELDS,
  isStreaming: flagField(true),
  sendsRecording: flagField(false),
  picturesPerS: choiceField("1", ["1", "2", "4"]),
});

/** Names of the settings in presets. @type {Readonly<Record<string, keyof typeof FIELDS>>} */
const PRESET_NAMES = Object.freeze({
  length_penalty: "lengthPenalty",
  max_new_tokens: "maxNewTokens",
  temperature: "temperature",
  top_p: "topP",
  top_k: "topK",
  hd: "isHd",
  voice: "hasVoice",
});

/** @param {Record<string, unknown>} settings of a preset @returns {Record<string, unknown>} */
export function fromPreset(settings) {
  /** @type {Record<string, unknown>} */ const known = {};
  for (const [name, value] of Object.entries(settings)) {
    const field = PRESET_NAMES[name];
    if (field) known[field] = value;
  }
  return known;
}

export function chatSettings(/** @type {SettingsStore<typeof FIELDS>} */ store, /** @type {string | null} */ voiceBase64) {
  const names = /** @type {(keyof typeof TURN_FIELDS)[]} */ (Object.keys(TURN_FIELDS));
  return {
    isStreaming: store.get("isStreaming"),
    picturesPerS: Number(store.get("picturesPerS")),
    turn: { ...Object.fromEntries(names.map((name) => [name, store.get(name)])), voiceBase64 },
  };
}

/** @typedef {"sending" | "queued" | "prefilling" | "generating" | "stopping" | "done" | "failed"} TurnPhase */

/** @typedef {ReturnType<typeof beginTurn>} TurnProgress */

/** The figures of a turn that is over.
 * @typedef {Omit<TurnProgress, "queue" | "sentAtMs" | "assignedAtMs" | "prefilledAtMs" | "isSent"
 *  | "isStopAsked" | "phase">} TurnResult
 */

/** @typedef {{type: "sent"} | {type: "server", message: StreamingServerMessage}
 *  | {type: "stop_asked"} | {type: "stopped_here"} | {type: "failed"} | {type: "http"}
 *  | {type: "http_reply", reply: unknown}} TurnEvent
 */

/** The part of `/status` that determines the wait.
 * @typedef {Object} Crowd
 * @property {number} free_slots
 * @property {number} queue_length
 * @property {ReadonlyArray<{estimated_remaining_s?: number | null}>} running_tasks
 */

const OUTPUT_RATE_HZ = 24_000;

export const beginTurn = (/** @type {string} */ requestId, /** @type {number} */ nowMs) => ({
  phase: /** @type {TurnPhase} */ ("sending"),
  transport: /** @type {"socket" | "http"} */ ("socket"),
  requestId,
  isSent: false, // `prefill` has been sent; times count from the user's request
  isStopAsked: false,
  isStopped: false, // it was stopped early
  text: "", // of the answer so far, exactly as received
  queue: /** @type {QueuePlace | null} */ (null),
  queueEstimateS: /** @type {number | null} */ (null), // the first estimate; null if it never waited
  queueActualMs: /** @type {number | null} */ (null),
  prefillMs: /** @type {number | null} */ (null),
  ttftMs: /** @type {number | null} */ (null), // from sending to the first text
  ttfaMs: /** @type {number | null} */ (null), // from sending to the first sound
  generateMs: /** @type {number | null} */ (null), // from `prefill_done` to the end
  totalMs: /** @type {number | null} */ (null), // from sending to the end
  serverElapsedMs: 0, // reported by the server; 0 until then
  cachedTokens: 0, // reused from the cache
  inputTokens: 0, // newly processed
  isCacheHit: false,
  tokenStats: /** @type {TokenStats | null} */ (null),
  chunkCount: 0,
  recordingSessionId: /** @type {string | null} */ (null),
  wavBase64: "", // the answer's audio, over HTTP only
  sampleRateHz: OUTPUT_RATE_HZ,
  sentAtMs: nowMs,
  assignedAtMs: /** @type {number | null} */ (null),
  prefilledAtMs: /** @type {number | null} */ (null),
});

export const isTurnOver = (/** @type {TurnProgress} */ turn) => turn.phase === "done" || turn.phase === "failed";

/** The figures of a turn that is over. @param {TurnProgress} turn @returns {TurnResult} */
export function turnResult(turn) {
  const { queue, sentAtMs, assignedAtMs, prefilledAtMs, isSent, isStopAsked, phase, ...rest } = turn;
  return rest;
}

/** @param {TurnProgress} turn @param {TurnEvent} event @param {number} nowMs @returns {TurnProgress} */
export function turnAfter(turn, event, nowMs) {
  if (isTurnOver(turn)) return turn;
  switch (event.type) {
    case "sent":
      return { ...turn, isSent: true };
    case "stop_asked":
      return { ...turn, isStopAsked: true, phase: "stopping" };
    case "stopped_here":
      return finished({ ...turn, isStopped: true }, "done", nowMs);
    case "failed":
      return finished(turn, "failed", nowMs);
    case "http":
      return { ...turn, transport: "http", isSent: true, phase: "generating" };
    case "http_reply":
      return afterReply(turn, event.reply, nowMs);
    case "server":
      return afterMessage(turn, event.message, nowMs);
  }
}

/** @param {TurnProgress} turn @param {StreamingServerMessage} message @param {number} nowMs @returns {TurnProgress} */
function afterMessage(turn, message, nowMs) {
  const unlessStopping = (/** @type {TurnPhase} */ phase) => (turn.isStopAsked ? turn.phase : phase);
  switch (message.type) {
    case "queued":
    case "queue_update": {
      if (turn.assignedAtMs !== null) return turn;
      const queue = queuePlace(message);
      const queueEstimateS = turn.queueEstimateS ?? queue.etaS;
      return { ...turn, phase: unlessStopping("queued"), queue, queueEstimateS };
    }
    case "queue_done":
      if (turn.assignedAtMs !== null) return turn;
      return {
        ...turn,
        phase: unlessStopping("prefilling"),
        queue: null,
        assignedAtMs: nowMs,
        queueActualMs: nowMs - turn.sentAtMs,
      };
    case "prefill_done":
      if (turn.prefilledAtMs !== null) return turn;
      return {
        ...turn,
        phase: unlessStopping("generating"),
        prefilledAtMs: nowMs,
        prefillMs: nowMs - (turn.assignedAtMs ?? turn.sentAtMs),
        cachedTokens: numberOr0(message.cached_tokens),
        inputTokens: numberOr0(message.input_tokens),
        isCacheHit: message.cache_hit ?? numberOr0(message.cached_tokens) > 0,
        recordingSessionId: message.recording_session_id ?? null,
      };
    case "chunk":
      return afterChunk(turn, message, nowMs);
    case "done": {
      const text = typeof message.text === "string" && message.text ? message.text : turn.text;
      return finished(
        {
          ...turn,
          text,
          isStopped: Boolean(message.stopped),
          serverElapsedMs: numberOr0(message.elapsed_ms),
          tokenStats: message.token_stats ?? null,
          recordingSessionId: message.recording_session_id ?? turn.recordingSessionId,
        },
        "done",
        nowMs,
      );
    }
    default:
      return turn;
  }
}

function afterChunk(/** @type {TurnProgress} */ turn, /** @type {Chunk} */ chunk, /** @type {number} */ nowMs) {
  if (!chunk.text_delta && !chunk.audio_data) return turn;
  const sinceMs = nowMs - turn.sentAtMs;
  return {
    ...turn,
    text: turn.text + (chunk.text_delta ?? ""),
    chunkCount: turn.chunkCount + 1,
    ttftMs: turn.ttftMs ?? (chunk.text_delta ? sinceMs : null),
    ttfaMs: turn.ttfaMs ?? (chunk.audio_data ? sinceMs : null),
    sampleRateHz: chunk.audio_sample_rate || turn.sampleRateHz,
  };
}

/** @param {TurnProgress} turn @param {unknown} body Of `POST /api/chat`. @param {number} nowMs @returns {TurnProgress} */
function afterReply(turn, body, nowMs) {
  const reply = /** @type {Record<string, unknown>} */ (body ?? {});
  const tokenStats = /** @type {TokenStats | null} */ (reply.token_stats ?? null);
  const filled = {
    ...turn,
    text: typeof reply.text === "string" ? reply.text : "",
    wavBase64: typeof reply.audio_data === "string" ? reply.audio_data : "",
    sampleRateHz: numberOr0(reply.audio_sample_rate) || turn.sampleRateHz,
    queueActualMs: numberOr0(reply.queue_wait_ms),
    queueEstimateS: numberOr0(reply.estimated_queue_wait_s),
    serverElapsedMs: numberOr0(reply.duration_ms),
    tokenStats,
    cachedTokens: numberOr0(tokenStats?.cached_tokens),
    inputTokens: numberOr0(tokenStats?.input_tokens),
    chunkCount: 1,
    recordingSessionId: /** @type {string | null} */ (reply.recording_session_id ?? null),
  };
  return finished(filled, reply.success === false ? "failed" : "done", nowMs);
}

function finished(/** @type {TurnProgress} */ turn, /** @type {"done" | "failed"} */ phase, /** @type {number} */ nowMs) {
  const generateMs = turn.prefilledAtMs === null ? null : nowMs - turn.prefilledAtMs;
  return { ...turn, phase, queue: null, generateMs, totalMs: nowMs - turn.sentAtMs };
}

/**
 * Estimated wait of a turn sent now: the mean remaining time of running tasks, plus the turns queued
 * before it. Source: docs/specification/service.md#7.3.
 * @param {Crowd} status Of `/status`.
 * @param {number} turnS Typical duration of a turn.
 * @returns {number} 0 if a worker is free.
 */
export function estimateWaitS(status, turnS = 15) {
  if (status.free_slots > 0) return 0;
  const remaining = status.running_tasks.map((task) => numberOr0(task.estimated_remaining_s));
  const meanS = remaining.length ? remaining.reduce((a, b) => a + b, 0) / remaining.length : 0;
  return Math.max(0, meanS + Math.max(0, status.queue_length - 1) * turnS);
}

/** @param {TokenStats | null} stats @param {number} maxKvTokens @returns {number} From 0 to 1. */
export function contextShare(stats, maxKvTokens) {
  if (!stats || maxKvTokens <= 0) return 0;
  return Math.min(1, numberOr0(stats.total_tokens) / maxKvTokens);
}

// Collects the audio of an answer into a WAV file.

const WAV_HEADER_BYTES = 44;
const BYTES_PER_S_AT = 28; // in the header of a WAV file

export class VoiceCollector {
  /** @type {Float32Array[]} */ #pieces = [];
  #rateHz = 0;
  /** @type {Uint8Array<ArrayBuffer> | null} */ #wav = null;

  get isEmpty() {
    return this.#pieces.length === 0 && this.#wav === null;
  }

  /** @param {string} audioBase64 float32 samples @param {number} rateHz */
  add(audioBase64, rateHz) {
    this.#pieces.push(base64ToFloats(audioBase64));
    this.#rateHz = rateHz;
  }

  /** @param {string} wavBase64 the whole audio as a file */
  addWav(wavBase64) {
    this.#wav = base64ToBytes(wavBase64);
  }

  /** @returns {Voice | null} null if there was no audio */
  finish() {
    if (this.isEmpty) return null;
    const wav = this.#wav ?? encodeWav(joinChunks(this.#pieces), this.#rateHz);
    this.#pieces = [];
    return { wav: new Blob([wav], { type: "audio/wav" }), durationS: wavLengthS(wav) };
  }
}

/** @param {Uint8Array} wav @returns {number} seconds */
export function wavLengthS(wav) {
  if (wav.length < WAV_HEADER_BYTES) return 0;
  const view = new DataView(wav.buffer, wav.byteOffset, wav.byteLength);
  const bytesPerS = view.getUint32(BYTES_PER_S_AT, true);
  return bytesPerS > 0 ? (wav.length - WAV_HEADER_BYTES) / bytesPerS : 0;
}
