/** Answers that are stopped on the way, against a system slow enough to be stopped. */

import assert from "node:assert/strict";

import { HalfDuplexSession } from "../../../static/duplex/lib/half-duplex-session.js";
import { StreamingChat } from "../../../static/turnbased/streaming-chat.js";
import { turnOptions } from "../../../static/turnbased/turn.js";
import { Microphone, SilentPlayer, heard, report, networkTo } from "./live-tools.mjs";

const settings = { hasVoice: true, maxNewTokens: 2_000 };

async function stopsATurn() {
  const chat = new StreamingChat({ ...networkTo("streaming") });
  const history = [{ role: "user", content: "Tell me a long story." }];
  const answer = chat.send(history, turnOptions(settings, history));
  await heard(chat, "text");
  const askedMs = performance.now();
  chat.stop();
  const stopped = await answer;
  const stopMs = performance.now() - askedMs;
  assert.ok(stopped.isStopped && stopped.text.length > 0);
  history.push({ role: "assistant", content: stopped.text }, { role: "user", content: "Go on." });
  const next = await chat.send(history, turnOptions({ ...settings, maxNewTokens: 1 }, history));
  assert.ok(next.isCacheHit, "the stopped answer is in the cache as it was streamed");
  chat.close();
  return { stopMs: Math.round(stopMs), cachedTokens: next.cachedTokens };
}

async function stopsAnAnswer() {
  const player = new SilentPlayer();
  const session = new HalfDuplexSession({ ...networkTo("half_duplex"), isDrained: player.isDrained });
  session.on("speak", ({ audioBase64, sampleRateHz }) => player.play(audioBase64, sampleRateHz));
  session.on("flush", () => player.flush());
  session.start({ system_prompt: "You are a helpful assistant.", config: { generation: { max_new_tokens: 500 } } });
  await heard(session, "prepared");
  const microphone = new Microphone(session);
  const listening = microphone.run();
  microphone.say("question_1.wav");
  await heard(session, "speak");
  const askedMs = performance.now();
  session.interrupt();
  assert.equal(session.state.activity, "interrupted");
  assert.ok(player.isDrained());
  const played = player.chunks;
  await heard(session, "turnend");
  const stopMs = performance.now() - askedMs;
  assert.ok(session.state.turns.at(-1)?.isInterrupted);
  assert.equal(player.chunks, played, "nothing stale is played");
  await heard(session, "state", (state) => state.activity === "listening");
  session.stop();
  const { reason } = await heard(session, "ended");
  assert.equal(reason.code, "stopped");
  await listening;
  return { stopMs: Math.round(stopMs) };
}

report({ turn: await stopsATurn(), answer: await stopsAnAnswer() });
