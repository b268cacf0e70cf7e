/**
 * Templates from the tokens of a Markdown parser. HTML is shown as text, images as
 * their alternative text, and links may only lead to the web: nothing is executed, loaded or sent.
 */

import { html } from "./lit.js";
import { loadMarked } from "./vendor.js";

/** @import { MissingLibraryError } from "./vendor.js" */

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

/** @type {Record<string, Builder>} */ const BUILDERS = {
  space: () => "",
  def: () => "",
  hr: () => html`<hr />`,
  br: () => html`<br />`,
  paragraph: (token) => html`<p>${inside(token)}</p>`,
  // Headings of a text are not headings of the page.
  heading: (token) => html`<p class="markdown-heading">${inside(token)}</p>`,
  blockquote: (token) => html`<blockquote>${inside(token)}</blockquote>`,
  code: (token) => scrolling(html`<pre><code>${token.text}</code></pre>`),
  list: (token) => {
    const items = token.items.map((/** @type {Generic} */ item) => html`<li>${inside(item)}</li>`);
    return token.ordered
      ? html`<ol start=${token.start || 1}>
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
        ${cells.map((cell) => html`<td>${inside(cell)}</td>`)}
      </tr>`;
    const heads = token.header.map((/** @type {Generic} */ cell) => html`<th>${inside(cell)}</th>`);
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
  codespan: (token) => html`<code>${token.text}</code>`,
  image: (token) => token.text,
  link: (token) =>
    WEB_LINK.test(token.href)
      ? html`<a href=${token.href} target="_blank" rel="noopener noreferrer">${inside(token)}</a>`
      : inside(token),
};

/** Loads the parser. @returns {Promise<RenderMarkdown>} @throws {MissingLibraryError} */
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
