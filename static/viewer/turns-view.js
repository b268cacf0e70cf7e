// @ts-check
/**
 * A recorded chat or conversation in turns: bubbles with what was said, shown and heard, and their figures.
 */

import { fill, h, icon } from "../shared/dom.js";
import { formatClock, formatNumber } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";

/** @typedef {import("./recording-types.js").Recording} Recording */
/** @typedef {import("./recording-types.js").Turn} Turn */
/** @typedef {(path: string) => string} UrlOf */

const MS_PER_S = 1_000;

/**
 * @param {HTMLElement} el
 * @param {{recording: Recording, urlOf: UrlOf}} options
 */
export function mountTurns(el, { recording, urlOf }) {
  const turns = recording.turns ?? [];
  const draw = () => {
    if (turns.length === 0) return fill(el, h("p", { class: "empty" }, t("viewer.no_turns")));
    fill(
      el,
      h(
        "ol",
        { class: "bubbles", "aria-label": t("viewer.conversation") },
        turns.flatMap((turn) => [asked(turn, urlOf), answered(turn, urlOf)]),
      ),
    );
  };
  onLangChange(draw);
  draw();
}

/** @param {Turn} turn @param {UrlOf} urlOf */
function asked({ turn_index: index, request_ts_ms: atMs, input = {} }, urlOf) {
  const { text = "", images = [], audio, more_audio: more = [], videos = [], duration_ms: lengthMs, transcript } = input;
  const n = index + 1;
  const sounds = [audio, ...more].filter((path) => path !== undefined);
  return bubble(
    "user",
    atMs,
    text && h("p", { class: "bubble-text" }, text),
    images.length > 0 &&
      h(
        "div",
        { class: "bubble-pictures" },
        images.map((path) => picture(urlOf(path), n)),
      ),
    transcript && h("p", { class: "bubble-text", dir: "auto", dataset: { part: "transcript" } }, transcript),
    sounds.map((path) => player("audio", urlOf(path), t("viewer.your_sound", { n }))),
    videos.map((path) => player("video", urlOf(path), t("viewer.your_video", { n }))),
    !text &&
      sounds.length > 0 &&
      lengthMs &&
      h("p", { class: "small soft number" }, t("viewer.you_spoke", { s: seconds(lengthMs) })),
  );
}

/** @param {Turn} turn @param {UrlOf} urlOf */
function answered({ turn_index: index, output = {}, timing = {}, interrupted, request_ts_ms: atMs }, urlOf) {
  const { text = "", audio, audio_duration_ms: lengthMs } = output;
  const figures = figureTexts(timing, lengthMs);
  return bubble(
    "model",
    atMs === undefined ? undefined : atMs + (timing.first_audio_ms ?? timing.elapsed_ms ?? 0),
    h("p", { class: "bubble-text" }, text.trim() || t("viewer.no_answer")),
    interrupted && h("p", { class: "bubble-cut small" }, icon("hand"), t("viewer.interrupted")),
    audio && player("audio", urlOf(audio), t("viewer.answer_sound", { n: index + 1 })),
    figures.length > 0 && h("p", { class: "small soft number", dataset: { part: "figures" } }, figures.join(" · ")),
  );
}

/**
 * @param {"user" | "model"} who
 * @param {number | undefined} atMs
 * @param {...(import("../shared/dom.js").Child | import("../shared/dom.js").Child[])} parts
 */
function bubble(who, atMs, ...parts) {
  const head = h(
    "p",
    { class: "bubble-head small" },
    h("strong", {}, t(who === "user" ? "common.you" : "common.model")),
    atMs !== undefined && h("span", { class: "soft number" }, formatClock(atMs / MS_PER_S)),
  );
  return h("li", { class: "bubble", dataset: { who } }, head, ...parts);
}

/** @param {string} url @param {number} n */
function picture(url, n) {
  const label = t("viewer.your_picture", { n });
  return h(
    "a",
    { href: url, target: "_blank", rel: "noopener" },
    h("img", { src: url, alt: label, loading: "lazy", decoding: "async" }),
  );
}

/** Its length is asked for when it is seen, its sound when it is played. @param {"audio" | "video"} kind @param {string} url @param {string} label */
function player(kind, url, label) {
  const media = h(kind, {
    controls: true,
    preload: "none",
    src: url,
    "aria-label": label,
    class: `bubble-${kind}`,
    playsinline: kind === "video",
  });
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
    seen.disconnect();
    media.preload = "metadata";
  });
  seen.observe(media);
  return media;
}

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
