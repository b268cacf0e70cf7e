// @ts-check
/** What is seen of a recording of the voice: level, time, how to end it. */

import { mountPainter, themeColours } from "../shared/canvas-tools.js";
import { find, setText } from "../shared/dom.js";
import { formatClock } from "../shared/formats.js";
import { t } from "../shared/i18n.js";
import { html, iconButton, mountView } from "../shared/lit.js";
import { levelShare } from "../shared/pcm.js";

/** @typedef {ReturnType<typeof mountRecordView>} RecordView */

const BAR_PX = 3;
const GAP_PX = 2;
const MOST_BARS = 600;

/** @param {HTMLElement} el shown while it records @param {{cancel: () => void, done: () => void}} actions */
export function mountRecordView(el, { cancel, done }) {
  /** @type {number[]} */
  let bars = [];
  let isSilent = false;
  el.classList.add("record-panel");
  const draw = mountView(
    el,
    () =>
      html`<div class="record-line">
          ${iconButton("trash", t("chat.record_cancel"), cancel, { style: "" })}<span class="record-dot" aria-hidden="true"></span
          ><span class="number record-time" role="timer"></span
          ><canvas class="record-wave" aria-hidden="true"></canvas>${iconButton("check", t("chat.record_end"), done, {
            style: "button-primary",
          })}
        </div>
        <p class="small soft record-hint" role="status">${t(isSilent ? "chat.record_silent" : "chat.record_hint")}</p>`,
  );
  const time = find(el, ".record-time", HTMLElement);
  const colours = themeColours(el);
  const painter = mountPainter(find(el, "canvas", HTMLCanvasElement), (ctx, width, height) => {
    const count = Math.floor(width / (BAR_PX + GAP_PX));
    ctx.fillStyle = colours.css(isSilent ? "caution" : "listen");
    bars.slice(-count).forEach((share, index) => {
      const length = Math.max(2, share * height);
      ctx.fillRect(index * (BAR_PX + GAP_PX), (height - length) / 2, BAR_PX, length);
    });
  });
  return {
    begin() {
      bars = [];
      isSilent = false;
      setText(time, formatClock(0));
      draw();
    },
    /** @param {number} rms @param {number} lengthS @param {number} maxS */
    add(rms, lengthS, maxS) {
      bars = [...bars, levelShare(rms)].slice(-MOST_BARS);
      setText(time, t("chat.record_time", { now: formatClock(lengthS), most: formatClock(maxS) }));
      painter.request();
    },
    /** @param {boolean} isNowSilent */
    warn(isNowSilent) {
      isSilent = isNowSilent;
      draw();
    },
  };
}
