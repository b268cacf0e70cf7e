/**
 * Positions of the units, texts, pictures and speech of a duplex recording on the replay's clock, and waveform peaks of its
 * audio, loaded in pieces for the visible range only. Pure.
 *
 * Follows the rules of `recording/replay_plan.py`, so that times match the merged audio to the millisecond.
 */

import { wavFormat } from "../shared/pcm.js";

/** @import { Chunk, Recording } from "../../types/recording.js" */
/** @import { View } from "./time-axis.js" */

/**
 * @typedef {ReturnType<typeof addChunk>} Unit
 * @typedef {{number: number, startS: number, endS: number, text: string, isInterrupted: boolean,
 *   words: {atS: number, text: string}[]}} SpokenTurn `number` in order, from 0; `endS` of its text or audio
 * @typedef {{startS: number, text: string, isTyped: boolean}} UserWords
 * @typedef {{atS: number, path: string, unit: number}} Picture
 * @typedef {ReturnType<typeof planUnits>} Plan
 */

const MS = 1_000;
const UNIT_MS = 1_000; // if the settings do not tell
const PLAYBACK_DELAY_MS = 200; // default playback delay of the pages
const GAP_MS = 10; // shorter gaps are inaudible

/** @param {Recording} recording of a duplex session */
export function planUnits(recording) {
  const planner = newPlanner(recording);
  const units = (recording.chunks ?? []).map((chunk, number) => addChunk(planner, chunk, number));
  endTurn(planner);
  return {
    unitS: planner.unitMs / MS,
    durationS: Math.max(planner.nowMs, planner.spans.at(-1)?.endMs ?? 0) / MS,
    units,
    turns: planner.turns,
    userWords: userWords(recording.events ?? [], planner.starts), // the user's transcripts and typed texts, in order
    pictures: planner.pictures,
  };
}

function newPlanner(/** @type {Recording} */ { config = {}, merged_replay_timing: timing }) {
  const unitMs = Number.isInteger(config.chunk_ms) ? Number(config.chunk_ms) : UNIT_MS;
  return {
    unitMs,
    isLogical: timing === "logical",
    nowMs: 0,
    heardMs: 0,
    /** @type {{heardMs: number, atMs: number}[]} */ starts: [], // of units, in the sound that was sent and in the replay
    /** @type {SpokenTurn[]} */ turns: [],
    /** @type {Picture[]} */ pictures: [],
    /** @type {{startMs: number, endMs: number}[]} */ spans: [], // of the model's speech
    isSpeechOpen: false, // whether the last span may go on
    isTurnOpen: false, // whether the last turn may go on
    /** @type {number | null} */ heardUntilMs: null, // on the server's clock, as far as it can tell
  };
}

/** @typedef {ReturnType<typeof newPlanner>} Planner */

function addChunk(/** @type {Planner} */ planner, /** @type {Chunk} */ chunk, /** @type {number} */ number) {
  const { result } = chunk;
  const startMs = planner.nowMs;
  let lengthMs = chunk.user_audio_duration_ms || planner.unitMs;
  planner.heardMs = chunk.sent_ts_ms ?? planner.heardMs; // earlier chunks may have been dropped
  planner.starts.push({ heardMs: planner.heardMs, atMs: startMs });
  planner.heardMs += lengthMs;
  if (result?.barge_in) breakOff(planner);
  const aiMs = result?.mode === "SPEAK" && result.ai_audio ? (result.ai_audio_duration_ms ?? 0) : 0;
  const wallMs = result?.timing?.wall_clock_ms ?? result?.timing?.all_ms ?? null;
  const gapMs = hearGap(planner, chunk, aiMs, wallMs);
  if (result?.mode === "SPEAK") {
    if (aiMs > 0) say(planner, aiMs);
    if (planner.isLogical) lengthMs = Math.max(lengthMs, aiMs, planner.unitMs);
    write(planner, result.text ?? "");
  } else planner.isSpeechOpen = false;
  show(planner, chunk, lengthMs, number);
  planner.nowMs += lengthMs;
  if (result?.end_of_turn) endTurn(planner);
  const spoke = result?.mode === "SPEAK" ? "speak" : "listen";
  return {
    number, // in order, from 0
    startS: startMs / MS,
    endS: (startMs + lengthMs) / MS,
    mode: /** @type {"listen" | "speak" | "none"} */ (result ? spoke : "none"), // none: it was never answered
    text: result?.text ?? "",
    wallMs, // from its arrival to its answer
    isLate: wallMs !== null && wallMs > planner.unitMs, // it took longer than its duration
    gapMs, // audible gap in an answer before this unit
    chunk,
  };
}

function userWords(/** @type {NonNullable<Recording["events"]>} */ events, /** @type {Planner["starts"]} */ starts) {
  const words = events.flatMap(({ ts_ms: heardMs, type, text }) => {
    const index = starts.findLastIndex((start) => start.heardMs <= heardMs);
    if (!text || index < 0) return [];
    const { atMs, heardMs: sentMs } = starts[index];
    // What was said in a dropped chunk is shown where the next one begins.
    const startMs = Math.min(atMs + heardMs - sentMs, starts[index + 1]?.atMs ?? Infinity);
    return [{ startS: startMs / MS, text, isTyped: type !== "user_transcript" }];
  });
  return words.sort((one, other) => one.startS - other.startS);
}

function say(/** @type {Planner} */ planner, /** @type {number} */ aiMs) {
  const { isSpeechOpen, nowMs, spans, isLogical } = planner;
  const last = spans.at(-1);
  planner.isSpeechOpen = true;
  if (last && isSpeechOpen && (!isLogical || nowMs === last.endMs)) last.endMs += aiMs;
  else {
    const startMs = Math.max(nowMs, last?.endMs ?? 0);
    spans.push({ startMs, endMs: startMs + aiMs });
  }
}

/** Ends earlier audio. @param {Planner} planner */
function breakOff(planner) {
  const { spans, nowMs } = planner;
  while (spans.length > 0 && spans[spans.length - 1].startMs >= nowMs) spans.pop();
  const last = spans.at(-1);
  if (last) last.endMs = Math.min(last.endMs, nowMs);
  endTurn(planner);
  const turn = planner.turns.at(-1);
  if (turn) Object.assign(turn, { isInterrupted: true, endS: Math.min(turn.endS, nowMs / MS) });
}

function write(/** @type {Planner} */ planner, /** @type {string} */ text) {
  if (!text) return;
  const { turns, nowMs, isTurnOpen } = planner;
  const atS = nowMs / MS;
  if (!isTurnOpen) turns.push({ number: turns.length, startS: atS, endS: atS, text: "", isInterrupted: false, words: [] });
  planner.isTurnOpen = true;
  const turn = turns[turns.length - 1];
  turn.text += text;
  turn.words.push({ atS, text });
}

function endTurn(/** @type {Planner} */ planner) {
  const { spans, turns, nowMs, isTurnOpen } = planner;
  if (isTurnOpen) turns[turns.length - 1].endS = Math.max(nowMs, spans.at(-1)?.endMs ?? 0) / MS;
  Object.assign(planner, { isSpeechOpen: false, isTurnOpen: false, heardUntilMs: null });
}

/** @param {Planner} planner @param {Chunk} chunk @param {number} lengthMs @param {number} unit its number */
function show(planner, chunk, lengthMs, unit) {
  const paths = [chunk.user_frame, ...(chunk.extra_frames ?? [])].filter((path) => path !== undefined);
  paths.forEach((path, index) => {
    const atS = (planner.nowMs + (index * lengthMs) / paths.length) / MS;
    planner.pictures.push({ atS, path, unit });
  });
}

/**
 * Audible gap because this piece of the answer arrived after the previous one had ended.
 * @param {Planner} planner
 * @param {Chunk} chunk
 * @param {number} aiMs
 * @param {number | null} wallMs
 */
function hearGap(planner, { receive_ts_ms: receivedMs, result }, aiMs, wallMs) {
  if (result?.mode !== "SPEAK") planner.heardUntilMs = null;
  if (aiMs === 0 || receivedMs === undefined || wallMs === null) return 0;
  const arrivedMs = receivedMs + wallMs;
  const { heardUntilMs } = planner;
  const gapMs = heardUntilMs === null ? 0 : Math.max(0, arrivedMs - heardUntilMs);
  const beginsMs = heardUntilMs === null ? arrivedMs + PLAYBACK_DELAY_MS : Math.max(arrivedMs, heardUntilMs);
  planner.heardUntilMs = beginsMs + aiMs;
  return gapMs > GAP_MS ? Math.round(gapMs) : 0;
}

const HEAD_BYTES = 4_096;
const TILE_S = 20;
const PEAKS_PER_S = 100;
const PEAKS_PER_TILE = TILE_S * PEAKS_PER_S;
const MOST_FAILURES = 3;

/** @typedef {ReturnType<typeof openPeaks>} PeakSource */

/**
 * @param {(first: number, last: number) => Promise<ArrayBuffer>} bytes reads a byte range of a WAV file, both ends inclusive
 * @param {() => void} onMore more peaks are loaded
 * @param {() => void} [onFailed] the file cannot be read
 */
export function openPeaks(bytes, onMore, onFailed) {
  /** @type {WavShape | null} */ let shape = null;
  /** Peaks of each channel. @type {Map<number, Float32Array[]>} */ const tiles = new Map();
  /** @type {View} */ let wanted = { fromS: 0, toS: 0 };
  let isLoading = true;

  const load = async (/** @type {WavShape} */ file) => {
    isLoading = true;
    const { rateHz, channels, frames, dataOffset } = file;
    const tileFrames = TILE_S * rateHz;
    const byteOf = (/** @type {number} */ tile) => dataOffset + Math.min(tile * tileFrames, frames) * channels * BYTES_PER_SAMPLE;
    const missing = () => {
      const last = Math.min(wanted.toS / TILE_S, (frames - 1) / tileFrames);
      for (let tile = Math.floor(wanted.fromS / TILE_S); tile <= last; tile += 1) if (!tiles.has(tile)) return tile;
      return null;
    };
    for (let tile = missing(), failures = 0; tile !== null && failures < MOST_FAILURES; tile = missing()) {
      try {
        const piece = await bytes(byteOf(tile), byteOf(tile + 1) - 1);
        tiles.set(tile, peaksOf(piece, channels, Math.round(rateHz / PEAKS_PER_S)));
        onMore();
      } catch {
        failures += 1; // the next look tries again
      }
    }
    isLoading = false;
  };
  const open = async () => {
    shape = wavShape(await bytes(0, HEAD_BYTES - 1));
    if (!shape) throw new Error("The sound is no 16-bit WAV file.");
    await load(shape);
  };
  open().catch(() => onFailed?.());

  return {
    /** Loads the visible range first. @param {View} view */
    look(view) {
      wanted = view;
      if (shape && !isLoading) void load(shape);
    },
    /** Largest peak of a channel; 0 where nothing is loaded yet. @param {number} channel @param {View} part */
    loudest(channel, { fromS, toS }) {
      let most = 0;
      const last = Math.max(fromS * PEAKS_PER_S, toS * PEAKS_PER_S - 1);
      for (let at = Math.floor(fromS * PEAKS_PER_S); at <= last; at += 1) {
        most = Math.max(most, tiles.get(Math.floor(at / PEAKS_PER_TILE))?.[channel]?.[at % PEAKS_PER_TILE] ?? 0);
      }
      return most;
    },
  };
}

// Parsing of WAV headers and computation of peaks.

const PCM16_SCALE = 32_768;
const BYTES_PER_SAMPLE = 2;

/** @typedef {NonNullable<ReturnType<typeof wavShape>>} WavShape */

/** Rate, bytes before the first sample, and samples of each channel. @param {ArrayBuffer} head null if it is not a 16-bit WAV file */
export function wavShape(head) {
  const found = wavFormat(new Uint8Array(head));
  if (found?.bits !== BYTES_PER_SAMPLE * 8 || found.channels === 0) return null;
  const { rateHz, channels, dataOffset, dataBytes } = found;
  return { rateHz, channels, dataOffset, frames: Math.floor(dataBytes / (BYTES_PER_SAMPLE * channels)) };
}

/** @param {ArrayBuffer} bytes interleaved PCM16, little endian @param {number} channels @param {number} framesPerPeak */
export function peaksOf(bytes, channels, framesPerPeak) {
  const samples = new Int16Array(bytes, 0, Math.floor(bytes.byteLength / BYTES_PER_SAMPLE));
  const frames = Math.floor(samples.length / channels);
  const count = Math.ceil(frames / framesPerPeak);
  const peaks = Array.from({ length: channels }, () => new Float32Array(count));
  for (let frame = 0; frame < frames; frame += 1) {
    const slot = Math.floor(frame / framesPerPeak);
    for (let channel = 0; channel < channels; channel += 1) {
      const value = Math.abs(samples[frame * channels + channel]) / PCM16_SCALE;
      if (value > peaks[channel][slot]) peaks[channel][slot] = value;
    }
  }
  return peaks;
}
