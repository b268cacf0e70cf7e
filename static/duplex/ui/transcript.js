// @ts-check
/**
 * Who said what, turn by turn. The model's words grow as they come. Of the user's each turn tells how long
 * it was and shows a small waveform; its words follow where the call has captions.
 */

import { fill, h, icon, on, setText } from "../../shared/dom.js";
import { formatClock, formatNumber } from "../../shared/formats.js";
import { onLangChange, t } from "../../shared/i18n.js";

/** @typedef {import("../lib/unit-log.js").TranscriptTurn} TranscriptTurn */
/** @typedef {import("../lib/user-turns.js").UserTurn} UserTurn */
/** @typedef {TranscriptTurn | UserTurn} AnyTurn */

/**
 * @typedef {Object} Talk
 * @property {ReadonlyArray<TranscriptTurn>} modelTurns
 * @property {ReadonlyArray<UserTurn>} userTurns
 * @property {number | null} startedAtMs on the clock of the turns
 */

const NEAR_END_PX = 48;
const MS_PER_S = 1_000;

/**
 * @param {HTMLElement} el
 * @returns {{update: (talk: Talk) => void, text: () => string}}
 */
export function mountTranscript(el) {
  const list = h("ol", { class: "talk", tabindex: 0 });
  const empty = h("p", { class: "talk-empty soft" });
  const jump = h("button", { type: "button", class: "button talk-jump", hidden: true });
  el.classList.add("transcript");
  el.append(empty, list, jump);

  /** Rows by turn, so that what has not changed stays as it is. @type {Map<string, {row: HTMLElement, turn: AnyTurn | null}>} */
  let rows = new Map();
  /** @type {Talk} */
  let latest = { modelTurns: [], userTurns: [], startedAtMs: null };
  // An empty list is not measured: that would lay the whole page out before it is first shown.
  const isAtEnd = () => list.childElementCount === 0 || list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END_PX;
  const goToEnd = () => {
    if (list.childElementCount > 0) list.scrollTop = list.scrollHeight;
    jump.hidden = true;
  };

  const draw = () => {
    const wasAtEnd = isAtEnd();
    const wanted = inOrder(latest);
    /** @type {typeof rows} */
    const kept = new Map();
    let hasNews = false;
    for (const { key, turn, isUser } of wanted) {
      const known = rows.get(key);
      if (known && isSameTurn(known.turn, turn)) {
        kept.set(key, known);
        continue;
      }
      hasNews ||= !isUser;
      const row = known?.row ?? h("li", { class: "turn", dataset: { who: isUser ? "user" : "model" } });
      if (isUser) fillUser(row, /** @type {UserTurn} */ (turn), latest.startedAtMs);
      else fillModel(row, /** @type {TranscriptTurn} */ (turn), latest.startedAtMs);
      kept.set(key, { row, turn });
    }
    for (const [key, { row }] of rows) if (!kept.has(key)) row.remove();
    let place = list.firstElementChild;
    for (const { row } of kept.values()) {
      if (row === place) place = place.nextElementSibling;
      else list.insertBefore(row, place);
    }
    rows = kept;
    empty.hidden = rows.size > 0;
    list.hidden = rows.size === 0;
    if (wasAtEnd) goToEnd();
    else if (hasNews) jump.hidden = false;
  };
  const name = () => {
    list.setAttribute("aria-label", t("live.transcript"));
    setText(empty, t("live.transcript_empty"));
    fill(jump, icon("down"), t("live.new_text"));
    rows.forEach((entry) => (entry.turn = null));
    draw();
  };
  on(jump, "click", goToEnd);
  on(list, "scroll", () => {
    if (isAtEnd()) jump.hidden = true;
  });
  onLangChange(name);
  name();
  return {
    update(talk) {
      const isSame = talk.modelTurns === latest.modelTurns && talk.userTurns === latest.userTurns;
      latest = talk;
      if (!isSame) draw();
    },
    text: () =>
      latest.modelTurns
        .map((turn) => turn.text.trim())
        .filter(Boolean)
        .join("\n\n"),
  };
}

/** A turn with words is put together anew each time. @param {AnyTurn | null} one @param {AnyTurn} other */
function isSameTurn(one, other) {
  if (one === other || one === null) return one !== null;
  return "bars" in one && "bars" in other && one.bars === other.bars && one.text === other.text && one.isOpen === other.isOpen;
}

/**
 * @param {Talk} talk
 * @returns {{key: string, turn: TranscriptTurn | UserTurn, isUser: boolean}[]}
 */
function inOrder({ modelTurns, userTurns }) {
  const spoken = modelTurns.map((turn) => ({ key: `m${turn.startedAtMs}`, turn, isUser: false }));
  const heard = userTurns.map((turn) => ({ key: `u${turn.startedAtMs}`, turn, isUser: true }));
  return [...spoken, ...heard].sort((one, other) => one.turn.startedAtMs - other.turn.startedAtMs);
}

/**
 * @param {string} nameKey
 * @param {number} atMs
 * @param {number | null} startedAtMs
 * @param {...import("../../shared/dom.js").Child} more
 */
function headOf(nameKey, atMs, startedAtMs, ...more) {
  const seconds = (atMs - (startedAtMs ?? atMs)) / MS_PER_S;
  return h(
    "p",
    { class: "turn-head small" },
    h("span", { class: "turn-who" }, t(nameKey)),
    h("span", { class: "soft number" }, formatClock(seconds)),
    ...more,
  );
}

/**
 * @param {HTMLElement} row
 * @param {TranscriptTurn} turn
 * @param {number | null} startedAtMs
 */
function fillModel(row, turn, startedAtMs) {
  const cut = turn.isInterrupted && h("span", { class: "turn-cut" }, icon("hand"), t("live.state.interrupted"));
  const text = turn.text.trim();
  row.dataset.open = String(turn.endedAtMs === null);
  fill(
    row,
    headOf("common.model", turn.startedAtMs, startedAtMs, cut),
    h("p", { class: text ? "turn-text" : "turn-text soft" }, text || t("live.no_words")),
  );
}

/**
 * @param {HTMLElement} row
 * @param {UserTurn} turn
 * @param {number | null} startedAtMs
 */
function fillUser(row, turn, startedAtMs) {
  const length = t("live.you_spoke", { seconds: formatNumber(turn.lengthMs / MS_PER_S, 1) });
  row.dataset.open = String(turn.isOpen);
  fill(
    row,
    headOf("common.you", turn.startedAtMs, startedAtMs),
    turn.lengthMs > 0 && h("p", { class: "turn-voice" }, waveform(turn.bars), h("span", { class: "small" }, length)),
    turn.text && h("p", { class: "turn-text", dir: "auto" }, turn.text),
  );
}

/** @param {number[]} bars */
function waveform(bars) {
  const wave = h("span", { class: "turn-wave", "aria-hidden": "true" });
  for (const bar of bars) {
    const stroke = h("i", {});
    stroke.style.setProperty("--height", bar.toFixed(2));
    wave.append(stroke);
  }
  return wave;
}
