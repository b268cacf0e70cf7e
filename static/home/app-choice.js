// @ts-check
/**
 * What is offered on the home page, and which way to talk is offered first. Pure.
 */

/** @typedef {import("../shared/app-nav.js").App} App */

/**
 * @typedef {Object} AppLook
 * @property {string} icon
 * @property {readonly string[]} needs devices, as home.need_* names them
 * @property {string} startKey what the button says that begins it
 */

/** @type {Readonly<Record<string, AppLook>>} */
const LOOKS = Object.freeze({
  audio_duplex: { icon: "wave", needs: ["microphone", "headphones"], startKey: "home.start_talking" },
  omni: { icon: "camera", needs: ["microphone", "camera"], startKey: "home.start_video" },
  half_duplex_audio: { icon: "turns", needs: ["microphone"], startKey: "home.start_talking" },
  turnbased: { icon: "chat", needs: ["nothing"], startKey: "home.start_chat" },
});
const UNKNOWN_LOOK = Object.freeze({ icon: "sparkle", needs: [], startKey: "home.start_other" });

/** The order in which apps are offered; one we do not know comes last. */
const ORDER = Object.keys(LOOKS);
/** First what is a conversation without any further device. */
const PRIMARY = ["audio_duplex", "half_duplex_audio", "omni", "turnbased"];

/** @param {string} appId @returns {AppLook} */
export function appLook(appId) {
  return LOOKS[appId] ?? UNKNOWN_LOOK;
}

/** @param {string} appId */
export function isKnownApp(appId) {
  return appId in LOOKS;
}

/** @param {string} appId */
function rank(appId) {
  const place = ORDER.indexOf(appId);
  return place < 0 ? ORDER.length : place;
}

/**
 * @param {readonly App[]} apps
 * @returns {App[]}
 */
export function inOrder(apps) {
  return [...apps].sort((one, other) => rank(one.app_id) - rank(other.app_id));
}

/**
 * The app behind the large button, and up to two beside it.
 *
 * @param {readonly App[]} apps those that are switched on
 * @returns {{primary: App | null, secondary: App[]}}
 */
export function chooseStart(apps) {
  const byId = new Map(apps.map((app) => [app.app_id, app]));
  const first = PRIMARY.find((id) => byId.has(id));
  const primary = (first && byId.get(first)) || apps[0] || null;
  const secondary = ["omni", "turnbased"].flatMap((id) => byId.get(id) ?? []).filter((app) => app !== primary);
  return { primary, secondary };
}
