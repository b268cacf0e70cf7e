/** A turn of the chat: settings as protocol fields, progress from sending to its end, figures. Pure. */

import { choiceField, flagField, numberField } from "../shared/settings-store.js";
import { wavFormat } from "../shared/pcm.js";
import { LIMITS } from "../shared/protocol.js";
import { numberOr0 } from "../shared/server-messages.js";
import { wireChars } from "./conversation.js";

/** @import { Generate, Message, Prefill, TokenStats } from "../../types/protocol.js" */
/** @import { SettingsStore } from "../shared/settings-store.js" */
/** @import { QueuePlace } from "../shared/server-messages.js" */
/** @import { MediaPart } from "../../types/chat.js" */
/** @import { Voice } from "./conversation.js" */

// Settings of the chat page.

export const SETTINGS_KEY = "turnbased_settings";

export const FIELDS = Object.freeze({
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
  isStreaming: flagField(true), // false shows and plays an answer only once it is whole
  sendsRecording: flagField(false), // a recording is sent as soon as it ends
  picturesPerS: choiceField("1", ["1", "2", "4"]), // of videos
});

/** Omitted ones take the server's default. `voiceBase64`: float32 at 16 kHz, at most 30 s.
 * @typedef {Partial<{[N in keyof typeof FIELDS]: (typeof FIELDS)[N]["initial"]}> & {voiceBase64?: string | null}} ChatSettings
 */

/** Names of the settings in messages and presets. @type {Readonly<Record<string, keyof typeof FIELDS>>} */
const SAMPLING = Object.freeze({
  max_new_tokens: "maxNewTokens",
  length_penalty: "lengthPenalty",
  temperature: "temperature",
  top_p: "topP",
  top_k: "topK",
});
/** @type {typeof SAMPLING} */ const PRESET_NAMES = Object.freeze({ ...SAMPLING, hd: "isHd", voice: "hasVoice" });

/** @param {Record<string, unknown>} settings of a preset @returns {Record<string, unknown>} */
export const fromPreset = (settings) =>
  Object.fromEntries(Object.entries(settings).map(([name, value]) => [PRESET_NAMES[name] ?? name, value]));

export function chatSettings(/** @type {SettingsStore<typeof FIELDS>} */ store, /** @type {string | null} */ voiceBase64) {
  const names = /** @type {(keyof typeof FIELDS)[]} */ (Object.keys(FIELDS));
  return { ...Object.fromEntries(names.map((name) => [name, store.get(name)])), voiceBase64 };
}

/** @typedef {{prefill: Omit<Prefill, "type" | "messages">, generate: Omit<Generate, "type">}} TurnOptions */

/**
 * A video interleaves frames and audio, so high-resolution pictures are not possible.
 * @param {ChatSettings} settings
 * @param {readonly Message[]} messages
 */
export function turnOptions(settings, messages) {
  const { hasVoice = false, isHd, isThinking = false, hasCaptions, isGreedy, voiceBase64 } = settings;
  const isOmni = messages.some(({ content }) => Array.isArray(content) && content.some(({ type }) => type === "video"));
  const sampling = Object.entries(SAMPLING).map(([name, field]) => [name, settings[field]]);
  return {
    prefill: {
      max_slice_nums: isHd && !isOmni ? 2 : 1,
      omni_mode: isOmni,
      use_tts_template: hasVoice,
      enable_thinking: isThinking,
      ...(hasCaptions && { transcribe: true }),
      ...(hasVoice && voiceBase64 && { tts_ref_audio_base64: voiceBase64 }),
    },
    generate: {
      generate_audio: hasVoice,
      .../** @type {Partial<Generate>} */ (Object.fromEntries(sampling.filter(([, value]) => value !== undefined))),
      ...(isGreedy && { do_sample: false }),
    },
  };
}

/** Base64 characters that the next request has at least. @param {ChatSettings} settings @param {readonly MediaPart[]} media */
export const sentChars = ({ hasVoice, voiceBase64 }, media) => wireChars(media) + (hasVoice ? (voiceBase64?.length ?? 0) : 0);

export function chatRequest(/** @type {readonly Message[]} */ messages, /** @type {TurnOptions} */ { prefill, generate }) {
  const { generate_audio: hasVoice, ...generation } = generate;
  const { max_slice_nums, tts_ref_audio_base64, use_tts_template, omni_mode, enable_thinking } = prefill;
  const mode = omni_mode ? "omni" : "audio_assistant";
  return {
    messages,
    generation,
    use_tts_template,
    omni_mode,
    enable_thinking,
    image: { max_slice_nums },
    tts: { enabled: hasVoice, mode, ref_audio_data: tts_ref_audio_base64 ?? null },
  };
}

/** @typedef {"sending" | "queued" | "prefilling" | "generating" | "stopping" | "done" | "failed"} TurnPhase */

/** @typedef {ReturnType<typeof beginTurn>} TurnProgress */

/** The figures of a turn that is over.
 * @typedef {Omit<TurnProgress, "queue" | "sentAtMs" | "assignedAtMs" | "prefilledAtMs" | "phase">} TurnResult
 */

/** Times count from the user's request. */
export const beginTurn = (/** @type {string} */ requestId, /** @type {number} */ nowMs) => ({
  phase: /** @type {TurnPhase} */ ("sending"),
  transport: /** @type {"socket" | "http"} */ ("socket"),
  requestId,
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
  sampleRateHz: /** @type {number} */ (LIMITS.OUTPUT_SAMPLE_RATE_HZ),
  sentAtMs: nowMs,
  assignedAtMs: /** @type {number | null} */ (null),
  prefilledAtMs: /** @type {number | null} */ (null),
});

/** What the answer of `POST /api/chat` changes. @param {TurnProgress} turn @param {unknown} body @param {number} nowMs */
export function afterReply(turn, body, nowMs) {
  const reply = /** @type {Record<string, unknown>} */ (body ?? {});
  const tokenStats = /** @type {TokenStats | null} */ (reply.token_stats ?? null);
  return {
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
    ...atEnd(turn, reply.success === false ? "failed" : "done", nowMs),
  };
}

export function atEnd(/** @type {TurnProgress} */ turn, /** @type {"done" | "failed"} */ phase, /** @type {number} */ nowMs) {
  const generateMs = turn.prefilledAtMs === null ? null : nowMs - turn.prefilledAtMs;
  return { phase, queue: null, generateMs, totalMs: nowMs - turn.sentAtMs };
}

const TURN_S = 15; // a typical turn

/**
 * Estimated wait of a turn sent now: the mean remaining time of running tasks, plus the turns queued
 * before it. Source: docs/specification/service.md#7.3.
 * @param {{free_slots: number, queue_length: number, running_tasks: readonly {estimated_remaining_s: number}[]}} status Of `/status`.
 * @returns {number} 0 if a worker is free.
 */
export function estimateWaitS({ free_slots: free, queue_length: length, running_tasks: running }) {
  if (free > 0) return 0;
  const sumS = running.reduce((sum, task) => sum + task.estimated_remaining_s, 0);
  return Math.max(0, sumS / Math.max(1, running.length) + Math.max(0, length - 1) * TURN_S);
}

/** The audio of an answer, out of a WAV file. @param {Uint8Array<ArrayBuffer>} file @returns {Voice} */
export function voiceOfWav(file) {
  const { dataOffset = 0, rateHz = 0, channels = 0, bits = 0 } = wavFormat(file) ?? {};
  const bytesPerS = (rateHz * channels * bits) / 8;
  const durationS = bytesPerS > 0 ? (file.length - dataOffset) / bytesPerS : 0;
  return { wav: new Blob([file], { type: "audio/wav" }), durationS };
}
