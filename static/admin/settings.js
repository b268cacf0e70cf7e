// @ts-check
/** What administrators set: which apps may be used, how long conversations are expected to take. */

import { appTitle } from "../shared/page.js";
import { formatNumber } from "../shared/formats.js";
import { t, tn } from "../shared/i18n.js";
import { html, icon, live, nothing, repeat } from "../shared/lit.js";
import { toast } from "../shared/notice.js";
import { act, reportFailure } from "./words.js";
import { ETA_FIELDS, changesOf, fieldProblem, savedValue } from "./admin-facts.js";

/** @import { Context, Section } from "../pages/admin.js" */
/** @import { EtaField } from "./admin-facts.js" */

/** @param {Context} context @returns {Section} */
export function makeApps({ api, draw }) {
  /** @type {Http.AppState[]} */
  let apps = [];
  /** What was asked for and is not answered yet. @type {Map<string, boolean>} */
  const asked = new Map();
  const refresh = async () => {
    ({ apps } = await api.get("/api/admin/apps"));
    draw();
  };
  /** @param {Http.AppState} app @param {boolean} enabled */
  const turn = async (app, enabled) => {
    const name = appTitle(app.app_id, app.name);
    asked.set(app.app_id, enabled);
    await act({
      about: "app",
      run: () => api.send("PUT", `/api/admin/apps/${encodeURIComponent(app.app_id)}`, { enabled }),
      done: () => ({
        text: t(enabled ? "admin.app_on" : "admin.app_off", { name }),
        action: enabled ? undefined : { label: t("admin.undo"), run: () => void turn(app, true) },
      }),
      after: () => refresh().catch(() => {}), // the next look tells
    });
    asked.delete(app.app_id);
    draw();
  };
  /** @param {Http.AppState} app */
  const row = (app) => {
    const { app_id: id, enabled, route } = app;
    const name = appTitle(id, app.name);
    return html`<li class="card spread" data-app=${id}>
      <div class="check">
        <input
          type="checkbox"
          role="switch"
          id="app-${id}"
          .checked=${live(asked.get(id) ?? enabled)}
          @change=${(/** @type {{target: HTMLInputElement}} */ { target }) => void turn(app, target.checked)}
        />
        <label for="app-${id}" class="admin-app-name">${name}</label>
      </div>
      <span class="small soft">${t(enabled ? "admin.app_is_on" : "admin.app_is_off")}</span>
      <a class="button button-quiet button-icon" href=${route} aria-label="${t("admin.open")}: ${name}" title=${t("admin.open")}
        >${icon("forward")}</a
      >
    </li>`;
  };
  return {
    refresh,
    view: () =>
      html`<p class="soft admin-read">${t("admin.apps_lead")}</p>
        <ul class="admin-list">
          ${repeat(apps, ({ app_id: id }) => id, row)}
        </ul>`,
  };
}

// Expected durations: what waits are estimated from, and what was measured.

/** @typedef {ReturnType<typeof fieldProblem>} Problem */

const PATH = "/api/config/eta";
const PAUSE_MS = 30_000;
const NOT_A_NUMBER = "?"; // stands for what the browser does not tell of a number that is none

/** @param {Context} context @returns {Section} */
export function makeDurations({ api, draw }) {
  /** @type {Http.EtaStatus | null} */
  let saved = null;
  /** What was typed and not saved yet, by field. @type {Map<string, string>} */
  const typed = new Map();
  /** @type {Map<string, Problem>} */
  const problems = new Map();

  /** @param {string} name */
  const savedText = (name) => String((saved && savedValue(saved, name)) ?? "");
  const texts = () => Object.fromEntries(ETA_FIELDS.map(({ name }) => [name, typed.get(name) ?? savedText(name)]));
  const countOfChanges = () => (saved ? Object.keys(changesOf(saved, texts())).length : 0);
  const forget = () => {
    typed.clear();
    problems.clear();
    draw();
  };
  const focus = (/** @type {EtaField} */ { kind }) => document.getElementById(`eta-${kind}`)?.focus();

  /** @param {SubmitEvent} event */
  const save = async (event) => {
    event.preventDefault();
    for (const field of ETA_FIELDS) problems.set(field.name, fieldProblem(field, texts()[field.name]));
    draw();
    const wrong = ETA_FIELDS.find(({ name }) => problems.get(name));
    if (wrong) return focus(wrong);
    if (saved === null || countOfChanges() === 0) return toast(t("admin.eta_same"));
    try {
      saved = /** @type {Http.EtaStatus} */ (await api.send("PUT", PATH, changesOf(saved, texts())));
      forget();
      toast(t("admin.eta_done"));
    } catch (error) {
      reportFailure(error, "eta");
    }
  };
  const discard = () => {
    forget();
    focus(ETA_FIELDS[0]);
  };
  /** @param {EtaField} field */
  const card = ({ name, kind, most }) => {
    const id = `eta-${kind}`;
    const problem = problems.get(name) ?? null;
    const text = texts()[name];
    const onInput = (/** @type {{target: HTMLInputElement}} */ { target }) => {
      typed.set(name, target.validity.badInput ? NOT_A_NUMBER : target.value);
      problems.delete(name);
      draw();
    };
    return html`<div class="card field" data-eta=${kind}>
      <label for=${id}>${t(`admin.eta_${kind}`)}</label>
      <input
        type="number"
        id=${id}
        inputmode="decimal"
        min="0"
        max=${most ?? nothing}
        step="any"
        aria-describedby="${id}-hint ${id}-problem"
        aria-invalid=${problem ? "true" : nothing}
        .value=${live(text === NOT_A_NUMBER ? "" : text)}
        @input=${onInput}
      />
      <p class="hint" id="${id}-hint">${saved ? hintOf(kind, saved) : ""}</p>
      <p class="field-error" id="${id}-problem" role="alert">${problem ? t(`admin.eta_${problem}`) : ""}</p>
    </div>`;
  };
  return {
    pauseMs: PAUSE_MS,
    async refresh() {
      saved = await api.get(PATH);
      draw();
    },
    view() {
      const count = countOfChanges();
      const state = saved === null ? "" : count > 0 ? tn("admin.eta_unsaved", count) : t("admin.eta_saved");
      return html`<p class="soft admin-read">${t("admin.durations_lead")}</p>
        <form class="stack" novalidate @submit=${save}>
          <div class="admin-eta">${ETA_FIELDS.map(card)}</div>
          <div class="row">
            <button type="submit" class="button button-primary">${t("common.save")}</button>
            <button type="button" class="button button-quiet" ?hidden=${count === 0} @click=${discard}>
              ${t("admin.discard")}
            </button>
            <p id="eta-state" class="small" role="status" data-tone=${count > 0 ? "caution" : "good"}>${state}</p>
          </div>
        </form>`;
    },
  };
}

/** @param {string} kind @param {Readonly<Record<string, unknown>>} status */
function hintOf(kind, status) {
  if (kind === "alpha") return t("admin.eta_alpha_hint");
  if (kind === "duplex") return t("admin.eta_duplex_hint");
  const samples = Number(status[`ema_${kind}_samples`] ?? 0);
  const mean = status[`ema_${kind}_s`] ?? null;
  return mean === null || samples === 0
    ? t("admin.eta_not_measured")
    : tn("admin.eta_measured", samples, { mean: formatNumber(Number(mean), 1) });
}
