/** Parts of every call page: the orb with the state, the list of turns. */

import { likesCalm, mixed, mountPainter, rgba, themeColours } from "../../shared/canvas-tools.js";
import { find, html, icon, mountView, on, textButton } from "../../shared/lit.js";
import { formatClock, MS_PER_S, t } from "../../shared/texts.js";
import { levelShare } from "../../shared/pcm.js";
import { callStateOf, hintOf, pauseHint, STATE_LOOKS } from "../lib/call-state.js";
import { runningMs } from "../lib/session-state.js";

/** @import { Rgb } from "../../shared/canvas-tools.js" */
/** @import { CallState } from "../lib/call-state.js" */
/** @import { AnyCall } from "./call-view.js" */

const TICK_MS = 500;

/** @param {HTMLElement} el @param {AnyCall} call @returns {() => void} redraws it */
export function mountStage(el, call) {
  el.classList.add("stage");
  const drawWords = mountView(el, () => {
    const { callState, sign, hint } = stageOf(call);
    const ms = runningMs(call.state, performance.now());
    el.dataset.callState = callState;
    return html`<div class="orb-box"><canvas class="orb"></canvas><span class="orb-sign">${icon(sign)}</span></div>
      <p class="state-word" role="status" aria-live="polite">${t(`live.state.${callState}`)}</p>
      <p class="state-hint soft">${hint}</p>
      <p class="call-clock number soft" role="timer" aria-live="off">
        ${call.state.preparedAtMs === null ? "" : formatClock(Math.floor(ms / MS_PER_S))}
      </p>`;
  });
  const drawOrb = mountOrb(find(el, "canvas", HTMLCanvasElement), call);
  const draw = () => {
    drawWords();
    drawOrb(stageOf(call).callState);
  };
  setInterval(draw, TICK_MS);
  draw();
  return draw;
}

/** `sign` is the icon inside the orb, so that colour is not the only cue. @param {AnyCall} call */
function stageOf({ state, devices }) {
  const callState = devices.isStarting ? "connecting" : callStateOf(state, devices.isHeld);
  const isBroken = callState === "ended" && state.end?.isByUser === false;
  const isHalf = "isMicMuted" in state;
  const isMuted = isHalf ? state.isMicMuted : devices.isMuted;
  const call = { isMuted, canMute: devices.canMute, isHalf, isLost: state.isLost };
  const hint = isBroken ? t("live.hint.broken") : hintOf(callState, call);
  return {
    callState,
    sign: isBroken ? "warning" : isHalf && callState === "idle" ? "turns" : STATE_LOOKS[callState].sign,
    hint: (isHalf ? null : pauseHint(state, performance.now())) ?? hint,
  };
}

// List of turns. It follows its end while that is visible, and otherwise offers a button to it.

const NEAR_END_PX = 48;

/**
 * @param {HTMLElement} el
 * @param {string} emptyKey text of an empty list
 * @param {() => {isEmpty: boolean, rows: unknown}} turns
 * @returns {(hasNews: boolean) => void} draws it anew
 */
export function mountTalkList(el, emptyKey, turns) {
  let hasJump = false;
  el.classList.add("transcript");
  const draw = mountView(el, () => {
    const { isEmpty, rows } = turns();
    return html`<p class="talk-empty soft" ?hidden=${!isEmpty}>${t(emptyKey)}</p>
      <ol class="talk" tabindex="0" aria-live="off" aria-label=${t("live.transcript")} ?hidden=${isEmpty}>
        ${rows}
      </ol>
      ${textButton(t("live.new_text"), () => goToEnd(), { sign: "down", style: "talk-jump", isShown: hasJump })}`;
  });
  const list = find(el, "ol", HTMLOListElement);
  // An empty list is not measured, since that would force a layout before the first paint.
  const isAtEnd = () => list.hidden || list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END_PX;
  const showJump = (/** @type {boolean} */ isShown) => {
    if (hasJump === isShown) return;
    hasJump = isShown;
    draw();
  };
  const goToEnd = () => {
    if (!list.hidden) list.scrollTop = list.scrollHeight;
    showJump(false);
  };
  on(list, "scroll", () => {
    if (isAtEnd()) showJump(false);
  });
  return (hasNews) => {
    const wasAtEnd = isAtEnd();
    draw();
    if (wasAtEnd) goToEnd();
    else if (hasNews) showJump(true);
  };
}

// The orb moves with the user's level (teal) and the model's (violet).

const RISE = 0.45; // levels rise fast and fall slowly: share of the distance per frame at 60 Hz
const FALL = 0.1;
const COLOUR_SPEED = 0.12;
const FRAME_MS = 1000 / 60;
const RADIUS_SHARE = 0.29; // of the canvas; the rest is for growth
const POINTS = 72;
const LAYERS = 3;
const STILL = 0.004;

/** @param {HTMLCanvasElement} canvas @param {AnyCall} call @returns {(callState: CallState) => void} */
function mountOrb(canvas, call) {
  canvas.setAttribute("aria-hidden", "true");
  const colours = themeColours(canvas.parentElement ?? document.body);
  /** @type {CallState} */ let callState = "idle";
  /** @type {Rgb | null} */ let colour = null;
  let heard = 0;
  let said = 0;
  let lastMs = 0;

  const painter = mountPainter(canvas, (ctx, width, height, timeMs) => {
    const steps = Math.min(4, (timeMs - lastMs) / FRAME_MS || 1);
    lastMs = timeMs;
    const { inputRms, outputRms } = call.levels();
    const isTalk = callState !== "paused" && callState !== "ended" && callState !== "stopping";
    heard = follow(heard, isTalk ? levelShare(inputRms) : 0, steps);
    said = follow(said, levelShare(outputRms), steps);
    const { colour: token, isAlive, isSearching } = STATE_LOOKS[callState];
    const target = colours.rgb(token);
    colour = colour ? mixed(colour, target, 1 - (1 - COLOUR_SPEED) ** steps) : target;
    const isCalm = likesCalm();
    const size = Math.min(width, height);
    ctx.translate(width / 2, height / 2);
    paintBody(ctx, size * RADIUS_SHARE, {
      colour,
      shine: lighter(colours.rgb("surface"), colours.rgb("ink")),
      swell: callState === "speaking" ? said : heard,
      isAlive,
      timeS: isCalm ? 0 : timeMs / 1000,
    });
    if (callState === "speaking") paintRing(ctx, size * RADIUS_SHARE, colours.rgb("listen"), heard);
    if (isSearching) paintSearch(ctx, size * RADIUS_SHARE, colour, isCalm ? 0 : timeMs / 1000);
    const isSettling = heard > STILL || said > STILL || distance(colour, target) > 1;
    return isSettling || (isAlive && !document.hidden);
  });

  return (next) => {
    if (next !== callState) painter.request();
    callState = next;
  };
}

function follow(/** @type {number} */ value, /** @type {number} */ target, /** @type {number} */ steps) {
  const speed = target > value ? RISE : FALL;
  return value + (target - value) * (1 - (1 - speed) ** steps);
}

function lighter(/** @type {Rgb} */ one, /** @type {Rgb} */ other) {
  const sum = (/** @type {Rgb} */ colour) => colour[0] + colour[1] + colour[2];
  return sum(one) > sum(other) ? one : other;
}

/** @param {Rgb} one @param {Rgb} other */
const distance = (one, other) => one.reduce((sum, part, index) => sum + Math.abs(part - other[index]), 0);

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

/** @param {CanvasRenderingContext2D} ctx @param {number} radius @param {number} wobble @param {number} phase */
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

/** @param {CanvasRenderingContext2D} ctx @param {number} radius @param {Rgb} colour @param {number} heard */
function paintRing(ctx, radius, colour, heard) {
  ctx.beginPath();
  ctx.arc(0, 0, radius * 1.5, 0, 2 * Math.PI);
  ctx.lineWidth = 2 + 6 * heard;
  ctx.strokeStyle = rgba(colour, 0.2 + 0.7 * heard);
  ctx.stroke();
}

/** @param {CanvasRenderingContext2D} ctx @param {number} radius @param {Rgb} colour @param {number} timeS */
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
