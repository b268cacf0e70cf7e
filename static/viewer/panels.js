// @ts-check
/** The disclosures below a recording: every unit in a table, whole files to play, the settings. */

import { formatNumber } from "../shared/formats.js";
import { t } from "../shared/i18n.js";
import { html, icon, nothing, repeat } from "../shared/lit.js";

/** @typedef {import("./unit-plan.js").Plan} Plan */
/** @typedef {import("./unit-plan.js").Unit} Unit */
/** @typedef {{name: "film" | "browser" | "sound", url: string, subtitles?: string, onPlay?: () => void}} Replay */

const IS_SOUND = /\.(wav|mp3)$/;
const PER_PAGE = 50;
const ICONS = { film: "film", browser: "record", sound: "wave" };

/** A player for a whole file. @param {Replay} replay */
export function replayPanel({ name, url, subtitles, onPlay }) {
  // Only the first frame, and only for who opens it.
  const onToggle = (/** @type {{currentTarget: HTMLDetailsElement}} */ { currentTarget: details }) => {
    const media = /** @type {HTMLMediaElement} */ (details.querySelector("audio, video"));
    if (details.open) media.preload = "metadata";
    else media.pause();
  };
  const label = t(`viewer.${name}`);
  const media = IS_SOUND.test(url)
    ? html`<audio controls preload="none" src=${url} class="replay-sound" aria-label=${label} @play=${onPlay}></audio>`
    : html`<video controls preload="none" playsinline src=${url} class="replay-film" aria-label=${label} @play=${onPlay}>
        ${subtitles ? html`<track kind="subtitles" src=${subtitles} label=${t("viewer.subtitles")} default />` : nothing}
      </video>`;
  return html`<details class="panel" data-panel=${name} ?open=${name === "sound"} @toggle=${onToggle}>
    <summary>${icon(ICONS[name])}${label}</summary>
    <div class="stack-tight">
      <p class="hint">${t(`viewer.${name}_about`)}</p>
      ${media}
      <div><a class="button" href=${url} download>${icon("download")}${t("common.download")}</a></div>
    </div>
  </details>`;
}

/** @param {Record<string, unknown>} config */
export function configPanel(config) {
  const rows = Object.entries(config).filter(([, value]) => value !== null && value !== undefined);
  return html`<details class="panel" data-panel="config">
    <summary>${icon("settings")}${t("viewer.config")}</summary>
    <dl class="config-list">${rows.length > 0 ? rows.map(configRow) : html`<p class="soft">${t("viewer.no_config")}</p>`}</dl>
  </details>`;
}

/** @param {[string, unknown]} row */
const configRow = ([name, value]) =>
  html`<div>
    <dt class="mono">${name}</dt>
    <dd>${configValue(value)}</dd>
  </div>`;

/** @param {unknown} value */
function configValue(value) {
  if (typeof value === "boolean") return t(value ? "common.yes" : "common.no");
  if (typeof value === "number") return Number.isInteger(value) ? formatNumber(value) : String(value);
  if (typeof value === "string") return value || t("common.none");
  return html`<pre>${JSON.stringify(value, null, 2)}</pre>`;
}

/**
 * Every unit, a page at a time: for screen readers, and to hear single files.
 *
 * @param {{plan: Plan, onJump: (atS: number) => void, playFile: (path: string) => void, draw: () => void}} options
 * @returns {() => import("../shared/lit.js").View}
 */
export function makeUnitsPanel({ plan, onJump, playFile, draw }) {
  const pages = Math.max(1, Math.ceil(plan.units.length / PER_PAGE));
  const at = { page: 0, isOpen: false };
  const turn = (/** @type {number} */ by) => () => {
    at.page += by;
    draw();
  };
  const onToggle = (/** @type {{currentTarget: HTMLDetailsElement}} */ { currentTarget }) => {
    at.isOpen = currentTarget.open;
    draw();
  };
  const contents = () => {
    const columns = ["unit", "time", "did", "said", "took", "files"].map((name) => t(`viewer.column_${name}`));
    const units = plan.units.slice(at.page * PER_PAGE, (at.page + 1) * PER_PAGE);
    const where = t("viewer.page_of", { n: formatNumber(at.page + 1), total: formatNumber(pages) });
    return html`<table class="table unit-table">
        <thead>
          <tr>
            ${columns.map((column) => html`<th scope="col">${column}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${repeat(
            units,
            ({ number }) => number,
            (unit) => unitRow(unit, columns, { onJump, playFile }),
          )}
        </tbody>
      </table>
      <div class="row" ?hidden=${pages === 1}>
        <button type="button" class="button" data-action="page-back" ?disabled=${at.page === 0} @click=${turn(-1)}>
          ${icon("back")}${t("common.back")}
        </button>
        <span class="number small soft" role="status">${where}</span>
        <button type="button" class="button" data-action="page-forward" ?disabled=${at.page === pages - 1} @click=${turn(1)}>
          ${icon("forward")}${t("common.more")}
        </button>
      </div>`;
  };
  return () =>
    html`<details class="panel" data-panel="units" @toggle=${onToggle}>
      <summary>${icon("chart")}${t("viewer.all_units")}</summary>
      <div class="stack-tight">${at.isOpen ? contents() : nothing}</div>
    </details>`;
}

/**
 * @param {Unit} unit
 * @param {string[]} columns
 * @param {{onJump: (atS: number) => void, playFile: (path: string) => void}} actions
 */
function unitRow({ number, startS, endS, mode, text, wallMs, isLate, gapMs, chunk }, columns, { onJump, playFile }) {
  const n = formatNumber(number + 1);
  const took = [
    wallMs === null ? "—" : t("viewer.ms", { n: formatNumber(wallMs) }),
    isLate && t("viewer.late"),
    gapMs > 0 && t("viewer.gap", { n: formatNumber(gapMs) }),
  ];
  const file = (/** @type {string | undefined} */ path, /** @type {string} */ key) =>
    path
      ? html`<button
          type="button"
          class="button button-quiet"
          aria-label=${t(`viewer.hear_${key}`, { n })}
          @click=${() => playFile(path)}
        >
          ${icon("play")}${t(`common.${key}`)}
        </button>`
      : nothing;
  const jump = html`<button
    type="button"
    class="button button-quiet"
    aria-label=${t("viewer.jump_to_unit", { n })}
    @click=${() => onJump(startS)}
  >
    ${n}
  </button>`;
  const cells = [
    jump,
    t("viewer.from_to", { from: formatNumber(startS, 1), to: formatNumber(endS, 1) }),
    t(`viewer.mode_${mode}`),
    text.trim(),
    took.filter(Boolean).join(" · "),
    html`<span class="row">${file(chunk.user_audio, "you")}${file(chunk.result?.ai_audio, "model")}</span>`,
  ];
  return html`<tr>
    ${cells.map((cell, index) => html`<td data-label=${columns[index]}>${cell}</td>`)}
  </tr>`;
}
