/** Order, icons and names of the apps, and which one the home page starts. Pure. */

import { hasText, t } from "./texts.js";

/** @typedef {Http.AppInfo} App */

/**
 * @typedef {Object} AppLook
 * @property {string} icon
 * @property {readonly string[]} needs devices, as home.need_* names them
 * @property {string} startKey label of the button that starts it
 */

/** @type {Readonly<Record<string, AppLook>>} */ const LOOKS = {
  audio_duplex: { icon: "wave", needs: ["microphone", "headphones"], startKey: "home.start_talking" },
  omni: { icon: "camera", needs: ["microphone", "camera"], startKey: "home.start_video" },
  half_duplex_audio: { icon: "turns", needs: ["microphone"], startKey: "home.start_talking" },
  turnbased: { icon: "chat", needs: ["nothing"], startKey: "home.start_chat" },
};
/** @type {AppLook} */ const UNKNOWN_LOOK = { icon: "sparkle", needs: [], startKey: "home.start_other" };

/** Order in which apps are listed; unknown ones come last. Most pages need no looks. */
const ORDER = ["audio_duplex", "omni", "half_duplex_audio", "turnbased"];
/** Preference for the main button: voice apps that need only a microphone come first. */
const PRIMARY = ["audio_duplex", "half_duplex_audio", "omni", "turnbased"];

export const appLook = (/** @type {string} */ appId) => LOOKS[appId] ?? UNKNOWN_LOOK;

export const isKnownApp = (/** @type {string} */ appId) => appId in LOOKS;

export function inOrder(/** @type {readonly App[]} */ apps) {
  const known = ORDER.flatMap((id) => apps.find(({ app_id: appId }) => appId === id) ?? []);
  return [...known, ...apps.filter((app) => !known.includes(app))];
}

/** @param {readonly App[]} apps the enabled ones @returns {{primary: App | null, secondary: App[]}} */
export function chooseStart(apps) {
  const byId = new Map(apps.map((app) => [app.app_id, app]));
  const first = PRIMARY.find((id) => byId.has(id));
  const primary = (first && byId.get(first)) || apps[0] || null;
  const secondary = ["omni", "turnbased"].flatMap((id) => byId.get(id) ?? []).filter((app) => app !== primary);
  return { primary, secondary };
}

/** The app's name in the language of the page, or else the server's. @param {string} appId @param {string} name */
export function appTitle(appId, name) {
  const key = `app.${appId}.title`;
  return hasText(key) ? t(key) : name;
}
