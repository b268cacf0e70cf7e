// @ts-check
/**
 * Takes the pictures that go with the sound: one for each unit, ready when the chunk is. Device.
 */

import { PictureTempo, SentRate } from "./picture-tempo.js";

/** @typedef {import("./camera.js").Frame} Frame */

/**
 * @typedef {Object} PictureTaker
 * @property {(source: EventTarget) => void} attach follow a source: its `frame-due` where it tells them, else its levels
 * @property {() => string[]} take the picture for the chunk that goes now
 * @property {(framesSent: number) => void} noteSent
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
  let ready = null;
  /** @type {Frame | null} */
  let given = null;
  /** @type {Frame | null} */
  let sent = null;
  let framesSent = 0;
  let round = 0; // a picture that comes after `clear` or from a source before is not wanted
  /** @type {AbortController | null} */
  let following = null;

  /** Tried again at the next level while the element has no picture yet. */
  let isWanted = false;
  let isShooting = false;

  const shoot = async () => {
    if (isShooting) return;
    isShooting = true;
    const mine = round;
    const frame = await grab().catch(() => null); // the camera went away meanwhile
    isShooting = false;
    if (mine !== round || !frame) return;
    isWanted = false;
    ready = frame;
  };
  const clear = () => {
    round += 1;
    [ready, given, sent] = [null, null, null];
    isWanted = false;
    framesSent = 0;
    rate.clear();
    following?.abort();
  };
  return {
    attach(source) {
      following?.abort();
      following = new AbortController();
      const { signal } = following;
      const tempo = new PictureTempo(nowMs());
      source.addEventListener("chunk", () => tempo.beginUnit(nowMs()), { signal });
      const want = () => {
        isWanted = true;
        void shoot();
      };
      source.addEventListener("frame-due", want, { signal });
      source.addEventListener("level", () => {
        if (isWanted) void shoot();
        else if (!isFile() && tempo.isDue(nowMs())) want();
      }, { signal });
    },
    take() {
      given = ready;
      ready = null;
      return given ? [given.base64] : [];
    },
    noteSent(total) {
      if (total === framesSent) return;
      if (total > framesSent) sent = given;
      framesSent = total;
      rate.note(total, nowMs());
    },
    sent: () => ({ rateHz: rate.rateHz, frame: sent }),
    clear,
  };
}
