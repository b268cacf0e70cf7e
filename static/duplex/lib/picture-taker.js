/**
 * Pictures of a video call. One is taken per unit and sent ahead of the unit's audio, so that it is encoded by the time the
 * audio is complete. Subtitles over them: text, line breaks and opacity. Pure.
 */

import { createRateCounter } from "../../shared/async.js";
import { LEVELS_PER_S } from "./capture-format.js";

/** @import { Frame } from "../../../types/devices.js" */
/** @import { SubtitleLook } from "./call-settings.js" */
/** @import { TranscriptTurn } from "./full-duplex.js" */

/** @typedef {ReturnType<typeof createPictureTaker>} PictureTaker */

/**
 * @param {{grab: () => Promise<Frame | null>, isFile: () => boolean, nowMs?: () => number}} options `grab`
 *   resolves to null while there is no picture
 */
export function createPictureTaker({ grab, isFile, nowMs = () => performance.now() }) {
  let countPicture = createRateCounter();
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
    rateHz = countPicture(nowMs()).rate;
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
      let levels = 0; // of this unit: captured audio is the clock, so a busy page takes its picture late but never skips one
      const beginUnit = () => {
        isUnitServed = false;
        levels = 0;
      };
      beginUnit();
      const want = () => {
        isWanted = true;
        void shoot(send);
      };
      const countLevel = () => {
        levels += 1;
        const isDue = levels % LEVELS_PER_S === DUE_LEVELS && !isFile(); // once a second, even without chunks
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
      countPicture = createRateCounter();
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

const LINGER_MS = 4_000; // how long subtitles stay after the end of a turn
const MOST_CHARS = 600; // longest text that is wrapped; older text is no longer visible
const LINES_PER_PICTURE = 14;
const LINE_HEIGHT = 1.35;
const MARGIN = 0.05;
/** CJK text may break anywhere, other scripts between words. */
const PIECES = /[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]|[^\s\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]+\s*|\s+/gu;

/** @param {readonly TranscriptTurn[]} turns @param {number} nowMs on the clock of the turns @returns {string} "" for none */
export function subtitleAt(turns, nowMs) {
  const last = turns.at(-1);
  if (!last || (last.endedAtMs !== null && nowMs - last.endedAtMs > LINGER_MS)) return "";
  return last.text.trim().replace(/\s+/g, " ").slice(-MOST_CHARS);
}

/** @param {string} text @param {number} width @param {(text: string) => number} measure @returns {string[]} */
export function wrapText(text, width, measure) {
  /** @type {string[]} */ const lines = [];
  let line = "";
  for (const piece of text.match(PIECES) ?? []) {
    if (line !== "" && measure((line + piece).trimEnd()) > width) {
      lines.push(line.trimEnd());
      line = "";
    }
    if (line !== "" || piece.trim() !== "") line += piece;
  }
  if (line.trim() !== "") lines.push(line.trimEnd());
  return lines;
}

/** @param {number} age @param {number} count lines that fit @param {Pick<SubtitleLook, "bottomPercent" | "topPercent">} look */
export function lineOpacity(age, count, { bottomPercent, topPercent }) {
  const part = count > 1 ? Math.min(1, age / (count - 1)) : 0;
  return (bottomPercent + (topPercent - bottomPercent) * part) / 100;
}

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {number} widthPx
 * @param {number} heightPx
 * @param {string} text
 * @param {SubtitleLook} look
 */
export function paintSubtitles(ctx, widthPx, heightPx, text, look) {
  if (text === "") return;
  const fontPx = heightPx / LINES_PER_PICTURE / LINE_HEIGHT;
  const linePx = fontPx * LINE_HEIGHT;
  const fitting = Math.max(1, Math.floor((heightPx * look.heightPercent) / 100 / linePx));
  ctx.save();
  ctx.font = `600 ${fontPx}px sans-serif`;
  ctx.textAlign = "center";
  ctx.textBaseline = "bottom";
  ctx.lineJoin = "round";
  ctx.lineWidth = fontPx / 6;
  ctx.strokeStyle = "black";
  ctx.fillStyle = "white";
  const lines = wrapText(text, widthPx * (1 - 2 * MARGIN), (part) => ctx.measureText(part).width);
  lines
    .slice(-fitting)
    .reverse()
    .forEach((line, age) => {
      ctx.globalAlpha = lineOpacity(age, fitting, look);
      const y = heightPx * (1 - MARGIN / 2) - age * linePx;
      ctx.strokeText(line, widthPx / 2, y);
      ctx.fillText(line, widthPx / 2, y);
    });
  ctx.restore();
}
