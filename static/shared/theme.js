// @ts-check
/**
 * Light, dark, or as the system wishes.
 */

const STORAGE_KEY = "minicpmo_theme";
export const THEMES = /** @type {const} */ (["auto", "light", "dark"]);
/** @typedef {typeof THEMES[number]} Theme */

/** @returns {Theme} what was chosen */
export function getTheme() {
  const chosen = document.documentElement.dataset.theme;
  return THEMES.find((theme) => theme === chosen) ?? "auto";
}

/** @param {Theme} theme */
export function setTheme(theme) {
  const root = document.documentElement;
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  try {
    localStorage.setItem(STORAGE_KEY, theme);
  } catch {
    // Storage may be forbidden; the choice then lasts as long as the page.
  }
  root.dispatchEvent(new Event("themechange"));
}
