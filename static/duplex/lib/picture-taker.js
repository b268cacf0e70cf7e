// @ts-check
/**
 * Takes the pictures that go with the sound and sends them ahead of it: one for each unit, as soon as
 * it is there, so that the model has looked at it when the unit's sound is complete. Pure.
 */

import { createRateCounter } from "../../shared/median.js";
import { LEVELS_PER_S } from "./capture-format.js";

/** @import { Frame } from "../../../types/devices.js" */

/** @typedef {ReturnType<typeof createPictureTaker>} PictureTaker */

/**
 * @param {{grab: () => Promise<Frame | null>, isFile: () => boolean, nowMs?: () => number}} options `grab`
 *   gives null while there is no picture
 */
export function createPictureTaker({ grab, isFile, nowMs = () => performance.now() }) {
  let rate = createRateCounter();
  let rateHz = 0;
  /** @type {Frame | null} */
  let sent = null;
  let round = 0; // a picture that comes after `clear` or from a source before is not wanted
  /** @type {AbortController | null} */
  let following = null;

  /** Tried again at the next level while the element has no picture yet. */
  let isWanted = false;
  let isShooting = false;
  let isUnitServed = false; // by a picture that came too late for the unit before, perhaps

  const shoot = async (/** @type {(base64: string) => boolean} */ send) => {
    if (isShooting) return;
    isShooting = true;
    const mine = round;
    const frame = await grab().catch(() => null); // the camera went away meanwhile
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
     * Follows a source: its `frame-due` where it has them, else its levels.
     * @param {EventTarget} source
     * @param {(base64: string) => boolean} send whether a picture went out
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
    sent: () => ({ rateHz, frame: sent }), // what really went out; `frame` is the last one
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

// When the next camera picture is taken.

/**
 * A picture is taken so long before its unit ends. It has to be there, and the model has to have looked
 * at it, when the sound is complete: up to 200 ms to encode it, 100 on the way, 100 of looking.
 */
export const AHEAD_MS = 400;
const MS_PER_S = 1_000;
const DUE_LEVELS = Math.round(((MS_PER_S - AHEAD_MS) / MS_PER_S) * LEVELS_PER_S);

/** One picture a unit, counted in what was heard of it: a busy page is late, but never too little. */
export class PictureTempo {
  #levels = 0;

  /** A chunk was complete: the next unit begins. */
  beginUnit() {
    this.#levels = 0;
  }

  /** Count a microphone level; return whether to take a picture now; true once a second, chunks or not. */
  countLevel() {
    this.#levels += 1;
    return this.#levels % LEVELS_PER_S === DUE_LEVELS;
  }
}
