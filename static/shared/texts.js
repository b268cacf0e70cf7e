// @ts-check
/** The page's texts in the language shown now: by key, with values in place and the plural that fits. Pure. */

const CHANGED = "languagechange";

const changes = new EventTarget();
/** @type {{lang: string, texts: Record<string, string>}} */
const current = { lang: "en", texts: {} };

/** @param {string} lang @param {Record<string, string>} texts */
export function setTexts(lang, texts) {
  Object.assign(current, { lang, texts });
}

/** Has all draw anew that shows texts. */
export const notifyLangChange = () => changes.dispatchEvent(new Event(CHANGED));

/** @returns {string} the language shown now */
export function getLang() {
  return current.lang;
}

/** Calls a function whenever the language changes; the result ends it. @param {() => void} listener @returns {() => void} */
export function onLangChange(listener) {
  changes.addEventListener(CHANGED, listener);
  return () => changes.removeEventListener(CHANGED, listener);
}

/**
 * Returns a text; the key itself if there is none, so that a gap is seen.
 * @param {string} key
 * @param {Record<string, string | number>} [params] for {name} in the text
 */
export function t(key, params) {
  return interpolate(current.texts[key] ?? key, params);
}

/**
 * Returns the text that fits a number: KEY.one, KEY.other and so on; {n} is the number.
 * @param {string} key
 * @param {number} n
 * @param {Record<string, string | number>} [params]
 */
export function tn(key, n, params) {
  const form = `${key}.${new Intl.PluralRules(current.lang).select(n)}`;
  return t(form in current.texts ? form : `${key}.other`, { n, ...params });
}

/** @param {{key: string, params?: Record<string, string | number>, n?: number}} phrase `n` asks for the form that fits it */
export function phraseText({ key, params, n }) {
  return n === undefined ? t(key, params) : tn(key, n, params);
}

/** @param {string} key @returns {boolean} whether there is such a text */
export function hasText(key) {
  return key in current.texts;
}

// Which language to show.

const CODE = /^[a-z]{2,3}$/;

/**
 * @param {readonly string[] | null} offered codes such as "en"; null: whatever looks like one
 * @param {{query?: string | null, stored?: string | null, server?: string | null,
 *   browser?: readonly string[], fallback: string}} wishes strongest first, as named here
 */
export function pickLanguage(offered, { query, stored, server, browser = [], fallback }) {
  for (const wish of [query, stored, server, ...browser]) {
    const base = wish?.toLowerCase().split(/[-_]/)[0];
    if (base && (offered ? offered.includes(base) : CODE.test(base))) return base;
  }
  return fallback;
}

/** An unknown name stays, so that a slip is seen. @param {string} text @param {Record<string, string | number>} [params] */
export function interpolate(text, params = {}) {
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in params ? String(params[name]) : whole));
}

// Gives each way to fail its own sentence and a next step.

const UNKNOWN = "internal";

/**
 * @param {string | {code?: string, message?: string}} problem a code, or an error that carries one
 * @param {Record<string, string | number>} [params] for {name} in the texts
 * @returns {{code: string, title: string, nextStep: string, detail: string}} `detail` is the server's own
 *   words, only where we have none for the code
 */
export function problemText(problem, params) {
  const wanted = typeof problem === "string" ? problem : (problem.code ?? UNKNOWN);
  const code = hasText(`problem.${wanted}.title`) ? wanted : UNKNOWN;
  const message = typeof problem === "string" ? "" : (problem.message ?? "");
  return {
    code: wanted,
    title: t(`problem.${code}.title`, params),
    nextStep: t(`problem.${code}.next`, params),
    detail: code === wanted && code !== UNKNOWN ? "" : message,
  };
}

/** What went wrong and what to do, in one line. @param {unknown} problem an error, or its code */
export function problemWords(problem) {
  const { title, nextStep } = problemText(/** @type {string | {code?: string}} */ (problem));
  return `${title} ${nextStep}`;
}
