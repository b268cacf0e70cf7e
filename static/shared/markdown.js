// @ts-check
/**
 * Builds elements from the tokens of a Markdown parser. HTML in the text is shown as it is written,
 * pictures as their description, and links lead to the web only: nothing is run, loaded or sent.
 */

import { h } from "./dom.js";
import { loadMarked } from "./vendor.js";

/** @typedef {import("marked").Token} Token */
/** @typedef {import("marked").Tokens.Generic} Generic any token: its shape depends on its type */
/** @typedef {(token: Generic) => Node | string | (Node | string)[]} Builder */

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

/** @type {Record<string, Builder>} */
const BUILDERS = {
  space: () => [],
  def: () => [],
  hr: () => h("hr"),
  br: () => h("br"),
  paragraph: (token) => h("p", {}, inside(token)),
  // Headings of a text must not pass for headings of the page.
  heading: (token) => h("p", { class: "markdown-heading" }, inside(token)),
  blockquote: (token) => h("blockquote", {}, inside(token)),
  code: (token) => scrolling(h("pre", {}, h("code", {}, token.text))),
  list: (token) => {
    const items = token.items.map((/** @type {Generic} */ item) => h("li", {}, inside(item)));
    return token.ordered ? h("ol", { start: token.start || 1 }, items) : h("ul", {}, items);
  },
  checkbox: (token) => (token.checked ? "☑ " : "☐ "),
  table: (token) =>
    scrolling(
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            token.header.map((/** @type {Generic} */ cell) => h("th", {}, inside(cell))),
          ),
        ),
        h(
          "tbody",
          {},
          token.rows.map((/** @type {Generic[]} */ row) =>
            h(
              "tr",
              {},
              row.map((cell) => h("td", {}, inside(cell))),
            ),
          ),
        ),
      ),
    ),
  strong: (token) => h("strong", {}, inside(token)),
  em: (token) => h("em", {}, inside(token)),
  del: (token) => h("del", {}, inside(token)),
  codespan: (token) => h("code", {}, token.text),
  image: (token) => token.text,
  link: (token) =>
    WEB_LINK.test(token.href)
      ? h("a", { href: token.href, target: "_blank", rel: "noopener noreferrer" }, inside(token))
      : inside(token),
};

/**
 * Loads the parser.
 *
 * @returns {Promise<(markdown: string) => (Node | string)[]>}
 * @throws {import("./vendor.js").MissingLibraryError}
 */
export async function loadMarkdown() {
  const marked = await loadMarked();
  return (markdown) => build(marked.lexer(markdown));
}

/**
 * @param {readonly Token[]} tokens
 * @returns {(Node | string)[]}
 */
function build(tokens) {
  return tokens.flatMap((token) => {
    const builder = BUILDERS[token.type];
    return builder ? builder(token) : inside(token);
  });
}

/**
 * What a token holds: other tokens, or its text.
 *
 * @param {Generic} token
 * @returns {(Node | string)[]}
 */
function inside(token) {
  if (token.tokens) return build(token.tokens);
  const text = token.text ?? token.raw;
  return [token.type === "html" ? text : text.replace(ENTITY, (/** @type {string} */ entity) => ENTITIES.get(entity) ?? entity)];
}

/**
 * What may be wider than the screen scrolls by itself, also by keyboard.
 *
 * @param {HTMLElement} wide
 */
function scrolling(wide) {
  return h("div", { class: "markdown-wide", tabindex: 0 }, wide);
}
