// @ts-check
/**
 * What stands above a recording: what it is, how long, how it ended, and what can be done with it.
 */

import { sendJson } from "../shared/api.js";
import { appTitle } from "../shared/app-nav.js";
import { copyText } from "../shared/copy-text.js";
import { byId, fill, h, icon, on, setText } from "../shared/dom.js";
import { formatBytes, formatClock, formatDateTime } from "../shared/formats.js";
import { hasText, onLangChange, t } from "../shared/i18n.js";
import { ownerHeaders } from "../shared/own-recordings.js";
import { linkOf } from "../shared/share-link.js";
import { toast } from "../shared/toast.js";
import { appOf } from "./recording-types.js";
import { pathOf } from "./viewer-source.js";

/** @typedef {import("./recording-types.js").Meta} Meta */

const LINK_SHOWN_MS = 20_000;

/**
 * @param {string} recordingId
 * @param {{onDeleted: () => void, onProblem: (error: unknown) => void}} options
 */
export function mountHead(recordingId, { onDeleted, onProblem }) {
  const [title, facts, actions] = ["title", "facts", "actions"].map((id) => byId(id, HTMLElement));
  const dialog = byId("delete-ask", HTMLDialogElement);
  const download = h("a", {
    class: "button",
    href: pathOf(recordingId, "download"),
    download: true,
    dataset: { action: "download" },
  });
  const copy = h("button", { type: "button", class: "button", dataset: { action: "copy-link" } });
  const remove = h("button", { type: "button", class: "button button-danger", dataset: { action: "delete" }, hidden: true });
  fill(actions, download, copy, remove);
  /** @type {Meta | null} */
  let meta = null;

  const draw = () => {
    fill(download, icon("download"), t("viewer.download"));
    fill(copy, icon("link"), t("viewer.copy_link"));
    fill(remove, icon("trash"), t("common.delete"));
    if (!meta) return;
    const app = appTitle(appOf(meta.app_type), meta.app_type);
    setText(title, app);
    title.removeAttribute("data-t"); // it has its own words now
    document.title = `${app} · ${formatDateTime(meta.created_at)} · MiniCPM-o live`;
    fill(
      facts,
      factTexts(meta).map(([name, text]) => h("li", { class: "badge number", dataset: { fact: name } }, text)),
    );
  };
  on(copy, "click", () => void copyLink(linkOf(recordingId)));
  on(remove, "click", () => dialog.showModal());
  on(dialog, "close", () => {
    if (dialog.returnValue !== "yes") return;
    dialog.returnValue = "";
    const headers = ownerHeaders(localStorage, recordingId);
    sendJson("DELETE", pathOf(recordingId), undefined, { headers }).then(onDeleted, onProblem);
  });
  onLangChange(draw);
  draw();
  return {
    /** @param {Meta} latest */
    update(latest) {
      meta = latest;
      draw();
    },
    /** @param {boolean} isAllowed the recording is one's own, or an administrator looks at it */
    allow(isAllowed) {
      remove.hidden = !isAllowed;
    },
  };
}

/** @param {Meta} meta @returns {[string, string][]} */
function factTexts({
  created_at: createdAt,
  duration_s: durationS,
  end_reason: endReason,
  model,
  worker_id: worker,
  size_bytes: bytes,
  status,
}) {
  /** @type {[string, string][]} */
  const known = [["date", formatDateTime(createdAt)]];
  if (durationS !== undefined) known.push(["duration", t("viewer.lasted", { time: formatClock(durationS) })]);
  if (endReason && hasText(`viewer.end_${endReason}`)) known.push(["end", t(`viewer.end_${endReason}`)]);
  if (status === "failed") known.push(["status", t("viewer.status_failed")]);
  if (model) known.push(["model", model]);
  if (worker) known.push(["worker", worker]);
  if (bytes !== undefined) known.push(["size", formatBytes(bytes)]);
  return known;
}

/** @param {string} url */
export async function copyLink(url) {
  const isCopied = await copyText(url);
  if (isCopied) toast(t("share.copied"));
  else toast(url, { shownMs: LINK_SHOWN_MS }); // copying was refused: show it instead
}
