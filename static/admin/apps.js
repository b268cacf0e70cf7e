// @ts-check
/** Apps: which kinds of conversation visitors may begin. */

import { appTitle } from "../shared/app-nav.js";
import { t } from "../shared/i18n.js";
import { html, icon, live, repeat } from "../shared/lit.js";
import { act } from "./actions.js";

/** @param {import("../pages/admin.js").Context} context @returns {import("../pages/admin.js").Section} */
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
