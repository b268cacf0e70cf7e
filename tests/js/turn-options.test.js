import assert from "node:assert/strict";
import test from "node:test";

import { chatRequest, turnOptions } from "../../static/turnbased/turn.js";

/** @import { Message } from "../../types/protocol.js" */

/** @type {Message[]} */
const TEXT = [{ role: "user", content: "Hi" }];
/** @type {Message[]} */
const VIDEO = [{ role: "user", content: [{ type: "video", data: "AA==", stack_frames: 1 }] }];

test("without any choice the server's defaults are sent and nothing is spoken", () => {
  assert.deepEqual(turnOptions({}, TEXT), {
    prefill: { max_slice_nums: 1, omni_mode: false, use_tts_template: false, enable_thinking: false },
    generate: { generate_audio: false, max_new_tokens: 256, length_penalty: 1.1, temperature: 0.7 },
  });
});

test("a voice asks for the spoken prompt and brings its sample", () => {
  const { prefill, generate } = turnOptions({ hasVoice: true, voiceBase64: "VVVV" }, TEXT);
  assert.equal(prefill.use_tts_template, true);
  assert.equal(prefill.tts_ref_audio_base64, "VVVV");
  assert.equal(generate.generate_audio, true);
  assert.equal(turnOptions({ voiceBase64: "VVVV" }, TEXT).prefill.tts_ref_audio_base64, undefined);
});

test("finer pictures are two slices, and one with a video", () => {
  assert.equal(turnOptions({ isHd: true }, TEXT).prefill.max_slice_nums, 2);
  const { prefill } = turnOptions({ isHd: true }, VIDEO);
  assert.deepEqual([prefill.max_slice_nums, prefill.omni_mode], [1, true]);
  assert.equal(turnOptions({}, [...VIDEO, ...TEXT]).prefill.omni_mode, true, "an earlier video counts");
});

test("numbers stay within what the server takes", () => {
  const wild = turnOptions({ maxNewTokens: 99_999, lengthPenalty: 0, temperature: 9, topP: 3, topK: -4 }, TEXT);
  assert.deepEqual(wild.generate, {
    generate_audio: false,
    max_new_tokens: 4_096,
    length_penalty: 0.1,
    temperature: 2,
    top_p: 1,
    top_k: 0,
  });
  const none = turnOptions({ maxNewTokens: Number.NaN, topP: 0 }, TEXT).generate;
  assert.deepEqual([none.max_new_tokens, none.top_p], [256, undefined]);
  assert.equal(turnOptions({ maxNewTokens: 12.6 }, TEXT).generate.max_new_tokens, 13);
  assert.equal(turnOptions({ isGreedy: true }, TEXT).generate.do_sample, false);
});

test("the same turn over HTTP", () => {
  const options = turnOptions({ hasVoice: true, voiceBase64: "VVVV", isThinking: true }, VIDEO);
  assert.deepEqual(chatRequest(VIDEO, options), {
    messages: VIDEO,
    generation: { max_new_tokens: 256, length_penalty: 1.1, temperature: 0.7 },
    image: { max_slice_nums: 1 },
    tts: { enabled: true, mode: "omni", ref_audio_data: "VVVV" },
    use_tts_template: true,
    omni_mode: true,
    enable_thinking: true,
  });
});
