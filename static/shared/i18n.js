// @ts-check
/**
 * The page's words in the chosen language, from static/i18n/LANG.json, changeable while it runs.
 *
 * HTML says `data-t="key"` for text and `data-t-attr="aria-label:key;title:key"` for attributes.
 */

import { interpolate, pickLanguage } from "./messages.js";

export const LANGUAGES = Object.freeze({ en: "English", zh: "中文" });
const FALLBACK = "en";
const STORAGE_KEY = "minicpmo_lang";
const CHANGED = "languagechange";

const changes = new EventTarget();
/** @type {{lang: string, texts: Record<string, string>}} */
const current = { lang: FALLBACK, texts: {} };

// Pages start this module before all others, so that the words come while those are still loaded.
const likely = pickLanguage(Object.keys(LANGUAGES), wishes());
const likelyTexts = loadTexts(likely);
likelyTexts.catch(() => undefined); // told by whoever awaits them

/** @returns {string} the language shown now */
export function getLang() {
  return current.lang;
}

/**
 * Loads the words of the visitor's language and translates the page.
 *
 * @param {Promise<string | null | undefined>} serverDefault where the visitor has no say; seldom told
 */
export async function initLanguage(serverDefault) {
  const lang = pickLanguage(Object.keys(LANGUAGES), { ...wishes(), server: await serverDefault });
  show(lang, await (lang === likely ? likelyTexts : loadTexts(lang)));
}

/** What is known without the server. */
function wishes() {
  return {
    query: new URLSearchParams(location.search).get("lang"),
    stored: storedLanguage(),
    browser: navigator.languages,
    fallback: FALLBACK,
  };
}

/**
 * Changes the language at once and remembers it.
 *
 * @param {string} lang
 */
export async function setLang(lang) {
  try {
    localStorage.setItem(STORAGE_KEY, lang);
  } catch {
    // Storage may be forbidden; the choice then lasts as long as the page.
  }
  show(lang, await loadTexts(lang));
}

/** @param {string} lang @returns {Promise<Record<string, string>>} */
async function loadTexts(lang) {
  const answer = await fetch(`/static/i18n/${lang}.json`);
  if (!answer.ok) throw new Error(`The texts for "${lang}" could not be loaded (${answer.status}).`);
  return answer.json();
}

/** @param {string} lang @param {Record<string, string>} texts */
function show(lang, texts) {
  current.texts = texts;
  current.lang = lang;
  document.documentElement.lang = lang === "zh" ? "zh-CN" : lang;
  translateTree(document.documentElement);
  changes.dispatchEvent(new Event(CHANGED));
}

/**
 * Calls a function whenever the language changes; the result ends it.
 *
 * @param {() => void} listener
 * @returns {() => void}
 */
export function onLangChange(listener) {
  changes.addEventListener(CHANGED, listener);
  return () => changes.removeEventListener(CHANGED, listener);
}

/**
 * Returns a text; the key itself if there is none, so that a gap is seen.
 *
 * @param {string} key
 * @param {Record<string, string | number>} [params] for {name} in the text
 */
export function t(key, params) {
  return interpolate(current.texts[key] ?? key, params);
}

/**
 * Returns the text that fits a number: KEY.one, KEY.other and so on; {n} is the number.
 *
 * @param {string} key
 * @param {number} n
 * @param {Record<string, string | number>} [params]
 */
export function tn(key, n, params) {
  const form = `${key}.${new Intl.PluralRules(current.lang).select(n)}`;
  return t(form in current.texts ? form : `${key}.other`, { n, ...params });
}

/** @param {string} key @returns {boolean} whether there is such a text */
export function hasText(key) {
  return key in current.texts;
}

/**
 * Translates an element and all below it.
 *
 * @param {Element} root
 */
export function translateTree(root) {
  for (const element of [root, ...root.querySelectorAll("[data-t], [data-t-attr]")]) {
    const key = element.getAttribute("data-t");
    if (key) element.textContent = t(key);
    for (const pair of (element.getAttribute("data-t-attr") ?? "").split(";")) {
      const [attribute, text] = pair.split(":").map((part) => part.trim());
      if (attribute && text) element.setAttribute(attribute, t(text));
    }
  }
}

function storedLanguage() {
  try {
    return localStorage.getItem(STORAGE_KEY);
  } catch {
    return null;
  }
}
