// @ts-check
/** A half-duplex call: what a call has, while the session keeps the microphone back. Pure. */

import { Call } from "./call.js";
import { initialHalfState } from "./session-state.js";

/** @import { CallOptions } from "./duplex-types.js" */
/** @import { HalfDuplexSession } from "./half-duplex-session.js" */

/** Half a second at 16 kHz. Source: docs/specification/service.md#7.6. */
export const HALF_CHUNK_SAMPLES = 8_000;

/** @extends {Call<HalfDuplexSession>} */
export class HalfCall extends Call {
  #getMaxSessionS;

  /** @param {CallOptions<HalfDuplexSession> & {getMaxSessionS?: () => number}} options */
  constructor(options) {
    super(options);
    this.#getMaxSessionS = options.getMaxSessionS ?? (() => 0);
  }

  /** Seconds left before the server ends the session; null unless it runs. */
  get remainingS() {
    return this.session?.remainingS ?? null;
  }

  /** @override @protected */
  initialState() {
    return initialHalfState();
  }

  /** @override @protected */
  sessionOptions() {
    return { getMaxSessionS: this.#getMaxSessionS };
  }

  /** @override @protected */
  onStart() {
    this.onMuted(false);
  }

  /** @param {boolean} isMuted @override @protected */
  onMuted(isMuted) {
    this.session?.setMicMuted(isMuted);
  }

  /** @param {Float32Array} audio @override @protected */
  send(audio) {
    return this.session?.sendChunk({ audio }) === "sent";
  }
}
