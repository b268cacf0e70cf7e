// @ts-check
/** Rules for the pages' modules and their tests; `npm run lint` applies them. Types are tsc's, layout is Prettier's. */

import js from "@eslint/js";

import pages from "./scripts/page_rules.mjs";

const RAW_HTML = "innerHTML|outerHTML|insertAdjacentHTML|setHTMLUnsafe|createContextualFragment";
const FOREIGN = "/^(?:https?:|wss?:)\\x2f\\x2f(?!www\\.w3\\.org\\x2f(?:1998\\x2fMath\\x2fMathML|1999\\x2fxlink|2000\\x2fsvg)$)./";
const ELSEWHERE = "The pages load nothing from elsewhere.";
const NO_RAW_HTML = "Text only ever enters as text.";
const NO_SILENCE = { terms: ["@ts-ignore", "@ts-nocheck", "@ts-expect-error"], location: "anywhere" };

/** What may read the document though it is no view: file -> why. */
const DOCUMENT_READERS = {
  "static/shared/page-visibility.js": "whether a page is seen is asked of the document alone",
  "static/duplex/lib/camera.js": "a camera is decoded by a video element, which no page shows",
  "static/duplex/lib/session-video-recorder.js": "recordings are painted on a canvas of no page",
};

/** @type {import("eslint").Linter.Config[]} */
export default [
  { ignores: ["static/shared/protocol.js"] },
  { linterOptions: { noInlineConfig: true, reportUnusedDisableDirectives: "error" } },
  js.configs.recommended,
  {
    rules: {
      "no-undef": "off",
      "no-unused-vars": ["error", { ignoreRestSiblings: true, varsIgnorePattern: "^_", argsIgnorePattern: "^_" }],
    },
  },
  {
    files: ["static/**/*.js"],
    plugins: { pages },
    rules: {
      eqeqeq: ["error", "always", { null: "ignore" }],
      "max-depth": ["error", 4],
      "max-lines": ["error", 400],
      "max-lines-per-function": ["error", { max: 120, skipBlankLines: true, skipComments: true }],
      "max-statements": ["error", 30],
      "no-console": ["error", { allow: ["info", "warn", "error"] }],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-restricted-syntax": [
        "error",
        { selector: `Identifier[name=/^(?:${RAW_HTML})$/]`, message: NO_RAW_HTML },
        { selector: "CallExpression[callee.object.name='document'][callee.property.name=/^write/]", message: NO_RAW_HTML },
        { selector: `Literal[value=${FOREIGN}]`, message: ELSEWHERE },
        { selector: `TemplateElement[value.raw=${FOREIGN}]`, message: ELSEWHERE },
      ],
      "no-script-url": "error",
      "no-var": "error",
      "no-warning-comments": ["error", NO_SILENCE],
      "object-shorthand": "error",
      "pages/header": "error",
      "pages/kind": "error",
      "prefer-const": ["error", { destructuring: "all" }],
    },
  },
  { files: ["static/pages/*.js"], rules: { "max-lines": ["error", { max: 200, skipBlankLines: true, skipComments: true }] } },
  { files: Object.keys(DOCUMENT_READERS), rules: { "pages/kind": ["error", ["document"]] } },
  {
    files: ["tests/js/**/*.js", "scripts/*.mjs", "*.mjs"],
    rules: { "max-depth": ["error", 4], "max-lines": ["error", 400], "prefer-const": ["error", { destructuring: "all" }] },
  },
];
