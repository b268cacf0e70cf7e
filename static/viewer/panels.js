/** Panels of a replay: players, table of units, turns of a chat, transport controls. */

import { find, html, icon, iconButton, live, mountView, nothing, on, setText, textButton } from "../shared/lit.js";
import { formatClock, formatNumber, MS_PER_S, t } from "../shared/texts.js";
import { SPEEDS } from "./replay-clock.js";
import { figureTexts, KEY_HELP, preciseClock, speedText, tenthsOfSeconds } from "./time-axis.js";

/** @import { Recording, Turn } from "../../types/recording.js" */
/** @import { Plan, Unit } from "./recording.js" */
/** @import { ReplayClock } from "./replay-clock.js" */

/** @typedef {{name: "film" | "browser" | "sound", url: string, subtitles?: string, onPlay?: () => void}} Replay */

const IS_SOUND = /\.(wav|mp3)$/;
const PER_PAGE = 50;
const COLUMNS = /** @type {const} */ (["unit", "time", "did", "said", "took", "files"]); // of the table of units
const ICONS = { film: "film", browser: "record", sound: "wave" };

/** A player for a whole file. @param {Replay} replay */
export function replayPanel({ name, url, subtitles, onPlay }) {
  // Only the first frame, once opened.
  const onToggle = (/** @type {{currentTarget: HTMLDetailsElement}} */ { currentTarget: details }) => {
    const media = /** @type {HTMLMediaElement} */ (details.querySelector("audio, video"));
    if (details.open) media.preload = "metadata";
    else media.pause();
  };
  const label = t(`viewer.${name}`);
  const media = IS_SOUND.test(url)
    ? html`<audio controls preload="none" src=${url} class="replay-sound" aria-label=${label} @play=${onPlay}></audio>`
    : html`<video controls preload="none" playsinline src=${url} class="replay-film" aria-label=${label} @play=${onPlay}>
        ${subtitles ? html`<track kind="subtitles" src=${subtitles} label=${t("viewer.subtitles")} default />` : nothing}
      </video>`;
  return html`<details class="panel" data-panel=${name} ?open=${name === "sound"} @toggle=${onToggle}>
    <summary>${icon(ICONS[name])}${label}</summary>
    <div class="stack-tight">
      <p class="hint">${t(`viewer.${name}_about`)}</p>
      ${media}
      <div><a class="button" href=${url} download>${icon("download")}${t("common.download")}</a></div>
    </div>
  </details>`;
}

export function configPanel(/** @type {Record<string, unknown>} */ config) {
  const rows = Object.entries(config).filter(([, value]) => value !== null && value !== undefined);
  return html`<details class="panel" data-panel="config">
    <summary>${icon("settings")}${t("viewer.config")}</summary>
    <dl class="config-list">${rows.length > 0 ? rows.map(configRow) : html`<p class="soft">${t("viewer.no_config")}</p>`}</dl>
  </details>`;
}

const configRow = (/** @type {[string, unknown]} */ [name, value]) =>
  html`<div>
    <dt class="mono">${name}</dt>
    <dd>${configValue(value)}</dd>
  </div>`;

function configValue(/** @type {unknown} */ value) {
  if (typeof value === "boolean") return t(value ? "common.yes" : "common.no");
  if (typeof value === "number") return Number.isInteger(value) ? formatNumber(value) : String(value);
  if (typeof value === "string") return value || t("common.none");
  return html`<pre>${JSON.stringify(value, null, 2)}</pre>`;
}

/**
 * Table of all units, paginated: for screen readers, and to play single files.
 * @param {{plan: Plan, onJump: (atS: number) => void, playFile: (path: string) => void, draw: () => void}} options
 */
export function makeUnitsPanel({ plan, onJump, playFile, draw }) {
  const pages = Math.max(1, Math.ceil(plan.units.length / PER_PAGE));
  const at = { page: 0, isOpen: false };
  const turn = (/** @type {number} */ by) => () => {
    at.page += by;
    draw();
  };
  const onToggle = (/** @type {{currentTarget: HTMLDetailsElement}} */ { currentTarget }) => {
    at.isOpen = currentTarget.open;
    draw();
  };
  const row = (/** @type {Unit} */ { number, startS, endS, mode, text, wallMs, isLate, gapMs, chunk }) => {
    const n = formatNumber(number + 1);
    const took = [
      wallMs === null ? "—" : t("viewer.ms", { n: formatNumber(wallMs) }),
      isLate && t("viewer.late"),
      gapMs > 0 && t("viewer.gap", { n: formatNumber(gapMs) }),
    ];
    const file = (/** @type {string | undefined} */ path, /** @type {string} */ key, /** @type {string} */ who) =>
      path
        ? textButton(who, () => playFile(path), { sign: "play", style: "button-quiet", label: t(`viewer.hear_${key}`, { n }) })
        : nothing;
    const jump = textButton(n, () => onJump(startS), { style: "button-quiet", label: t("viewer.jump_to_unit", { n }) });
    const cells = {
      unit: jump,
      time: t("viewer.from_to", { from: formatNumber(startS, 1), to: formatNumber(endS, 1) }),
      did: t(`viewer.mode_${mode}`),
      said: text.trim(),
      took: took.filter(Boolean).join(" · "),
      files: html`<span class="row"
        >${file(chunk.user_audio, "you", t("common.you"))}${file(chunk.result?.ai_audio, "model", t("common.model"))}</span
      >`,
    };
    return html`<tr>
      ${COLUMNS.map((name) => html`<td data-label=${t(`viewer.column_${name}`)}>${cells[name]}</td>`)}
    </tr>`;
  };
  const contents = () => {
    const units = plan.units.slice(at.page * PER_PAGE, (at.page + 1) * PER_PAGE);
    const where = t("viewer.page_of", { n: formatNumber(at.page + 1), total: formatNumber(pages) });
    return html`<table class="table unit-table">
        <thead>
          <tr>
            ${COLUMNS.map((name) => html`<th scope="col">${t(`viewer.column_${name}`)}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${units.map(row)}
        </tbody>
      </table>
      <div class="row" ?hidden=${pages === 1}>
        ${textButton(t("common.back"), turn(-1), { sign: "back", action: "page-back", isOff: at.page === 0 })}
        <span class="number small soft" role="status">${where}</span>
        ${textButton(t("common.more"), turn(1), { sign: "forward", action: "page-forward", isOff: at.page === pages - 1 })}
      </div>`;
  };
  return () =>
    html`<details class="panel" data-panel="units" @toggle=${onToggle}>
      <summary>${icon("chart")}${t("viewer.all_units")}</summary>
      <div class="stack-tight">${at.isOpen ? contents() : nothing}</div>
    </details>`;
}

// A recorded chat or half-duplex conversation: messages with media and figures.

/** @typedef {(path: string) => string} UrlOf */

export function turnBubbles(/** @type {Recording} */ { turns = [] }, /** @type {UrlOf} */ urlOf) {
  if (turns.length === 0) return html`<p class="empty">${t("viewer.no_turns")}</p>`;
  return html`<ol class="bubbles" aria-label=${t("viewer.conversation")}>
    ${turns.map((turn) => [asked(turn, urlOf), answered(turn, urlOf)])}
  </ol>`;
}

/** Loads a sound's duration when it becomes visible, and the sound when it is played. @param {HTMLElement} el */
export function loadWhatIsSeen(el) {
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      /** @type {HTMLMediaElement} */ (target).preload = "metadata";
    }
  });
  el.querySelectorAll("audio, video").forEach((media) => seen.observe(media));
}

function asked(/** @type {Turn} */ { turn_index: index, request_ts_ms: atMs, input = {} }, /** @type {UrlOf} */ urlOf) {
  const { text = "", images = [], audio, more_audio: more = [], videos = [], duration_ms: lengthMs, transcript } = input;
  const n = index + 1;
  const sounds = [audio, ...more].filter((path) => path !== undefined);
  const spoke = !text && sounds.length > 0 && lengthMs;
  return bubble(
    "user",
    atMs,
    html`${text ? html`<p class="bubble-text" dir="auto">${text}</p>` : nothing}
    ${images.length > 0 ? html`<div class="bubble-pictures">${images.map((path) => picture(urlOf(path), n))}</div>` : nothing}
    ${transcript ? html`<p class="bubble-text" dir="auto" data-part="transcript">${transcript}</p>` : nothing}
    ${sounds.map((path) => sound(urlOf(path), t("viewer.your_sound", { n })))}
    ${videos.map((path) => video(urlOf(path), t("viewer.your_video", { n })))}
    ${spoke ? html`<p class="small soft number">${t("viewer.you_spoke", { s: tenthsOfSeconds(lengthMs) })}</p>` : nothing}`,
  );
}

/** @param {Turn} turn @param {UrlOf} urlOf */
function answered({ turn_index: index, output = {}, timing = {}, interrupted, request_ts_ms: atMs }, urlOf) {
  const { text = "", audio, audio_duration_ms: lengthMs } = output;
  const figures = figureTexts(timing, lengthMs);
  return bubble(
    "model",
    atMs === undefined ? undefined : atMs + (timing.first_audio_ms ?? timing.elapsed_ms ?? 0),
    html`<p class="bubble-text" dir="auto">${text.trim() || t("viewer.no_answer")}</p>
      ${interrupted ? html`<p class="bubble-cut small">${icon("hand")}${t("viewer.interrupted")}</p>` : nothing}
      ${audio ? sound(urlOf(audio), t("viewer.answer_sound", { n: index + 1 })) : nothing}
      ${figures.length > 0 ? html`<p class="small soft number" data-part="figures">${figures.join(" · ")}</p>` : nothing}`,
  );
}

const bubble = (/** @type {"user" | "model"} */ who, /** @type {number | undefined} */ atMs, /** @type {unknown} */ parts) =>
  html`<li class="bubble" data-who=${who}>
    <p class="bubble-head small">
      <strong>${t(who === "user" ? "common.you" : "common.model")}</strong>
      ${atMs === undefined ? nothing : html`<span class="soft number">${formatClock(atMs / MS_PER_S)}</span>`}
    </p>
    ${parts}
  </li>`;

const picture = (/** @type {string} */ url, /** @type {number} */ n) =>
  html`<a href=${url} target="_blank" rel="noopener"
    ><img src=${url} alt=${t("viewer.your_picture", { n })} loading="lazy" decoding="async"
  /></a>`;

/** @param {string} url @param {string} label */
const sound = (url, label) => html`<audio controls preload="none" src=${url} aria-label=${label} class="bubble-audio"></audio>`;

const video = (/** @type {string} */ url, /** @type {string} */ label) =>
  html`<video controls preload="none" src=${url} aria-label=${label} class="bubble-video" playsinline></video>`;

// Transport controls: play, steps, speed, zoom, link to the position, keys.

const ZOOM = 2;

/**
 * @param {HTMLElement} el
 * @param {{clock: ReplayClock, stepUnit: (by: 1 | -1) => void, zoom: (factor: number) => void, copyMoment: () => void}} options
 *   a `factor` of 0 shows as much as possible
 */
export function mountTransport(el, { clock, stepUnit, zoom, copyMoment }) {
  let showsKeys = matchMedia("(min-width: 60rem)").matches;
  const toggleKeys = () => {
    showsKeys = !showsKeys;
    draw();
  };
  const button = (/** @type {string} */ action, /** @type {string} */ sign, /** @type {() => void} */ run) =>
    iconButton(sign, t(`viewer.${action.replaceAll("-", "_")}`), run, { action, style: "" });
  const speed = () =>
    html`<select
      class="speed"
      data-action="speed"
      title=${t("viewer.speed")}
      aria-label=${t("viewer.speed")}
      @change=${(/** @type {{target: HTMLSelectElement}} */ { target }) => clock.setSpeed(Number(target.value))}
    >
      ${SPEEDS.map(
        (value) =>
          html`<option value=${value} .selected=${live(value === clock.speed)}>
            ${t("viewer.times", { n: speedText(value) })}
          </option>`,
      )}
    </select>`;
  const time = () => `${preciseClock(clock.atS)} / ${formatClock(clock.durationS)}`;
  const draw = mountView(el, () => {
    const [sign, words] = clock.isPlaying ? ["pause", t("common.pause")] : ["play", t("common.play")];
    const play = { action: "play", style: "button-primary transport-play" };
    const keys = { action: "keys", style: "", isExpanded: showsKeys, controls: "key-help" };
    return html`<div class="transport-line">
        ${button("unit-back", "back", () => stepUnit(-1))} ${iconButton(sign, words, () => clock.toggle(), play)}
        ${button("unit-forward", "forward", () => stepUnit(1))}
        <span class="transport-time number" .textContent=${live(time())}></span>
        ${speed()}
        <span class="push row transport-tools">
          ${button("zoom-in", "plus", () => zoom(1 / ZOOM))} ${button("zoom-out", "minus", () => zoom(ZOOM))}
          ${button("zoom-fit", "fullscreen", () => zoom(0))} ${button("link-moment", "link", copyMoment)}
          ${iconButton("keyboard", t("viewer.keys"), toggleKeys, keys)}
        </span>
      </div>
      <dl class="key-help small" id="key-help" ?hidden=${!showsKeys}>
        ${KEY_HELP.map(
          ({ keys, text }) =>
            html`<div>
              <dt>${keys.map((key) => html`<kbd>${key}</kbd>`)}</dt>
              <dd>${t(text)}</dd>
            </div>`,
        )}
      </dl>`;
  });
  on(clock, "change", draw);
  on(clock, "tick", () => setText(find(el, ".transport-time"), time()));
  return { toggleKeys };
}
