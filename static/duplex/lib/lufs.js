/**
 * Loudness of recordings in LUFS. Pure.
 * Source: ITU-R BS.1770-4: K-weighting, 400 ms blocks with 75 % overlap, gates at -70 LUFS and -10 LU.
 * The standard's filters in analogue form, so that they work at any sample rate.
 */

const BLOCK_MS = 400;
const STEP_MS = 100;
const STEPS_PER_BLOCK = BLOCK_MS / STEP_MS;
const ABSOLUTE_GATE_LUFS = -70;
const RELATIVE_GATE_LU = -10;
const OFFSET_LUFS = -0.691;
/** Effect of the head: a shelf of 4 dB above 1.7 kHz. */
const SHELF = { hz: 1681.974450955533, gainDb: 3.999843853973347, q: 0.7071752369554196 };
const SHELF_SLOPE = 0.4996667741545416;
const LOW_CUT = { hz: 38.13547087602444, q: 0.5003270373238773 }; // high-pass: low frequencies add little loudness

/**
 * @typedef {Object} Biquad
 * @property {[number, number, number]} b
 * @property {[number, number]} a a1, a2
 */

/** @param {number} rateHz @returns {Biquad[]} */
function kWeighting(rateHz) {
  const shelfK = Math.tan((Math.PI * SHELF.hz) / rateHz);
  const vh = 10 ** (SHELF.gainDb / 20);
  const vb = vh ** SHELF_SLOPE;
  const shelfA0 = 1 + shelfK / SHELF.q + shelfK * shelfK;
  const cutK = Math.tan((Math.PI * LOW_CUT.hz) / rateHz);
  const cutA0 = 1 + cutK / LOW_CUT.q + cutK * cutK;
  return [
    {
      b: [
        (vh + (vb * shelfK) / SHELF.q + shelfK * shelfK) / shelfA0,
        (2 * (shelfK * shelfK - vh)) / shelfA0,
        (vh - (vb * shelfK) / SHELF.q + shelfK * shelfK) / shelfA0,
      ],
      a: [(2 * (shelfK * shelfK - 1)) / shelfA0, (1 - shelfK / SHELF.q + shelfK * shelfK) / shelfA0],
    },
    { b: [1, -2, 1], a: [(2 * (cutK * cutK - 1)) / cutA0, (1 - cutK / LOW_CUT.q + cutK * cutK) / cutA0] },
  ];
}

class Weighting {
  #stages;
  #memory = new Float64Array(4);

  /** @param {number} rateHz */
  constructor(rateHz) {
    this.#stages = kWeighting(rateHz);
  }

  /** @param {number} sample @returns {number} */
  next(sample) {
    let x = sample;
    for (let s = 0; s < 2; s += 1) {
      const { b, a } = this.#stages[s];
      const y = b[0] * x + this.#memory[2 * s];
      this.#memory[2 * s] = b[1] * x - a[0] * y + this.#memory[2 * s + 1];
      this.#memory[2 * s + 1] = b[2] * x - a[1] * y;
      x = y;
    }
    return x;
  }
}

/** @param {number} power @returns {number} */
const toLufs = (power) => (power > 0 ? OFFSET_LUFS + 10 * Math.log10(power) : -Infinity);

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
    const weighting = new Weighting(rateHz);
    for (let i = 0; i < steps.length * stepSamples; i += 1) {
      steps[Math.floor(i / stepSamples)] += weighting.next(channel[i]) ** 2 / stepSamples;
    }
  }
  return [...steps];
}

/** @param {number} lufs measured @param {number} targetLufs @param {number} [limitDb] largest gain in either direction */
export function gainToTargetDb(lufs, targetLufs, limitDb = 30) {
  if (!Number.isFinite(lufs)) return 0;
  return Math.max(-limitDb, Math.min(limitDb, targetLufs - lufs));
}
