/** Export, import and sharing of a conversation. */

import { byId, closeByClick, on, toast, toastProblem } from "../shared/lit.js";
import { codeOf, hasText, t } from "../shared/texts.js";
import { mountOfferShare } from "../shared/late-parts.js";
import { loadMsgpack } from "../shared/libraries.js";
import { lastFigure } from "./conversation.js";
import { fromFile, toJson, toMsgpack } from "./transfer.js";

/** @import { ChatSession } from "./chat-session.js" */

const APP = "turnbased";
const UNSAFE_IN_NAMES = /[\\/:*?"<>|\s]+/g;
const LONGEST_NAME = 40;

export function mountTransfer(/** @type {{session: ChatSession, onImported: () => void}} */ { session, onImported }) {
  const dialog = byId("transfer", HTMLDialogElement);
  const offerShare = mountOfferShare(byId("share"));
  /** @type {string | null | undefined} */ let offeredId;
  const file = byId("import-file", HTMLInputElement);
  const json = byId("export-json", HTMLButtonElement);
  const packed = byId("export-msgpack", HTMLButtonElement);

  const save = async (/** @type {string} */ suffix, /** @type {() => Promise<BlobPart>} */ make, /** @type {string} */ type) => {
    const title = session.head.title.replace(UNSAFE_IN_NAMES, "-").slice(0, LONGEST_NAME) || "chat";
    try {
      download(new Blob([await make()], { type }), `${title}.${suffix}`);
      dialog.close();
    } catch (error) {
      toastProblem(error);
    }
  };
  const asJson = () => toJson(session.conversation, session.head.title, new Date());
  const asMsgpack = async () => toMsgpack(session.conversation, await loadMsgpack());
  const open = () => {
    const recordingId = lastFigure(session.conversation, "recordingSessionId");
    const isEmpty = !session.conversation.messages.some(({ role }) => role !== "system");
    json.disabled = isEmpty;
    packed.disabled = isEmpty;
    const wantedId = isEmpty ? undefined : recordingId;
    if (wantedId !== offeredId) {
      offerShare(wantedId === undefined ? null : { recordingId: wantedId, appType: APP }).catch((error) => {
        offeredId = undefined; // the next opening tries again
        toastProblem(error);
      });
    }
    offeredId = wantedId;
    dialog.showModal();
  };
  closeByClick(dialog);
  on(json, "click", () => void save("json", asJson, "application/json"));
  on(packed, "click", () => void save("msgpack", asMsgpack, "application/vnd.msgpack"));
  on(file, "change", async () => {
    const [chosen] = file.files ?? [];
    file.value = "";
    if (!chosen) return;
    try {
      const bytes = new Uint8Array(await chosen.arrayBuffer());
      const { conversation, title } = await fromFile(bytes, Date.now(), loadMsgpack);
      await session.adopt(conversation, title);
      dialog.close();
      toast(t("chat.imported"));
      onImported();
    } catch (error) {
      const key = `chat.import_${codeOf(error, "not_a_chat")}`;
      if (hasText(key)) toast(t(key));
      else toastProblem(error);
    }
  });
  return { open, chooseFile: () => file.click() };
}

function download(/** @type {Blob} */ file, /** @type {string} */ name) {
  const url = URL.createObjectURL(file);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser reads it after the click event
}
