// @ts-check
/** Logs: the end of a program's log as it grows; follows unless the reader scrolls up. */

import { h, on, setText } from "../shared/dom.js";
import { formatNumber } from "../shared/formats.js";
import { onLangChange, t, tn } from "../shared/i18n.js";
import { ApiError } from "../shared/api.js";
import { LogBuffer, isMatch } from "./log-buffer.js";
import { failureText, said } from "./words.js";

/** @typedef {import("./log-buffer.js").KeptLine} KeptLine */
/** @typedef {import("./log-buffer.js").LogFilter} LogFilter */

const PAUSE_MS = 2_000;
const MAX_LINES = 2_000;
const END_SLACK_PX = 24; // this near to the end counts as being there
const NOT_FOUND = 404;
const PADDING = /(?<=\S) {3,}/g; // programs line their words up; here that only takes room
const LEVELS = ["debug", "info", "warning", "error"];

/**
 * @param {HTMLElement} el
 * @param {import("../pages/admin.js").Context} context
 * @returns {import("../pages/admin.js").Section}
 */
export function mountSection(el, { api }) {
  const parts = buildParts();
  el.append(...parts.nodes);
  const { source, follow, level, text } = parts;
  const view = mountLines(parts, () => ({ text: text.value, least: /** @type {LogFilter["least"]} */ (level.value) }));
  const buffer = new LogBuffer(MAX_LINES);
  const at = { source: "gateway", cursor: "" };

  const begin = () => {
    at.cursor = "";
    buffer.clear();
    view.clear();
  };
  /** @param {Http.LogPart} part */
  const take = (part) => {
    drawSources(source, part.sources, part.source);
    at.cursor = part.cursor;
    const { added, droppedCount } = buffer.add(part.lines);
    view.add(added, droppedCount);
  };
  const refresh = async () => {
    if (!follow.checked && at.cursor !== "") return;
    try {
      for (let hasMore = true; hasMore;) {
        const asked = at.source;
        const after = at.cursor && `&after=${encodeURIComponent(at.cursor)}`;
        const part = /** @type {Http.LogPart} */ (await api.get(`/api/admin/logs?source=${encodeURIComponent(asked)}${after}`));
        if (asked !== at.source) return; // another log was chosen meanwhile
        take(part);
        hasMore = part.has_more && after !== "";
      }
      parts.showMissing("");
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== NOT_FOUND) throw error;
      parts.showMissing(failureText(error, "log"));
    }
  };
  const soon = () => void refresh().catch(() => {}); // the next look tells
  on(source, "change", () => {
    at.source = source.value;
    begin();
    soon();
  });
  on(follow, "change", () => {
    if (!follow.checked) return;
    view.toEnd();
    soon();
  });
  on(level, "change", view.filter);
  on(text, "input", view.filter);
  return { refresh, pauseMs: PAUSE_MS };
}

function buildParts() {
  const source = h("select", { id: "log-source" });
  const follow = h("input", { type: "checkbox", role: "switch", id: "log-follow" });
  follow.checked = true;
  const level = h(
    "select",
    { id: "log-level" },
    LEVELS.map((each) => said("option", `admin.level_${each}`, { value: each })),
  );
  level.value = "info";
  const text = h("input", { type: "search", id: "log-text", autocomplete: "off" });
  const lines = h("div", { class: "admin-log-lines", role: "log", "aria-live": "off", tabindex: 0 });
  const empty = h("p", { class: "empty", hidden: true });
  const missing = h("p", { class: "empty", hidden: true });
  const jump = h("button", { type: "button", class: "button admin-jump", hidden: true });
  const note = h("p", { class: "small soft" });
  const field = (/** @type {string} */ key, /** @type {HTMLElement} */ control) =>
    h("div", { class: "field" }, said("label", key, { for: control.id }), control);
  const tools = h(
    "div",
    { class: "admin-fields" },
    field("admin.log_source", source),
    field("admin.log_level", level),
    field("admin.log_text", text),
    h("div", { class: "check admin-follow" }, follow, said("label", "admin.log_follow", { for: "log-follow" })),
  );
  const frame = h("div", { class: "admin-log" }, lines, jump);
  return {
    source,
    follow,
    level,
    text,
    lines,
    empty,
    jump,
    note,
    nodes: [tools, missing, frame, empty, note],
    /** @param {string} words why there is nothing; "" if there is something */
    showMissing(words) {
      missing.hidden = words === "";
      setText(missing, words);
      frame.hidden = words !== "";
      if (words !== "") empty.hidden = true;
    },
  };
}

/**
 * @param {ReturnType<typeof buildParts>} parts
 * @param {() => LogFilter} filterNow
 */
function mountLines({ lines, jump, empty, note }, filterNow) {
  /** @type {{line: KeptLine, node: HTMLElement}[]} */
  let shown = [];
  const state = { isAtEnd: true, unseen: 0 };
  const draw = () => {
    const count = shown.filter(({ node }) => !node.hidden).length;
    empty.hidden = count > 0;
    setText(empty, t(shown.length === 0 ? "admin.log_empty" : "admin.log_no_match"));
    setText(
      note,
      t("admin.log_count", { n: formatNumber(count), all: formatNumber(shown.length), most: formatNumber(MAX_LINES) }),
    );
    jump.hidden = state.isAtEnd;
    setText(jump, state.unseen > 0 ? tn("admin.log_new", state.unseen) : t("admin.log_end"));
    lines.setAttribute("aria-label", t("admin.logs"));
  };
  const toEnd = () => {
    lines.scrollTop = lines.scrollHeight;
    Object.assign(state, { isAtEnd: true, unseen: 0 });
    draw();
  };
  on(lines, "scroll", () => {
    state.isAtEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < END_SLACK_PX;
    if (state.isAtEnd) state.unseen = 0;
    draw();
  });
  on(jump, "click", () => {
    toEnd();
    lines.focus({ preventScroll: true });
  });
  onLangChange(draw);
  return {
    toEnd,
    /**
     * @param {KeptLine[]} added
     * @param {number} droppedCount
     */
    add(added, droppedCount) {
      const filter = filterNow();
      // What is being read stays where it is while older lines go.
      const heightBefore = lines.scrollHeight;
      shown.slice(0, droppedCount).forEach(({ node }) => node.remove());
      const goneHeight = heightBefore - lines.scrollHeight;
      const fresh = added.map((line) => ({ line, node: lineNode(line, filter) }));
      shown = [...shown.slice(droppedCount), ...fresh];
      lines.append(...fresh.map(({ node }) => node));
      state.unseen += state.isAtEnd ? 0 : fresh.filter(({ node }) => !node.hidden).length;
      if (state.isAtEnd) toEnd();
      else lines.scrollTop -= goneHeight;
      draw();
    },
    clear() {
      shown = [];
      lines.replaceChildren();
      Object.assign(state, { isAtEnd: true, unseen: 0 });
      draw();
    },
    filter() {
      const filter = filterNow();
      for (const { line, node } of shown) node.hidden = !isMatch(line, filter);
      toEnd();
    },
  };
}

/**
 * @param {KeptLine} line
 * @param {LogFilter} filter
 */
function lineNode(line, filter) {
  const time = line.time ? clock(line.time) : "";
  const node = h(
    "div",
    { class: "admin-log-line", dataset: { severity: line.severity } },
    h("span", { class: "admin-log-time", title: line.time }, time),
    h("span", { class: "admin-log-level" }, line.level ?? ""),
    h("span", { class: "admin-log-text" }, line.level ? line.text.replace(PADDING, "  ") : line.text),
  );
  node.hidden = !isMatch(line, filter);
  return node;
}

/** @param {string} time as the program wrote it */
function clock(time) {
  const read = new Date(time);
  if (Number.isNaN(read.getTime())) return time;
  return new Intl.DateTimeFormat(document.documentElement.lang, { timeStyle: "medium", hourCycle: "h23" }).format(read);
}

/**
 * @param {HTMLSelectElement} select
 * @param {string[]} sources
 * @param {string} chosen
 */
function drawSources(select, sources, chosen) {
  if ([...select.options].map(({ value }) => value).join() !== sources.join()) {
    select.replaceChildren(...sources.map((each) => h("option", { value: each }, each)));
  }
  if (select.value !== chosen) select.value = chosen;
}
