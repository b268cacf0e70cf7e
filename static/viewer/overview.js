// @ts-check
/**
 * The whole recording in one line: who spoke when, what was late, and which part is in view.
 */

import { mountPainter, themeColours } from "../shared/canvas-tools.js";
import { h, on } from "../shared/dom.js";

/** @typedef {import("./unit-plan.js").Plan} Plan */
/** @typedef {import("./time-axis.js").View} View */

const LEAST_PX = 1;
const LATE_PX = 4;

/**
 * For mouse and touch only: the slider below does the same for everybody.
 *
 * @param {HTMLElement} el
 * @param {{plan: Plan, onSeek: (atS: number) => void}} options
 */
export function mountOverview(el, { plan, onSeek }) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const frame = h("div", { class: "overview-frame" });
  const head = h("div", { class: "overview-head" });
  el.append(canvas, frame, head);
  const colours = themeColours(el);
  const painter = mountPainter(canvas, (ctx, width, height) => {
    const perS = width / plan.durationS;
    for (const { startS, endS, mode, isLate } of plan.units) {
      const size = Math.max(LEAST_PX, (endS - startS) * perS);
      ctx.fillStyle = colours.css(mode === "speak" ? "speak" : mode === "listen" ? "listen" : "idle", mode === "speak" ? 1 : 0.35);
      const tall = mode === "speak" ? height : height * 0.4;
      ctx.fillRect(startS * perS, height - tall, size, tall);
      if (!isLate) continue;
      ctx.fillStyle = colours.css("bad");
      ctx.fillRect(startS * perS, 0, Math.max(2, size), LATE_PX);
    }
  });
  /** @param {PointerEvent} event */
  const seek = ({ clientX }) => {
    const { left, width } = el.getBoundingClientRect();
    onSeek(Math.min(1, Math.max(0, (clientX - left) / width)) * plan.durationS);
  };
  on(el, "pointerdown", (/** @type {PointerEvent} */ event) => {
    el.setPointerCapture(event.pointerId);
    seek(event);
  });
  on(el, "pointermove", (/** @type {PointerEvent} */ event) => {
    if (el.hasPointerCapture(event.pointerId)) seek(event);
  });
  return {
    /** @param {View} view @param {number} atS */
    update({ fromS, toS }, atS) {
      el.hidden = toS - fromS >= plan.durationS;
      frame.style.left = `${(100 * fromS) / plan.durationS}%`;
      frame.style.width = `${(100 * (toS - fromS)) / plan.durationS}%`;
      head.style.left = `${(100 * atS) / plan.durationS}%`;
    },
    close() {
      painter.close();
      colours.close();
    },
  };
}
