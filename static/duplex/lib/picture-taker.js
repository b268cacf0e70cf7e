/**
 * Takes one picture per unit and sends it ahead of the unit's audio, so that it is encoded by the
 * time the audio is complete. Pure.
 */

import { createRateCounter } from "../../shared/async.js";
import { LEVELS_PER_S } from "./capture-format.js";

/** @import { Frame } from "../../../types/devices.js" */

/** @typedef {ReturnType<typeof createPictureTaker>} PictureTaker */

/**
 * @param {{grab: () => Promise<Frame | null>, isFile: () => boolean, nowMs?: () => number}} options `grab`
 *   resolves to null while there is no picture
 */
export function createPictureTaker({ grab, isFile, nowMs = () => performance.now() }) {
  let rate = createRateCounter();
  let rateHz = 0;
  /** @type {Frame | null} */ let sent = null;
  let round = 0; // discards pictures from before `clear` or of an earlier source
  /** @type {AbortController | null} */ let following = null;

  /** Retried at the next level while the element has no picture. */
  let isWanted = false;
  let isShooting = false;
  let isUnitServed = false; // possibly by a late picture of the previous unit

  const shoot = async (/** @type {(base64: string) => boolean} */ send) => {
    if (isShooting) return;
    isShooting = true;
    const mine = round;
    const frame = await grab().catch(() => null); // the camera was closed meanwhile
    isShooting = false;
    if (mine !== round || !frame) return;
    isWanted = false;
    if (isUnitServed || !send(frame.base64)) return;
    isUnitServed = true;
    sent = frame;
    rateHz = rate.count(nowMs()).rate;
  };
  return {
    /**
     * Follows a source's `frame-due` events, or its levels if it has none.
     * @param {EventTarget} source
     * @param {(base64: string) => boolean} send returns whether the picture was sent
     */
    attach(source, send) {
      following?.abort();
      following = new AbortController();
      const { signal } = following;
      const tempo = new PictureTempo();
      isUnitServed = false;
      const beginUnit = () => {
        isUnitServed = false;
        tempo.beginUnit();
      };
      const want = () => {
        isWanted = true;
        void shoot(send);
      };
      const countLevel = () => {
        const isDue = tempo.countLevel() && !isFile();
        if (isWanted || isDue) want();
      };
      source.addEventListener("chunk", beginUnit, { signal });
      source.addEventListener("frame-due", want, { signal });
      source.addEventListener("level", countLevel, { signal });
    },
    sent: () => ({ rateHz, frame: sent }), // what was actually sent; `frame` is the last one
    clear() {
      round += 1;
      sent = null;
      isWanted = false;
      rate = createRateCounter();
      rateHz = 0;
      following?.abort();
    },
  };
}

// Timing of camera pictures.

/**
 * Lead of a picture before the end of its unit, so that it is encoded by the model when the audio is
 * complete: up to 200 ms for JPEG encoding, 100 for the network, 100 for the vision encoder.
 */
export const AHEAD_MS = 400;
const MS_PER_S = 1_000;
const DUE_LEVELS = Math.round(((MS_PER_S - AHEAD_MS) / MS_PER_S) * LEVELS_PER_S);

/** One picture per unit, timed by captured audio: a busy page takes it late but never skips one. */
export class PictureTempo {
  #levels = 0;

  /** A chunk is complete: the next unit begins. */
  beginUnit() {
    this.#levels = 0;
  }

  /** Counts a microphone level and returns whether to take a picture now: once a second, even without chunks. */
  countLevel() {
    this.#levels += 1;
    return this.#levels % LEVELS_PER_S === DUE_LEVELS;
  }
}
