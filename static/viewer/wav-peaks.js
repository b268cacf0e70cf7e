// @ts-check
/**
 * Reads the shape of a WAV file and the loudest samples of a part of it. Pure.
 */

const PCM16_SCALE = 32_768;
const BYTES_PER_SAMPLE = 2;
const RIFF_HEAD_BYTES = 12;
const CHUNK_HEAD_BYTES = 8;

/**
 * @typedef {Object} WavShape
 * @property {number} rateHz
 * @property {number} channels
 * @property {number} dataOffset bytes before the first sample
 * @property {number} frames samples of each channel
 */

/**
 * @param {ArrayBuffer} head the file's beginning
 * @returns {WavShape | null} null if it is no 16-bit WAV file
 */
export function wavShape(head) {
  const view = new DataView(head);
  if (head.byteLength < RIFF_HEAD_BYTES || tag(view, 0) !== "RIFF" || tag(view, 8) !== "WAVE") return null;
  let [at, rateHz, channels, bits] = [RIFF_HEAD_BYTES, 0, 0, 0];
  while (at + CHUNK_HEAD_BYTES <= head.byteLength) {
    const name = tag(view, at);
    const size = view.getUint32(at + 4, true);
    const body = at + CHUNK_HEAD_BYTES;
    if (name === "data") {
      if (bits !== BYTES_PER_SAMPLE * 8 || channels === 0) return null;
      return { rateHz, channels, dataOffset: body, frames: Math.floor(size / (BYTES_PER_SAMPLE * channels)) };
    }
    if (name === "fmt " && body + 16 <= head.byteLength) {
      channels = view.getUint16(body + 2, true);
      rateHz = view.getUint32(body + 4, true);
      bits = view.getUint16(body + 14, true);
    }
    at = body + size + (size % 2);
  }
  return null;
}

/** @param {DataView} view @param {number} at */
function tag(view, at) {
  return String.fromCharCode(...[0, 1, 2, 3].map((index) => view.getUint8(at + index)));
}

/**
 * The byte range of a part of the sound.
 *
 * @param {WavShape} shape
 * @param {number} fromFrame
 * @param {number} toFrame
 * @returns {{first: number, last: number}} both inside
 */
export function byteRange({ dataOffset, channels, frames }, fromFrame, toFrame) {
  const size = BYTES_PER_SAMPLE * channels;
  const end = Math.min(toFrame, frames);
  return { first: dataOffset + fromFrame * size, last: dataOffset + end * size - 1 };
}

/**
 * The loudest of every so many samples, for each channel, 0 to 1.
 *
 * @param {ArrayBuffer} bytes interleaved PCM16, little endian
 * @param {number} channels
 * @param {number} framesPerPeak
 * @returns {Float32Array[]}
 */
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
