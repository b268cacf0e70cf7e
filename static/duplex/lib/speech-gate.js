/** Decides from 10 ms frames whether the user is barging in. Pure. */

import { FLOOR_DB, toDb } from "../../shared/pcm.js";
import { FRAME_MS } from "./resampler.js";

/** @import { SpeechFrame } from "./resampler.js" */

const ABOVE_NOISE_DB = 10; // margin above the room's noise, dB
const ABOVE_ECHO_DB = 6; // margin above the expected echo, dB
const LEAST_LEVEL_DB = -60;
const NOISE_LEAST_DB = -80;
const NOISE_MOST_DB = -30;
const NOISE_SLICES = 15; // the noise floor is the quietest frame of the last 15 × 100 ms, within which speech always pauses
const NOISE_SLICE_FRAMES = 10;
const ECHO_FRAMES = 30; // longest delay of an echo, frames
const CONFIRM_FRAMES = 500 / FRAME_MS; // speech of this length is a barge-in
const HUM_FRAMES = 420 / FRAME_MS; // a hum of this length is treated as speech
const COUPLING_START_DB = -20;
const COUPLING_LEAST_DB = -60;
const COUPLING_MOST_DB = 6;
const COUPLING_FALL_DB = 0.08;
const COUPLING_RISE_DB = 0.25;
const COUPLING_STEP_DB = 6; // largest correction after a hold that looks like echo
const OUTPUT_AUDIBLE_DB = -50; // below this output there is no echo to learn from
const OPEN_RATIO_DB = -11; // upper band minus whole band: above it a frame is open speech, below it a hum
const OPEN_SPAN_DB = 4;
const NEAR_PEAK_DB = 9; // largest distance of an open frame from the loudest frame since the onset
const HOLD_EVIDENCE = 3;
const EVIDENCE_FALL = 0.25;
const DUCK_FRAMES = 4;
const HOLD_FRAMES = 6; // evidence needed to hold; a click or knock is shorter
const SPEECH_PROBABILITY = 0.5;
const DUCK_RELEASE_FRAMES = 12; // pause, in frames, that ends a sound that only ducked
const HOLD_RELEASE_FRAMES = 26;
const ECHO_TELL_FRAMES = 25; // a sound that vanishes within this many frames after a hold may have been the answer's echo

const NO_SOUND = {
  frames: 0,
  activeFrames: 0,
  pauseFrames: 0,
  evidence: 0,
  isVoice: false,
  peakDb: FLOOR_DB,
  outputDb: FLOOR_DB,
};

/** @typedef {"idle" | "ducked" | "held" | "confirmed"} GateState */
/** @typedef {"none" | "duck" | "hold" | "confirm" | "release"} GateAction */

/**
 * @typedef {Object} GateContext
 * @property {boolean} isPlaying an answer is playing or held
 * @property {number} outputRms level of the loudspeaker now, amplitude
 * @property {number} [speechProbability] from a voice detector; a sound that never reaches 0.5 only ducks
 */

/**
 * The gate of one session, fed with every frame of the microphone.
 *
 * The answer should fall silent within 200 ms, but 200 ms of audio do not show whether it will be
 * a sentence or a backchannel. So the gate answers in steps, all but the last of
 * which are reversible:
 *
 *   duck     a sound began (40 ms): 9 dB quieter, the answer continues.
 *   hold     it is speech: silence, the answer waits. Nothing is lost.
 *   confirm  speech continues for 500 ms: the answer is flushed, the interrupt is sent.
 *   release  it ended before: volume back, and after a hold the answer continues where it stopped.
 *
 * "mm-hm" is a hum: the mouth is closed and little lies above 1 kHz. A hum only ducks until it lasts
 * 420 ms, so it never stops the answer. An open sound ("yeah", or the first syllable of a sentence)
 * holds after about 60 ms of evidence. Short open backchannels therefore pause the answer for their own
 * length and a little more, and it continues complete: heard as a pause, never as a stop.
 * A cry shorter than 500 ms ("stop!") is such a pause too, unless the server decides otherwise.
 *
 * Echo: a frame counts only when it is louder than what the loudspeaker may put into the microphone:
 * the output's loudest 10 ms of the last 300 ms times a coupling. The coupling is learnt while the
 * answer plays; a hold after which the sound vanishes together with the answer was echo and raises it.
 */
export class SpeechGate {
  /** @type {GateState} */ state = "idle";
  #noiseDb = NOISE_MOST_DB;
  #quietest = new Float32Array(NOISE_SLICES).fill(NOISE_MOST_DB);
  #frameCount = 0;
  #couplingDb = COUPLING_START_DB; // estimate of microphone minus loudspeaker
  #outputs = new Float32Array(ECHO_FRAMES).fill(FLOOR_DB);
  #outputAt = 0;
  #sound = { ...NO_SOUND }; // state of the current sound
  #heldFrames = 0;
  #wasPlaying = false;

  /** The answer ended or was flushed: resets the sound, keeps the estimates of room and echo. */
  reset() {
    this.state = "idle";
    this.#forgetSound();
  }

  /** @param {SpeechFrame} frame @param {GateContext} context @returns {GateAction} action on the answer */
  push(frame, { isPlaying, outputRms, speechProbability = 1 }) {
    // Speech during which the answer began has to reach its full length again.
    if (isPlaying && !this.#wasPlaying) this.reset();
    this.#wasPlaying = isPlaying;
    const levelDb = toDb(frame.rms);
    const outputDb = this.#noteOutput(toDb(outputRms));
    this.#followNoise(levelDb);
    const isActive = levelDb > this.#thresholdDb(outputDb);
    if (this.state === "idle" && this.#sound.frames === 0) this.#learn(levelDb, outputDb);
    this.#follow(frame, levelDb, outputDb, isActive);
    if (isActive && speechProbability >= SPEECH_PROBABILITY) this.#sound.isVoice = true;
    if (!isPlaying) {
      this.state = "idle";
      if (this.#sound.pauseFrames >= DUCK_RELEASE_FRAMES) this.#forgetSound();
      return "none";
    }
    return this.#decide();
  }

  /** @param {number} nowDb @returns {number} loudest of the last frames */
  #noteOutput(nowDb) {
    this.#outputs[this.#outputAt] = nowDb;
    this.#outputAt = (this.#outputAt + 1) % ECHO_FRAMES;
    let loudest = FLOOR_DB;
    for (let i = 0; i < ECHO_FRAMES; i += 1) loudest = Math.max(loudest, this.#outputs[i]);
    return loudest;
  }

  #thresholdDb(/** @type {number} */ outputDb) {
    const echoDb = outputDb > OUTPUT_AUDIBLE_DB ? outputDb + this.#couplingDb + ABOVE_ECHO_DB : FLOOR_DB;
    return Math.max(this.#noiseDb + ABOVE_NOISE_DB, LEAST_LEVEL_DB, echoDb);
  }

  /** Updates the coupling from a frame without the user's voice. @param {number} levelDb @param {number} outputDb */
  #learn(levelDb, outputDb) {
    if (outputDb <= OUTPUT_AUDIBLE_DB) return;
    const seenDb = levelDb - outputDb;
    const changeDb = seenDb > this.#couplingDb ? COUPLING_RISE_DB : -COUPLING_FALL_DB;
    this.#couplingDb = Math.min(COUPLING_MOST_DB, Math.max(COUPLING_LEAST_DB, this.#couplingDb + changeDb));
  }

  #followNoise(/** @type {number} */ levelDb) {
    const slice = Math.floor(this.#frameCount / NOISE_SLICE_FRAMES) % NOISE_SLICES;
    if (this.#frameCount % NOISE_SLICE_FRAMES === 0) this.#quietest[slice] = NOISE_MOST_DB;
    this.#frameCount += 1;
    this.#quietest[slice] = Math.min(this.#quietest[slice], levelDb);
    let quietestDb = NOISE_MOST_DB;
    for (let i = 0; i < NOISE_SLICES; i += 1) quietestDb = Math.min(quietestDb, this.#quietest[i]);
    this.#noiseDb = Math.max(NOISE_LEAST_DB, quietestDb);
  }

  /** @param {SpeechFrame} frame @param {number} levelDb @param {number} outputDb @param {boolean} isActive */
  #follow(frame, levelDb, outputDb, isActive) {
    const sound = this.#sound;
    if (!isActive) {
      if (sound.frames === 0) return;
      sound.frames += 1;
      sound.pauseFrames += 1;
      sound.evidence = Math.max(0, sound.evidence - EVIDENCE_FALL);
      return;
    }
    sound.frames += 1;
    sound.activeFrames += 1;
    sound.pauseFrames = 0;
    if (levelDb > sound.peakDb) sound.peakDb = levelDb;
    sound.outputDb = Math.max(sound.outputDb, outputDb);
    const ratioDb = toDb(frame.upperRms) - levelDb;
    const isLoud = levelDb > sound.peakDb - NEAR_PEAK_DB;
    const openness = Math.min(1, Math.max(-EVIDENCE_FALL, (ratioDb - OPEN_RATIO_DB) / OPEN_SPAN_DB));
    if (isLoud || openness < 0) sound.evidence = Math.max(0, sound.evidence + openness);
  }

  #forgetSound() {
    Object.assign(this.#sound, NO_SOUND);
    this.#heldFrames = 0;
  }

  #decide() {
    const sound = this.#sound;
    if (this.state === "held") this.#heldFrames += 1;
    const pauseLimit = this.state === "held" ? HOLD_RELEASE_FRAMES : DUCK_RELEASE_FRAMES;
    if (sound.pauseFrames >= pauseLimit) return this.#end();
    if (this.state === "confirmed" || sound.pauseFrames > 0) return "none";
    if (this.state === "held") {
      if (sound.frames < CONFIRM_FRAMES) return "none";
      this.state = "confirmed";
      return "confirm";
    }
    const isSpeech = sound.evidence >= HOLD_EVIDENCE && sound.activeFrames >= HOLD_FRAMES;
    if (sound.isVoice && (isSpeech || sound.frames >= HUM_FRAMES)) {
      this.state = "held";
      return "hold";
    }
    if (this.state === "idle" && sound.activeFrames >= DUCK_FRAMES) {
      this.state = "ducked";
      return "duck";
    }
    return "none";
  }

  #end() {
    const wasHeld = this.state === "held";
    const isChanged = wasHeld || this.state === "ducked";
    const soundedFrames = this.#heldFrames - this.#sound.pauseFrames;
    if (wasHeld && soundedFrames < ECHO_TELL_FRAMES && this.#sound.outputDb > OUTPUT_AUDIBLE_DB) {
      // It may have been a short word of the user, so the coupling rises in steps, lest the gate stay closed.
      const seenDb = this.#sound.peakDb - this.#sound.outputDb;
      const raisedDb = Math.min(seenDb, this.#couplingDb + COUPLING_STEP_DB, COUPLING_MOST_DB);
      this.#couplingDb = Math.max(this.#couplingDb, raisedDb);
    }
    this.state = "idle";
    this.#forgetSound();
    return isChanged ? "release" : "none";
  }
}
