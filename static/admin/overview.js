/** Overview (current state, intake, the last hour), apps and expected durations. */

import { t, tn } from "../shared/texts.js";
import { fetchNote, html, icon, live, nothing, repeat, textButton, toast } from "../shared/lit.js";
import { appTitle } from "../shared/apps.js";
import { changesOf, ETA_FIELDS, fieldProblem, overviewOf, savedValue } from "./admin-facts.js";
import { makeCharts } from "./charts.js";
import { act, reportFailure } from "./words.js";
import { FIGURES, hintOf, UNKNOWN } from "./admin-texts.js";

/** @import { Context } from "../pages/admin.js" */
/** @import { Figure } from "./admin-texts.js" */
/** @import { EtaField, Overview } from "./admin-facts.js" */

export function makeOverview(/** @type {Context} */ { api, draw, page, el }) {
  /** @type {Overview | null} */ let latest = null;
  /** Requested state, until the server responds. @type {boolean | null} */ let askedPause = null;
  const charts = makeCharts(el, draw);

  const onIntake = async (/** @type {{target: HTMLInputElement}} */ { target }) => {
    const paused = !target.checked;
    askedPause = paused;
    const isDone = await act({
      about: "intake",
      question: paused
        ? () => ({ title: t("admin.intake_ask"), text: t("admin.intake_ask_text"), confirm: t("admin.intake_ask_go") })
        : undefined,
      run: () => api.send("PUT", "/api/admin/intake", { paused }),
      done: () => t(paused ? "admin.intake_paused" : "admin.intake_resumed"),
    });
    askedPause = null;
    if (isDone && latest) latest.is_intake_paused = paused;
    draw();
    void page.refreshStatus();
  };
  const intake = () => {
    const isPaused = latest?.is_intake_paused ?? false;
    return html`<div>
      <div class="card admin-intake" data-tone=${isPaused ? "caution" : ""}>
        <div class="check">
          <input
            type="checkbox"
            role="switch"
            id="intake"
            aria-describedby="intake-note"
            .checked=${live(latest !== null && !(askedPause ?? isPaused))}
            @change=${onIntake}
          />
          <label for="intake" class="check-label">${t("admin.intake")}</label>
        </div>
        <p id="intake-note" class="small soft">${latest ? t(isPaused ? "admin.intake_off_note" : "admin.intake_on_note") : ""}</p>
      </div>
    </div>`;
  };
  const modelWords = () => {
    const model = latest?.model;
    if (!latest) return "";
    return model ? t(model.is_demonstration ? "admin.model_demo" : "admin.model", { name: model.name }) : t("admin.no_model");
  };
  return {
    async refresh() {
      const [status, { workers }, history] = await Promise.all([
        api.get("/status"),
        api.get("/workers"),
        api.get("/api/admin/history"),
      ]);
      latest = overviewOf(status, workers);
      charts.update(history);
    },
    view() {
      const fetch = fetchNote(latest);
      return html`<p class="soft">${modelWords()}</p>
        ${fetch === nothing ? nothing : html`<div class="card">${fetch}</div>`} ${intake()}
        <div class="admin-figures">${Object.entries(FIGURES).map(([id, figure]) => figureCard(id, figure, latest))}</div>
        <div class="stack">${charts.view()}</div>`;
    },
  };
}

/** @param {string} id @param {Figure} figure @param {Overview | null} facts */
function figureCard(id, { labelKey, value, note, tone, share }, facts) {
  const part = (facts && share?.(facts)) ?? null;
  return html`<div class="card admin-figure" data-figure=${id} data-tone=${(facts && tone?.(facts)) ?? ""}>
    <h3 class="small soft">${t(labelKey)}</h3>
    <p class="admin-figure-value number">${facts ? value(facts) : UNKNOWN}</p>
    <p class="small soft">${facts ? note(facts) : ""}</p>
    ${share ? html`<progress max="1" .value=${part ?? 0} ?hidden=${part === null} aria-label=${t(labelKey)}></progress>` : nothing}
  </div>`;
}

// What administrators set: which apps may be used, how long conversations are expected to take.

export function makeApps(/** @type {Context} */ { api, draw, after }) {
  /** @type {Http.AppState[]} */ let apps = [];
  /** Requested state, until the server responds. @type {Map<string, boolean>} */ const asked = new Map();
  const turn = async (/** @type {Http.AppState} */ app, /** @type {boolean} */ enabled) => {
    const name = appTitle(app.app_id, app.name);
    asked.set(app.app_id, enabled);
    await act({
      about: "app",
      run: () => api.send("PUT", `/api/admin/apps/${encodeURIComponent(app.app_id)}`, { enabled }),
      done: () => t(enabled ? "admin.app_on" : "admin.app_off", { name }),
      undo: enabled ? undefined : { label: t("admin.undo"), run: () => void turn(app, true) },
      after,
    });
    asked.delete(app.app_id);
    draw();
  };
  const row = (/** @type {Http.AppState} */ app) => {
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
    refresh: async () => void ({ apps } = await api.get("/api/admin/apps")),
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

export function makeDurations(/** @type {Context} */ { api, draw }) {
  /** @type {Http.EtaStatus | null} */ let saved = null;
  /** What was typed and not saved yet, by field. @type {Map<string, string>} */ const typed = new Map();
  /** @type {Map<string, Problem>} */ const problems = new Map();

  const savedText = (/** @type {string} */ name) => String((saved && savedValue(saved, name)) ?? "");
  const texts = () => Object.fromEntries(ETA_FIELDS.map(({ name }) => [name, typed.get(name) ?? savedText(name)]));
  const countOfChanges = () => (saved ? Object.keys(changesOf(saved, texts())).length : 0);
  const forget = () => {
    typed.clear();
    problems.clear();
    draw();
  };
  const focus = (/** @type {EtaField} */ { kind }) => document.getElementById(`eta-${kind}`)?.focus();

  const save = async (/** @type {SubmitEvent} */ event) => {
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
  const card = (/** @type {EtaField} */ { name, kind, most }) => {
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
    refresh: async () => void (saved = await api.get(PATH)),
    view() {
      const count = countOfChanges();
      const state = saved === null ? "" : count > 0 ? tn("admin.eta_unsaved", count) : t("admin.eta_saved");
      return html`<p class="soft admin-read">${t("admin.durations_lead")}</p>
        <form class="stack" novalidate @submit=${save}>
          <div class="admin-eta">${ETA_FIELDS.map(card)}</div>
          <div class="row">
            <button type="submit" class="button button-primary">${t("common.save")}</button>
            ${textButton(t("admin.discard"), discard, { style: "button-quiet", isShown: count > 0 })}
            <p id="eta-state" class="small" role="status" data-tone=${count > 0 ? "caution" : "good"}>${state}</p>
          </div>
        </form>`;
    },
  };
}
