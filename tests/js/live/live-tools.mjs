/** What the checks against a running system share: its address, real speech, a player that keeps time. */

import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { networkOf } from "../../../static/shared/network.js";
import { base64ToFloats } from "../../../static/shared/pcm.js";

/** @import { HalfDuplexSession } from "../../../static/duplex/lib/half-duplex-session.js" */

export const RATE_HZ = 16_000;
const INPUTS = new URL("../../golden/recordings/inputs/", import.meta.url);
const DEADLINE_MS = 60_000;
const CHUNK_SAMPLES = RATE_HZ / 2;
const CHUNK_MS = 500;
const FASTER = 5;

/** Address of the system, such as http://127.0.0.1:8006. */
export const ORIGIN = process.argv[2] ?? "http://127.0.0.1:8100";

/** @param {"streaming" | "half_duplex" | "duplex"} kind */
export const networkTo = (kind) => networkOf(kind, "", ORIGIN);

/** @param {string} name Of a 16 kHz mono PCM16 file. @returns {Float32Array} */
export function readSpeech(name) {
  const file = readFileSync(new URL(name, INPUTS));
  const at = file.indexOf("data", 12, "latin1") + 8;
  const samples = new Int16Array(file.buffer.slice(file.byteOffset + at, file.byteOffset + file.length));
  return Float32Array.from(samples, (value) => value / 32_768);
}

/**
 * @param {Float32Array} sound
 * @param {number} lengthSamples Of each; the last one is filled with silence.
 * @returns {Float32Array[]}
 */
export function inChunks(sound, lengthSamples) {
  const count = Math.ceil(sound.length / lengthSamples);
  return Array.from({ length: count }, (_, index) => {
    const chunk = new Float32Array(lengthSamples);
    chunk.set(sound.subarray(index * lengthSamples, (index + 1) * lengthSamples));
    return chunk;
  });
}

/** A player without loudspeaker: knows when what it was given would have been played. */
export class SilentPlayer {
  #endsAtMs = 0;
  chunks = 0;
  playedS = 0;

  /** @param {string} audioBase64 @param {number} rateHz */
  play(audioBase64, rateHz) {
    if (!audioBase64) return;
    const lengthS = base64ToFloats(audioBase64).length / rateHz;
    this.chunks += 1;
    this.playedS += lengthS;
    this.#endsAtMs = Math.max(performance.now(), this.#endsAtMs) + lengthS * 1_000;
  }

  flush() {
    this.#endsAtMs = 0;
  }

  isDrained = () => performance.now() >= this.#endsAtMs;
}

/**
 * Wait for an event, or for one that fits.
 * @template Detail
 * @param {{on: (type: any, listener: (detail: Detail) => void) => () => void}} source
 * @param {string} type
 * @param {(detail: Detail) => boolean} [fits]
 * @returns {Promise<Detail>}
 */
export function heard(source, type, fits = () => true) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${type} in time`)), DEADLINE_MS);
    const off = source.on(type, (detail) => {
      if (!fits(detail)) return;
      clearTimeout(timer);
      off();
      resolve(detail);
    });
  });
}

/** A microphone for half-duplex, faster than life: the server counts samples, not seconds. */
export class Microphone {
  #session;
  #waiting = [new Float32Array(CHUNK_SAMPLES)];
  gated = 0;

  /** @param {HalfDuplexSession} session */
  constructor(session) {
    this.#session = session;
  }

  /** @param {string} name Of a file of speech: said next, then there is silence. */
  say(name) {
    this.#waiting.push(...inChunks(readSpeech(name), CHUNK_SAMPLES));
  }

  /** Run until the session ends. */
  async run() {
    const silence = new Float32Array(CHUNK_SAMPLES);
    while (this.#session.isActive) {
      const outcome = this.#session.sendChunk({ audio: this.#waiting[0] ?? silence });
      if (outcome === "sent") this.#waiting.shift();
      if (outcome === "gated") this.gated += 1;
      await sleep(CHUNK_MS / FASTER);
    }
  }
}

/** Write what was measured, as the last line. @param {Record<string, unknown>} figures */
export function report(figures) {
  console.log(JSON.stringify(figures));
}
