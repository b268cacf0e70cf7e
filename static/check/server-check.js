// @ts-check
/** The cards that need no permission: the way to the server, and what the browser can do. */

import { byId, on } from "../shared/dom.js";
import { t } from "../shared/i18n.js";
import { html, icon, mountView } from "../shared/lit.js";
import { ABILITIES, browserAbilities, browserResult, serverResult } from "./results.js";
import { measureRoundTrips, measureSocket } from "./devices.js";

/** @import { Report } from "../home/readiness.js" */
/** @import { Results } from "./results.js" */

/** @param {Results} results @param {() => Report | null} latestReport @returns {{run: () => Promise<void>}} */
export function mountServerCheck(results, latestReport) {
  const again = byId("server-again", HTMLButtonElement);
  const progress = byId("server-progress", HTMLProgressElement);
  const run = async () => {
    again.disabled = true;
    results.set("server", { state: "running", text: { key: "check.server_running" } });
    const trips = await measureRoundTrips({
      onStep: (done, total) => {
        progress.max = total;
        progress.value = done;
      },
    });
    const socketMs = Number.isNaN(trips.medianMs) ? null : await measureSocket();
    results.set("server", serverResult(trips, socketMs, latestReport()));
    again.disabled = false;
  };
  on(again, "click", () => void run());
  return { run };
}

/** @param {Results} results */
export function mountBrowserCheck(results) {
  const found = browserAbilities(globalThis);
  const entries = [
    { id: "secure", isThere: found.isSecure, isNeeded: true },
    ...ABILITIES.map(({ id, isNeeded }) => ({ id, isThere: found.abilities[id], isNeeded })),
  ];
  mountView(byId("abilities", HTMLElement), () =>
    entries.map(({ id, isThere, isNeeded }) => {
      const words = t(isThere ? "check.there" : isNeeded ? "check.missing" : `check.without_${id}`);
      return html`<li class="ability" data-state=${isThere ? "good" : isNeeded ? "bad" : "caution"}>
        ${icon(isThere ? "check" : isNeeded ? "warning" : "info")}<span>${t(`check.ability_${id}`)}</span
        ><span class=${isThere ? "visually-hidden" : "small soft"}>${words}</span>
      </li>`;
    }),
  );
  results.set("browser", browserResult(found));
}
