/** Logs and audit log. */

import { ApiError } from "../shared/api.js";
import { formatNumber, t, tn } from "../shared/texts.js";
import { isMatch, LogBuffer, SEVERITIES } from "./admin-facts.js";
import { table, when } from "./words.js";
import { actionWords, clock, failureText, UNKNOWN } from "./admin-texts.js";
import { html, live, nothing, repeat, textButton } from "../shared/lit.js";

/** @import { Context } from "../pages/admin.js" */
/** @import { KeptLine, LogFilter } from "./admin-facts.js" */

const PAUSE_MS = 2_000;
const MAX_LINES = 2_000;
const END_SLACK_PX = 24; // distance that counts as the end
const NOT_FOUND = 404;
const PADDING = /(?<=\S) {3,}/g; // alignment padding of the log lines

export function makeLogs(/** @type {Context} */ { api, draw: drawSection, el }) {
  const buffer = new LogBuffer(MAX_LINES);
  const at = { source: "", sources: /** @type {string[]} */ ([]), cursor: "", missing: "" };
  /** @type {LogFilter} */ const filter = { text: "", least: "info" };
  const look = { follows: true, isAtEnd: true, unseen: 0 };
  /** @returns {HTMLElement | null} */ const linesEl = () => el.querySelector(".admin-log-lines");

  const draw = () => drawInPlace(drawSection, linesEl, look.isAtEnd);
  const toEnd = () => {
    Object.assign(look, { isAtEnd: true, unseen: 0 });
    draw();
  };
  const refresh = async () => {
    if (!look.follows && at.cursor !== "") return;
    try {
      for (let hasMore = true; hasMore;) {
        const { source: asked, cursor: from } = at;
        const after = from && `&after=${encodeURIComponent(from)}`;
        const part = /** @type {Http.LogPart} */ (await api.get(`/api/admin/logs?source=${encodeURIComponent(asked)}${after}`));
        if (asked !== at.source || from !== at.cursor) return; // another log was selected meanwhile, or this part was read
        const { cursor, source, sources } = part;
        Object.assign(at, { cursor, source, sources });
        const added = buffer.add(part.lines);
        if (!look.isAtEnd) look.unseen += added.filter((line) => isMatch(line, filter)).length;
        hasMore = part.has_more && after !== "";
      }
      at.missing = "";
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== NOT_FOUND) throw error;
      at.missing = failureText(error, "log");
    }
    draw();
  };
  const soon = () => void refresh().catch(() => {}); // the next refresh reports it
  const onSource = (/** @type {{target: HTMLSelectElement}} */ { target }) => {
    Object.assign(at, { source: target.value, cursor: "" });
    buffer.clear();
    toEnd();
    soon();
  };
  const onFollow = (/** @type {{target: HTMLInputElement}} */ { target }) => {
    look.follows = target.checked;
    if (!look.follows) return;
    toEnd();
    soon();
  };
  const onLevel = (/** @type {{target: HTMLSelectElement}} */ { target }) => {
    filter.least = /** @type {LogFilter["least"]} */ (target.value);
    toEnd();
  };
  const onText = (/** @type {{target: HTMLInputElement}} */ { target }) => {
    filter.text = target.value;
    toEnd();
  };
  const onScroll = (/** @type {{target: HTMLElement}} */ { target }) => {
    look.isAtEnd = target.scrollHeight - target.scrollTop - target.clientHeight < END_SLACK_PX;
    if (look.isAtEnd) look.unseen = 0;
    drawSection();
  };
  const onJump = () => {
    toEnd();
    linesEl()?.focus({ preventScroll: true });
  };
  const controls = () =>
    html`<div class="admin-fields">
      <div class="field">
        <label for="log-source">${t("admin.log_source")}</label>
        <select id="log-source" @change=${onSource}>
          ${at.sources.map((each) => html`<option value=${each} .selected=${live(each === at.source)}>${each}</option>`)}
        </select>
      </div>
      <div class="field">
        <label for="log-level">${t("admin.log_level")}</label>
        <select id="log-level" @change=${onLevel}>
          ${SEVERITIES.map(
            (each) => html`<option value=${each} ?selected=${each === filter.least}>${t(`admin.level_${each}`)}</option>`,
          )}
        </select>
      </div>
      <div class="field">
        <label for="log-text">${t("admin.log_text")}</label>
        <input type="search" id="log-text" autocomplete="off" @input=${onText} />
      </div>
      <div class="check admin-follow">
        <input type="checkbox" role="switch" id="log-follow" checked @change=${onFollow} />
        <label for="log-follow">${t("admin.log_follow")}</label>
      </div>
    </div>`;
  return {
    refresh,
    pauseMs: PAUSE_MS,
    view() {
      if (at.missing)
        return html`${controls()}
          <p class="empty">${at.missing}</p>`;
      const shown = buffer.lines.filter((line) => isMatch(line, filter));
      const sizes = { n: formatNumber(shown.length), all: formatNumber(buffer.lines.length), most: formatNumber(MAX_LINES) };
      return html`${controls()}
        <div class="admin-log">
          <div class="admin-log-lines" role="log" aria-live="off" tabindex="0" aria-label=${t("admin.logs")} @scroll=${onScroll}>
            ${repeat(shown, ({ id }) => id, lineView)}
          </div>
          ${textButton(look.unseen > 0 ? tn("admin.log_new", look.unseen) : t("admin.log_end"), onJump, {
            style: "admin-jump",
            isShown: !look.isAtEnd,
          })}
        </div>
        ${
          shown.length > 0
            ? nothing
            : html`<p class="empty">${t(buffer.lines.length === 0 ? "admin.log_empty" : "admin.log_no_match")}</p>`
        }
        <p class="small soft">${t("admin.log_count", sizes)}</p>`;
    },
  };
}

/**
 * The lines in view stay in place while older ones are dropped.
 * @param {() => void} draw
 * @param {() => HTMLElement | null} linesEl
 * @param {boolean} isAtEnd follows the newest line
 */
function drawInPlace(draw, linesEl, isAtEnd) {
  const lines = linesEl();
  const before = lines?.scrollTop ?? 0;
  const shown = /** @type {HTMLElement[]} */ ([...(lines?.children ?? [])]);
  const read = shown.find(({ offsetTop, offsetHeight }) => offsetTop + offsetHeight > before);
  const offset = read?.offsetTop ?? 0;
  draw();
  const now = linesEl();
  if (now && isAtEnd) now.scrollTop = now.scrollHeight;
  else if (now && read?.isConnected) now.scrollTop = before + read.offsetTop - offset;
}

const lineView = (/** @type {KeptLine} */ { time, severity, level, text }) =>
  html`<div class="admin-log-line" data-severity=${severity}>
    <span class="admin-log-time" title=${time ?? nothing}>${time ? clock(time) : ""}</span
    ><span class="admin-log-level">${level ?? ""}</span
    ><span class="admin-log-text">${level ? text.replace(PADDING, "  ") : text}</span>
  </div>`;

// Audit log: administrators' actions, newest first.

const LIMIT = 200;
const FIRST_FAILURE = 400;

export function makeAudit(/** @type {Context} */ { api }) {
  /** @type {Http.AuditEntry[] | null} */ let rows = null;
  return {
    refresh: async () => void ({ entries: rows } = await api.get(`/api/admin/audit?limit=${LIMIT}`)),
    view: () =>
      html`<p class="soft admin-read">${t("admin.audit_lead")}</p>
        <div class="admin-wide">
          ${table("audit", rows, (_, index) => index, [
            { labelKey: "admin.col_when", cell: ({ time }) => when(time) },
            { labelKey: "admin.col_did", cell: ({ action }) => actionWords(action) },
            { labelKey: "admin.col_target", look: "mono", cell: ({ target }) => target || UNKNOWN },
            { labelKey: "admin.col_asked", look: "small", cell: ({ details }) => details || UNKNOWN },
            { labelKey: "admin.col_outcome", cell: outcome },
            { labelKey: "admin.col_address", look: "mono", cell: ({ address }) => address || UNKNOWN },
          ])}
        </div>`,
  };
}

function outcome(/** @type {Http.AuditEntry} */ { status }) {
  const isGood = status < FIRST_FAILURE;
  return html`<span class="badge" data-kind=${isGood ? "good" : "bad"}
    ><span class="dot"></span><span>${isGood ? t("admin.went_well") : t("admin.refused", { status })}</span></span
  >`;
}
