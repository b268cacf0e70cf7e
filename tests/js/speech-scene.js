/** A user, a room and a loudspeaker, to try the speech gate in: all of it computed, none of it random. */
import { readFileSync } from "node:fs";

import { fromDb, rms } from "../../static/shared/pcm.js";
import { SpeechGate } from "../../static/duplex/lib/speech-gate.js";
import { SpeechFeatures } from "../../static/duplex/lib/resampler.js";

/** @import { GateAction } from "../../static/duplex/lib/speech-gate.js" */

export const RATE_HZ = 16_000;
const FRAME = RATE_HZ / 100;
const INPUTS = new URL("../golden/recordings/inputs/", import.meta.url);

/** Samples of a 16 kHz mono 16-bit file of the recorded inputs. @param {string} name @returns {Float32Array} */
export function readSpeech(name) {
  const bytes = readFileSync(new URL(name, INPUTS));
  const body = bytes.subarray(bytes.indexOf("data") + 8);
  return Float32Array.from({ length: body.length >> 1 }, (_, i) => body.readInt16LE(i * 2) / 32_768);
}

/** A deterministic source of numbers in [-1, 1). @param {number} seed */
export function makeNoise(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 31 - 1;
  };
}

/** @param {Float32Array} samples @returns {Float32Array} level of each 10 ms */
function frameLevels(samples) {
  const count = Math.floor(samples.length / FRAME);
  return Float32Array.from({ length: count }, (_, i) => rms(samples.subarray(i * FRAME, (i + 1) * FRAME)));
}

/**
 * Pieces of speech that begin after a pause and last, each starting 10 ms before its first sound.
 * @param {Float32Array} samples
 * @param {number} [lengthS] of each piece
 * @returns {Float32Array[]}
 */
export function cutOnsets(samples, lengthS = 1.2) {
  const levels = frameLevels(samples);
  const loud = [...levels].sort((a, b) => b - a)[Math.floor(levels.length / 20)];
  const isSound = Array.from(levels, (level) => level > loud * fromDb(-28));
  const pieces = [];
  for (let i = 8; i < isSound.length; i += 1) {
    const isAfterPause = !isSound.slice(i - 8, i).includes(true);
    const following = isSound.slice(i, i + 60).filter(Boolean).length;
    if (!isSound[i] || !isAfterPause || following < 40) continue;
    const start = (i - 1) * FRAME;
    pieces.push(samples.slice(start, Math.min(samples.length, start + lengthS * RATE_HZ)));
  }
  return pieces;
}

/**
 * "mm-hm": two hums with a breath through the nose between them.
 * @param {{pitchHz: number, syllableMs: number, breathMs: number, isOpen?: boolean}} voice
 * @returns {Float32Array}
 */
export function synthesiseBackchannel({ pitchHz, syllableMs, breathMs, isOpen = false }) {
  // Formants as [Hz, dB]: a nasal murmur, or an open vowel ("uh-huh").
  const formants = isOpen
    ? [
        [650, 0],
        [1_200, -4],
        [2_500, -14],
      ]
    : [
        [260, 0],
        [1_000, -24],
        [2_200, -30],
      ];
  const syllable = (syllableMs * RATE_HZ) / 1_000;
  const breath = (breathMs * RATE_HZ) / 1_000;
  const sound = new Float32Array(2 * syllable + breath);
  const noise = makeNoise(pitchHz);
  const half = (/** @type {number} */ start, /** @type {number} */ bend) => {
    let phase = 0;
    for (let i = 0; i < syllable; i += 1) {
      const f0 = pitchHz * (1 + (bend * i) / syllable);
      phase += (2 * Math.PI * f0) / RATE_HZ;
      const edge = Math.min(1, i / (0.03 * RATE_HZ), (syllable - i) / (0.03 * RATE_HZ));
      for (let h = 1; h * f0 < 3_600; h += 1) {
        let gain = 0;
        for (const [hz, db] of formants) gain += fromDb(db) / (1 + ((h * f0 - hz) / 90) ** 2);
        sound[start + i] += edge * gain * Math.sin(h * phase);
      }
    }
  };
  half(0, -0.1);
  half(syllable + breath, 0.25);
  for (let i = 0; i < breath; i += 1) sound[syllable + i] = 0.02 * noise();
  return sound;
}

/** Twenty voices saying "mm-hm" in 150 to 350 ms. @param {boolean} [isOpen] "uh-huh" instead */
export function twentyBackchannels(isOpen = false) {
  return Array.from({ length: 20 }, (_, i) =>
    synthesiseBackchannel({ pitchHz: 90 + i * 9, syllableMs: 50 + (i % 10) * 9, breathMs: 50 + (i % 4) * 10, isOpen }),
  );
}

/**
 * @typedef {Object} Scene
 * @property {Float32Array} user sound of the user alone
 * @property {Float32Array} answer what the loudspeaker plays, from the start of the scene
 * @property {number} userLevelDb level of the user's sound, dBFS
 * @property {number} noiseDb level of the room, dBFS
 * @property {number} echoDb microphone minus loudspeaker
 * @property {number} [answerLevelDb]
 * @property {number} [onsetS] when the user begins
 * @property {number} [seed]
 */

/**
 * @typedef {Object} Outcome
 * @property {{action: GateAction, atMs: number}[]} actions
 *   relative to the user's onset
 * @property {number} mutedMs how long the answer was silent
 */

/** @param {Float32Array} samples @param {number} levelDb @returns {Float32Array} at that level while it sounds */
export function atLevel(samples, levelDb) {
  const levels = [...frameLevels(samples)].sort((a, b) => b - a);
  const sounding = levels.slice(0, Math.max(1, Math.floor(levels.length * 0.6)));
  const level = Math.sqrt(sounding.reduce((sum, x) => sum + x * x, 0) / sounding.length);
  return samples.map((x) => (x * fromDb(levelDb)) / level);
}

/**
 * Let the gate run in closed loop: what it does to the answer is what the microphone hears next.
 * @param {Scene} scene
 * @param {SpeechGate} [gate]
 * @returns {Outcome}
 */
export function runScene(scene, gate = new SpeechGate()) {
  const { userLevelDb, noiseDb, echoDb, answerLevelDb = -20, onsetS = 2, seed = 1 } = scene;
  const user = atLevel(scene.user, userLevelDb);
  const answer = atLevel(scene.answer, answerLevelDb);
  const noise = makeNoise(seed);
  const features = new SpeechFeatures(RATE_HZ);
  const onset = Math.round(onsetS * RATE_HZ);
  const length = onset + user.length + RATE_HZ;
  const delay = 0.08 * RATE_HZ;
  const played = new Float32Array(length);
  /** @type {Outcome} */
  const outcome = { actions: [], mutedMs: 0 };
  let gain = 1;
  let target = 1;
  let isFlushed = false;
  let position = 0;
  for (let i = 0; i < length; i += 1) {
    gain += Math.max(-1, Math.min(1, (target - gain) * 1e9)) * Math.min(Math.abs(target - gain), 1 / (0.03 * RATE_HZ));
    played[i] = isFlushed ? 0 : gain * answer[position % answer.length];
    if (target > 0) position += 1;
    const echo = i >= delay ? played[i - delay] * fromDb(echoDb) : 0;
    const voice = i >= onset && i - onset < user.length ? user[i - onset] : 0;
    const room = noise() * fromDb(noiseDb) * Math.sqrt(3);
    if (!features.push(voice + echo + room)) continue;
    const outputRms = rms(played.subarray(Math.max(0, i - 320), i + 1));
    const action = gate.push(features.frame, { isPlaying: !isFlushed, outputRms });
    if (target === 0 && !isFlushed) outcome.mutedMs += 10;
    if (action === "none") continue;
    outcome.actions.push({ action, atMs: Math.round(((i - onset) * 1_000) / RATE_HZ) });
    target = { duck: 0.35, hold: 0, confirm: 0, release: 1 }[action];
    isFlushed = action === "confirm";
  }
  return outcome;
}
