// @ts-check
/** Expected durations: what waits are estimated from, and what was measured. */

import { h, on, setText } from "../shared/dom.js";
import { formatNumber } from "../shared/formats.js";
import { onLangChange, t, tn } from "../shared/i18n.js";
import { toast } from "../shared/toast.js";
import { isRefusal } from "./admin-api.js";
import { ETA_FIELDS, changesOf, fieldProblem, savedValue } from "./eta-form.js";
import { failureText, said } from "./words.js";

/** @typedef {import("./eta-form.js").EtaField} EtaField */

const PATH = "/api/config/eta";
const PAUSE_MS = 30_000;

/**
 * @param {HTMLElement} el
 * @param {import("../pages/admin.js").Context} context
 * @returns {import("../pages/admin.js").Section}
 */
export function mountSection(el, { api }) {
  const fields = ETA_FIELDS.map((field) => etaField(field));
  const state = h("p", { id: "eta-state", class: "small", role: "status" });
  const save = said("button", "common.save", { type: "submit", class: "button button-primary" });
  const undo = said("button", "admin.discard", { type: "button", class: "button button-quiet" });
  const form = h(
    "form",
    { class: "stack", novalidate: true },
    h(
      "div",
      { class: "admin-eta" },
      fields.map(({ node }) => node),
    ),
    h("div", { class: "row" }, save, undo, state),
  );
  el.append(said("p", "admin.durations_lead", { class: "soft admin-read" }), form);

  /** @type {Http.EtaStatus | null} */
  let saved = null;
  const texts = () => Object.fromEntries(fields.map(({ field, input }) => [field.name, input.value]));
  const changes = () => (saved ? Object.keys(changesOf(saved, texts())).length : 0);
  const drawState = () => {
    const count = changes();
    setText(state, saved === null ? "" : count > 0 ? tn("admin.eta_unsaved", count) : t("admin.eta_saved"));
    state.dataset.tone = count > 0 ? "caution" : "good";
    undo.hidden = count === 0;
  };
  const draw = (isForced = false) => {
    if (saved === null) return;
    for (const field of fields) field.draw(saved, isForced);
    drawState();
  };
  on(form, "input", drawState);
  on(undo, "click", () => {
    draw(true);
    fields[0].input.focus();
  });
  on(form, "submit", async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const wrong = fields.filter((field) => field.check());
    if (wrong.length > 0) return wrong[0].input.focus();
    if (saved === null || changes() === 0) return toast(t("admin.eta_same"));
    try {
      saved = /** @type {Http.EtaStatus} */ (await api.send("PUT", PATH, changesOf(saved, texts())));
      draw(true);
      toast(t("admin.eta_done"));
    } catch (error) {
      if (!isRefusal(error)) toast(failureText(error, "eta"), { shownMs: 10_000 });
    }
  });
  onLangChange(() => draw());
  return {
    pauseMs: PAUSE_MS,
    async refresh() {
      saved = await api.get(PATH);
      draw();
    },
  };
}

/** @param {EtaField} field */
function etaField(field) {
  const id = `eta-${field.kind}`;
  const isAlpha = field.kind === "alpha";
  const input = h("input", {
    type: "number",
    id,
    inputmode: "decimal",
    min: 0,
    max: field.most,
    step: "any",
    "aria-describedby": `${id}-hint ${id}-problem`,
  });
  const hint = h("p", { class: "hint", id: `${id}-hint` });
  const problem = h("p", { class: "field-error", id: `${id}-problem`, role: "alert" });
  const label = said("label", isAlpha ? "admin.eta_alpha" : `admin.eta_${field.kind}`, { for: id });
  const node = h("div", { class: "card field", dataset: { eta: field.kind } }, label, input, hint, problem);
  let isTouched = false;
  on(input, "input", () => {
    isTouched = true;
    setText(problem, "");
    input.removeAttribute("aria-invalid");
  });
  return {
    field,
    input,
    node,
    check() {
      const wrong = fieldProblem(field, input.validity.badInput ? "?" : input.value);
      setText(problem, wrong ? t(`admin.eta_${wrong}`) : "");
      if (wrong) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
      return wrong !== null;
    },
    /**
     * @param {Http.EtaStatus} status
     * @param {boolean} isForced what was typed is given up
     */
    draw(status, isForced) {
      const value = savedValue(status, field.name);
      if (isForced || !isTouched) {
        isTouched = false;
        input.value = value === null ? "" : String(value);
        setText(problem, "");
        input.removeAttribute("aria-invalid");
      }
      setText(hint, hintOf(field, status));
    },
  };
}

/**
 * @param {EtaField} field
 * @param {Readonly<Record<string, unknown>>} status
 */
function hintOf({ kind }, status) {
  if (kind === "alpha") return t("admin.eta_alpha_hint");
  if (kind === "duplex") return t("admin.eta_duplex_hint");
  const samples = Number(status[`ema_${kind}_samples`] ?? 0);
  const mean = status[`ema_${kind}_s`] ?? null;
  return mean === null || samples === 0
    ? t("admin.eta_not_measured")
    : tn("admin.eta_measured", samples, { mean: formatNumber(Number(mean), 1) });
}
