// @ts-check
/**
 * Reads 16-bit WAV files back to samples. Pure.
 */

const FORMAT_PCM = 1;
const BITS = 16;
const PCM16_SCALE = 32_768;
const CHUNK_HEADER_BYTES = 8;
const FIRST_CHUNK_AT = 12;

/**
 * @param {Uint8Array} bytes
 * @param {number} rateHz
 * @returns {Float32Array | null} mono samples; null if it is no 16-bit mono file of that rate
 */
export function readWav(bytes, rateHz) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  /** @param {number} at */
  const word = (at) => String.fromCharCode(...bytes.subarray(at, at + 4));
  if (bytes.length < FIRST_CHUNK_AT || word(0) !== "RIFF" || word(8) !== "WAVE") return null;
  let isKnown = false;
  for (let at = FIRST_CHUNK_AT; at + CHUNK_HEADER_BYTES <= bytes.length; ) {
    const body = at + CHUNK_HEADER_BYTES;
    const sizeBytes = view.getUint32(at + 4, true);
    if (word(at) === "fmt " && body + 16 <= bytes.length) {
      const isPcm = view.getUint16(body, true) === FORMAT_PCM && view.getUint16(body + 14, true) === BITS;
      isKnown = isPcm && view.getUint16(body + 2, true) === 1 && view.getUint32(body + 4, true) === rateHz;
    }
    if (word(at) === "data") return isKnown ? samplesOf(view, body, Math.min(sizeBytes, bytes.length - body)) : null;
    at = body + sizeBytes + (sizeBytes % 2);
  }
  return null;
}

/** @param {DataView} view @param {number} at @param {number} sizeBytes */
function samplesOf(view, at, sizeBytes) {
  const samples = new Float32Array(Math.floor(sizeBytes / 2));
  for (let i = 0; i < samples.length; i += 1) samples[i] = view.getInt16(at + 2 * i, true) / PCM16_SCALE;
  return samples;
}
