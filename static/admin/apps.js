// @ts-check
/** Apps: which kinds of conversation visitors may begin. */

import { h, icon, on, setText } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { appTitle } from "../shared/app-nav.js";
import { act } from "./action-button.js";
import { mountKeyedRows } from "./keyed-rows.js";
import { said } from "./words.js";

/**
 * @param {HTMLElement} el
 * @param {import("../pages/admin.js").Context} context
 * @returns {import("../pages/admin.js").Section}
 */
export function mountSection(el, { api }) {
  const list = h("ul", { class: "admin-list" });
  el.append(said("p", "admin.apps_lead", { class: "soft admin-read" }), list);
  /** @type {Http.AppState[]} */
  let apps = [];
  const draw = () => rows.update(apps);
  const refresh = async () => {
    ({ apps } = await api.get("/api/admin/apps"));
    draw();
  };

  /**
   * @param {Http.AppState} app
   * @param {boolean} enabled
   * @returns {Promise<boolean>}
   */
  const turn = (app, enabled) => {
    const name = appTitle(app.app_id, app.name);
    return act({
      about: "app",
      run: () => api.send("PUT", `/api/admin/apps/${encodeURIComponent(app.app_id)}`, { enabled }),
      done: () => ({
        text: t(enabled ? "admin.app_on" : "admin.app_off", { name }),
        action: enabled ? undefined : { label: t("admin.undo"), run: () => void turn(app, true) },
      }),
      after: () => refresh().catch(() => {}), // the next look tells
    });
  };
  const rows = mountKeyedRows(list, {
    keyOf: (/** @type {Http.AppState} */ app) => app.app_id,
    make: (/** @type {Http.AppState} */ app) => appRow(app, turn),
  });
  onLangChange(draw);
  return { refresh };
}

/**
 * @param {Http.AppState} first
 * @param {(app: Http.AppState, enabled: boolean) => Promise<boolean>} turn
 * @returns {import("./keyed-rows.js").Row<Http.AppState>}
 */
function appRow(first, turn) {
  let app = first;
  let isBusy = false;
  const input = h("input", { type: "checkbox", role: "switch", id: `app-${app.app_id}` });
  const name = h("label", { for: input.id, class: "admin-app-name" });
  const route = h("a", { class: "button button-quiet button-icon", href: app.route }, icon("forward"));
  const state = h("span", { class: "small soft" });
  const node = h(
    "li",
    { class: "card spread", dataset: { app: app.app_id } },
    h("div", { class: "check" }, input, name),
    state,
    route,
  );
  const update = (/** @type {Http.AppState} */ next) => {
    app = next;
    setText(name, appTitle(app.app_id, app.name));
    setText(state, t(app.enabled ? "admin.app_is_on" : "admin.app_is_off"));
    route.setAttribute("aria-label", `${t("admin.open")}: ${name.textContent}`);
    route.title = t("admin.open");
    if (!isBusy) input.checked = app.enabled;
  };
  on(input, "change", async () => {
    isBusy = true;
    const isDone = await turn(app, input.checked);
    isBusy = false;
    if (!isDone) input.checked = app.enabled;
  });
  update(first);
  return { node, update };
}
