// @ts-check
/**
 * ESLint rules of the pages: a module's first comment states its purpose and kind. Pure modules run anywhere, device
 * modules must not use the document, and neither may import a module of a higher kind.
 */

import { existsSync, readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";

const HEADER = /^\/\*\*(.*?)\*\//s;
const MAX_HEADER_LINES = 5;
const STATIC = resolve(import.meta.dirname, "..", "static");
const GENERATED = /\/shared\/protocol\.js$/;

/** @typedef {"pure" | "device" | "view"} Kind */
/** @type {Record<Kind, RegExp>} what a module of the kind may not import */
const ABOVE = { pure: /device|view/, device: /view/, view: /^$/ };
const BROWSER = ["AudioContext", "OfflineAudioContext", "WebSocket", "fetch", "localStorage", "navigator"];
/** @type {Record<Kind, readonly string[]>} what a module of the kind may not touch */
const OUT_OF_REACH = {
  pure: [
    ...BROWSER,
    ...["Audio", "AudioWorkletNode", "HTMLElement", "MediaRecorder", "OffscreenCanvas", "XMLHttpRequest", "createImageBitmap"],
    ...["document", "history", "indexedDB", "location", "matchMedia", "requestAnimationFrame", "sessionStorage", "window"],
  ],
  device: ["document"],
  view: [],
};

/** @param {string} path @param {string} text @returns {Kind} */
export function kindOf(path, text) {
  const header = HEADER.exec(text)?.[1] ?? "";
  if (GENERATED.test(path) || /\bPure[.:]/.test(header)) return "pure";
  return /\bDevice[.:]/.test(header) ? "device" : "view";
}

/** @param {string} from @param {string} source @returns {string | null} our own module's path */
function ownModule(from, source) {
  if (source.startsWith("/static/") && !source.startsWith("/static/vendor/")) return resolve(STATIC, source.slice(8));
  return source.startsWith(".") ? resolve(dirname(from), source) : null;
}

/** @type {import("eslint").Rule.RuleModule} */
const header = {
  create: ({ sourceCode, report }) => ({
    Program(node) {
      const lines = HEADER.exec(sourceCode.text)?.[1].split("\n");
      if (!lines) report({ node, message: "Begin with what the module is for." });
      else if (lines.filter((line) => /[^ *]/.test(line)).length > MAX_HEADER_LINES)
        report({ node, message: `Say in at most ${MAX_HEADER_LINES} lines what the module is for.` });
    },
  }),
};

/** @type {import("eslint").Rule.RuleModule} */
const kind = {
  meta: { schema: [{ type: "array", items: { type: "string" } }] },
  create({ filename, options, sourceCode, report }) {
    const own = kindOf(filename, sourceCode.text);
    /** @param {any} node `any`: ESTree's types of the three declarations share no name */
    const onImport = (node) => {
      const path = node.source && ownModule(filename, node.source.value);
      if (!path || !existsSync(path)) return; // tsc reports missing modules
      const theirs = kindOf(path, readFileSync(path, "utf8"));
      if (ABOVE[own].test(theirs)) report({ node, message: `A ${own} module imports none that is ${theirs}.` });
    };
    return {
      ImportDeclaration: onImport,
      ExportNamedDeclaration: onImport,
      ExportAllDeclaration: onImport,
      "Program:exit"(node) {
        for (const { identifier } of sourceCode.getScope(node).through.concat(globals(sourceCode.getScope(node)))) {
          if (!OUT_OF_REACH[own].includes(identifier.name) || options[0]?.includes(identifier.name)) continue;
          report({ node: identifier, message: `A ${own} module does not touch ${identifier.name}.` });
        }
      },
    };
  },
};

/** @param {import("eslint").Scope.Scope} scope @returns {import("eslint").Scope.Reference[]} to browser globals */
const globals = (scope) => scope.variables.filter(({ defs }) => defs.length === 0).flatMap(({ references }) => references);

export default { rules: { header, kind } };
