/** A duplex session on fake sockets, with what it emitted. */

import { DuplexSession } from "../../../static/duplex/lib/duplex-session.js";
import { PREPARED, QUEUE_DONE } from "./duplex-messages.js";
import { FakeClock, FakePage, collect, fakeSockets } from "./socket.js";

/** @import { DuplexSessionOptions } from "../../../types/duplex.js" */
/** @import { ServerProbe } from "../../../static/shared/server-messages.js" */

export const START = { systemPrompt: "Be kind.", prepare: { config: { length_penalty: 1.05 } } };

/** @param {Partial<DuplexSessionOptions>} [options] */
export function stage(options = {}) {
  const sockets = fakeSockets();
  const clock = new FakeClock();
  const page = new FakePage();
  const player = { isDrained: true };
  /** @type {ServerProbe} */
  const server = { isOnline: true, isReachable: true, isReady: true, isAppEnabled: true };
  const session = new DuplexSession({
    idPrefix: "adx",
    url: (id) => `ws://test/ws/duplex/${id}`,
    socketFactory: sockets.factory,
    clock,
    visibility: page.source,
    isDrained: () => player.isDrained,
    probe: async () => server,
    ...options,
  });
  const types = ["queue", "queuedone", "prepared", "speak", "turnend", "flush", "result", "warning", "ended"];
  const events = collect(session, ...types);
  const ended = () => events.filter(({ type }) => type === "ended").map(({ detail }) => detail.reason);
  return { session, sockets, clock, page, player, server, events, ended };
}

/** @param {Partial<DuplexSessionOptions>} [options] */
export function running(options) {
  const scene = stage(options);
  scene.session.start(START);
  const socket = scene.sockets.last();
  socket.open();
  socket.hear(QUEUE_DONE, PREPARED);
  scene.events.length = 0;
  return { ...scene, socket };
}
