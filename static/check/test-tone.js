// @ts-check
/**
 * A short friendly melody, first on the left, then on the right. Device.
 */

/** C major, an octave apart on the two sides. Source: equal temperament, A4 = 440 Hz. */
const LEFT_HZ = [523.25, 659.25, 783.99];
const RIGHT_HZ = [783.99, 659.25, 1046.5];
const NOTE_S = 0.32;
const STEP_S = 0.24;
const PAUSE_S = 0.25;
const LEAD_S = 0.08;
const ATTACK_S = 0.02;
const PEAK_GAIN = 0.22;
const NEARLY_NOTHING = 0.0001; // an exponential ramp cannot reach 0

/**
 * @param {AudioContext} context
 * @param {number} frequencyHz
 * @param {number} pan -1 left, 1 right
 * @param {number} startS
 * @returns {OscillatorNode}
 */
function playNote(context, frequencyHz, pan, startS) {
  const tone = new OscillatorNode(context, { type: "sine", frequency: frequencyHz });
  const gain = new GainNode(context, { gain: 0 });
  gain.gain.setValueAtTime(NEARLY_NOTHING, startS);
  gain.gain.exponentialRampToValueAtTime(PEAK_GAIN, startS + ATTACK_S);
  gain.gain.exponentialRampToValueAtTime(NEARLY_NOTHING, startS + NOTE_S);
  tone.connect(gain).connect(new StereoPannerNode(context, { pan })).connect(context.destination);
  tone.start(startS);
  tone.stop(startS + NOTE_S);
  return tone;
}

/**
 * Plays it once.
 *
 * @param {AudioContext} context that runs
 * @param {(side: "left" | "right") => void} onSide called as each side begins
 * @returns {Promise<void>} ends with the last note
 */
export async function playMelody(context, onSide) {
  const startS = context.currentTime + LEAD_S;
  const rightS = startS + LEFT_HZ.length * STEP_S + PAUSE_S;
  const left = LEFT_HZ.map((hz, index) => playNote(context, hz, -1, startS + index * STEP_S));
  const right = RIGHT_HZ.map((hz, index) => playNote(context, hz, 1, rightS + index * STEP_S));
  onSide("left");
  await ended(left.at(-1));
  onSide("right");
  await ended(right.at(-1));
}

/** @param {OscillatorNode | undefined} tone @returns {Promise<void>} */
function ended(tone) {
  return new Promise((resolve) => {
    if (tone) tone.onended = () => resolve();
    else resolve();
  });
}
