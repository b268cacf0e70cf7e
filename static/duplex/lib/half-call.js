// @ts-check
/** A half-duplex call: what a call has, while the session keeps the microphone back. Device: no DOM. */

import { late } from "../../shared/late.js";
import { pageVisibility } from "../../shared/page-visibility.js";
import { Call, loadCallSound } from "./call.js";
import { initialHalfState } from "./half-duplex-state.js";

/** @import { CallOptions } from "./duplex-types.js" */
/** @import { HalfDuplexOptions, HalfDuplexSession } from "./half-duplex-session.js" */

/** Half a second at 16 kHz. Source: docs/specification/service.md#7.6. */
export const HALF_CHUNK_SAMPLES = 8_000;

const loadSession = late(async () => {
  const [{ HalfDuplexSession }, { networkOf }] = await Promise.all([
    import("./half-duplex-session.js"),
    import("../../shared/network.js"),
  ]);
  return { HalfDuplexSession, networkOf };
});
/** What the first call needs to begin; a page may have it come earlier. */
export const loadHalfCall = () => Promise.all([loadSession(), loadCallSound()]);

/** @extends {Call<HalfDuplexSession>} */
export class HalfCall extends Call {
  #options;

  /** @param {CallOptions & {session?: Partial<HalfDuplexOptions>}} options */
  constructor(options) {
    super(options);
    this.#options = options.session;
  }

  /** Seconds left before the server ends the session; null unless it runs. */
  get remainingS() {
    return this.session?.remainingS ?? null;
  }

  /** @override @protected */
  initialState() {
    return initialHalfState();
  }

  /** @param {() => boolean} isDrained @override @protected */
  async makeSession(isDrained) {
    const { HalfDuplexSession, networkOf } = await loadSession();
    return new HalfDuplexSession({
      ...networkOf("half_duplex", "half_duplex_audio"),
      visibility: pageVisibility(),
      ...this.#options,
      isDrained,
    });
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
