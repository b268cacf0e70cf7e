/**
 * Loads the texts of the chosen language from static/i18n/LANG.json and switches languages at run time.
 *
 * HTML uses `data-t="key"` for text and `data-t-attr="aria-label:key;title:key"` for attributes.
 */

import { notifyLangChange, pickLanguage, setTexts, t } from "./texts.js";
import { getJson } from "./api.js";
import { remember, remembered } from "./memory.js";

const FALLBACK = "en";
const STORAGE_KEY = "minicpmo_lang";
/** Native name of each language by code. @type {Readonly<Record<string, string>>} */ let names = {};

/** The server's defaults for pages. @type {Promise<Http.FrontendDefaults | null>} null if the server was not reached */
export const serverDefaults = getJson("/api/frontend_defaults").catch(() => null);

// Pages load this module first, so that the texts arrive while the other modules load.
const opening = open();
opening.catch(() => undefined); // reported where it is awaited

export const languageNames = () => names;

export async function initLanguage() {
  const opened = await opening;
  names = opened.names;
  show(opened.lang, opened.texts);
}

async function open() {
  const defaults = await serverDefaults;
  const lang = pickLanguage(defaults && Object.keys(defaults.languages), {
    query: new URLSearchParams(location.search).get("lang"),
    stored: remembered(STORAGE_KEY),
    server: defaults?.default_lang,
    browser: navigator.languages,
    fallback: FALLBACK,
  });
  if (!defaults) return guess(lang);
  return { lang, texts: await loadTexts(lang), names: defaults.languages };
}

/** Loads a language that may be missing, falling back to the default one. @param {string} lang */
async function guess(lang) {
  let shown = lang;
  const texts = await loadTexts(lang).catch(() => loadTexts((shown = FALLBACK)));
  return { lang: shown, texts, names: { [shown]: texts["language.name"] } };
}

/** Switches the language and remembers the choice. @param {string} lang @throws {ApiError} its texts cannot be loaded */
export async function setLang(lang) {
  show(lang, await loadTexts(lang));
  remember(STORAGE_KEY, lang);
}

/** @param {string} lang @returns {Promise<Record<string, string>>} */
const loadTexts = (lang) => getJson(`/static/i18n/${lang}.json`);

function show(/** @type {string} */ lang, /** @type {Record<string, string>} */ texts) {
  setTexts(lang, texts);
  document.documentElement.lang = t("language.tag");
  translateTree(document.documentElement);
  notifyLangChange();
}

/** Translates an element and its descendants. @param {Element} root */
function translateTree(root) {
  for (const element of [root, ...root.querySelectorAll("[data-t], [data-t-attr]")]) {
    const key = element.getAttribute("data-t");
    if (key) element.textContent = t(key);
    for (const pair of (element.getAttribute("data-t-attr") ?? "").split(";")) {
      const [attribute, text] = pair.split(":").map((part) => part.trim());
      if (attribute && text) element.setAttribute(attribute, t(text));
    }
  }
}
