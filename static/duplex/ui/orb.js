// @ts-check
/**
 * The orb: breathes with what is heard (teal) and with what is said (violet). Decoration only; the
 * state line beside it says the same in words.
 */

import { STATE_COLOURS } from "../lib/call-state.js";
import { likesCalm, mixed, mountPainter, rgba, themeColours } from "../../shared/canvas-tools.js";
import { levelShare } from "../../shared/pcm.js";

/** @typedef {import("../lib/call-state.js").CallState} CallState */
/** @typedef {import("../../shared/canvas-tools.js").Rgb} Rgb */

/** Levels rise fast and fall slowly: share of the way per frame of 60 a second. */
const RISE = 0.45;
const FALL = 0.1;
const COLOUR_SPEED = 0.12;
const FRAME_MS = 1000 / 60;
const RADIUS_SHARE = 0.29; // of the canvas; the rest is room to swell
const POINTS = 72;
const LAYERS = 3;
const STILL = 0.004;

/** @type {ReadonlySet<CallState>} */
const ALIVE = new Set(
  /** @type {CallState[]} */ (["connecting", "waiting", "preparing", "listening", "thinking", "speaking", "interrupted"]),
);
/** @type {ReadonlySet<CallState>} */
const SEARCHING = new Set(/** @type {CallState[]} */ (["connecting", "waiting", "preparing", "thinking", "stopping"]));

/**
 * @param {HTMLCanvasElement} canvas
 * @param {{levels: () => {inputRms: number, outputRms: number}}} source
 * @returns {{update: (callState: CallState) => void, close: () => void}}
 */
export function mountOrb(canvas, { levels }) {
  canvas.setAttribute("aria-hidden", "true");
  const colours = themeColours(canvas.parentElement ?? document.body);
  /** @type {CallState} */
  let callState = "idle";
  /** @type {Rgb | null} */
  let colour = null;
  let heard = 0;
  let said = 0;
  let lastMs = 0;

  const painter = mountPainter(canvas, (ctx, width, height, timeMs) => {
    const steps = Math.min(4, (timeMs - lastMs) / FRAME_MS || 1);
    lastMs = timeMs;
    const { inputRms, outputRms } = levels();
    const isTalk = callState !== "paused" && callState !== "ended" && callState !== "stopping";
    heard = follow(heard, isTalk ? levelShare(inputRms) : 0, steps);
    said = follow(said, levelShare(outputRms), steps);
    const target = colours.rgb(STATE_COLOURS[callState]);
    colour = colour ? mixed(colour, target, 1 - (1 - COLOUR_SPEED) ** steps) : target;
    const isCalm = likesCalm();
    const size = Math.min(width, height);
    ctx.translate(width / 2, height / 2);
    paintBody(ctx, size * RADIUS_SHARE, {
      colour,
      shine: lighter(colours.rgb("surface"), colours.rgb("ink")),
      swell: callState === "speaking" ? said : heard,
      isAlive: ALIVE.has(callState),
      timeS: isCalm ? 0 : timeMs / 1000,
    });
    if (callState === "speaking") paintRing(ctx, size * RADIUS_SHARE, colours.rgb("listen"), heard);
    if (SEARCHING.has(callState)) paintSearch(ctx, size * RADIUS_SHARE, colour, isCalm ? 0 : timeMs / 1000);
    const isSettling = heard > STILL || said > STILL || distance(colour, target) > 1;
    return isSettling || (ALIVE.has(callState) && !document.hidden);
  });

  return {
    update(next) {
      callState = next;
      painter.request();
    },
    close() {
      painter.close();
      colours.close();
    },
  };
}

/** @param {number} value @param {number} target @param {number} steps */
function follow(value, target, steps) {
  const speed = target > value ? RISE : FALL;
  return value + (target - value) * (1 - (1 - speed) ** steps);
}

/** @param {Rgb} one @param {Rgb} other */
function lighter(one, other) {
  const sum = (/** @type {Rgb} */ colour) => colour[0] + colour[1] + colour[2];
  return sum(one) > sum(other) ? one : other;
}

/** @param {Rgb} one @param {Rgb} other */
function distance(one, other) {
  return one.reduce((sum, part, index) => sum + Math.abs(part - other[index]), 0);
}

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {number} radius
 * @param {{colour: Rgb, shine: Rgb, swell: number, isAlive: boolean, timeS: number}} look
 */
function paintBody(ctx, radius, { colour, shine, swell, isAlive, timeS }) {
  const breath = isAlive ? 0.02 * Math.sin(timeS * 1.6) : 0;
  const halo = radius * (1.35 + 0.35 * swell);
  const glow = ctx.createRadialGradient(0, 0, radius * 0.7, 0, 0, halo);
  glow.addColorStop(0, rgba(colour, 0.3));
  glow.addColorStop(1, rgba(colour, 0));
  ctx.fillStyle = glow;
  ctx.fillRect(-halo, -halo, 2 * halo, 2 * halo);
  for (let layer = LAYERS; layer >= 1; layer -= 1) {
    const reach = radius * (1 + breath + layer * (0.03 + 0.09 * swell));
    const wobble = radius * (isAlive ? 0.012 + 0.05 * swell : 0.006) * layer;
    blob(ctx, reach, wobble, timeS * (0.6 + 0.25 * layer) + layer);
    ctx.fillStyle = rgba(colour, 0.16);
    ctx.fill();
  }
  blob(ctx, radius * (1 + breath + 0.06 * swell), radius * 0.012, timeS);
  const light = ctx.createRadialGradient(-radius * 0.35, -radius * 0.45, radius * 0.1, 0, 0, radius * 1.15);
  light.addColorStop(0, rgba(mixed(colour, shine, 0.45)));
  light.addColorStop(0.55, rgba(mixed(colour, shine, 0.1)));
  light.addColorStop(1, rgba(colour));
  ctx.fillStyle = light;
  ctx.fill();
}

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {number} radius
 * @param {number} wobble
 * @param {number} phase
 */
function blob(ctx, radius, wobble, phase) {
  ctx.beginPath();
  for (let point = 0; point <= POINTS; point += 1) {
    const angle = (point / POINTS) * 2 * Math.PI;
    const wave = Math.sin(3 * angle + phase) + 0.6 * Math.sin(5 * angle - 1.4 * phase);
    const reach = radius + (wobble * wave) / 1.6;
    ctx.lineTo(reach * Math.cos(angle), reach * Math.sin(angle));
  }
  ctx.closePath();
}

/**
 * What is heard while the model speaks.
 *
 * @param {CanvasRenderingContext2D} ctx
 * @param {number} radius
 * @param {Rgb} colour
 * @param {number} heard
 */
function paintRing(ctx, radius, colour, heard) {
  ctx.beginPath();
  ctx.arc(0, 0, radius * 1.5, 0, 2 * Math.PI);
  ctx.lineWidth = 2 + 6 * heard;
  ctx.strokeStyle = rgba(colour, 0.2 + 0.7 * heard);
  ctx.stroke();
}

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {number} radius
 * @param {Rgb} colour
 * @param {number} timeS
 */
function paintSearch(ctx, radius, colour, timeS) {
  ctx.lineWidth = 4;
  ctx.lineCap = "round";
  for (const turn of [0, Math.PI]) {
    const start = timeS * 1.8 + turn;
    ctx.beginPath();
    ctx.arc(0, 0, radius * 1.5, start, start + 0.9);
    ctx.strokeStyle = rgba(colour, 0.8);
    ctx.stroke();
  }
}
