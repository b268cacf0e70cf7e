// @ts-check
/**
 * The buttons of the picture: HD, flip, mirror, subtitles, fullscreen.
 */

import { fill, h, icon, setText } from "../../shared/dom.js";
import { formatBytes, formatNumber } from "../../shared/formats.js";
import { onLangChange, t, tn } from "../../shared/i18n.js";

/** @typedef {import("./omni-settings.js").OmniStore} OmniStore */

/**
 * @typedef {Object} ScreenToolOptions
 * @property {OmniStore} store
 * @property {() => boolean} hasCamera
 * @property {() => void} flip
 * @property {{isFull: boolean, toggle: () => void}} full
 */

/**
 * @param {{bar: HTMLElement, corner: HTMLElement}} parts
 * @param {ScreenToolOptions} options
 * @returns {{update: () => void}}
 */
export function mountScreenTools({ bar, corner }, { store, hasCamera, flip, full }) {
  /** @param {string} action @param {Element | string} sign @param {() => void} run */
  const tool = (action, sign, run) =>
    h("button", { type: "button", class: "button button-icon", dataset: { action }, on: { click: run } }, sign);
  /** @param {"hd" | "mirror" | "subtitles"} name */
  const turn = (name) => () => store.set(name, !store.get(name));
  const hd = tool("hd", "HD", turn("hd"));
  const flipButton = tool("flip", icon("flip"), flip);
  const mirror = tool("mirror", icon("mirror"), turn("mirror"));
  const subtitles = tool("subtitles", icon("subtitles"), turn("subtitles"));
  const fullscreen = tool("fullscreen", icon("fullscreen"), () => full.toggle());
  fill(bar, hd, flipButton, mirror, subtitles);
  fill(corner, fullscreen);
  bar.setAttribute("role", "group");

  /** @param {HTMLElement} button @param {string} key @param {boolean | null} isOn null: no switch */
  const show = (button, key, isOn) => {
    button.title = t(key);
    button.setAttribute("aria-label", t(key));
    if (isOn !== null) button.setAttribute("aria-pressed", String(isOn));
  };
  const draw = () => {
    bar.setAttribute("aria-label", t("omni.tools"));
    show(hd, "omni.hd", store.get("hd"));
    show(flipButton, "omni.flip", null);
    show(mirror, "omni.mirror", store.get("mirror"));
    show(subtitles, "omni.subtitles", store.get("subtitles"));
    show(fullscreen, full.isFull ? "omni.fullscreen_leave" : "omni.fullscreen", full.isFull);
    const isLive = store.get("source") === "live";
    flipButton.hidden = !isLive;
    flipButton.disabled = !hasCamera();
    mirror.hidden = !isLive;
  };
  onLangChange(draw);
  draw();
  return { update: draw };
}

/**
 * What really goes out: pictures a second, their size, tiles.
 *
 * @param {HTMLElement} el
 * @returns {{update: (sent: ReturnType<import("../lib/picture-taker.js").PictureTaker["sent"]>,
 *   state: import("../lib/duplex-types.js").SessionState) => void}}
 */
export function mountPictureFigures(el) {
  const words = h("p", { class: "small soft number" });
  el.append(words);
  /** @type {Parameters<ReturnType<typeof mountPictureFigures>["update"]> | null} */
  let latest = null;
  const draw = () => {
    const [sent, state] = latest ?? [];
    if (!sent?.frame || !state) return setText(words, t("omni.sent_none"));
    const { widthPx: width, heightPx: height, bytes } = sent.frame;
    const parts = [
      sent.rateHz > 0 && t("omni.sent_rate", { rate: formatNumber(sent.rateHz, 1) }),
      t("omni.sent_size", { width, height, bytes: formatBytes(bytes) }),
      state.visionTokens > 0 && tn("omni.sent_tiles", state.visionSlices, { tokens: formatNumber(state.visionTokens) }),
    ];
    setText(words, parts.filter(Boolean).join(" · "));
  };
  onLangChange(draw);
  draw();
  return {
    update(sent, state) {
      latest = [sent, state];
      draw();
    },
  };
}
