// @ts-check
/**
 * Questions and answers about a page: a panel at the side, a sheet from below on a phone.
 */

import { fill, h, icon, on, setText } from "./dom.js";
import { plainParagraphs, splitFaq } from "./faq-text.js";
import { getLang, languageNames, onLangChange, t } from "./i18n.js";
import { loadMarkdown } from "./markdown.js";

const FALLBACK = "en";

/** @typedef {"turnbased" | "half-duplex" | "omni" | "audio-duplex"} FaqMode */
/** @typedef {(markdown: string) => (Node | string)[]} Render */

/** @type {Map<string, Promise<string>>} */
const texts = new Map();
/** @type {Promise<Render> | null} */
let renderer = null;

/**
 * @param {string} mode
 * @param {string} lang
 * @returns {Promise<{text: string, lang: string}>} in English if there is none in that language
 */
function loadAny(mode, lang) {
  return loadText(mode, lang).then(
    (text) => ({ text, lang }),
    async (error) => {
      if (lang === FALLBACK) throw error;
      return { text: await loadText(mode, FALLBACK), lang: FALLBACK };
    },
  );
}

/**
 * @param {string} mode
 * @param {string} lang
 * @returns {Promise<string>}
 */
function loadText(mode, lang) {
  const path = `/static/faq/${mode}.${lang}.md`;
  const known = texts.get(path);
  if (known) return known;
  const loading = fetch(path).then((answer) => {
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.text();
  });
  texts.set(path, loading);
  loading.catch(() => texts.delete(path));
  return loading;
}

/** @returns {Promise<Render>} renders plain paragraphs where the library is not installed */
function loadRenderer() {
  renderer ??= loadMarkdown().then(
    (toNodes) => toNodes,
    () => (/** @type {string} */ markdown) => plainParagraphs(markdown).map((text) => h("p", { class: "faq-plain" }, text)),
  );
  return renderer;
}

/**
 * @typedef {{open: () => void, shut: () => void, close: () => void}} FaqSidebar
 *
 * @param {HTMLElement} el an `aside` at the end of the body
 * @param {{mode: FaqMode, opener: HTMLButtonElement}} options `opener` opens and shuts it
 * @returns {FaqSidebar}
 */
export function mountFaqSidebar(el, { mode, opener }) {
  const parts = buildParts();
  el.classList.add("faq");
  el.id ||= "faq";
  el.hidden = true;
  fill(el, parts.nodes);
  opener.setAttribute("aria-controls", el.id);
  /** Its own language; follows the page's until it is chosen. @type {string | null} */
  let chosen = null;
  let shown = "";
  const lang = () => chosen ?? getLang();

  const draw = () => {
    el.setAttribute("aria-label", t("faq.label"));
    opener.setAttribute("aria-expanded", String(!el.hidden));
    drawHead(parts, lang());
    if (!el.hidden) void drawText();
  };
  const drawText = async () => {
    const wanted = lang();
    if (wanted === shown) return;
    shown = wanted;
    try {
      const [found, render] = await Promise.all([loadAny(mode, wanted), loadRenderer()]);
      if (wanted !== lang()) return;
      const faq = splitFaq(found.text);
      setText(parts.title, faq.title);
      parts.body.lang = found.lang;
      fill(
        parts.body,
        render(faq.intro),
        faq.sections.map((section) => questionNode(section, render)),
      );
    } catch {
      shown = "";
      fill(parts.body, h("p", { role: "alert" }, t("faq.failed")));
    }
  };
  const open = () => {
    el.hidden = false;
    draw();
    parts.title.focus();
  };
  const shut = () => {
    if (el.hidden) return;
    const hadFocus = el.contains(document.activeElement);
    el.hidden = true;
    draw();
    if (hadFocus) opener.focus();
  };
  const ends = [
    on(opener, "click", () => (el.hidden ? open() : shut())),
    on(parts.shut, "click", shut),
    on(el, "keydown", (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && shut()),
    on(parts.languages, "click", (event) => {
      const button = event.target instanceof Element ? event.target.closest("button") : null;
      if (!button?.lang) return;
      chosen = button.lang;
      draw();
    }),
    onLangChange(() => {
      chosen = null;
      draw();
    }),
  ];
  draw();
  return { open, shut, close: () => ends.forEach((end) => end()) };
}

function buildParts() {
  const title = h("h2", { class: "faq-title", tabindex: -1 });
  const languages = h("div", { class: "row faq-languages", role: "group" });
  const shut = h("button", { type: "button", class: "button button-quiet button-icon" });
  const body = h("div", { class: "faq-body stack-tight" });
  const head = h("div", { class: "faq-head" }, title, languages, shut);
  return { nodes: [head, body], title, languages, shut, body };
}

/** @param {ReturnType<typeof buildParts>} parts @param {string} lang */
function drawHead({ languages, shut, title }, lang) {
  if (!title.textContent) setText(title, t("faq.label"));
  languages.setAttribute("aria-label", t("faq.language"));
  const hadFocus = languages.contains(document.activeElement);
  const buttons = Object.entries(languageNames()).map(([code, name]) =>
    h("button", { type: "button", class: "pill", lang: code, "aria-pressed": String(code === lang) }, name),
  );
  fill(languages, buttons);
  if (hadFocus) buttons.find((button) => button.lang === lang)?.focus();
  fill(shut, icon("close"));
  shut.setAttribute("aria-label", t("faq.close"));
}

/**
 * @param {{heading: string, body: string}} section
 * @param {Render} render
 */
function questionNode({ heading, body }, render) {
  return h(
    "details",
    { class: "panel faq-question" },
    h("summary", {}, heading),
    h("div", { class: "faq-answer" }, render(body)),
  );
}
