/**
 * Templates from the tokens of a Markdown parser, and the help of a page: a side panel, or a bottom sheet on phones. HTML is
 * shown as text, images as their alternative text, and links may only lead to the web: nothing is executed, loaded or sent.
 */

import { find, html, iconButton, mountView, on } from "./lit.js";
import { loadMarked } from "./libraries.js";
import { plainParagraphs, splitFaq } from "./faq-text.js";
import { languageNames } from "./i18n.js";
import { getLang, onLangChange, t } from "./texts.js";

/** @import { Faq } from "./faq-text.js" */

/** @typedef {import("marked").Token} Token */
/** @typedef {import("marked").Tokens.Generic} Generic any token: its shape depends on its type */
/** @typedef {(token: Generic) => unknown} Builder */
/** @typedef {(markdown: string) => unknown} RenderMarkdown */

const WEB_LINK = /^https?:\/\//i;
const ENTITIES = new Map([
  ["&amp;", "&"],
  ["&lt;", "<"],
  ["&gt;", ">"],
  ["&quot;", '"'],
  ["&#39;", "'"],
  ["&nbsp;", "\u00a0"],
]);
const ENTITY = /&(?:amp|lt|gt|quot|#39|nbsp);/g;

/** Wide content scrolls in its own container, also by keyboard. @param {unknown} wide */
const scrolling = (wide) => html`<div class="markdown-wide" tabindex="0">${wide}</div>`;

const aligned = (/** @type {Generic} */ { align }) => (align ? `text-align: ${align}` : "");

/** @type {Record<string, Builder>} */ const BUILDERS = {
  space: () => "",
  def: () => "",
  hr: () => html`<hr />`,
  br: () => html`<br />`,
  paragraph: (token) => html`<p>${inside(token)}</p>`,
  // Headings of a text are not headings of the page.
  heading: (token) => html`<p class="markdown-heading">${inside(token)}</p>`,
  blockquote: (token) => html`<blockquote>${inside(token)}</blockquote>`,
  code: (token) => html`<div dir="ltr">${scrolling(html`<pre><code>${token.text}</code></pre>`)}</div>`,
  list: (token) => {
    const items = token.items.map((/** @type {Generic} */ item) => html`<li>${inside(item)}</li>`);
    return token.ordered
      ? html`<ol start=${token.start}>
          ${items}
        </ol>`
      : html`<ul>
          ${items}
        </ul>`;
  },
  checkbox: (token) => (token.checked ? "☑ " : "☐ "),
  table: (token) => {
    const row = (/** @type {Generic[]} */ cells) =>
      html`<tr>
        ${cells.map((cell) => html`<td .style=${aligned(cell)}>${inside(cell)}</td>`)}
      </tr>`;
    const heads = token.header.map((/** @type {Generic} */ cell) => html`<th .style=${aligned(cell)}>${inside(cell)}</th>`);
    return scrolling(
      html`<table>
        <thead>
          <tr>
            ${heads}
          </tr>
        </thead>
        <tbody>
          ${token.rows.map(row)}
        </tbody>
      </table>`,
    );
  },
  strong: (token) => html`<strong>${inside(token)}</strong>`,
  em: (token) => html`<em>${inside(token)}</em>`,
  del: (token) => html`<del>${inside(token)}</del>`,
  codespan: (token) => html`<code dir="ltr">${token.text}</code>`,
  image: (token) => token.text,
  link: (token) =>
    WEB_LINK.test(token.href)
      ? html`<a href=${token.href} target="_blank" rel="noopener noreferrer">${inside(token)}</a>`
      : inside(token),
};

/** Loads the parser. @returns {Promise<RenderMarkdown>} @throws {CodedError} "missing_library" */
export async function loadMarkdown() {
  const marked = await loadMarked();
  return (markdown) => build(marked.lexer(markdown));
}

/** @param {readonly Token[]} tokens @returns {unknown[]} */
const build = (tokens) => tokens.map((token) => (BUILDERS[token.type] ?? inside)(token));

/** Content of a token: its child tokens or its text. @param {Generic} token */
function inside(token) {
  if (token.tokens) return build(token.tokens);
  const text = token.text ?? token.raw;
  return token.type === "html" ? text : text.replace(ENTITY, (/** @type {string} */ entity) => ENTITIES.get(entity) ?? entity);
}

const FALLBACK = "en";

/** @typedef {"turnbased" | "half-duplex" | "omni" | "audio-duplex"} FaqMode */

/**
 * @param {string} mode
 * @param {string} lang
 * @returns {Promise<{text: string, lang: string}>} in English if it is not translated
 */
async function loadText(mode, lang) {
  const path = `/static/faq/${mode}.${lang}.md`;
  const answer = await fetch(path);
  if (answer.ok) return { text: await answer.text(), lang };
  if (lang === FALLBACK) throw new Error(`${path}: ${answer.status}`);
  return loadText(mode, FALLBACK);
}

/** Falls back to plain paragraphs where the Markdown library is not installed. @param {string} markdown */
const plain = (markdown) => plainParagraphs(markdown).map((text) => html`<p class="faq-plain">${text}</p>`);

/** @param {HTMLElement} el @param {{mode: FaqMode, opener: HTMLButtonElement}} options @returns {{open: () => void}} */
export function mountFaqSidebar(el, { mode, opener }) {
  /** Language of the help; the page's until another one is chosen. @type {string | null} */ let chosen = null;
  /** The help shown, and the language it was requested in. @type {{faq: Faq, lang: string} | null} */ let shown = null;
  let asked = "";
  let isFailed = false;
  /** @type {RenderMarkdown} */ let toView = plain;
  const lang = () => chosen ?? getLang();

  const load = async () => {
    const wanted = lang();
    if (el.hidden || wanted === asked) return;
    asked = wanted;
    try {
      const [found, parser] = await Promise.all([loadText(mode, wanted), loadMarkdown().catch(() => plain)]);
      if (wanted !== lang()) return;
      toView = parser;
      shown = { faq: splitFaq(found.text), lang: found.lang };
      isFailed = false;
    } catch {
      asked = "";
      isFailed = true;
    }
    draw();
  };
  const update = () => {
    opener.setAttribute("aria-expanded", String(!el.hidden));
    draw();
    void load();
  };
  const open = () => {
    el.hidden = false;
    update();
    find(el, ".faq-title").focus();
  };
  const shut = () => {
    if (el.hidden) return;
    const hadFocus = el.contains(document.activeElement);
    el.hidden = true;
    update();
    if (hadFocus) opener.focus();
  };
  const languages = () =>
    Object.entries(languageNames()).map(([code, name]) => {
      const choose = () => {
        chosen = code;
        update();
      };
      return html`<button type="button" class="pill" lang=${code} aria-pressed=${String(code === lang())} @click=${choose}>
        ${name}
      </button>`;
    });
  const answers = () => {
    if (isFailed) return html`<p role="alert">${t("faq.failed")}</p>`;
    if (!shown) return "";
    const { intro, sections } = shown.faq;
    return html`${toView(intro)}${sections.map(
      ({ heading, body }) =>
        html`<details class="panel faq-question">
          <summary>${heading}</summary>
          <div class="faq-answer">${toView(body)}</div>
        </details>`,
    )}`;
  };
  el.classList.add("faq");
  el.hidden = true;
  opener.setAttribute("aria-controls", el.id);
  const draw = mountView(el, () => {
    el.setAttribute("aria-label", t("faq.label"));
    return html`<div class="faq-head">
        <h2 class="faq-title" tabindex="-1">${shown?.faq.title ?? t("faq.label")}</h2>
        <div class="row faq-languages" role="group" aria-label=${t("faq.language")}>${languages()}</div>
        ${iconButton("close", t("faq.close"), shut)}
      </div>
      <div class="faq-body stack-tight" lang=${shown?.lang ?? lang()}>${answers()}</div>`;
  });
  on(opener, "click", () => (el.hidden ? open() : shut()));
  on(el, "keydown", (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && shut());
  onLangChange(() => {
    chosen = null;
    update();
  });
  return { open };
}
