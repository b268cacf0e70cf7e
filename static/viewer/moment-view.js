// @ts-check
/**
 * What happens at the playhead: the picture, what the model is doing, its words, the unit's figures.
 */

import { fill, h, setText } from "../shared/dom.js";
import { formatNumber } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { mountBigFrame } from "./frame-track.js";
import { indexAt } from "./time-axis.js";

/** @typedef {import("./unit-plan.js").Plan} Plan */
/** @typedef {import("./unit-plan.js").Unit} Unit */

const LINGER_S = 1.5; // words stay so long after their end
/** @type {[string, (keyof import("./recording-types.js").UnitTiming)[]][]} */
const STAGES = [
  ["input", ["prefill_ms"]],
  ["words", ["llm_ms"]],
  ["voice", ["tts_prep_ms", "tts_ms"]],
  ["sound", ["token2wav_ms"]],
];

/**
 * @param {HTMLElement} el
 * @param {{plan: Plan, urlOf: (path: string) => string}} options
 */
export function mountMoment(el, { plan, urlOf }) {
  const image = h("img", { class: "moment-picture", alt: "" });
  const picture = plan.pictures.length > 0 ? h("figure", { class: "moment-figure" }, image) : null;
  const mode = h("span", { class: "badge moment-mode" });
  const words = h("p", { class: "moment-words" });
  const figures = h("p", { class: "small soft number moment-figures" });
  const big = mountBigFrame(image, { pictures: plan.pictures, urlOf });
  el.classList.toggle("has-picture", picture !== null);
  fill(el, picture, h("div", { class: "moment-text" }, mode, words, figures));
  let shownUnit = -2;
  let latestS = 0;

  const drawUnit = (/** @type {Unit | undefined} */ unit) => {
    const key = unit?.mode ?? "none";
    mode.dataset.mode = key;
    fill(mode, h("span", { class: "dot" }), t(`viewer.mode_${key}`));
    setText(figures, unit ? unitText(unit, plan.unitS) : "");
    el.dataset.unit = String(unit?.number ?? "");
  };
  const drawWords = (/** @type {number} */ atS) => {
    const turn = plan.turns[indexAt(plan.turns, atS, ({ startS }) => startS)];
    const isShown = turn !== undefined && atS < turn.endS + LINGER_S;
    const said = isShown
      ? turn.words
          .filter((word) => word.atS <= atS)
          .map(({ text }) => text)
          .join("")
      : "";
    setText(words, said.trim());
  };
  const update = (/** @type {number} */ atS) => {
    latestS = atS;
    const index = indexAt(plan.units, atS + 1e-6, ({ startS }) => startS);
    big.update(atS);
    drawWords(atS + 1e-6);
    if (index === shownUnit) return;
    shownUnit = index;
    drawUnit(plan.units[index]);
  };
  onLangChange(() => {
    shownUnit = -2;
    update(latestS);
  });
  return { update };
}

/**
 * "Unit 12 · 26 of 1,000 ms · input 5 · memory 257 tokens".
 *
 * @param {Unit} unit
 * @param {number} unitS
 */
function unitText({ number, wallMs, isLate, gapMs, chunk }, unitS) {
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
