/**
 * The conversation of a call. The model's text grows as it arrives. A user's turn shows its duration, a waveform, and
 * text where it is known.
 */

import { formatClock, formatNumber } from "../../shared/formats.js";
import { getLang, t } from "../../shared/texts.js";
import { guard, html, icon, nothing, repeat } from "../../shared/lit.js";
import { mountTalkList } from "./call-frame.js";

/** @import { TranscriptTurn } from "../lib/unit-log.js" */
/** @import { UserTurn } from "../lib/user-turns.js" */

/**
 * @typedef {Object} Talk
 * @property {readonly TranscriptTurn[]} modelTurns
 * @property {readonly UserTurn[]} userTurns
 * @property {number | null} startedAtMs on the clock of the turns
 */

const MS_PER_S = 1_000;
const WORDS = { labelKey: "live.transcript", emptyKey: "live.transcript_empty", newestKey: "live.new_text" };

/** @param {HTMLElement} el @returns {{update: (talk: Talk) => void}} */
export function mountTranscript(el) {
  /** @type {Talk} */ let latest = { modelTurns: [], userTurns: [], startedAtMs: null };
  const row = (/** @type {ReturnType<typeof inOrder>[number]} */ { user, model }) => {
    const { startedAtMs } = latest;
    if (model) return guard([model, startedAtMs, getLang()], () => modelTurn(model, startedAtMs));
    // A turn with captions is a new object each time.
    const { bars, text, isOpen, lengthMs } = user;
    return guard([bars, text, isOpen, lengthMs, startedAtMs, getLang()], () => userTurn(user, startedAtMs));
  };
  const draw = mountTalkList(el, WORDS, () => {
    const turns = inOrder(latest);
    return { isEmpty: turns.length === 0, rows: repeat(turns, ({ key }) => key, row) };
  });
  return {
    update(talk) {
      const hasNews = talk.modelTurns !== latest.modelTurns;
      const isSame = !hasNews && talk.userTurns === latest.userTurns;
      latest = talk;
      if (!isSame) draw(hasNews);
    },
  };
}

/** @param {Talk} talk */
function inOrder({ modelTurns, userTurns }) {
  const spoken = modelTurns.map((model) => ({ key: `m${model.startedAtMs}`, atMs: model.startedAtMs, model, user: null }));
  const heard = userTurns.map((user) => ({ key: `u${user.startedAtMs}`, atMs: user.startedAtMs, model: null, user }));
  return [...spoken, ...heard].sort((one, other) => one.atMs - other.atMs);
}

/** @param {string} who @param {number} atMs @param {number | null} startedAtMs @param {unknown} [more] */
const head = (who, atMs, startedAtMs, more = nothing) =>
  html`<p class="turn-head small">
    <span class="turn-who">${who}</span
    ><span class="soft number">${formatClock((atMs - (startedAtMs ?? atMs)) / MS_PER_S)}</span>${more}
  </p>`;

/** @param {TranscriptTurn} turn @param {number | null} startedAtMs */
function modelTurn({ text, endedAtMs, isInterrupted, startedAtMs: atMs }, startedAtMs) {
  const cut = isInterrupted ? html`<span class="turn-cut">${icon("hand")}${t("live.state.interrupted")}</span>` : nothing;
  const words = text.trim();
  return html`<li class="turn" data-who="model" data-open=${String(endedAtMs === null)}>
    ${head(t("common.model"), atMs, startedAtMs, cut)}
    <p class="turn-text ${words ? "" : "soft"}" .textContent=${words || t("live.no_words")}></p>
  </li>`;
}

/** @param {UserTurn} turn @param {number | null} startedAtMs */
function userTurn({ bars, text, isOpen, lengthMs, startedAtMs: atMs }, startedAtMs) {
  const voice = () =>
    html`<p class="turn-voice">
      ${waveform("turn-wave", bars)}<span class="small"
        >${t("live.you_spoke", { seconds: formatNumber(lengthMs / MS_PER_S, 1) })}</span
      >
    </p>`;
  return html`<li class="turn" data-who="user" data-open=${String(isOpen)}>
    ${head(t("common.you"), atMs, startedAtMs)}${lengthMs > 0 ? voice() : nothing}
    ${text ? html`<p class="turn-text" dir="auto" .textContent=${text}></p>` : nothing}
  </li>`;
}

/** @param {string} style @param {readonly number[]} bars heights, 0 to 1 */
export const waveform = (style, bars) =>
  html`<span class=${style} aria-hidden="true">${bars.map((bar) => html`<i .style="--height:${bar.toFixed(2)}"></i>`)}</span>`;
