/** Order, icons and names of the apps, and which one the home page starts. Pure. */

import { hasText, t } from "./texts.js";

/** @typedef {Http.AppInfo} App */

const UNKNOWN_LOOK = {
  icon: "sparkle",
  needs: /** @type {readonly string[]} */ ([]), // devices, as home.need_* names them
  startKey: "home.start_other", // label of the button that starts it
};
/** In the order in which apps are listed; unknown ones come last. @type {Readonly<Record<string, typeof UNKNOWN_LOOK>>} */
const LOOKS = {
  audio_duplex: { icon: "wave", needs: ["microphone", "headphones"], startKey: "home.start_talking" },
  omni: { icon: "camera", needs: ["microphone", "camera"], startKey: "home.start_video" },
  half_duplex_audio: { icon: "turns", needs: ["microphone"], startKey: "home.start_talking" },
  turnbased: { icon: "chat", needs: ["nothing"], startKey: "home.start_chat" },
};
/** Preference for the main button: voice apps that need only a microphone come first. */
const PRIMARY = ["audio_duplex", "half_duplex_audio", "omni", "turnbased"];

export const appLook = (/** @type {string} */ appId) => LOOKS[appId] ?? UNKNOWN_LOOK;

export const isKnownApp = (/** @type {string} */ appId) => appId in LOOKS;

/** @param {readonly string[]} ids @param {readonly App[]} apps @returns {App[]} those with these ids, in their order */
const withIds = (ids, apps) => ids.flatMap((id) => apps.find(({ app_id: appId }) => appId === id) ?? []);

export function inOrder(/** @type {readonly App[]} */ apps) {
  const known = withIds(Object.keys(LOOKS), apps);
  return [...known, ...apps.filter((app) => !known.includes(app))];
}

/** @param {readonly App[]} apps the enabled ones @returns {{primary: App | null, secondary: App[]}} */
export function chooseStart(apps) {
  const [primary = apps[0] ?? null] = withIds(PRIMARY, apps);
  return { primary, secondary: withIds(["omni", "turnbased"], apps).filter((app) => app !== primary) };
}

/** The app's name in the language of the page, or else the server's. @param {string} appId @param {string} name */
export function appTitle(appId, name) {
  const key = `app.${appId}.title`;
  return hasText(key) ? t(key) : name;
}
