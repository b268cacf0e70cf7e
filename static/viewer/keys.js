// @ts-check
/**
 * Which key does what in the viewer. Pure.
 */

const STEP_S = 1;
const BIG_STEP_S = 5;
const JUMP_S = 10;

/**
 * @typedef {{kind: "toggle"} | {kind: "seekBy", s: number} | {kind: "seekTo", end: boolean}
 *   | {kind: "unit", by: 1 | -1} | {kind: "help"}} Action
 *
 * @typedef {{key: string, shiftKey?: boolean, ctrlKey?: boolean, altKey?: boolean, metaKey?: boolean}} Key
 */

/** What to show in the help: keys, and the name of the text that explains them. */
export const KEY_HELP = Object.freeze([
  { keys: ["Space", "K"], text: "viewer.key_toggle" },
  { keys: ["←", "→"], text: "viewer.key_step" },
  { keys: ["Shift ←", "Shift →"], text: "viewer.key_big_step" },
  { keys: ["J", "L"], text: "viewer.key_jump" },
  { keys: [",", "."], text: "viewer.key_unit" },
  { keys: ["Home", "End"], text: "viewer.key_ends" },
  { keys: ["?"], text: "viewer.key_help" },
]);

/**
 * @param {Key} pressed
 * @returns {Action | null}
 */
export function actionOf({ key, shiftKey, ctrlKey, altKey, metaKey }) {
  if (ctrlKey || altKey || metaKey) return null;
  switch (key.length === 1 ? key.toLowerCase() : key) {
    case " ":
    case "k":
      return { kind: "toggle" };
    case "ArrowLeft":
      return { kind: "seekBy", s: shiftKey ? -BIG_STEP_S : -STEP_S };
    case "ArrowRight":
      return { kind: "seekBy", s: shiftKey ? BIG_STEP_S : STEP_S };
    case "j":
      return { kind: "seekBy", s: -JUMP_S };
    case "l":
      return { kind: "seekBy", s: JUMP_S };
    case ",":
      return { kind: "unit", by: -1 };
    case ".":
      return { kind: "unit", by: 1 };
    case "Home":
      return { kind: "seekTo", end: false };
    case "End":
      return { kind: "seekTo", end: true };
    case "?":
      return { kind: "help" };
    default:
      return null;
  }
}
