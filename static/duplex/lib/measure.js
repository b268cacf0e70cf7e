/**
 * Loudness of recordings in LUFS, and level and delay of the loudspeaker's echo. Pure.
 * Source of the loudness: ITU-R BS.1770-4: K-weighting, 400 ms blocks with 75 % overlap, gates at -70 LUFS and -10 LU, its
 * filters in analogue form, so that they work at any sample rate. The echo is measured by playing chirps.
 */

import { medianOf } from "../../shared/async.js";
import { toDb } from "../../shared/pcm.js";
import { formatNumber, MS_PER_S, t } from "../../shared/texts.js";
import { CAPTURE_RATE_HZ } from "./capture-format.js";
import { Biquad } from "./resampler.js";

/** @import { Microphone, recordFrom } from "./capture.js" */

const BLOCK_MS = 400;
const STEP_MS = 100;
const STEPS_PER_BLOCK = BLOCK_MS / STEP_MS;
const ABSOLUTE_GATE_LUFS = -70;
const RELATIVE_GATE_LU = -10;
const MOST_GAIN_DB = 30; // in either direction
const OFFSET_LUFS = -0.691;
/** Effect of the head: a shelf of 4 dB above 1.7 kHz. */
const SHELF = { hz: 1681.974450955533, gainDb: 3.999843853973347, q: 0.7071752369554196 };
const SHELF_SLOPE = 0.4996667741545416;
const LOW_CUT = { hz: 38.13547087602444, q: 0.5003270373238773 }; // high-pass: low frequencies add little loudness

/** The two filters of the weighting, in order. @param {number} rateHz */
function kWeighting(rateHz) {
  const shelfK = Math.tan((Math.PI * SHELF.hz) / rateHz);
  const vh = 10 ** (SHELF.gainDb / 20);
  const vb = vh ** SHELF_SLOPE;
  const shelfA0 = 1 + shelfK / SHELF.q + shelfK * shelfK;
  const cutK = Math.tan((Math.PI * LOW_CUT.hz) / rateHz);
  const cutA0 = 1 + cutK / LOW_CUT.q + cutK * cutK;
  return [
    new Biquad(
      [
        (vh + (vb * shelfK) / SHELF.q + shelfK * shelfK) / shelfA0,
        (2 * (shelfK * shelfK - vh)) / shelfA0,
        (vh - (vb * shelfK) / SHELF.q + shelfK * shelfK) / shelfA0,
      ],
      [(2 * (shelfK * shelfK - 1)) / shelfA0, (1 - shelfK / SHELF.q + shelfK * shelfK) / shelfA0],
    ),
    new Biquad([1, -2, 1], [(2 * (cutK * cutK - 1)) / cutA0, (1 - cutK / LOW_CUT.q + cutK * cutK) / cutA0]),
  ];
}

const toLufs = (/** @type {number} */ power) => (power > 0 ? OFFSET_LUFS + 10 * Math.log10(power) : -Infinity);

/** @param {number[]} powers @returns {number} */
const mean = (powers) => powers.reduce((sum, power) => sum + power, 0) / powers.length;

/**
 * @param {Float32Array[]} channels of equal length; left and right count alike
 * @param {number} rateHz
 * @returns {number} gated LUFS; -Infinity for silence or less than 400 ms
 */
export function measureLufs(channels, rateHz) {
  const steps = stepPowers(channels, Math.round((rateHz * STEP_MS) / 1_000), rateHz);
  const blocks = [];
  for (let i = STEPS_PER_BLOCK; i <= steps.length; i += 1) blocks.push(mean(steps.slice(i - STEPS_PER_BLOCK, i)));
  const audible = blocks.filter((power) => toLufs(power) > ABSOLUTE_GATE_LUFS);
  if (audible.length === 0) return -Infinity;
  const gateLufs = toLufs(mean(audible)) + RELATIVE_GATE_LU;
  return toLufs(mean(audible.filter((power) => toLufs(power) > gateLufs)));
}

/** The mean power of each 100 ms, summed over the channels. @param {Float32Array[]} channels @param {number} stepSamples @param {number} rateHz */
function stepPowers(channels, stepSamples, rateHz) {
  const steps = new Float64Array(Math.floor((channels[0]?.length ?? 0) / stepSamples));
  for (const channel of channels) {
    const [shelf, lowCut] = kWeighting(rateHz);
    for (let i = 0; i < steps.length * stepSamples; i += 1) {
      steps[Math.floor(i / stepSamples)] += lowCut.next(shelf.next(channel[i])) ** 2 / stepSamples;
    }
  }
  return [...steps];
}

/** @param {number} lufs measured @param {number} targetLufs */
export function gainToTargetDb(lufs, targetLufs) {
  if (!Number.isFinite(lufs)) return 0;
  return Math.max(-MOST_GAIN_DB, Math.min(MOST_GAIN_DB, targetLufs - lufs));
}

const FILE_TARGET_LUFS = -33; // target loudness of a file next to the microphone, of the microphone, and of a file alone, LUFS
const MICROPHONE_TARGET_LUFS = -23;
const FILE_ALONE_TARGET_LUFS = -28;

/** @param {string} mode a `MixMode` @param {{fileLufs: number, microphoneLufs: number}} measured -Infinity if unknown: no gain */
export function automaticGains(mode, { fileLufs, microphoneLufs }) {
  const fileTargetLufs = mode === "file" ? FILE_ALONE_TARGET_LUFS : FILE_TARGET_LUFS;
  return {
    fileDb: gainToTargetDb(fileLufs, fileTargetLufs),
    microphoneDb: gainToTargetDb(microphoneLufs, MICROPHONE_TARGET_LUFS),
  };
}

/** Loudness of a file. @param {AudioBuffer} sound @returns {number} LUFS; -Infinity where it is silent */
export function lufsOf(sound) {
  const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
  return measureLufs(channels, sound.sampleRate);
}

/** @param {string} mode @param {number} fileLufs @param {number} microphoneLufs -Infinity if unknown */
export function loudnessText(mode, fileLufs, microphoneLufs) {
  const gains = automaticGains(mode, { fileLufs, microphoneLufs });
  const one = (/** @type {string} */ key, /** @type {number} */ lufs, /** @type {number} */ gainDb) =>
    Number.isFinite(lufs)
      ? t(`omni.loudness_${key}`, { lufs: formatNumber(lufs, 1), gain: `${gainDb > 0 ? "+" : ""}${formatNumber(gainDb, 1)}` })
      : t(`omni.loudness_${key}_none`);
  return [
    mode !== "microphone" && one("file", fileLufs, gains.fileDb),
    mode !== "file" && one("voice", microphoneLufs, gains.microphoneDb),
  ]
    .filter(Boolean)
    .join(" · ");
}

const CHIRP_S = 0.25;
const CHIRP_FROM_HZ = 400;
const CHIRP_TO_HZ = 3_600;
const CHIRP_AMPLITUDE = 0.5;
const CHIRP_FADE_S = 0.02;
const LEAD_S = 0.1;
const MAX_DELAY_S = 0.8;
const PLAYS = 2; // dropouts make an echo softer, never louder, so the loudest of several chirps counts
const CLEAR_RATIO = 8; // factor by which a match has to exceed all other positions
const CLEAR_PARTS_RATIO = 32; // from this ratio on, the parts of a chirp are reliable; below it a part may match noise
const PARTS = 10;
const MAX_SHIFT_S = 0.05; // a busy browser drops or inserts blocks of 10 ms: tolerance of a part's position

/** A tone with rising frequency. @param {number} rateHz @returns {Float32Array<ArrayBuffer>} */
export function makeChirp(rateHz) {
  const fadeSamples = CHIRP_FADE_S * rateHz;
  const chirp = new Float32Array(Math.round(CHIRP_S * rateHz));
  for (let i = 0; i < chirp.length; i += 1) {
    const timeS = i / rateHz;
    const sweep = CHIRP_FROM_HZ * timeS + ((CHIRP_TO_HZ - CHIRP_FROM_HZ) * timeS * timeS) / (2 * CHIRP_S);
    const fade = Math.min(1, i / fadeSamples, (chirp.length - 1 - i) / fadeSamples);
    chirp[i] = CHIRP_AMPLITUDE * fade * Math.sin(2 * Math.PI * sweep);
  }
  return chirp;
}

/** @param {Float32Array} recorded @param {Float32Array} sound @param {number} from @param {number} to */
function bestMatch(recorded, sound, from, to) {
  let energy = 0;
  for (const sample of sound) energy += sample * sample;
  let best = 0;
  let bestAt = from;
  let sum = 0;
  for (let at = from; at < to; at += 1) {
    let match = 0;
    for (let i = 0; i < sound.length; i += 1) match += recorded[at + i] * sound[i];
    const size = Math.abs(match);
    sum += size;
    if (size > best) {
      best = size;
      bestAt = at;
    }
  }
  return { gain: energy > 0 ? best / energy : 0, at: bestAt, clearness: sum > 0 ? best / (sum / (to - from)) : 0 };
}

/**
 * Median gain of a chirp's parts, each located near its expected position. A lost block affects one
 * part only, but misaligns everything after it in a match of the whole.
 * @param {Float32Array} recorded
 * @param {Float32Array} chirp
 * @param {number} chirpAt
 * @param {number} rateHz
 */
function medianGain(recorded, chirp, chirpAt, rateHz) {
  const length = Math.floor(chirp.length / PARTS);
  const shift = Math.round(MAX_SHIFT_S * rateHz);
  const gains = Array.from({ length: PARTS }, (_, part) => {
    const place = chirpAt + part * length;
    const to = Math.min(recorded.length - length, place + shift) + 1;
    return bestMatch(recorded, chirp.subarray(part * length, (part + 1) * length), Math.max(0, place - shift), to).gain;
  });
  return medianOf(gains);
}

/** @typedef {ReturnType<typeof locateChirp>} EchoMeasure */

/**
 * Level of the echo, microphone minus loudspeaker, or of the noise if none was found; then the delay is 0.
 * @param {Float32Array} recorded
 * @param {Float32Array} chirp
 * @param {number} rateHz
 */
export function locateChirp(recorded, chirp, rateHz) {
  const whole = bestMatch(recorded, chirp, 0, Math.max(0, recorded.length - chirp.length));
  const { at, clearness } = whole;
  const isHeard = clearness >= CLEAR_RATIO;
  const hasParts = clearness >= CLEAR_PARTS_RATIO;
  // In a room that reflects few frequencies, most parts are softer than the whole.
  const gain = hasParts ? Math.max(whole.gain, medianGain(recorded, chirp, at, rateHz)) : whole.gain;
  return { isHeard, levelDb: toDb(gain), delayMs: isHeard ? (at * MS_PER_S) / rateHz : 0 };
}

/** @param {Microphone} microphone @param {typeof recordFrom} record */
export async function runEchoTest(microphone, record) {
  let loudest = await playOnce(microphone, record);
  for (let play = 1; play < PLAYS; play += 1) {
    const next = await playOnce(microphone, record);
    if (isLouder(next, loudest)) loudest = next;
  }
  return loudest;
}

/** @param {EchoMeasure} one @param {EchoMeasure} other */
const isLouder = (one, other) => (one.isHeard === other.isHeard ? one.levelDb > other.levelDb : one.isHeard);

/** @param {Microphone} microphone @param {typeof recordFrom} record */
async function playOnce(microphone, record) {
  const { context } = microphone;
  const chirp = makeChirp(CAPTURE_RATE_HZ);
  const listenSamples = Math.round((LEAD_S + CHIRP_S + MAX_DELAY_S) * CAPTURE_RATE_HZ);
  const buffer = new AudioBuffer({ length: chirp.length, sampleRate: CAPTURE_RATE_HZ });
  buffer.copyToChannel(chirp, 0);
  const source = new AudioBufferSourceNode(context, { buffer });
  source.connect(context.destination);
  const recording = record(microphone, listenSamples);
  const playedAtS = context.currentTime + LEAD_S;
  source.start(playedAtS);
  await recording.full;
  const found = locateChirp(await recording.finish(), chirp, CAPTURE_RATE_HZ);
  const delayMs = found.isHeard ? found.delayMs - (playedAtS - recording.fromS()) * MS_PER_S : 0;
  return { ...found, delayMs };
}
