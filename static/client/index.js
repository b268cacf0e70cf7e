/**
 * The client as one module, for node and other pages: the sessions of our own pages. Device.
 *
 * `scripts/build_pages.mjs` bundles it into one file, served at /static/client/index.js.
 */

import { DuplexSession } from "../duplex/lib/duplex-session.js";
import { HalfDuplexSession } from "../duplex/lib/half-duplex-session.js";
import { networkOf } from "../shared/network.js";
import { base64ToFloats, encodeWav } from "../shared/pcm.js";
import { LIMITS } from "../shared/protocol.js";
import { readWav as samplesOf } from "../turnbased/transfer.js";
import { StreamingChat } from "../turnbased/streaming-chat.js";

/** @import { SessionEvents } from "../../types/duplex.js" */
/** @import { SessionState } from "../duplex/lib/session-state.js" */

// Typedefs, unlike imports, are part of the npm package's types.
/** @typedef {import("../../types/duplex.js").DuplexSessionOptions} DuplexSessionOptions */
/** @typedef {import("../../types/duplex.js").DuplexStart} DuplexStart */
/** @typedef {import("../duplex/lib/half-duplex-session.js").HalfDuplexOptions} HalfDuplexOptions */
/** @typedef {import("../shared/server-messages.js").EndReason} EndReason */
/** @typedef {import("../turnbased/streaming-chat.js").StreamingChatOptions} StreamingChatOptions */
/** @typedef {SessionEvents<SessionState>} DuplexEvents */

export { DuplexSession, HalfDuplexSession, StreamingChat, base64ToFloats, encodeWav };

const RATE_HZ = LIMITS.INPUT_SAMPLE_RATE_HZ;
const PAUSE = new Set(["pausing", "paused"]);

/** A session that ended unexpectedly; `reason.code` says why. */
export class SessionEndedError extends Error {
  constructor(/** @type {EndReason} */ reason) {
    super(`${reason.message || "the session has ended"} (${reason.code})`);
    this.name = "SessionEndedError";
    this.reason = reason;
  }
}

/** A server. No connection is made before a session is started. */
export class Client {
  /** @param {string | URL} [url] URL of the gateway, up to its last "/"; default: the page's own server. */
  constructor(url = globalThis.location?.origin) {
    this.base = new URL(".", url).href;
  }

  /**
   * A call in which both may speak at once.
   * @param {Partial<DuplexSessionOptions> & {withPictures?: boolean}} [options] `withPictures` selects the queue.
   */
  duplex({ withPictures = false, ...options } = {}) {
    const idPrefix = withPictures ? "omni" : "adx";
    const appId = withPictures ? "omni" : "audio_duplex";
    return new DuplexSession({ idPrefix, ...networkOf("duplex", appId, this.base), ...options });
  }

  /** A call by turns: the server finds out when the user has finished. @param {Partial<HalfDuplexOptions>} [options] */
  halfDuplex(options = {}) {
    return new HalfDuplexSession({ ...networkOf("half_duplex", "half_duplex_audio", this.base), ...options });
  }

  /** A chat; each turn sends the whole history. @param {Partial<StreamingChatOptions>} [options] */
  chat(options = {}) {
    return new StreamingChat({ ...networkOf("streaming", "turnbased", this.base), ...options });
  }
}

/**
 * Plays a recording to the model: each second is sent once the previous one has been answered.
 * @param {DuplexSession} session Not started; closed at the end.
 * @param {Float32Array} samples Mono, 16 kHz.
 * @param {Partial<DuplexStart> & {pictures?: readonly string[], restS?: number}} [how] Pictures as Base64, one for each
 *   second; `restS` seconds of silence after the recording, for the answer.
 * @returns {AsyncGenerator<DuplexEvents["result"], void, void>}
 * @throws {SessionEndedError} the server ended it
 */
export async function* play(session, samples, { pictures = [], restS = 5, systemPrompt = "", prepare = {} } = {}) {
  try {
    const prepared = next(session, "prepared");
    session.start({ systemPrompt, prepare });
    await prepared;
    const seconds = Math.ceil(samples.length / RATE_HZ) + restS;
    for (let at = 0; at < seconds; at += 1) {
      while (PAUSE.has(session.state.phase)) await next(session, "state"); // what is sent now would be lost
      const second = new Float32Array(RATE_HZ);
      second.set(samples.subarray(at * RATE_HZ, (at + 1) * RATE_HZ));
      const answered = next(session, "result");
      if (pictures[at]) session.sendPicture(pictures[at]);
      session.sendChunk({ audio: second });
      const answer = await answered;
      if (answer) yield answer;
    }
  } finally {
    session.close();
  }
}

/**
 * @template {"prepared" | "result" | "state"} Type
 * @param {DuplexSession} session
 * @param {Type} type
 * @returns {Promise<DuplexEvents[Type] | null>} null where the socket was lost: what was sent may be lost
 */
function next(session, type) {
  return new Promise((resolve, reject) => {
    const offs = [
      session.on(type, (detail) => settle(() => resolve(detail))),
      session.on("warning", ({ code }) => code === "reconnected" && type === "result" && settle(() => resolve(null))),
      session.on("ended", ({ reason }) => settle(() => reject(new SessionEndedError(reason)))),
    ];
    const settle = (/** @type {() => void} */ end) => {
      for (const off of offs) off();
      end();
    };
  });
}

/**
 * Samples of a WAV file in the server's format: 16 bit, mono, 16 kHz.
 * @param {Uint8Array} file
 * @throws {RangeError} unsupported format
 */
export const readWav = (file) => samplesOf(file, RATE_HZ);
