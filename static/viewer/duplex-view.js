// @ts-check
/**
 * A recorded call: pictures, words and figures at the playhead, and all tracks on one time axis.
 */

import { copyLink } from "./head-view.js";
import { byId, fill, h, icon, on } from "../shared/dom.js";
import { formatClock, formatNumber } from "../shared/formats.js";
import { onLangChange, t, tn } from "../shared/i18n.js";
import { readMoment, withMoment } from "./deep-link.js";
import { actionOf } from "./keys.js";
import { latencyFigures } from "./latency-series.js";
import { mountMoment } from "./moment-view.js";
import { ReplayClock } from "./replay-clock.js";
import { indexAt } from "./time-axis.js";
import { mountTimeline } from "./timeline.js";
import { mountTransport } from "./transport.js";
import { mountUnitTable } from "./unit-table.js";
import { planUnits } from "./unit-plan.js";

/** @typedef {import("./recording-types.js").Recording} Recording */
/** @typedef {import("./unit-plan.js").Plan} Plan */
/** @typedef {import("./unit-plan.js").SpokenTurn} SpokenTurn */

const KEEPS_KEYS = "input, textarea, select, summary, audio, video, dialog[open], [contenteditable]";
const REST_MS = 200;
const EDGE_S = 0.05; // stepping back from a unit's very start goes to the one before

/**
 * @param {HTMLElement} el
 * @param {{recording: Recording, urlOf: (path: string) => string, nonce: string, onMissing: () => void}} options
 */
export function mountDuplex(el, { recording, urlOf, nonce, onMissing }) {
  const plan = planUnits(recording);
  const parts = makeParts();
  fill(el, parts.root);
  const clock = new ReplayClock(parts.audio, plan.durationS);
  const seek = (/** @type {number} */ atS) => clock.seek(atS);
  const moment = mountMoment(parts.moment, { plan, urlOf });
  const transcript = mountTranscript(parts.transcript, { plan, onJump: seek });
  const timeline = mountTimeline(parts.timeline, {
    plan,
    urlOf,
    onSeek: seek,
    nonce,
    onMissing: () => (onMissing(), showPlainPlayer(parts.audio)),
  });
  const stepUnit = (/** @type {1 | -1} */ by) => seek(unitStart(plan, clock.atS, by));
  const transport = mountTransport(parts.transport, {
    clock,
    stepUnit,
    zoom: timeline.zoom,
    copyMoment: () => void copyLink(withMoment(location.href, clock.atS)),
  });
  mountUnitTable(byId("more", HTMLElement), { plan, onJump: seek, playFile: (path) => playFile(parts.file, urlOf(path), clock) });
  mountFigures(parts.figures, plan);

  const show = () => {
    moment.update(clock.atS);
    transcript.update(clock.atS, clock.isPlaying);
    timeline.update(clock.atS, clock.isPlaying);
  };
  let frame = 0;
  const showSoon = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      show();
    });
  };
  const keepMoment = momentKeeper();
  on(clock, "tick", show);
  on(clock, "change", () => {
    showSoon(); // dragging asks more often than a screen can show
    parts.root.dataset.playing = String(clock.isPlaying);
    if (clock.isPlaying) parts.file.pause();
    else keepMoment(clock.atS);
  });
  onLangChange(show);
  listenToKeys(clock, { stepUnit, toggleKeys: transport.toggleKeys });
  const begin = readMoment(location.search);
  if (begin === null) show();
  else seek(begin);

  return {
    clock,
    /** @param {Recording} latest its sound may have been made since */
    setSound({ merged_replay: sound }) {
      if (!sound || clock.hasSound) return;
      clock.setSound(urlOf(sound));
      timeline.setSound(urlOf(sound));
      parts.root.dataset.sound = "true";
    },
  };
}

function makeParts() {
  const [moment, transport, timeline, transcript, figures] = [
    "moment",
    "transport",
    "timeline-box",
    "card transcript",
    "figures small soft number",
  ].map((name) => h("div", { class: name }));
  const audio = h("audio", { preload: "none", class: "plain-player", hidden: true });
  const file = h("audio", { preload: "none", hidden: true, dataset: { part: "unit-file" } });
  const player = h("section", { class: "card player" }, moment, transport, timeline, figures, audio, file);
  const root = h("div", { class: "duplex" }, player, transcript);
  return { root, moment, transport, timeline, transcript, figures, audio, file };
}

/** Where the pictures cannot be drawn, the browser's own player helps. @param {HTMLAudioElement} audio */
function showPlainPlayer(audio) {
  audio.controls = true;
  audio.hidden = false;
  audio.setAttribute("aria-label", t("viewer.sound"));
}

/** @param {HTMLAudioElement} file @param {string} url @param {ReplayClock} clock */
function playFile(file, url, clock) {
  clock.pause();
  file.src = url;
  file.play().catch(() => undefined); // refused or replaced by another
}

/** @param {Plan} plan @param {number} atS @param {1 | -1} by */
function unitStart({ units, durationS }, atS, by) {
  const index = indexAt(units, atS + EDGE_S, ({ startS }) => startS);
  if (by > 0) return units[index + 1]?.startS ?? durationS;
  const isAtStart = atS - (units[index]?.startS ?? 0) <= EDGE_S;
  return units[isAtStart ? index - 1 : index]?.startS ?? 0;
}

/** Puts the moment into the address when the playhead rests; browsers refuse to do so too often. */
function momentKeeper() {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const keep = (/** @type {number} */ atS) => {
    const href = withMoment(location.href, atS);
    if (href !== location.href) history.replaceState(history.state, "", href);
  };
  return (/** @type {number} */ atS) => {
    clearTimeout(timer);
    timer = setTimeout(() => keep(atS), REST_MS);
  };
}

/**
 * @param {ReplayClock} clock
 * @param {{stepUnit: (by: 1 | -1) => void, toggleKeys: () => void}} actions
 */
function listenToKeys(clock, { stepUnit, toggleKeys }) {
  on(document, "keydown", (/** @type {KeyboardEvent} */ event) => {
    const { target } = event;
    const action = actionOf(event);
    if (!action || event.defaultPrevented || !(target instanceof Element) || target.closest(KEEPS_KEYS)) return;
    const isPress = action.kind === "toggle" && event.key === " " && target.closest("button, a") !== null;
    if (isPress) return; // space presses the button that has the focus
    event.preventDefault();
    if (action.kind === "toggle") clock.toggle();
    else if (action.kind === "seekBy") clock.seek(clock.atS + action.s);
    else if (action.kind === "seekTo") clock.seek(action.end ? clock.durationS : 0);
    else if (action.kind === "unit") stepUnit(action.by);
    else toggleKeys();
  });
}

/** @param {HTMLElement} el @param {Plan} plan */
function mountFigures(el, plan) {
  const { count, spokeCount, p50Ms, p99Ms, lateCount, gapCount, gapMs } = latencyFigures(plan);
  const draw = () => {
    const legend = [
      ["listen", "viewer.mode_listen"],
      ["speak", "viewer.mode_speak"],
      ["late", "viewer.late"],
      ["gap", "viewer.gap_short"],
    ];
    const texts = [
      tn("viewer.units", count, { n: formatNumber(count), spoke: formatNumber(spokeCount) }),
      p50Ms !== null && p99Ms !== null && t("viewer.typical", { p50: formatNumber(p50Ms), p99: formatNumber(p99Ms) }),
      t("viewer.lates", { n: formatNumber(lateCount) }),
      t("viewer.gaps", { n: formatNumber(gapCount), ms: formatNumber(gapMs) }),
    ];
    fill(
      el,
      h(
        "span",
        { class: "legend" },
        legend.map(([name, key]) =>
          h("span", { class: "legend-entry" }, h("i", { class: "legend-mark", dataset: { mark: name } }), t(key)),
        ),
      ),
      h("span", {}, texts.filter(Boolean).join(" · ")),
    );
  };
  onLangChange(draw);
  draw();
}

// All that was said, in order, as far as it is known in words; a click jumps there, and what the model says now is
// marked.

/**
 * @param {HTMLElement} el
 * @param {{plan: import("./unit-plan.js").Plan, onJump: (atS: number) => void}} options
 */
function mountTranscript(el, { plan: { turns, userWords }, onJump }) {
  const title = h("h2");
  const isEmpty = turns.length + userWords.length === 0;
  const list = h("ol", { class: "said-list", tabindex: isEmpty ? null : 0 });
  fill(el, title, list);
  /** @type {HTMLButtonElement[]} */
  let nodes = [];
  let shown = -1;
  const draw = () => {
    title.textContent = t("viewer.said");
    list.setAttribute("aria-label", t("viewer.said"));
    nodes = turns.map((turn) => entry(turn, onJump));
    const all = [
      ...turns.map(({ startS }, index) => ({ startS, node: nodes[index] })),
      ...userWords.map((words) => ({ startS: words.startS, node: userEntry(words, onJump) })),
    ].sort((one, other) => one.startS - other.startS);
    fill(list, isEmpty ? h("li", { class: "empty" }, t("viewer.said_nothing")) : all.map(({ node }) => h("li", {}, node)));
    shown = -1;
  };
  onLangChange(draw);
  draw();
  return {
    /** @param {number} atS @param {boolean} isPlaying */
    update(atS, isPlaying) {
      const index = indexAt(turns, atS + 1e-6, ({ startS }) => startS);
      const now = index >= 0 && atS <= turns[index].endS ? index : -1;
      if (now === shown) return;
      nodes[shown]?.removeAttribute("aria-current");
      nodes[now]?.setAttribute("aria-current", "true");
      shown = now;
      if (isPlaying && nodes[now]) scrollInside(list, nodes[now]);
    },
  };
}

/** Scrolls the list alone, never the page. @param {HTMLElement} list @param {HTMLElement} node */
function scrollInside(list, node) {
  const top = node.offsetTop - list.offsetTop;
  if (top < list.scrollTop || top + node.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top;
}

/** @param {import("./unit-plan.js").UserWords} words @param {(atS: number) => void} onJump */
function userEntry({ startS, text, isTyped }, onJump) {
  return h(
    "button",
    { type: "button", class: "said", dataset: { who: "user" }, on: { click: () => onJump(startS) } },
    h("span", { class: "small soft number" }, formatClock(startS)),
    h(
      "span",
      { class: "said-text", dir: "auto" },
      h("strong", { class: "small said-who" }, t(isTyped ? "viewer.you_typed" : "common.you")),
      " ",
      text,
    ),
  );
}

/** @param {SpokenTurn} turn @param {(atS: number) => void} onJump */
function entry({ number, startS, text, isInterrupted }, onJump) {
  return h(
    "button",
    { type: "button", class: "said", dataset: { turn: number }, on: { click: () => onJump(startS) } },
    h("span", { class: "small soft number" }, formatClock(startS)),
    h("span", { class: "said-text" }, text.trim()),
    isInterrupted &&
      h(
        "span",
        { class: "said-cut", title: t("viewer.interrupted") },
        icon("hand"),
        h("span", { class: "visually-hidden" }, t("viewer.interrupted")),
      ),
  );
}
