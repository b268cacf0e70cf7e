/** Subtitles: text, line breaks and opacity. Pure. */

/** @import { TranscriptTurn } from "./full-duplex.js" */
/** @import { UserTurn } from "./user-turns.js" */

/**
 * @typedef {Object} SubtitleLook
 * @property {boolean} isOn
 * @property {number} heightPercent of the picture
 * @property {number} bottomPercent opacity of the newest line
 * @property {number} topPercent opacity of the oldest line
 */

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

/** @param {readonly TranscriptTurn[]} modelTurns @param {readonly UserTurn[]} userTurns @param {number} count */
export function lastTurns(modelTurns, userTurns, count) {
  const said = modelTurns
    .slice(-count)
    .map(({ startedAtMs, text }) => ({ startedAtMs, text: text.trim(), lengthMs: 0, isUser: false }));
  const heard = userTurns.slice(-count).map(({ startedAtMs, lengthMs }) => ({ startedAtMs, text: "", lengthMs, isUser: true }));
  return [...said, ...heard].sort((one, other) => one.startedAtMs - other.startedAtMs).slice(-count);
}
