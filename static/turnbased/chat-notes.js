/** Notes around the text box: welcome, estimated wait, queue, upload progress, context. */

import { mountQueueBanner } from "../duplex/ui/call-notes.js";
import { byId, html, icon, mountView, nothing, setText, textButton } from "../shared/lit.js";
import { formatBytes, formatClock, formatNumber, onLangChange, t } from "../shared/texts.js";
import { suggestionsOf } from "../shared/notice.js";
import { claimTab } from "../shared/tab-state.js";
import { lastTokenStats } from "./conversation.js";
import { contextShare, estimateWaitS } from "./turn.js";

/** @import { ChatSession } from "./chat-session.js" */

const NEARLY_FULL = 0.85; // of the model's context

/** @param {{session: ChatSession, maxKvTokens: number, onNewChat: () => void}} options */
export function mountChatNotes({ session, maxKvTokens, onNewChat }) {
  const queue = mountQueueBanner(byId("queue", HTMLElement), { onCancel: () => session.stop() });
  const memory = mountMemoryNote(byId("memory", HTMLElement), { session, maxKvTokens, onNewChat });
  const upload = mountUploadNote(byId("upload", HTMLElement));
  const wait = byId("wait", HTMLElement);
  const tab = claimTab();
  let waitS = 0;
  const draw = () => {
    wait.hidden = waitS <= 0 || session.isBusy;
    setText(wait, t("chat.wait_estimate", { time: formatClock(waitS) }));
  };
  session.on("change", () => {
    const place = session.turn?.queue ?? null;
    queue.update(place);
    if (place) tab.show("queued", `(${place.position}) `);
    else tab.show("idle");
    memory.draw();
    draw();
  });
  onLangChange(() => {
    tab.setTitle(document.title);
    draw();
  });

  return {
    /** @param {Http.ServiceStatus | null} status */
    showStatus(status) {
      waitS = status ? estimateWaitS(/** @type {Parameters<typeof estimateWaitS>[0]} */ (/** @type {unknown} */ (status))) : 0;
      draw();
    },
    showUpload: upload.update,
    unlock: queue.unlock,
  };
}

/** @param {HTMLElement} el @param {{session: ChatSession, maxKvTokens: number, onNewChat: () => void}} options */
function mountMemoryNote(el, { session, maxKvTokens, onNewChat }) {
  const draw = mountView(el, () => {
    const stats = lastTokenStats(session.conversation);
    const share = contextShare(stats, maxKvTokens);
    el.hidden = share < NEARLY_FULL;
    const words = t("chat.memory", {
      used: formatNumber(stats?.total_tokens ?? 0),
      most: formatNumber(maxKvTokens),
      percent: formatNumber(share * 100),
    });
    return html`${icon("warning")}
      <p class="small">${words}</p>
      ${textButton(t("chat.new"), onNewChat)}`;
  });
  return { draw };
}

/** @param {HTMLElement} el */
function mountUploadNote(el) {
  /** @type {{sentBytes: number, totalBytes: number} | null} */ let latest = null;
  const draw = mountView(el, () => {
    el.hidden = latest === null;
    if (!latest) return nothing;
    const { sentBytes, totalBytes } = latest;
    const words = t("chat.sending_bytes", { sent: formatBytes(sentBytes), total: formatBytes(totalBytes) });
    return html`<span class="small">${words}</span
      ><progress max="1" .value=${sentBytes / totalBytes} aria-label=${t("chat.sending")}></progress>`;
  });
  return {
    /** @param {{sentBytes: number, totalBytes: number} | null} done */
    update(done) {
      latest = done;
      draw();
    },
  };
}

// Upload progress of a large message.

const INTERVAL_MS = 150;
const WORTH_BYTES = 256 * 1024; // less is sent too fast to be seen

/**
 * Watches a socket's buffer until it is empty.
 * @param {() => Pick<WebSocket, "bufferedAmount"> | null} socket
 * @param {(done: {sentBytes: number, totalBytes: number} | null) => void} listener null: nothing is being sent
 */
export function watchUpload(socket, listener) {
  /** @type {ReturnType<typeof setInterval> | undefined} */ let timer;
  let totalBytes = 0;
  const end = () => {
    if (timer === undefined) return;
    clearInterval(timer);
    timer = undefined;
    listener(null);
  };
  const look = () => {
    const waiting = socket()?.bufferedAmount ?? 0;
    totalBytes = Math.max(totalBytes, waiting);
    if (totalBytes < WORTH_BYTES) return;
    if (waiting > 0) listener({ sentBytes: totalBytes - waiting, totalBytes });
    else end();
  };
  return {
    begin() {
      end();
      totalBytes = 0;
      timer = setInterval(look, INTERVAL_MS);
      look();
    },
    end,
  };
}

// An empty conversation: welcome, note about a demonstration model, suggestions.

const SUGGESTIONS = ["explain", "write", "picture"];

/** @param {{session: ChatSession, onSuggest: (text: string) => void}} options */
export function mountWelcome({ session, onSuggest }) {
  const el = byId("welcome", HTMLElement);
  const note = byId("demo-note", HTMLElement);
  /** @type {Http.ModelFacts | null} */ let model = null;
  const follow = () => {
    el.hidden = session.conversation.messages.some(({ role }) => role !== "system");
  };
  const draw = mountView(byId("suggestions", HTMLElement), () => {
    note.hidden = !model?.is_demonstration;
    setText(note, model?.is_demonstration ? t(`model_note.${model.kind}`, { name: model.name }) : "");
    const known = suggestionsOf(model);
    const words = known.length > 0 ? known : SUGGESTIONS.map((one) => t(`chat.try_${one}`));
    return words.map((one) => textButton(one, () => onSuggest(one), { style: "pill" }));
  });
  session.on("change", follow);
  follow();
  return {
    /** @param {Http.ModelFacts | null | undefined} next */
    showModel(next) {
      model = next ?? null;
      draw();
    },
  };
}
