/** Views of the home page that depend on server, devices and stored conversations. */

import { formatDateTime, phraseText, t } from "../shared/texts.js";
import { html, icon, modelNote, nothing } from "../shared/lit.js";
import { appLook, appTitle, chooseStart, isKnownApp } from "../shared/apps.js";
import { firstObstacle } from "./readiness.js";

/** @import { App } from "../shared/apps.js" */
/** @import { RecentSession } from "../shared/memory.js" */
/** @import { BrowserFacts, Line } from "./readiness.js" */

const ASPECTS = ["send", "answer", "interrupt", "pace", "needs"];
const LINE_ICONS = { secure: "lock", microphone: "mic", camera: "camera", worker: "server", queue: "people", model: "sparkle" };
const STATE_ICONS = { asking: "clock", good: "check", caution: "info", bad: "warning" };
const START_QUERY = "?start=1"; // makes a live page start the call at once
const STARTS_BY_ITSELF = new Set(["audio_duplex"]);

/** @param {App[] | null} apps null: the server could not be reached */
export function heroButtons(apps) {
  const { primary, secondary } = chooseStart(apps ?? []);
  if (primary === null) return html`<p class="soft">${t(apps === null ? "home.apps_unknown" : "home.apps_none")}</p>`;
  const { app_id: id, name, route } = primary;
  const others = secondary.map(
    (app) =>
      html`<a class="button button-large hero-second" href=${app.route}
        >${icon(appLook(app.app_id).icon)}${appTitle(app.app_id, app.name)}</a
      >`,
  );
  return html`<a
      class="button button-primary button-large hero-start"
      id="start"
      href=${STARTS_BY_ITSELF.has(id) ? route + START_QUERY : route}
      >${icon(id === "turnbased" ? "chat" : "mic")}${t(appLook(id).startKey, { app: appTitle(id, name) })}</a
    >${others}`;
}

/** Summary below the buttons. @param {Line[]} lines */
export function heroSummary(lines) {
  const obstacle = firstObstacle(lines);
  const needsLink = obstacle !== null && obstacle.state !== "asking";
  return html`<span class="dot"></span><span>${obstacle === null ? t("home.ready") : phraseText(obstacle.text)}</span
    ><a href="#works" ?hidden=${!needsLink}>${t("home.what_to_do")}</a>`;
}

/** @param {Http.ServiceStatus} status @param {App[]} apps the enabled ones */
export function demonstrationNote(status, apps) {
  const call = apps.find(({ app_id: id }) => STARTS_BY_ITSELF.has(id));
  const chip = (/** @type {string} */ sentence) =>
    call
      ? html`<a class="pill" href="${call.route}?say=${encodeURIComponent(sentence)}">${icon("speaker")}${sentence}</a>`
      : html`<span class="pill">${sentence}</span>`;
  return modelNote(status, { chip, more: t("model_note.configure") });
}

export const appCards = (/** @type {App[]} */ apps) =>
  apps.map(({ app_id: id, name, route }) => {
    const { icon: picture, needs } = appLook(id);
    return html`<li>
      <a class="card card-link app-card" href=${route} data-app=${id}>
        <span class="app-icon">${icon(picture)}</span>
        <h3>${appTitle(id, name)}</h3>
        ${isKnownApp(id) ? html`<p class="soft">${t(`home.app_${id}`)}</p>` : nothing}
        <ul class="app-needs">
          ${needs.map((need) => html`<li class="badge">${t(`home.need_${need}`)}</li>`)}
        </ul>
      </a>
    </li>`;
  });

/** @param {App[]} apps the known ones */
export const comparison = (apps) =>
  html`<thead>
      <tr>
        <th scope="col">${t("home.compare_mode")}</th>
        ${ASPECTS.map((aspect) => html`<th scope="col">${t(`home.compare_${aspect}`)}</th>`)}
      </tr>
    </thead>
    <tbody>
      ${apps.map(
        ({ app_id: id, name, route }) =>
          html`<tr>
            <th scope="row"><a href=${route}>${icon(appLook(id).icon)}${appTitle(id, name)}</a></th>
            ${ASPECTS.map(
              (aspect) =>
                html`<td data-label=${t(`home.compare_${aspect}`)}><span>${t(`home.compare_${aspect}_${id}`)}</span></td>`,
            )}
          </tr>`,
      )}
    </tbody>`;

export const readiness = (/** @type {Line[]} */ lines) =>
  lines.map(
    ({ id, state, text, next, progress }) =>
      html`<li class="ready-line" data-line=${id} data-state=${state}>
        <span class="ready-icon">${icon(LINE_ICONS[id])}</span>
        <div class="ready-words">
          <p class="ready-name">${t(`home.line_${id}`)}</p>
          <p class="ready-text">${phraseText(text)}</p>
          ${progress === undefined ? nothing : html`<progress max="1" .value=${progress} aria-label=${t("home.line_worker")}></progress>`}
          ${next ? html`<p class="ready-next small soft">${phraseText(next)}</p>` : nothing}
        </div>
        <span class="ready-state"
          >${icon(STATE_ICONS[state])}<span class="visually-hidden">${t(`home.state_${state}`)}</span></span
        >
      </li>`,
  );

/** Announcement for screen readers. @param {Line[]} lines */
export const readinessNews = (lines) => lines.map(({ id, text }) => `${t(`home.line_${id}`)}: ${phraseText(text)}`).join(" ");

export const recentCards = (/** @type {readonly RecentSession[]} */ sessions) =>
  sessions.map(
    ({ id, appType, savedAt }) =>
      html`<li>
        <a class="card card-link recent-card" href="/s/${encodeURIComponent(id)}"
          >${icon(appLook(appType).icon)}<span
            ><strong>${appTitle(appType, appType)}</strong
            ><span class="small soft">${Number.isNaN(Date.parse(savedAt)) ? "" : formatDateTime(savedAt)}</span></span
          ></a
        >
      </li>`,
  );

// Detects available and permitted devices without prompting the visitor.

/** @returns {BrowserFacts} facts that are known at once */
export function firstFacts() {
  const unknown = /** @type {const} */ ({ permission: "unknown", count: null });
  return {
    isSecure: globalThis.isSecureContext !== false,
    isSupported: typeof navigator.mediaDevices?.getUserMedia === "function" && "AudioWorkletNode" in globalThis,
    microphone: unknown,
    camera: unknown,
  };
}

/** @param {"microphone" | "camera"} name @returns {Promise<PermissionStatus | null>} null if the browser does not tell */
const permissionOf = async (name) =>
  (await navigator.permissions?.query({ name: /** @type {PermissionName} */ (name) }).catch(() => null)) ?? null;

/** @param {BrowserFacts} first @param {(facts: BrowserFacts) => void} listener called once there is more, and on every change */
export async function watchDevices(first, listener) {
  const { mediaDevices } = navigator;
  if (!first.isSecure || !first.isSupported) return;
  const [microphone, camera] = await Promise.all([permissionOf("microphone"), permissionOf("camera")]);
  const look = async () => {
    const devices = await mediaDevices.enumerateDevices().catch(() => []);
    const count = (/** @type {MediaDeviceKind} */ kind) => devices.filter((device) => device.kind === kind).length;
    listener({
      ...first,
      microphone: { permission: microphone?.state ?? "unknown", count: count("audioinput") },
      camera: { permission: camera?.state ?? "unknown", count: count("videoinput") },
    });
  };
  const change = () => void look();
  mediaDevices.addEventListener("devicechange", change);
  microphone?.addEventListener("change", change);
  camera?.addEventListener("change", change);
  await look();
}
