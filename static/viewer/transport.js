// @ts-check
/**
 * The buttons under the pictures: play, steps, speed, zoom, link to the moment, keys.
 */

import { fill, h, icon, on, setText } from "../shared/dom.js";
import { formatClock, formatNumber } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { KEY_HELP } from "./keys.js";
import { SPEEDS } from "./replay-clock.js";

const ZOOM = 2;

/**
 * @typedef {Object} TransportOptions
 * @property {import("./replay-clock.js").ReplayClock} clock
 * @property {(by: 1 | -1) => void} stepUnit
 * @property {(factor: number) => void} zoom 0 shows as much as possible
 * @property {() => void} copyMoment
 */

/**
 * @param {HTMLElement} el
 * @param {TransportOptions} options
 */
export function mountTransport(el, { clock, stepUnit, zoom, copyMoment }) {
  /** @type {{node: HTMLButtonElement, iconName: string, key: string}[]} */
  const named = [];
  const button = (/** @type {string} */ action, /** @type {string} */ iconName, /** @type {() => void} */ run) => {
    const node = h("button", { type: "button", class: "button button-icon", dataset: { action }, on: { click: run } });
    named.push({ node, iconName, key: `viewer.${action.replaceAll("-", "_")}` });
    return node;
  };
  const play = h("button", {
    type: "button",
    class: "button button-primary button-icon transport-play",
    dataset: { action: "play" },
    on: { click: () => clock.toggle() },
  });
  const speed = h(
    "select",
    { class: "speed", dataset: { action: "speed" } },
    SPEEDS.map((value) => h("option", { value })),
  );
  const time = h("span", { class: "transport-time number" });
  const help = h("button", {
    type: "button",
    class: "button button-icon",
    "aria-expanded": "false",
    dataset: { action: "keys" },
  });
  const keys = h("dl", { class: "key-help small", id: "key-help" });
  help.setAttribute("aria-controls", "key-help");
  fill(
    el,
    h(
      "div",
      { class: "transport-line" },
      button("unit-back", "back", () => stepUnit(-1)),
      play,
      button("unit-forward", "forward", () => stepUnit(1)),
      time,
      speed,
      h(
        "span",
        { class: "push row transport-tools" },
        button("zoom-in", "plus", () => zoom(1 / ZOOM)),
        button("zoom-out", "minus", () => zoom(ZOOM)),
        button("zoom-fit", "fullscreen", () => zoom(0)),
        button("link-moment", "link", copyMoment),
        help,
      ),
    ),
    keys,
  );
  const showKeys = (/** @type {boolean} */ isShown) => {
    keys.hidden = !isShown;
    help.setAttribute("aria-expanded", String(isShown));
  };
  on(help, "click", () => showKeys(keys.hidden === true));
  on(speed, "change", () => clock.setSpeed(Number(speed.value)));

  const draw = () => {
    fill(play, icon(clock.isPlaying ? "pause" : "play"));
    name(play, t(clock.isPlaying ? "common.pause" : "common.play"));
    speed.value = String(clock.speed);
    drawTime();
  };
  const drawTime = () => setText(time, `${preciseClock(clock.atS)} / ${formatClock(clock.durationS)}`);
  const drawWords = () => {
    for (const { node, iconName, key } of named) {
      fill(node, icon(iconName));
      name(node, t(key));
    }
    fill(help, icon("keyboard"));
    name(help, t("viewer.keys"));
    name(speed, t("viewer.speed"));
    for (const option of speed.options) option.textContent = t("viewer.times", { n: speedText(Number(option.value)) });
    fill(keys, KEY_HELP.map(keyRow));
    draw();
  };
  on(clock, "change", draw);
  on(clock, "tick", drawTime);
  onLangChange(drawWords);
  drawWords();
  showKeys(matchMedia("(min-width: 60rem)").matches);
  return { toggleKeys: () => showKeys(keys.hidden === true) };
}

/** @param {HTMLElement} control @param {string} text */
function name(control, text) {
  control.title = text;
  control.setAttribute("aria-label", text);
}

/** @param {typeof KEY_HELP[number]} row */
function keyRow({ keys, text }) {
  return h(
    "div",
    {},
    h(
      "dt",
      {},
      keys.map((key) => h("kbd", {}, key)),
    ),
    h("dd", {}, t(text)),
  );
}

/** @param {number} speed @returns {string} "0.5", "0.75", "1" */
function speedText(speed) {
  const digits = [0, 1].find((count) => Number(speed.toFixed(count)) === speed) ?? 2;
  return formatNumber(speed, digits);
}

/** Minutes, seconds and tenths. @param {number} atS */
function preciseClock(atS) {
  const tenths = Math.floor(atS * 10 + 1e-6);
  return `${Math.floor(tenths / 600)}:${String(Math.floor((tenths % 600) / 10)).padStart(2, "0")}.${tenths % 10}`;
}
