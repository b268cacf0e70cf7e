// @ts-check
/**
 * Every unit as a table, a page at a time: for screen readers, and to hear single files.
 */

import { fill, h, icon, on } from "../shared/dom.js";
import { formatNumber } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";

/** @typedef {import("./unit-plan.js").Plan} Plan */
/** @typedef {import("./unit-plan.js").Unit} Unit */

const PER_PAGE = 50;

/**
 * @param {HTMLElement} el
 * @param {{plan: Plan, onJump: (atS: number) => void, playFile: (path: string) => void}} options
 */
export function mountUnitTable(el, { plan, onJump, playFile }) {
  const pages = Math.max(1, Math.ceil(plan.units.length / PER_PAGE));
  const summary = h("summary");
  const body = h("tbody");
  const head = h("thead");
  const table = h("table", { class: "table unit-table" }, head, body);
  const back = h("button", { type: "button", class: "button", dataset: { action: "page-back" } });
  const forward = h("button", { type: "button", class: "button", dataset: { action: "page-forward" } });
  const where = h("span", { class: "number small soft", role: "status" });
  const pager = h("div", { class: "row", hidden: pages === 1 }, back, where, forward);
  const details = h(
    "details",
    { class: "panel", dataset: { panel: "units" } },
    summary,
    h("div", { class: "stack-tight" }, table, pager),
  );
  el.append(details);
  let page = 0;

  const draw = () => {
    fill(summary, icon("chart"), t("viewer.all_units"));
    if (!details.open) return;
    const columns = ["unit", "time", "did", "said", "took", "files"].map((name) => t(`viewer.column_${name}`));
    fill(
      head,
      h(
        "tr",
        {},
        columns.map((column) => h("th", { scope: "col" }, column)),
      ),
    );
    const units = plan.units.slice(page * PER_PAGE, (page + 1) * PER_PAGE);
    fill(
      body,
      units.map((unit) => row(unit, columns, { onJump, playFile })),
    );
    fill(back, icon("back"), t("common.back"));
    fill(forward, icon("forward"), t("common.more"));
    back.disabled = page === 0;
    forward.disabled = page === pages - 1;
    where.textContent = t("viewer.page_of", { n: formatNumber(page + 1), total: formatNumber(pages) });
  };
  const turn = (/** @type {number} */ by) => {
    page += by;
    draw();
  };
  on(back, "click", () => turn(-1));
  on(forward, "click", () => turn(1));
  on(details, "toggle", draw);
  onLangChange(draw);
  draw();
}

/**
 * @param {Unit} unit
 * @param {string[]} columns
 * @param {{onJump: (atS: number) => void, playFile: (path: string) => void}} actions
 */
function row(unit, columns, { onJump, playFile }) {
  const { number, startS, endS, mode, text, wallMs, isLate, gapMs, chunk } = unit;
  const n = formatNumber(number + 1);
  const time = t("viewer.from_to", { from: formatNumber(startS, 1), to: formatNumber(endS, 1) });
  const jump = h(
    "button",
    {
      type: "button",
      class: "button button-quiet",
      "aria-label": t("viewer.jump_to_unit", { n }),
      on: { click: () => onJump(startS) },
    },
    n,
  );
  const took = [
    wallMs === null ? "—" : t("viewer.ms", { n: formatNumber(wallMs) }),
    isLate && t("viewer.late"),
    gapMs > 0 && t("viewer.gap", { n: formatNumber(gapMs) }),
  ];
  const file = (/** @type {string | undefined} */ path, /** @type {string} */ key) =>
    path &&
    h(
      "button",
      {
        type: "button",
        class: "button button-quiet",
        "aria-label": t(`viewer.hear_${key}`, { n }),
        on: { click: () => playFile(path) },
      },
      icon("play"),
      t(`common.${key}`),
    );
  const cells = [
    jump,
    time,
    t(`viewer.mode_${mode}`),
    text.trim(),
    took.filter(Boolean).join(" · "),
    h("span", { class: "row" }, file(chunk.user_audio, "you"), file(chunk.result?.ai_audio, "model")),
  ];
  return h(
    "tr",
    {},
    cells.map((cell, index) => h("td", { "data-label": columns[index] }, cell)),
  );
}
