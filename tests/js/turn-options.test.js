import assert from "node:assert/strict";
import test from "node:test";

import { GENERATE_DEFAULTS, GENERATE_RANGES } from "../../static/shared/protocol.js";
import { chatRequest, FIELDS, sentChars, turnOptions } from "../../static/turnbased/turn.js";

/** @import { NumberField } from "../../static/shared/settings-store.js" */
/** @import { MediaPart } from "../../types/chat.js" */
/** @import { Message } from "../../types/protocol.js" */

/** @type {Message[]} */
const TEXT = [{ role: "user", content: "Hi" }];
/** @type {Message[]} */
const VIDEO = [{ role: "user", content: [{ type: "video", data: "AA==", stack_frames: 1 }] }];

test("without any choice the server's defaults apply and nothing is spoken", () => {
  assert.deepEqual(turnOptions({}, TEXT), {
    prefill: { max_slice_nums: 1, omni_mode: false, use_tts_template: false, enable_thinking: false },
    generate: { generate_audio: false },
  });
});

test("a voice asks for the spoken prompt and brings its sample", () => {
  const { prefill, generate } = turnOptions({ hasVoice: true, voiceBase64: "VVVV" }, TEXT);
  assert.equal(prefill.use_tts_template, true);
  assert.equal(prefill.tts_ref_audio_base64, "VVVV");
  assert.equal(generate.generate_audio, true);
  assert.equal(turnOptions({ voiceBase64: "VVVV" }, TEXT).prefill.tts_ref_audio_base64, undefined);
});

test("a voice sample counts in the size of a request if it is sent", () => {
  /** @type {MediaPart} */ const part = { type: "image", data: "AAAA", mimeType: "", name: "" };
  assert.equal(sentChars({ hasVoice: true, voiceBase64: "VVVV" }, [part]), 8);
  assert.equal(sentChars({ voiceBase64: "VVVV" }, [part]), 4);
});

test("finer pictures are two slices, and one with a video", () => {
  assert.equal(turnOptions({ isHd: true }, TEXT).prefill.max_slice_nums, 2);
  const { prefill } = turnOptions({ isHd: true }, VIDEO);
  assert.deepEqual([prefill.max_slice_nums, prefill.omni_mode], [1, true]);
  assert.equal(turnOptions({}, [...VIDEO, ...TEXT]).prefill.omni_mode, true, "an earlier video counts");
});

test("what was chosen is sent under the server's names", () => {
  const chosen = { maxNewTokens: 12, lengthPenalty: 1.2, temperature: 0, topP: 0.5, topK: 40, isGreedy: true };
  assert.deepEqual(turnOptions(chosen, TEXT).generate, {
    generate_audio: false,
    max_new_tokens: 12,
    length_penalty: 1.2,
    temperature: 0,
    top_p: 0.5,
    top_k: 40,
    do_sample: false,
  });
});

test("every value of a setting is one the server takes", () => {
  /** @type {[keyof typeof FIELDS, keyof typeof GENERATE_RANGES][]} */
  const names = [
    ["maxNewTokens", "max_new_tokens"],
    ["lengthPenalty", "length_penalty"],
    ["temperature", "temperature"],
    ["topK", "top_k"],
  ];
  for (const [name, field] of names) {
    const own = /** @type {NumberField} */ (FIELDS[name]);
    const range = /** @type {{min: number, max: number}} */ (GENERATE_RANGES[field]);
    assert.ok(range.min <= own.min && own.max <= range.max, name);
    assert.equal(own.initial, GENERATE_DEFAULTS[field], name);
  }
});

test("the same turn over HTTP", () => {
  const options = turnOptions({ hasVoice: true, voiceBase64: "VVVV", isThinking: true }, VIDEO);
  assert.deepEqual(chatRequest(VIDEO, options), {
    messages: VIDEO,
    generation: {},
    image: { max_slice_nums: 1 },
    tts: { enabled: true, mode: "omni", ref_audio_data: "VVVV" },
    use_tts_template: true,
    omni_mode: true,
    enable_thinking: true,
  });
});
