import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { getLang } from "../../static/shared/texts.js";

/** @type {Record<string, Record<string, string>>} */
const CATALOGUES = {
  en: { "language.name": "English", "language.tag": "en" },
  zh: { "language.name": "中文", "language.tag": "zh-CN" },
};
const root = { lang: "", querySelectorAll: () => [], getAttribute: () => null };
let stored = "";
/** @type {string[]} */
let asked = [];

Object.defineProperties(globalThis, {
  document: { value: { documentElement: root } },
  location: { value: { search: "", href: "http://studio/" } },
  localStorage: { value: { getItem: () => stored } },
  navigator: { value: { languages: ["en-GB"] } },
  fetch: {
    value: async (/** @type {string} */ path) => {
      asked.push(path);
      const texts = CATALOGUES[/^\/static\/i18n\/(\w+)\.json$/.exec(path)?.[1] ?? ""];
      return new Response(JSON.stringify(texts ?? {}), { status: texts ? 200 : 503 });
    },
  },
});

beforeEach(() => {
  asked = [];
});

/** @param {string} lang the visitor's choice; the server says nothing about languages */
async function opened(lang) {
  stored = lang;
  /** @type {typeof import("../../static/shared/i18n.js")} */
  const i18n = await import(`../../static/shared/i18n.js?${lang}`);
  await i18n.initLanguage();
  return i18n;
}

test("a visitor's language is shown though the server does not say what there is", async () => {
  const i18n = await opened("zh");
  assert.equal(getLang(), "zh");
  assert.equal(root.lang, "zh-CN");
  assert.deepEqual(i18n.languageNames(), { zh: "中文" }, "so that nothing invites to choose");
});

test("one that is not there becomes English", async () => {
  const i18n = await opened("fr");
  assert.equal(getLang(), "en");
  assert.deepEqual(i18n.languageNames(), { en: "English" });
  assert.deepEqual(
    asked.filter((path) => path.startsWith("/static/")),
    ["/static/i18n/fr.json", "/static/i18n/en.json"],
  );
});
