/** Turn-based chat. */

import { byId, mountNotice, on, setText, toast, toastProblem } from "../shared/lit.js";
import { onLangChange, t } from "../shared/texts.js";
import { late, loadInSpareTime } from "../shared/async.js";
import { mountLateHelp } from "../shared/late-parts.js";
import { networkOf } from "../shared/network.js";
import { startPage } from "../shared/page.js";
import { addRecent } from "../shared/memory.js";
import { bindSettings, mountSettingsDrawer } from "../shared/settings-form.js";
import { SettingsStore } from "../shared/settings-store.js";
import { voiceLimits, voiceToWire } from "../shared/prompt.js";
import { mountAnswerVoice, mountInstructions, mountLateSound } from "../turnbased/settings-dialog.js";
import { mountChatNotes, mountKeptChats, mountUpload, mountWelcome } from "../turnbased/kept-chats.js";
import { ChatSession } from "../turnbased/chat-session.js";
import { chatSettings, FIELDS, fromPreset, sentChars, SETTINGS_KEY } from "../turnbased/turn.js";
import { mountComposer } from "../turnbased/composer.js";
import { mediaLimits } from "../turnbased/conversation.js";
import { forgetfulHistory, openDraft, openHistory } from "../turnbased/history-store.js";
import { loadViews, mountMessageList } from "../turnbased/message-list.js";
import { StreamingChat } from "../turnbased/streaming-chat.js";

/** @import { ChatBody } from "../turnbased/chat-session.js" */
/** @import { HistoryStore } from "../turnbased/history-store.js" */

const APP = "turnbased";
const DEFAULT_KV_TOKENS = 8_192;
const STATUS_INTERVAL_MS = 3_000; // short, so that the estimated wait is up to date while typing

/** Without browser storage it stores nothing. @returns {Promise<HistoryStore<ChatBody>>} */
const openStore = async () => openHistory(indexedDB);
const [page, store] = await Promise.all([
  startPage({ titleKey: "app.turnbased.title", statusIntervalMs: STATUS_INTERVAL_MS }),
  openStore().catch(() => forgetfulHistory()),
]);
const limits = mediaLimits(page.defaults?.limits);
const settings = new SettingsStore(SETTINGS_KEY, FIELDS);

/** @type {WebSocket | null} */ let socket = null;
let withdrawUndo = () => {};
const chat = new StreamingChat({ ...networkOf("streaming", APP), socketFactory: (url) => (socket = new WebSocket(url)) });
const session = new ChatSession({
  chat,
  store,
  settings: () => chatSettings(settings, voiceBase64()),
  prepared: () => instructions.ready(),
});
const upload = mountUpload(byId("upload"), () => socket);

const notice = mountNotice(byId("notice"));
const libraryNote = mountNotice(byId("library-note"));
const notes = mountChatNotes({
  session,
  maxKvTokens: page.defaults?.max_kv_tokens ?? DEFAULT_KV_TOKENS,
  onNewChat: () => kept.begin(),
});
const voice = mountAnswerVoice(byId("hush", HTMLButtonElement), {
  session,
  delayMs: page.defaults?.playback_delay_ms ?? 0,
  onSound: (isSounding) => void (isSounding && pauseSounds()),
});
const sound = mountLateSound({ limits: voiceLimits(page.defaults), prefix: APP });
const instructions = mountInstructions({
  session,
  limits: voiceLimits(page.defaults),
  onPreset: (values) => settings.applyPreset(fromPreset(values)),
});
const draft = openDraft(store);
const composer = mountComposer(byId("composer"), {
  limits,
  sentChars: () => sentChars(chatSettings(settings, voiceBase64()), session.media),
  picturesPerS: () => Number(settings.get("picturesPerS")),
  microphoneId: () => sound.microphoneId || undefined,
  sendsRecording: () => settings.get("sendsRecording"),
  onSend: (text, media) => start(() => session.ask(text, media)),
  onStop: () => {
    session.stop();
    voice.silence();
  },
  onRecord: () => {
    notice.clear();
    voice.silence();
    pauseSounds();
  },
  onProblem: (code) => (code === "too_short" ? void toast(t("chat.record_short")) : notice.show(code)),
  onDraft: draft.keep,
});
const list = mountMessageList(byId("scroll"), {
  session,
  spoken: byId("spoken"),
  toEnd: byId("to-end", HTMLButtonElement),
  onPlain: () => libraryNote.show("missing_library", { kind: "caution" }),
  actions: {
    askInstead: (id, text, media) => {
      if (start(() => session.askInstead(id, text, media))) offerUndo("chat.replaced");
    },
    answerAgain: (id) => void start(() => (session.answerAgain(id), true)),
    remove: (id) => {
      session.remove(id);
      offerUndo("chat.deleted");
    },
  },
});
const showModel = mountWelcome({ session, onSuggest: (text) => (composer.write(text), composer.focus()) });
const kept = mountKeptChats({
  session,
  store,
  onBegin: () => {
    instructions.giveToNew();
    composer.focus();
  },
  onOpen: list.follow,
});
const loadTransfer = late(
  () => import("../turnbased/transfer-dialog.js"),
  ({ mountTransfer }) => mountTransfer({ session, onImported: () => void kept.refresh() }),
);
for (const [action, run] of /** @type {const} */ ([
  ["transfer", "open"],
  ["import", "chooseFile"],
])) {
  for (const button of document.querySelectorAll(`[data-action=${action}]`)) {
    on(button, "click", () => loadTransfer().then((transfer) => transfer[run](), toastProblem));
  }
}
mountLateHelp("turnbased");
mountSettingsDrawer(byId("settings", HTMLDialogElement), byId("open-settings", HTMLButtonElement), settings, sound.load);
bindSettings(byId("composer"), settings);

function pauseSounds() {
  document.dispatchEvent(new Event("pausesounds"));
}

/** @returns {string | null} the output voice; null: the server's default */
function voiceBase64() {
  const chosen = sound.voice ?? instructions.voice;
  return chosen ? voiceToWire(chosen) : null;
}

/** Starts a turn in a user gesture. @param {() => boolean} ask */
function start(ask) {
  notice.clear();
  voice.silence();
  pauseSounds();
  notes.unlock();
  if (settings.get("hasVoice")) void voice.unlock();
  const isAsked = ask();
  if (isAsked) {
    withdrawUndo();
    list.follow();
    upload.begin();
  }
  return isAsked;
}

function offerUndo(/** @type {string} */ key) {
  withdrawUndo(); // only the last change can be undone
  if (!session.canUndo) return;
  withdrawUndo = toast(t(key), { action: { label: t("chat.undo"), run: () => session.undo() }, shownMs: 10_000 });
}

const drawTitle = () => setText(byId("chat-title"), session.head.title || t("chat.untitled"));
session.on("change", () => {
  composer.setBusy(session.isBusy);
  if (!session.isBusy) upload.end();
  drawTitle();
});
session.on("heads", drawTitle);
session.on("opened", () => (notice.clear(), withdrawUndo()));
session.on("answered", ({ message, isPlayed }) => {
  const { figures, voice: spoken } = message.extra;
  if (figures?.recordingSessionId) addRecent(figures.recordingSessionId, APP);
  if (!isPlayed && message.status === "done" && spoken) list.play(message.id).catch(toastProblem);
});
session.on("warning", ({ code }) => notice.show(code, { kind: "caution" }));
session.on("problem", () => toast(t("chat.not_kept")));
onLangChange(drawTitle);
page.onStatus(({ status }) => {
  notes.showStatus(status);
  showModel(status?.model);
});

await kept.restore();
const { text, media } = await draft.read();
composer.fill(text, media);
drawTitle();
page.ready();
loadInSpareTime(instructions.ready, loadViews, loadTransfer);
