// @ts-check
/**
 * Takes the pictures that go with the sound and sends them ahead of it: one for each unit, as soon as
 * it is there, so that the model has looked at it when the unit's sound is complete. Device.
 */

import { PictureTempo, SentRate } from "./picture-tempo.js";

/** @typedef {import("./camera.js").Frame} Frame */

/**
 * @typedef {Object} PictureTaker
 * @property {(source: EventTarget, send: (base64: string) => boolean) => void} attach follow a source: its
 *   `frame-due` where it tells them, else its levels; `send` tells whether a picture went out
 * @property {() => {rateHz: number, frame: Frame | null}} sent what really went out; `frame` is the last one
 * @property {() => void} clear
 */

/**
 * @param {{grab: () => Promise<Frame | null>, isFile: () => boolean, nowMs?: () => number}} options `grab`
 *   gives null while there is no picture
 * @returns {PictureTaker}
 */
export function createPictureTaker({ grab, isFile, nowMs = () => performance.now() }) {
  const rate = new SentRate();
  /** @type {Frame | null} */
  let sent = null;
  let framesSent = 0;
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
    rate.note((framesSent += 1), nowMs());
  };
  return {
    attach(source, send) {
      following?.abort();
      following = new AbortController();
      const { signal } = following;
      const tempo = new PictureTempo();
      isUnitServed = false;
      source.addEventListener(
        "chunk",
        () => {
          isUnitServed = false;
          tempo.beginUnit();
        },
        { signal },
      );
      const want = () => {
        isWanted = true;
        void shoot(send);
      };
      source.addEventListener("frame-due", want, { signal });
      source.addEventListener(
        "level",
        () => {
          const isDue = tempo.countLevel() && !isFile();
          if (isWanted || isDue) want();
        },
        { signal },
      );
    },
    sent: () => ({ rateHz: rate.rateHz, frame: sent }),
    clear() {
      round += 1;
      sent = null;
      isWanted = false;
      framesSent = 0;
      rate.clear();
      following?.abort();
    },
  };
}
