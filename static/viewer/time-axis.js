/** Time axis of a replay: view, painting of its canvases, links to a position, keyboard, texts. Pure. */

import { quantileOf } from "../shared/async.js";
import { formatBytes, formatClock, formatDateTime, formatNumber, hasText, MS_PER_S, S_PER_MINUTE, t } from "../shared/texts.js";

/** @import { Plan, Unit } from "./recording.js" */
/** @import { Meta, TurnTiming, UnitTiming } from "../../types/recording.js" */

/** @typedef {{fromS: number, toS: number}} View */

export const SHORTEST_S = 4;
export const LONGEST_S = 300; // more would load all of a long recording's audio
const FIRST_S = 120;
const FOLLOW_AT = 0.92; // share of the view at which the playhead turns the page
const FOLLOW_TO = 0.08;
const STEPS_S = [0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300];

/** @param {View} view @param {number} durationS @returns {View} the nearest view within the recording */
export function fit({ fromS, toS }, durationS) {
  const longestS = Math.min(LONGEST_S, Math.max(durationS, SHORTEST_S));
  const spanS = Math.min(Math.max(toS - fromS, SHORTEST_S), longestS);
  const beginS = Math.max(0, Math.min(fromS, durationS - spanS));
  return { fromS: beginS, toS: beginS + spanS };
}

/** @param {number} durationS @returns {View} the initial view */
export const firstView = (durationS) => fit({ fromS: 0, toS: Math.min(durationS, FIRST_S) }, durationS);

/** @param {View} view @param {number} factor @param {number} anchorS keeps its position @param {number} durationS */
export function zoomed(view, factor, anchorS, durationS) {
  const spanS = view.toS - view.fromS;
  const wanted = Math.min(Math.max(spanS * factor, SHORTEST_S), LONGEST_S);
  const share = (anchorS - view.fromS) / spanS;
  const fromS = anchorS - share * wanted;
  return fit({ fromS, toS: fromS + wanted }, durationS);
}

/** @param {View} view @param {number} share of the view to continue by; below 0 goes back @param {number} durationS */
export function moved({ fromS, toS }, share, durationS) {
  const byS = share * (toS - fromS);
  return fit({ fromS: fromS + byS, toS: toS + byS }, durationS);
}

/**
 * Returns a view that holds a time; the same one if it does already.
 * @param {View} view
 * @param {number} atS
 * @param {number} durationS
 * @param {boolean} [isPlaying] turns the page before the end
 */
export function following(view, atS, durationS, isPlaying = false) {
  const share = shareOf(view, atS);
  const isAtEnd = view.toS >= durationS;
  if (share >= 0 && share <= (isPlaying && !isAtEnd ? FOLLOW_AT : 1)) return view;
  const spanS = view.toS - view.fromS;
  const fromS = atS - FOLLOW_TO * spanS;
  return fit({ fromS, toS: fromS + spanS }, durationS);
}

/** @param {View} view @param {number} atS @returns {number} 0 at the left edge, 1 at the right */
export const shareOf = ({ fromS, toS }, atS) => (atS - fromS) / (toS - fromS);

export const timeAt = (/** @type {View} */ { fromS, toS }, /** @type {number} */ share) => fromS + share * (toS - fromS);

/** @param {View} view @param {number} most marks that fit @returns {number[]} times to mark */
export function ticks({ fromS, toS }, most) {
  const stepS = STEPS_S.find((step) => (toS - fromS) / step <= most) ?? STEPS_S[STEPS_S.length - 1];
  const first = Math.ceil(fromS / stepS - 1e-9);
  const count = Math.floor(toS / stepS + 1e-9) - first + 1;
  return Array.from({ length: Math.max(0, count) }, (_, index) => (first + index) * stepS);
}

/** The entries visible in a view. @template {{startS: number, endS: number}} T @param {readonly T[]} list @param {View} view */
export const within = (list, { fromS, toS }) => list.filter(({ startS, endS }) => startS <= toS && endS >= fromS);

/**
 * Entries spread evenly over a view, one for each slot, none twice.
 * @template {{atS: number}} T
 * @param {readonly T[]} list sorted
 * @param {View} view
 * @param {number} places
 * @returns {{entry: T, share: number}[]} `share` is the left edge of its slot
 */
export function spread(list, view, places) {
  /** @type {{entry: T, share: number}[]} */ const found = [];
  for (let place = 0; place < places; place += 1) {
    const share = place / places;
    const middleS = timeAt(view, share + 0.5 / places);
    const entry = list.findLast(({ atS }) => atS <= middleS);
    if (entry && found.at(-1)?.entry !== entry) found.push({ entry, share });
  }
  return found;
}

// What the canvases show.

/** @typedef {{width: number, height: number}} Size CSS pixels */
/** @typedef {(token: string, alpha?: number) => string} Css colour of the theme */

const BAR_PX = 2;
const BAR_STEP_PX = 3;
const FULL_SCALE = 0.6; // speech is rarely louder; louder peaks are clipped

/**
 * Waveforms: the user's above, the model's below.
 * @param {CanvasRenderingContext2D} ctx
 * @param {Size} size
 * @param {View} view
 * @param {(channel: number, part: View) => number} loudest largest peak of a channel
 * @param {Css} css
 * @returns {number} the largest peak shown
 */
export function paintWaves(ctx, { width, height }, view, loudest, css) {
  const bars = Math.ceil(width / BAR_STEP_PX);
  let most = 0;
  for (const [channel, tone] of ["listen", "speak"].entries()) {
    ctx.fillStyle = css(tone);
    for (let bar = 0; bar < bars; bar += 1) {
      const peak = loudest(channel, { fromS: timeAt(view, bar / bars), toS: timeAt(view, (bar + 1) / bars) });
      const tall = Math.max(1, (Math.min(1, peak / FULL_SCALE) * height) / 2);
      ctx.fillRect(bar * BAR_STEP_PX, (channel + 0.5) * (height / 2) - tall / 2, BAR_PX, tall);
      most = Math.max(most, peak);
    }
  }
  return most;
}

const LEAST_PX = 1;
const LATE_PX = 4;

/** The whole recording: speech and late units. @param {CanvasRenderingContext2D} ctx @param {Size} size @param {Plan} plan @param {Css} css */
export function paintOverview(ctx, { width, height }, { units, durationS }, css) {
  const perS = width / durationS;
  for (const { startS, endS, mode, isLate } of units) {
    const size = Math.max(LEAST_PX, (endS - startS) * perS);
    const [alpha, tall] = mode === "speak" ? [1, height] : [0.35, height * 0.4];
    ctx.fillStyle = css(mode === "none" ? "idle" : mode, alpha);
    ctx.fillRect(startS * perS, height - tall, size, tall);
    if (!isLate) continue;
    ctx.fillStyle = css("bad");
    ctx.fillRect(startS * perS, 0, Math.max(2, size), LATE_PX);
  }
}

/** Summary of all units. @param {Plan} plan */
export function latencyFigures({ units }) {
  const walls = units.flatMap(({ wallMs }) => (wallMs === null ? [] : [wallMs]));
  return {
    count: units.length,
    spokeCount: units.filter(({ mode }) => mode === "speak").length,
    p50Ms: quantileOf(walls, 0.5),
    p99Ms: quantileOf(walls, 0.99),
    lateCount: units.filter(({ isLate }) => isLate).length,
    gapCount: units.filter(({ gapMs }) => gapMs > 0).length,
    gapMs: units.reduce((sum, { gapMs }) => sum + gapMs, 0),
  };
}

// A position in an address: `?t=12.3`.

const NAME = "t";
const CLOCK = /^(?:(\d+):)?(\d{1,2}):(\d{1,2}(?:\.\d+)?)$/;

/** @param {string} search of an address @returns {number | null} s; null if there is none */
export function readMoment(search) {
  const value = new URLSearchParams(search).get(NAME)?.trim() ?? "";
  const clock = CLOCK.exec(value);
  if (clock) {
    const [hours, minutes, seconds] = [clock[1] ?? 0, clock[2], clock[3]].map(Number);
    return (hours * S_PER_MINUTE + minutes) * S_PER_MINUTE + seconds;
  }
  const atS = value === "" ? Number.NaN : Number(value.replace(/s$/, ""));
  return Number.isFinite(atS) && atS >= 0 ? atS : null;
}

/** Sets the position, omitted at the start; the rest of the address stays. @param {string} href @param {number} atS */
export function withMoment(href, atS) {
  const url = new URL(href);
  const text = atS.toFixed(1).replace(/\.0$/, "");
  if (Number(text) > 0) url.searchParams.set(NAME, text);
  else url.searchParams.delete(NAME);
  return url.href;
}

// Keyboard shortcuts of the viewer.

/**
 * @typedef {{kind: "toggle"} | {kind: "seekBy", s: number} | {kind: "seekTo", end: boolean}
 *   | {kind: "unit", by: 1 | -1} | {kind: "help"}} Action
 */

/** @type {Readonly<Record<string, Action>>} */ const ACTIONS = {
  " ": { kind: "toggle" },
  k: { kind: "toggle" },
  ArrowLeft: { kind: "seekBy", s: -1 },
  ArrowRight: { kind: "seekBy", s: 1 },
  "Shift ArrowLeft": { kind: "seekBy", s: -5 },
  "Shift ArrowRight": { kind: "seekBy", s: 5 },
  j: { kind: "seekBy", s: -10 },
  l: { kind: "seekBy", s: 10 },
  ",": { kind: "unit", by: -1 },
  ".": { kind: "unit", by: 1 },
  Home: { kind: "seekTo", end: false },
  End: { kind: "seekTo", end: true },
  "?": { kind: "help" },
};

/** Entries of the help: keys and text. */
export const KEY_HELP = Object.freeze([
  { keys: ["Space", "K"], text: "viewer.key_toggle" },
  { keys: ["←", "→"], text: "viewer.key_step" },
  { keys: ["Shift ←", "Shift →"], text: "viewer.key_big_step" },
  { keys: ["J", "L"], text: "viewer.key_jump" },
  { keys: [",", "."], text: "viewer.key_unit" },
  { keys: ["Home", "End"], text: "viewer.key_ends" },
  { keys: ["?"], text: "viewer.key_help" },
]);

/** @param {Partial<KeyboardEvent> & {key: string}} pressed @returns {Action | null} */
export function actionOf({ key, shiftKey, ctrlKey, altKey, metaKey }) {
  if (ctrlKey || altKey || metaKey) return null;
  const name = key.length === 1 ? key.toLowerCase() : key;
  return (shiftKey && ACTIONS[`Shift ${name}`]) || (ACTIONS[name] ?? null);
}

// Texts of units, turns and positions.

const LINGER_S = 1.5; // how long text stays after its end
const EDGE_S = 0.05; // tolerance for stepping back from the start of a unit
/** @type {[string, (keyof UnitTiming)[]][]} */ const STAGES = [
  ["input", ["prefill_ms"]],
  ["words", ["llm_ms"]],
  ["voice", ["tts_prep_ms", "tts_ms"]],
  ["sound", ["token2wav_ms"]],
];

export function unitStart(/** @type {Plan} */ { units, durationS }, /** @type {number} */ atS, /** @type {1 | -1} */ by) {
  const index = units.findLastIndex(({ startS }) => startS <= atS + EDGE_S);
  if (by > 0) return units[index + 1]?.startS ?? durationS;
  const isAtStart = atS - (units[index]?.startS ?? 0) <= EDGE_S;
  return units[isAtStart ? index - 1 : index]?.startS ?? 0;
}

export function wordsAt(/** @type {Plan} */ { turns }, /** @type {number} */ atS) {
  const turn = turns.findLast(({ startS }) => startS <= atS);
  if (turn === undefined || atS >= turn.endS + LINGER_S) return "";
  const said = turn.words.filter((word) => word.atS <= atS).map(({ text }) => text);
  return said.join("").trim();
}

/** "Unit 12 · 26 of 1,000 ms · input 5 · memory 257 tokens". @param {Unit} unit @param {number} unitS */
export function unitText({ number, wallMs, isLate, gapMs, chunk }, unitS) {
  const timing = chunk.result?.timing ?? {};
  const parts = [t("viewer.unit", { n: formatNumber(number + 1) })];
  if (wallMs !== null) parts.push(t("viewer.of_budget", { n: formatNumber(wallMs), max: formatNumber(unitS * 1_000) }));
  for (const [name, fields] of STAGES) {
    const ms = fields.reduce((sum, field) => sum + (timing[field] ?? 0), 0);
    if (ms >= 1) parts.push(t(`viewer.stage_${name}`, { n: formatNumber(ms) }));
  }
  if (timing.kv_cache_length) parts.push(t("viewer.memory", { n: formatNumber(timing.kv_cache_length) }));
  if (isLate) parts.push(t("viewer.late"));
  if (gapMs > 0) parts.push(t("viewer.gap", { n: formatNumber(gapMs) }));
  return parts.join(" · ");
}

/** @param {TurnTiming} timing @param {number | undefined} soundMs */
export function figureTexts(
  { elapsed_ms: elapsedMs, first_audio_ms: firstMs, tokens, input_tokens: fresh, cached_tokens: cached, total_tokens: total },
  soundMs,
) {
  return [
    firstMs !== undefined && t("viewer.first_sound", { s: formatNumber(firstMs / MS_PER_S, 2) }),
    elapsedMs !== undefined && t("viewer.took", { s: formatNumber(elapsedMs / MS_PER_S, 2) }),
    tokens !== undefined && t("viewer.tokens", { n: formatNumber(tokens) }),
    fresh !== undefined && t("viewer.tokens_in", { fresh: formatNumber(fresh), cached: formatNumber(cached ?? 0) }),
    total !== undefined && t("viewer.memory", { n: formatNumber(total) }),
    soundMs !== undefined && t("viewer.sound_length", { s: tenthsOfSeconds(soundMs) }),
  ].filter((text) => text !== false);
}

/** @param {number} speed @returns {string} "0.5", "0.75", "1" */
export function speedText(speed) {
  const digits = [0, 1].find((count) => Number(speed.toFixed(count)) === speed) ?? 2;
  return formatNumber(speed, digits);
}

/** Minutes, seconds and tenths. @param {number} atS */
export function preciseClock(atS) {
  const tenths = Math.floor(atS * 10 + 1e-6);
  return `${Math.floor(tenths / 600)}:${String(Math.floor((tenths % 600) / 10)).padStart(2, "0")}.${tenths % 10}`;
}

export const tenthsOfSeconds = (/** @type {number} */ ms) => formatNumber(ms / MS_PER_S, 1);

/** @param {Plan} plan @param {number} atS @returns {string} "0:12 of 1:30, the model speaks" */
export function momentText(plan, atS) {
  const unit = plan.units.findLast(({ startS }) => startS <= atS);
  const doing = t(`viewer.mode_${unit?.mode ?? "none"}`);
  return t("viewer.moment", { time: formatClock(Math.floor(atS)), total: formatClock(plan.durationS), doing });
}

/** @param {Meta} meta @returns {[string, string][]} */
export function factTexts(meta) {
  const { duration_s: durationS, end_reason: endReason, model, worker_id: worker, size_bytes: bytes } = meta;
  /** @type {[string, string][]} */ const known = [["date", formatDateTime(meta.created_at)]];
  if (durationS !== undefined) known.push(["duration", t("viewer.lasted", { time: formatClock(durationS) })]);
  if (endReason && hasText(`viewer.end_${endReason}`)) known.push(["end", t(`viewer.end_${endReason}`)]);
  if (meta.status === "failed") known.push(["status", t("viewer.status_failed")]);
  if (model) known.push(["model", model]);
  if (worker) known.push(["worker", worker]);
  if (bytes !== undefined) known.push(["size", formatBytes(bytes)]);
  return known;
}
