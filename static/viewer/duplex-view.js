/** Replay of a call: pictures, text and figures at the playhead, and all tracks on one time axis. */

import { loadInSpareTime } from "../shared/async.js";
import { find, html, icon, mountView, nothing, on, render, setText } from "../shared/lit.js";
import { formatClock, formatNumber, onLangChange, t, tn } from "../shared/texts.js";
import { actionOf, latencyFigures, readMoment, unitStart, unitText, withMoment, wordsAt } from "./time-axis.js";
import { mountBigFrame } from "./tracks.js";
import { copyLink } from "../shared/save-share.js";
import { ReplayClock } from "./replay-clock.js";
import { mountTimeline } from "./timeline.js";
import { mountTransport } from "./panels.js";
import { planUnits } from "./recording.js";

/** @import { Recording } from "../../types/recording.js" */
/** @import { Plan, SpokenTurn, Unit, UserWords } from "./recording.js" */
/** @import { Action } from "./time-axis.js" */

const KEEPS_KEYS = "input, textarea, select, summary, audio, video, dialog[open], [contenteditable]";
const REST_MS = 200;
const MARKS = { listen: "viewer.mode_listen", speak: "viewer.mode_speak", late: "viewer.late", gap: "viewer.gap_short" };

/** @param {HTMLElement} el @param {{recording: Recording, urlOf: (path: string) => string}} options */
export function mountDuplex(el, { recording, urlOf }) {
  const plan = planUnits(recording);
  render(
    html`<section class="card player">
        <div class="moment"></div>
        <div class="transport"></div>
        <div class="timeline-box"></div>
        <div class="figures small soft number"></div>
        <audio preload="none" hidden data-part="sound"></audio>
        <audio preload="none" hidden data-part="unit-file"></audio>
      </section>
      <div class="card transcript"></div>`,
    el,
  );
  const part = (/** @type {string} */ name) => find(el, `.${name}`);
  const file = find(el, "[data-part=unit-file]", HTMLAudioElement);
  const sound = find(el, "[data-part=sound]", HTMLAudioElement);
  const clock = new ReplayClock(sound, plan.durationS, (run) => requestAnimationFrame(run));
  const seek = (/** @type {number} */ atS) => clock.seek(atS);
  const showMoment = mountMoment(part("moment"), { plan, urlOf });
  const showTranscript = mountTranscript(part("transcript"), { plan, onJump: seek });
  const timeline = mountTimeline(part("timeline-box"), { plan, urlOf, onSeek: seek });
  const stepUnit = (/** @type {1 | -1} */ by) => seek(unitStart(plan, clock.atS, by));
  const transport = mountTransport(part("transport"), {
    clock,
    stepUnit,
    zoom: timeline.zoom,
    copyMoment: () => void copyLink(withMoment(location.href, clock.atS)),
  });
  mountFigures(part("figures"), plan);

  const show = () => {
    showMoment(clock.atS);
    showTranscript(clock.atS, clock.isPlaying);
    timeline.update(clock.atS, clock.isPlaying);
  };
  let frame = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ let rest;
  on(clock, "tick", show);
  on(clock, "change", () => {
    // Dragging fires more often than the screen refreshes.
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      show();
    });
    el.dataset.playing = String(clock.isPlaying);
    if (clock.isPlaying) return file.pause();
    // Into the address once the playhead rests, since browsers limit the rate.
    clearTimeout(rest);
    const { atS } = clock;
    rest = setTimeout(() => {
      const href = withMoment(location.href, atS);
      if (href !== location.href) history.replaceState(history.state, "", href);
    }, REST_MS);
  });
  onLangChange(show);
  listenToKeys((action) => {
    if (action.kind === "toggle") clock.toggle();
    else if (action.kind === "seekBy") clock.seek(clock.atS + action.s);
    else if (action.kind === "seekTo") clock.seek(action.end ? clock.durationS : 0);
    else if (action.kind === "unit") stepUnit(action.by);
    else transport.toggleKeys();
  });
  const begin = readMoment(location.search);
  if (begin === null) show();
  else seek(begin);

  return {
    clock,
    plan,
    seek,
    playFile(/** @type {string} */ path) {
      clock.pause();
      file.src = urlOf(path);
      file.play().catch(() => undefined); // rejected or superseded
    },
    /** @param {Recording} latest its audio may have been created meanwhile */
    setSound({ merged_replay: sound }) {
      if (!sound || clock.hasSound) return;
      clock.setSound(urlOf(sound));
      loadInSpareTime(async () => timeline.setSound(urlOf(sound))); // the wave reads the whole sound
      el.dataset.sound = "true";
    },
  };
}

function listenToKeys(/** @type {(action: Action) => void} */ act) {
  on(document, "keydown", (/** @type {KeyboardEvent} */ event) => {
    const { target } = event;
    const action = actionOf(event);
    if (!action || event.defaultPrevented || !(target instanceof Element) || target.closest(KEEPS_KEYS)) return;
    if (event.key === " " && target.closest("button, a")) return; // space activates the focused button
    event.preventDefault();
    act(action);
  });
}

function mountFigures(/** @type {HTMLElement} */ el, /** @type {Plan} */ plan) {
  const { count, spokeCount, p50Ms, p99Ms, lateCount, gapCount, gapMs } = latencyFigures(plan);
  mountView(el, () => {
    const texts = [
      tn("viewer.units", count, { n: formatNumber(count), spoke: formatNumber(spokeCount) }),
      p50Ms !== null && p99Ms !== null && t("viewer.typical", { p50: formatNumber(p50Ms), p99: formatNumber(p99Ms) }),
      t("viewer.lates", { n: formatNumber(lateCount) }),
      tn("viewer.gaps", gapCount, { n: formatNumber(gapCount), ms: formatNumber(gapMs) }),
    ];
    const marks = Object.entries(MARKS).map(
      ([name, key]) => html`<span class="legend-entry"><i class="legend-mark" data-mark=${name}></i>${t(key)}</span>`,
    );
    return html`<span class="legend">${marks}</span><span>${texts.filter(Boolean).join(" · ")}</span>`;
  });
}

/** @param {HTMLElement} el @param {{plan: Plan, urlOf: (path: string) => string}} options */
function mountMoment(el, { plan, urlOf }) {
  const hasPicture = plan.pictures.length > 0;
  el.classList.toggle("has-picture", hasPicture);
  /** @type {Unit | undefined} */ let unit;
  const draw = mountView(el, () => {
    const mode = unit?.mode ?? "none";
    el.dataset.unit = String(unit?.number ?? "");
    return html`${hasPicture ? html`<figure class="moment-figure"><img class="moment-picture" alt="" /></figure>` : nothing}
      <div class="moment-text">
        <span class="badge moment-mode" data-mode=${mode}><span class="dot"></span>${t(`viewer.mode_${mode}`)}</span>
        <p class="moment-words" dir="auto"></p>
        <p class="small soft number moment-figures">${unit ? unitText(unit, plan.unitS) : ""}</p>
      </div>`;
  });
  const words = find(el, ".moment-words");
  const showPicture = hasPicture ? mountBigFrame(find(el, "img", HTMLImageElement), { pictures: plan.pictures, urlOf }) : null;
  return (/** @type {number} */ atS) => {
    showPicture?.(atS);
    setText(words, wordsAt(plan, atS + 1e-6));
    const now = plan.units.findLast(({ startS }) => startS <= atS + 1e-6);
    if (now === unit) return;
    unit = now;
    draw();
  };
}

/**
 * The transcript: a click seeks, and the current turn is marked.
 * @param {HTMLElement} el
 * @param {{plan: Plan, onJump: (atS: number) => void}} options
 */
function mountTranscript(el, { plan: { turns, userWords }, onJump }) {
  const all = [...turns, ...userWords].sort((one, other) => one.startS - other.startS);
  /** @type {SpokenTurn | undefined} */ let shown;
  const draw = mountView(el, () => {
    const entries = all.map((said) => html`<li>${entry(said, said === shown, onJump)}</li>`);
    return html`<h2>${t("viewer.said")}</h2>
      <ol class="said-list" tabindex=${all.length > 0 ? "0" : nothing} aria-label=${t("viewer.said")}>
        ${all.length > 0 ? entries : html`<li class="empty">${t("viewer.said_nothing")}</li>`}
      </ol>`;
  });
  return (/** @type {number} */ atS, /** @type {boolean} */ isPlaying) => {
    const begun = turns.findLast(({ startS }) => startS <= atS + 1e-6);
    const now = begun && atS <= begun.endS ? begun : undefined;
    if (now === shown) return;
    shown = now;
    draw();
    const node = el.querySelector("[aria-current]");
    if (isPlaying && node instanceof HTMLElement) scrollInside(find(el, ".said-list"), node);
  };
}

/** Scrolls the list only, never the page. @param {HTMLElement} list @param {HTMLElement} node */
function scrollInside(list, node) {
  const top = node.offsetTop - list.offsetTop;
  if (top < list.scrollTop || top + node.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top;
}

/** @param {SpokenTurn | UserWords} said @param {boolean} isNow @param {(atS: number) => void} onJump */
function entry(said, isNow, onJump) {
  const { startS, text } = said;
  const isUser = "isTyped" in said;
  const words = isUser
    ? html`<strong class="small said-who">${t(said.isTyped ? "viewer.you_typed" : "common.you")}</strong> <bdi>${text}</bdi>`
    : html`<bdi>${text.trim()}</bdi>`;
  const cut = html`<span class="said-cut" title=${t("viewer.interrupted")}
    >${icon("hand")}<span class="visually-hidden">${t("viewer.interrupted")}</span></span
  >`;
  return html`<button
    type="button"
    class="said"
    data-who=${isUser ? "user" : nothing}
    data-turn=${isUser ? nothing : said.number}
    aria-current=${isNow ? "true" : nothing}
    @click=${() => onJump(startS)}
  >
    <span class="small soft number">${formatClock(startS)}</span
    ><span class="said-text">${words}</span>${!isUser && said.isInterrupted ? cut : nothing}
  </button>`;
}
