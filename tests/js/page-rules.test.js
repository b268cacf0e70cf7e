/** The rules of the pages find what they forbid. */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

import { ESLint } from "eslint";

import { kindOf } from "../../scripts/page_rules.mjs";

/** Share of the lines written by hand; ESLint holds pure modules to what they say of themselves. */
const LEAST_PURE = 0.4;
const MOST_MODULES = 120;

const HEADER = "/** Adds. Pure. */\n";
const eslint = new ESLint();

/** @param {string} text @param {string} [filePath] @returns {Promise<string[]>} the rules it breaks, each once */
async function broken(text, filePath = "static/shared/added.js") {
  const [{ messages }] = await eslint.lintText(text, { filePath });
  return [...new Set(messages.map(({ ruleId }) => String(ruleId)))].sort();
}

const deep = (/** @type {number} */ depth) => `${"if (a) {\n".repeat(depth)}a();${"}".repeat(depth)}`;
const calls = (/** @type {number} */ lines) => `export function many() {\n${"  Math.random();\n".repeat(lines)}}\n`;

/** @type {[what: string, text: string, rules: string[]][]} */
const CASES = [
  ["a module that keeps the rules", `${HEADER}export const two = 1 + 1; // window is a word\n`, []],
  ["no header", "export const two = 1 + 1;\n", ["pages/header"]],
  ["a long header", "/**\n * One\n * two\n * three\n * four\n * five\n * six. Pure.\n */\n", ["pages/header"]],
  ["a pure module that reads the window", `${HEADER}export const place = \`\${window.name}\`;\n`, ["pages/kind"]],
  ["a pure module that imports a view", `${HEADER}import { render } from "./lit.js";\nrender(1);\n`, ["pages/kind"]],
  ["a device that reads the document", `${HEADER.replace("Pure", "Device")}document.title = "";\n`, ["pages/kind"]],
  ["raw HTML", `${HEADER}export const set = (/** @type {any} */ a) => (a.innerHTML = "");\n`, ["no-restricted-syntax"]],
  ["another origin", `${HEADER}export const there = "https://elsewhere.example/";\n`, ["no-restricted-syntax"]],
  ["another origin in a template", `${HEADER}export const at = (n) => \`wss://x.example/\${n}\`;\n`, ["no-restricted-syntax"]],
  ["silenced types", `${HEADER}// @ts-ignore\n`, ["no-warning-comments"]],
  ["silenced rules", `${HEADER}console.log(1); // eslint-disable-line\n`, ["no-console", "null"]],
  ["too deep", `${HEADER}${deep(5)}\n`, ["max-depth"]],
  ["a long function", `${HEADER}${calls(121)}`, ["max-lines-per-function", "max-statements"]],
  ["a long file", `${HEADER}${"export {};\n".repeat(400)}`, ["max-lines"]],
];

for (const [what, text, rules] of CASES) {
  test(`${what}: ${rules.join(", ") || "no rule broken"}`, async () => assert.deepEqual(await broken(text), rules));
}

test("the modules are few, and what can be pure is pure", () => {
  const names = readdirSync("static", { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".js"));
  assert.ok(names.length <= MOST_MODULES, `${names.length} modules`);
  const written = names.filter((name) => !name.endsWith("protocol.js")).map((name) => `static/${name}`);
  const modules = written.map((path) => ({ path, text: readFileSync(path, "utf8") }));
  const lines = (/** @type {typeof modules} */ some) => some.reduce((sum, { text }) => sum + text.split("\n").length - 1, 0);
  const share = lines(modules.filter(({ path, text }) => kindOf(path, text) === "pure")) / lines(modules);
  assert.ok(share >= LEAST_PURE, `${(100 * share).toFixed(1)} % of the lines are pure`);
});
