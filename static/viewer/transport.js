// @ts-check
/** The buttons under the pictures: play, steps, speed, zoom, link to the moment, keys. */

import { find, on, setText } from "../shared/dom.js";
import { formatClock, formatNumber } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { html, icon, live, render } from "../shared/lit.js";
import { KEY_HELP } from "./time-axis.js";
import { SPEEDS } from "./replay-clock.js";

/** @import { ReplayClock } from "./replay-clock.js" */

const ZOOM = 2;

/**
 * @typedef {Object} TransportOptions
 * @property {ReplayClock} clock
 * @property {(by: 1 | -1) => void} stepUnit
 * @property {(factor: number) => void} zoom 0 shows as much as possible
 * @property {() => void} copyMoment
 */

/** @param {HTMLElement} el @param {TransportOptions} options */
export function mountTransport(el, { clock, stepUnit, zoom, copyMoment }) {
  let showsKeys = matchMedia("(min-width: 60rem)").matches;
  const toggleKeys = () => {
    showsKeys = !showsKeys;
    draw();
  };
  const button = (/** @type {string} */ action, /** @type {string} */ iconName, /** @type {() => void} */ run) => {
    const label = t(`viewer.${action.replaceAll("-", "_")}`);
    return html`<button
      type="button"
      class="button button-icon"
      data-action=${action}
      title=${label}
      aria-label=${label}
      @click=${run}
    >
      ${icon(iconName)}
    </button>`;
  };
  const play = () => {
    const label = t(clock.isPlaying ? "common.pause" : "common.play");
    return html`<button
      type="button"
      class="button button-primary button-icon transport-play"
      data-action="play"
      title=${label}
      aria-label=${label}
      @click=${() => clock.toggle()}
    >
      ${icon(clock.isPlaying ? "pause" : "play")}
    </button>`;
  };
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
  const help = () =>
    html`<button
      type="button"
      class="button button-icon"
      data-action="keys"
      aria-expanded=${String(showsKeys)}
      aria-controls="key-help"
      title=${t("viewer.keys")}
      aria-label=${t("viewer.keys")}
      @click=${toggleKeys}
    >
      ${icon("keyboard")}
    </button>`;
  const draw = () => {
    render(
      html`<div class="transport-line">
          ${button("unit-back", "back", () => stepUnit(-1))} ${play()} ${button("unit-forward", "forward", () => stepUnit(1))}
          <span class="transport-time number"></span>
          ${speed()}
          <span class="push row transport-tools">
            ${button("zoom-in", "plus", () => zoom(1 / ZOOM))} ${button("zoom-out", "minus", () => zoom(ZOOM))}
            ${button("zoom-fit", "fullscreen", () => zoom(0))} ${button("link-moment", "link", copyMoment)} ${help()}
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
        </dl>`,
      el,
    );
    drawTime();
  };
  const drawTime = () => {
    setText(find(el, ".transport-time", HTMLElement), `${preciseClock(clock.atS)} / ${formatClock(clock.durationS)}`);
  };
  on(clock, "change", draw);
  on(clock, "tick", drawTime);
  onLangChange(draw);
  draw();
  return { toggleKeys };
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
