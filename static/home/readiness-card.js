// @ts-check
/**
 * The card "What works here".
 */

import { fill, h, icon, setText } from "../shared/dom.js";
import { onLangChange, t, tn } from "../shared/i18n.js";

/** @typedef {import("./readiness.js").Line} Line */
/** @typedef {import("./readiness.js").Phrase} Phrase */

const ICONS = { secure: "lock", microphone: "mic", camera: "camera", worker: "server", queue: "people", model: "sparkle" };
const STATE_ICONS = { asking: "clock", good: "check", caution: "info", bad: "warning" };

/** @param {Phrase} phrase */
export function phraseText({ key, params, n }) {
  return n === undefined ? t(key, params) : tn(key, n, params);
}

/**
 * @param {Line} line
 * @returns {HTMLLIElement}
 */
function lineNode(line) {
  const { id, state, text, next, progress } = line;
  return h(
    "li",
    { class: "ready-line", dataset: { line: id, state } },
    h("span", { class: "ready-icon" }, icon(ICONS[id])),
    h(
      "div",
      { class: "ready-words" },
      h("p", { class: "ready-name" }, t(`home.line_${id}`)),
      h("p", { class: "ready-text" }, phraseText(text)),
      progress === undefined ? null : h("progress", { max: 1, value: progress, "aria-label": t("home.line_worker") }),
      next && h("p", { class: "ready-next small soft" }, phraseText(next)),
    ),
    h(
      "span",
      { class: "ready-state" },
      icon(STATE_ICONS[state]),
      h("span", { class: "visually-hidden" }, t(`home.state_${state}`)),
    ),
  );
}

/**
 * @param {HTMLElement} list
 * @param {HTMLElement} announcer says to screen readers what changed
 * @returns {{update: (lines: Line[]) => void}}
 */
export function mountReadinessCard(list, announcer) {
  /** @type {Line[]} */
  let shown = [];
  /** @type {Map<string, string>} */
  const drawn = new Map();
  const draw = () => {
    if (list.childElementCount !== shown.length) fill(list, shown.map(lineNode));
    for (const [index, line] of shown.entries()) {
      const fresh = lineNode(line);
      if (!list.children[index].isEqualNode(fresh)) list.children[index].replaceWith(fresh);
    }
  };
  onLangChange(draw);
  return {
    update(lines) {
      // The first answer to a question is no change, whichever of the questions are still open.
      const changed = lines.filter(({ id, state }) => ![undefined, "asking", state].includes(drawn.get(id)));
      for (const { id, state } of lines) drawn.set(id, state);
      shown = lines;
      draw();
      if (changed.length === 0) return;
      setText(announcer, changed.map((line) => `${t(`home.line_${line.id}`)}: ${phraseText(line.text)}`).join(" "));
    },
  };
}
