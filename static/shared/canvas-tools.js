/** Canvas helpers: device pixel ratio, theme colours, and drawing on demand. */

import { on } from "./lit.js";

/** @typedef {[number, number, number]} Rgb */

const MOST_PIXELS_PER_PX = 2; // a higher ratio looks no better and costs four times as much

/**
 * Redraws a canvas on request, on resize and on a theme change, and never while it is invisible.
 * @param {HTMLCanvasElement} canvas sized by the style sheet
 * @param {(ctx: CanvasRenderingContext2D, width: number, height: number, timeMs: number) => boolean | void} draw
 *   sizes in CSS pixels; returns true to be called again in the next frame
 * @returns {{request: () => void}} `request` draws in the next frame
 */
export function mountPainter(canvas, draw) {
  const ctx = canvas.getContext("2d");
  let frame = 0;
  let [width, height] = [0, 0]; // as last observed, because asking the canvas would force a layout
  const paint = (/** @type {number} */ timeMs) => {
    cancelAnimationFrame(frame);
    frame = 0;
    if (!ctx || width === 0 || height === 0) return; // hidden: the observer reports when it is visible
    const scale = Math.min(globalThis.devicePixelRatio || 1, MOST_PIXELS_PER_PX);
    const [pixelsX, pixelsY] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== pixelsX) canvas.width = pixelsX;
    if (canvas.height !== pixelsY) canvas.height = pixelsY;
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, width, height);
    if (draw(ctx, width, height, timeMs)) request();
  };
  const request = () => {
    if (frame === 0) frame = requestAnimationFrame(paint);
  };
  new ResizeObserver(([{ contentRect }]) => {
    [width, height] = [Math.round(contentRect.width), Math.round(contentRect.height)];
    paint(performance.now()); // here the styles of the colours are known, too
  }).observe(canvas);
  onThemeChange(request);
  on(document.fonts, "loadingdone", request);
  return { request };
}

export function onThemeChange(/** @type {() => void} */ listener) {
  on(document.documentElement, "themechange", listener);
  on(matchMedia("(prefers-color-scheme: dark)"), "change", listener);
}

/** Reads colour tokens, anew after each theme change. @param {HTMLElement} el whose computed style is read */
export function themeColours(el) {
  const probe = document.createElement("span");
  probe.hidden = true;
  el.append(probe);
  /** @type {Map<string, Rgb>} */ const known = new Map();
  onThemeChange(() => known.clear());
  const rgb = (/** @type {string} */ token) => {
    const found = known.get(token);
    if (found) return found;
    probe.style.color = `var(--${token})`;
    const parts = getComputedStyle(probe).color.match(/[\d.]+/g) ?? [];
    const colour = /** @type {Rgb} */ ([0, 1, 2].map((index) => Number(parts[index] ?? 0)));
    known.set(token, colour);
    return colour;
  };
  return { rgb, css: (/** @type {string} */ token, alpha = 1) => rgba(rgb(token), alpha) };
}

/** @param {Rgb} colour @param {number} [alpha] */
export const rgba = ([red, green, blue], alpha = 1) => `rgb(${red} ${green} ${blue} / ${alpha})`;

/** @param {Rgb} from @param {Rgb} to @param {number} share 0 to 1 @returns {Rgb} */
export const mixed = (from, to, share) => /** @type {Rgb} */ (from.map((part, index) => part + (to[index] - part) * share));

export const likesCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
