// @ts-check
/**
 * A recorded chat or conversation in turns: bubbles with what was said, shown and heard, and their figures.
 */

import { formatClock, formatNumber } from "../shared/formats.js";
import { t } from "../shared/i18n.js";
import { html, icon, nothing } from "../shared/lit.js";

/** @typedef {import("./recording-types.js").Recording} Recording */
/** @typedef {import("./recording-types.js").Turn} Turn */
/** @typedef {(path: string) => string} UrlOf */

const MS_PER_S = 1_000;

/** @param {Recording} recording @param {UrlOf} urlOf */
export function turnBubbles({ turns = [] }, urlOf) {
  if (turns.length === 0) return html`<p class="empty">${t("viewer.no_turns")}</p>`;
  return html`<ol class="bubbles" aria-label=${t("viewer.conversation")}>
    ${turns.map((turn) => [asked(turn, urlOf), answered(turn, urlOf)])}
  </ol>`;
}

/** The length of a sound is asked for when it is seen, the sound itself when it is played. @param {HTMLElement} el */
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

/** @param {Turn} turn @param {UrlOf} urlOf */
function asked({ turn_index: index, request_ts_ms: atMs, input = {} }, urlOf) {
  const { text = "", images = [], audio, more_audio: more = [], videos = [], duration_ms: lengthMs, transcript } = input;
  const n = index + 1;
  const sounds = [audio, ...more].filter((path) => path !== undefined);
  const spoke = !text && sounds.length > 0 && lengthMs;
  return bubble(
    "user",
    atMs,
    html`${text ? html`<p class="bubble-text">${text}</p>` : nothing}
    ${images.length > 0 ? html`<div class="bubble-pictures">${images.map((path) => picture(urlOf(path), n))}</div>` : nothing}
    ${transcript ? html`<p class="bubble-text" dir="auto" data-part="transcript">${transcript}</p>` : nothing}
    ${sounds.map((path) => sound(urlOf(path), t("viewer.your_sound", { n })))}
    ${videos.map((path) => video(urlOf(path), t("viewer.your_video", { n })))}
    ${spoke ? html`<p class="small soft number">${t("viewer.you_spoke", { s: seconds(lengthMs) })}</p>` : nothing}`,
  );
}

/** @param {Turn} turn @param {UrlOf} urlOf */
function answered({ turn_index: index, output = {}, timing = {}, interrupted, request_ts_ms: atMs }, urlOf) {
  const { text = "", audio, audio_duration_ms: lengthMs } = output;
  const figures = figureTexts(timing, lengthMs);
  return bubble(
    "model",
    atMs === undefined ? undefined : atMs + (timing.first_audio_ms ?? timing.elapsed_ms ?? 0),
    html`<p class="bubble-text">${text.trim() || t("viewer.no_answer")}</p>
      ${interrupted ? html`<p class="bubble-cut small">${icon("hand")}${t("viewer.interrupted")}</p>` : nothing}
      ${audio ? sound(urlOf(audio), t("viewer.answer_sound", { n: index + 1 })) : nothing}
      ${figures.length > 0 ? html`<p class="small soft number" data-part="figures">${figures.join(" · ")}</p>` : nothing}`,
  );
}

/**
 * @param {"user" | "model"} who
 * @param {number | undefined} atMs
 * @param {unknown} parts
 */
const bubble = (who, atMs, parts) =>
  html`<li class="bubble" data-who=${who}>
    <p class="bubble-head small">
      <strong>${t(who === "user" ? "common.you" : "common.model")}</strong>
      ${atMs === undefined ? nothing : html`<span class="soft number">${formatClock(atMs / MS_PER_S)}</span>`}
    </p>
    ${parts}
  </li>`;

/** @param {string} url @param {number} n */
const picture = (url, n) =>
  html`<a href=${url} target="_blank" rel="noopener"
    ><img src=${url} alt=${t("viewer.your_picture", { n })} loading="lazy" decoding="async"
  /></a>`;

/** @param {string} url @param {string} label */
const sound = (url, label) => html`<audio controls preload="none" src=${url} aria-label=${label} class="bubble-audio"></audio>`;

/** @param {string} url @param {string} label */
const video = (url, label) =>
  html`<video controls preload="none" src=${url} aria-label=${label} class="bubble-video" playsinline></video>`;

/** @param {number} ms */
function seconds(ms) {
  return formatNumber(ms / MS_PER_S, 1);
}

/**
 * @param {import("./recording-types.js").TurnTiming} timing
 * @param {number | undefined} soundMs
 */
function figureTexts(
  { elapsed_ms: elapsedMs, first_audio_ms: firstMs, tokens, input_tokens: fresh, cached_tokens: cached, total_tokens: total },
  soundMs,
) {
  return [
    firstMs !== undefined && t("viewer.first_sound", { s: formatNumber(firstMs / MS_PER_S, 2) }),
    elapsedMs !== undefined && t("viewer.took", { s: formatNumber(elapsedMs / MS_PER_S, 2) }),
    tokens !== undefined && t("viewer.tokens", { n: formatNumber(tokens) }),
    fresh !== undefined && t("viewer.tokens_in", { fresh: formatNumber(fresh), cached: formatNumber(cached ?? 0) }),
    total !== undefined && t("viewer.memory", { n: formatNumber(total) }),
    soundMs !== undefined && t("viewer.sound_length", { s: seconds(soundMs) }),
  ].filter((text) => text !== false);
}
