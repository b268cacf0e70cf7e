/** PCM audio: Base64 encoding, levels, mono mixing and WAV files. Samples are float32 in [-1, 1]. Pure. */

const BYTES_PER_FLOAT = 4;
const BYTES_PER_PCM16 = 2;
const WAV_HEADER_BYTES = 44;
const WAV_FORMAT_PCM = 1;
const PCM16_MAX = 32_767;
const BASE64_PIECE_BYTES = 24_576; // a multiple of 3, so that pieces join without padding; small enough for one `apply`
/** Level of an all-zero signal, so that meters need no infinity. */
export const FLOOR_DB = -120;

export function bytesToBase64(/** @type {Uint8Array} */ bytes) {
  let text = "";
  for (let start = 0; start < bytes.length; start += BASE64_PIECE_BYTES) {
    const piece = bytes.subarray(start, start + BASE64_PIECE_BYTES);
    text += btoa(String.fromCharCode(...piece));
  }
  return text;
}

/** @param {string} text @returns {Uint8Array<ArrayBuffer>} @throws {DOMException} not Base64 */
export function base64ToBytes(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < characters.length; i += 1) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

/** Base64 of little-endian float32 samples, as the protocol requires and every browser stores them. @param {Float32Array} samples */
export const floatsToBase64 = (samples) => bytesToBase64(new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength));

/** @param {string} text little-endian float32 @throws {RangeError} the length is not a whole number of samples */
export function base64ToFloats(text) {
  const bytes = base64ToBytes(text);
  if (bytes.length % BYTES_PER_FLOAT !== 0) {
    throw new RangeError(`${bytes.length} bytes are not whole float32 samples`);
  }
  return new Float32Array(bytes.buffer);
}

/** Root mean square; 0 for no samples. @param {Float32Array} samples @returns {number} */
export function rms(samples) {
  if (samples.length === 0) return 0;
  let sum = 0;
  for (let i = 0; i < samples.length; i += 1) sum += samples[i] * samples[i];
  return Math.sqrt(sum / samples.length);
}

/** Amplitude in dB relative to 1, not below FLOOR_DB. @param {number} amplitude @returns {number} */
export const toDb = (amplitude) => (amplitude > 0 ? Math.max(FLOOR_DB, 20 * Math.log10(amplitude)) : FLOOR_DB);

/** Amplitude of a level in dB. @param {number} levelDb @returns {number} */
export const fromDb = (levelDb) => 10 ** (levelDb / 20);

/** Average of the channels; a single channel is returned uncopied. @param {Float32Array[]} channels of equal length @returns {Float32Array} */
export function mixToMono(channels) {
  if (channels.length === 0) return new Float32Array(0);
  if (channels.length === 1) return channels[0];
  const mono = new Float32Array(channels[0].length);
  for (const channel of channels) {
    for (let i = 0; i < mono.length; i += 1) mono[i] += channel[i] / channels.length;
  }
  return mono;
}

export function joinChunks(/** @type {Float32Array[]} */ chunks) {
  const joined = new Float32Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    joined.set(chunk, at);
    at += chunk.length;
  }
  return joined;
}

/** Parses the header of a WAV file; null if it is none. @param {Uint8Array} head */
export function wavFormat(head) {
  const view = new DataView(head.buffer, head.byteOffset, head.byteLength);
  const word = (/** @type {number} */ at) => String.fromCharCode(...head.subarray(at, at + 4));
  if (head.length < 12 || word(0) !== "RIFF" || word(8) !== "WAVE") return null;
  let [format, channels, rateHz, bits] = [0, 0, 0, 0];
  for (let at = 12; at + 8 <= head.length;) {
    const [start, bytes] = [at + 8, view.getUint32(at + 4, true)];
    if (word(at) === "data") return { format, channels, rateHz, bits, dataOffset: start, dataBytes: bytes };
    if (word(at) === "fmt " && start + 16 <= head.length) {
      [format, channels, bits] = [0, 2, 14].map((offset) => view.getUint16(start + offset, true));
      rateHz = view.getUint32(start + 4, true);
    }
    at = start + bytes + (bytes % 2);
  }
  return null;
}

/** @param {number} lengthSamples per channel @param {number} channelCount @param {number} rateHz */
export function wavHeader(lengthSamples, channelCount, rateHz) {
  const frameBytes = channelCount * BYTES_PER_PCM16;
  const bodyBytes = lengthSamples * frameBytes;
  const view = new DataView(new ArrayBuffer(WAV_HEADER_BYTES));
  const writeWord = (/** @type {number} */ at, /** @type {string} */ word) => {
    for (let i = 0; i < word.length; i += 1) view.setUint8(at + i, word.charCodeAt(i));
  };
  writeWord(0, "RIFF");
  view.setUint32(4, WAV_HEADER_BYTES - 8 + bodyBytes, true);
  writeWord(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, WAV_FORMAT_PCM, true);
  view.setUint16(22, channelCount, true);
  view.setUint32(24, rateHz, true);
  view.setUint32(28, rateHz * frameBytes, true);
  view.setUint16(32, frameBytes, true);
  view.setUint16(34, BYTES_PER_PCM16 * 8, true);
  writeWord(36, "data");
  view.setUint32(40, bodyBytes, true);
  return new Uint8Array(view.buffer);
}

/** Interleaved, little-endian; what is beyond [-1, 1] is clipped. @param {Float32Array[]} channels of equal length */
export function toPcm16(channels) {
  const lengthSamples = channels.length === 0 ? 0 : channels[0].length;
  const view = new DataView(new ArrayBuffer(lengthSamples * channels.length * BYTES_PER_PCM16));
  let at = 0;
  for (let i = 0; i < lengthSamples; i += 1) {
    for (const channel of channels) {
      const clipped = Math.max(-1, Math.min(1, channel[i]));
      view.setInt16(at, Math.round(clipped * PCM16_MAX), true);
      at += BYTES_PER_PCM16;
    }
  }
  return new Uint8Array(view.buffer);
}

/** @param {Float32Array | Float32Array[]} sound mono samples, or channels of equal length @param {number} rateHz */
export function encodeWav(sound, rateHz) {
  const channels = Array.isArray(sound) ? sound : [sound];
  const body = toPcm16(channels);
  const file = new Uint8Array(WAV_HEADER_BYTES + body.length);
  file.set(wavHeader(channels[0]?.length ?? 0, channels.length, rateHz));
  file.set(body, WAV_HEADER_BYTES);
  return file;
}

export const LEAST_SHOWN_DB = -60; // quietest level shown; speech close to a microphone lies between -35 and -15 dB
const MOST_SHOWN_DB = -8;
const BAR_FALL_DB_PER_S = 60;
const PEAK_FALL_DB_PER_S = 30;
const PEAK_HOLD_MS = 1_200;
const MS_PER_S = 1_000;

/** A level as a share of the bar. @param {number} levelDb @returns {number} 0 to 1 */
export const shareOfDb = (levelDb) => Math.min(1, Math.max(0, (levelDb - LEAST_SHOWN_DB) / (MOST_SHOWN_DB - LEAST_SHOWN_DB)));

/** The same of an amplitude. @param {number} rms @returns {number} 0 to 1 */
export const levelShare = (rms) => shareOfDb(toDb(rms));

/**
 * Motion of a level meter: both rise at once; the bar falls steadily, the peak after a moment. The same at any frame rate.
 * @returns {(levelDb: number, nowMs: number) => {barDb: number, peakDb: number}}
 */
export function createMeterMotion() {
  let [barDb, peakDb, reachedAtMs, lastMs] = [LEAST_SHOWN_DB, LEAST_SHOWN_DB, 0, 0];
  return (levelDb, nowMs) => {
    const passedS = (nowMs - lastMs) / MS_PER_S;
    lastMs = nowMs;
    barDb = Math.max(levelDb, barDb - BAR_FALL_DB_PER_S * passedS, LEAST_SHOWN_DB);
    if (levelDb >= peakDb) [peakDb, reachedAtMs] = [levelDb, nowMs];
    else if (nowMs - reachedAtMs > PEAK_HOLD_MS)
      peakDb = Math.max(levelDb, peakDb - PEAK_FALL_DB_PER_S * passedS, LEAST_SHOWN_DB);
    return { barDb, peakDb };
  };
}
