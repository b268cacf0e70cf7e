import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { plainParagraphs, splitFaq } from "../../static/shared/faq-text.js";
import {
  applyPreset,
  contentFromPreset,
  contentToWire,
  emptyItem,
  firstPreset,
  flatten,
  hasSounds,
  moveItem,
  nameOfFile,
  voiceLimits,
  voiceProblem,
  voiceToWire,
  voicesOf,
  wordsIn,
} from "../../static/shared/prompt.js";
import { floatsToBase64 } from "../../static/shared/pcm.js";

const LIMITS = voiceLimits(null);
const SOUND = Float32Array.from([0.5, -0.25, 0, 1]);
const SOUND_DATA = floatsToBase64(SOUND);

/** @param {Partial<Http.Preset>} given @returns {Http.Preset} */
const preset = (given) => ({
  id: "english_call",
  name: "",
  description: "",
  order: 1,
  system_prompt: null,
  ref_audio_path: null,
  ref_audio: null,
  system_content: [],
  settings: null,
  ...given,
});

test("a voice is 0.5 to 30 seconds long and not silent", () => {
  const tone = (/** @type {number} */ seconds) => new Float32Array(seconds * 16_000).fill(0.1);
  assert.equal(voiceProblem(tone(0.49), LIMITS), "too_short");
  assert.equal(voiceProblem(tone(0.5), LIMITS), null);
  assert.equal(voiceProblem(tone(30), LIMITS), null);
  assert.equal(voiceProblem(tone(30.01), LIMITS), "too_long");
  assert.equal(voiceProblem(new Float32Array(16_000), LIMITS), "silent");
});

test("limits come from the server where it names them", () => {
  const limits = voiceLimits({ limits: { reference_max_s: 20, reference_upload_bytes: 1_000 } });
  assert.deepEqual(limits, { minS: 0.5, maxS: 20, maxFileBytes: 1_000 });
  assert.equal(LIMITS.maxS, 30);
});

test("a file's name loses folder and ending", () => {
  assert.equal(nameOfFile("C:\\voices\\My voice.wav"), "My voice");
  assert.equal(nameOfFile("/tmp/a.b.mp3"), "a.b");
  assert.equal(nameOfFile(".wav"), ".wav");
});

test("items move by one and not beyond the ends", () => {
  assert.deepEqual(moveItem(["a", "b", "c"], 2, -1), ["a", "c", "b"]);
  assert.deepEqual(moveItem(["a", "b"], 0, -1), ["a", "b"]);
  assert.deepEqual(moveItem(["a", "b"], 1, 1), ["a", "b"]);
});

test("the wire gets texts, voices and pictures, and nothing empty", () => {
  const voice = { name: "v", samples: SOUND, origin: /** @type {const} */ ("upload") };
  const items = [
    emptyItem("text"),
    emptyItem("audio"),
    emptyItem("image"),
    { type: /** @type {const} */ ("text"), text: "Be kind." },
    { type: /** @type {const} */ ("audio"), voice },
    { type: /** @type {const} */ ("image"), name: "p.png", data: "AAAA" },
  ];
  assert.deepEqual(contentToWire(items), [
    { type: "text", text: "Be kind." },
    { type: "audio", data: voiceToWire(voice) },
    { type: "image", data: "AAAA" },
  ]);
  assert.deepEqual(voicesOf(items), [voice]);
});

test("a preset's sounds go to its audio items in their order", () => {
  const items = contentFromPreset(
    [
      { type: "audio", path: "default", name: "d", duration: 1 },
      { type: "text", text: "Hello." },
      { type: "audio", path: "ref_audio/x.wav", name: "x", duration: 1 },
      { type: "audio", path: "gone.wav", name: "gone", duration: null },
    ],
    [
      { data: SOUND_DATA, name: "d", duration: 1 },
      { data: SOUND_DATA, name: "x", duration: 1 },
    ],
  );
  assert.deepEqual(
    items.map((item) => (item.type === "audio" ? (item.voice?.origin ?? null) : item.type)),
    ["default", "text", "preset", null],
  );
  assert.deepEqual(items[0].type === "audio" && [...(items[0].voice?.samples ?? [])], [...SOUND]);
});

test("a preset's name is told in the language of the page, else in English, else as it is", () => {
  assert.equal(wordsIn({ en: "Call", zh: "通话" }, "zh"), "通话");
  assert.equal(wordsIn({ en: "Call" }, "zh"), "Call");
  assert.equal(wordsIn({ zh: "通话" }, "fr"), "通话");
  assert.equal(wordsIn("Plain", "zh"), "Plain");
  assert.equal(wordsIn(null, "en"), "");
});

test("a page begins with the remembered preset, else with one in the visitor's language", () => {
  const all = [preset({ id: "english_call" }), preset({ id: "chinese_call" })];
  assert.equal(firstPreset(all, "english_call", "zh")?.id, "english_call");
  assert.equal(firstPreset(all, "gone", "zh")?.id, "chinese_call");
  assert.equal(firstPreset(all, null, "fr")?.id, "english_call");
  assert.equal(firstPreset([], null, "en"), null);
});

test("an applied preset has prompt, voice, items and flat settings", () => {
  const given = preset({
    system_prompt: "Be kind.",
    ref_audio: { type: "audio", data: null, path: "default", name: "d", duration: 1 },
    settings: { length_penalty: 1.2, vad: { threshold: 0.7 } },
  });
  assert.ok(hasSounds(given));
  assert.ok(!hasSounds(preset({ system_content: [{ type: "text", text: "t" }] })));
  const applied = applyPreset(given, { system_content_audio: [], ref_audio: { data: SOUND_DATA, name: "d", duration: 1 } }, true);
  assert.equal(applied.systemPrompt, "Be kind.");
  assert.equal(applied.voice?.origin, "default");
  assert.deepEqual(applied.settings, { length_penalty: 1.2, vad_threshold: 0.7 });
  assert.deepEqual(flatten({ list: [1], none: null }), { list: [1], none: null });
});

test("help is cut at its questions", () => {
  const faq = splitFaq("# Chat: help\r\n\r\nFirst words.\r\n\r\n## One?\r\n\r\nYes.\r\n\r\n### Inside\r\n\r\n## Two?");
  assert.equal(faq.title, "Chat: help");
  assert.equal(faq.intro, "First words.");
  assert.deepEqual(faq.sections, [
    { heading: "One?", body: "Yes.\n\n### Inside" },
    { heading: "Two?", body: "" },
  ]);
});

test("help reads well where nothing can render it", () => {
  assert.deepEqual(plainParagraphs("Press **Start**.\n\n- one `x`\n- two [site](https://example.org)"), [
    "Press Start.",
    "• one x\n• two site",
  ]);
});

test("help says the same number of things in both languages, and nothing raw", () => {
  const folder = new URL("../../static/faq/", import.meta.url);
  const modes = ["audio-duplex", "half-duplex", "omni", "turnbased"];
  assert.deepEqual(
    readdirSync(folder).sort(),
    modes.flatMap((mode) => [`${mode}.en.md`, `${mode}.zh.md`]),
  );
  for (const mode of modes) {
    const [en, zh] = ["en", "zh"].map((lang) => readFileSync(new URL(`${mode}.${lang}.md`, folder), "utf8"));
    assert.equal(splitFaq(en).sections.length, splitFaq(zh).sections.length, mode);
    for (const text of [en, zh]) {
      assert.ok(splitFaq(text).title && splitFaq(text).intro);
      assert.ok(splitFaq(text).sections.every(({ body }) => body.length > 0));
      assert.doesNotMatch(text, /<[a-z]/i);
    }
  }
});
