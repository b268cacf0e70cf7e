// @ts-check
/**
 * What stands above a recording: what it is, how long, how it ended, and what can be done with it.
 */

import { sendJson } from "../shared/api.js";
import { appTitle } from "../shared/app-nav.js";
import { copyText } from "../shared/copy-text.js";
import { byId, on, setText } from "../shared/dom.js";
import { formatBytes, formatClock, formatDateTime } from "../shared/formats.js";
import { hasText, onLangChange, t } from "../shared/i18n.js";
import { html, icon, render } from "../shared/lit.js";
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
  /** @type {Meta | null} */
  let meta = null;
  let isAllowed = false;

  const buttons = () =>
    html`<a class="button" href=${pathOf(recordingId, "download")} download data-action="download"
        >${icon("download")}${t("viewer.download")}</a
      ><button type="button" class="button" data-action="copy-link" @click=${() => void copyLink(linkOf(recordingId))}>
        ${icon("link")}${t("viewer.copy_link")}</button
      ><button
        type="button"
        class="button button-danger"
        data-action="delete"
        ?hidden=${!isAllowed}
        @click=${() => dialog.showModal()}
      >
        ${icon("trash")}${t("common.delete")}
      </button>`;
  const draw = () => {
    render(buttons(), actions);
    if (!meta) return;
    const app = appTitle(appOf(meta.app_type), meta.app_type);
    setText(title, app);
    title.removeAttribute("data-t"); // it has its own words now
    document.title = `${app} · ${formatDateTime(meta.created_at)} · MiniCPM-o live`;
    const texts = factTexts(meta);
    render(
      texts.map(([name, text]) => html`<li class="badge number" data-fact=${name}>${text}</li>`),
      facts,
    );
  };
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
    /** @param {boolean} wish the recording is one's own, or an administrator looks at it */
    allow(wish) {
      isAllowed = wish;
      draw();
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
