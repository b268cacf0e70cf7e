/** Device check: summary, steps, cards and report. */

import { byId, find, html, icon, mountView, nothing, noticeBox, on, render, setText, toast } from "../shared/lit.js";
import { formatDateTime, onLangChange, phraseText, t } from "../shared/texts.js";
import { CHECKS, reportText, Results, verdictOf } from "../check/results.js";
import { mountBrowserCheck, mountCameraCheck, mountEchoCheck, mountServerCheck, mountSpeakerCheck } from "../check/cards.js";
import { mountMicrophoneCheck } from "../check/microphone-card.js";
import { chooseStart } from "../shared/apps.js";
import { nextTask } from "../shared/async.js";
import { startPage } from "../shared/page.js";

/** @import { CheckId, Result } from "../check/results.js" */
/** @import { StatusReport } from "../shared/texts.js" */

const STATE_ICONS = { pending: "clock", running: "clock", good: "check", caution: "info", bad: "warning" };

const writeReport = (/** @type {Results} */ results) =>
  reportText(results, [
    [t("check.report_time"), formatDateTime(new Date())],
    [t("check.report_page"), location.origin],
    [t("check.report_browser"), navigator.userAgent],
  ]);

const steps = (/** @type {Results} */ results) =>
  CHECKS.map((id) => {
    const { state } = results.get(id);
    return html`<li>
      <a class="step" href="#${id}" data-state=${state}
        >${icon(STATE_ICONS[state])}<span>${t(`check.${id}`)}</span
        ><span class="visually-hidden">${t(`check.state_${state}`)}</span></a
      >
    </li>`;
  });

/** Label of the main button, which after the microphone starts the speaker. @param {Results} results */
function beginWords(results) {
  const { kind, done, first } = verdictOf(results);
  const isGuiding = kind === "pending" && done > 0 && first === "speaker";
  const label = isGuiding ? t("check.next_step", { check: t("check.speaker") }) : t("check.begin");
  return html`${icon(isGuiding ? "play" : "mic")}<span>${label}</span>`;
}

function mountVerdict(/** @type {Results} */ results) {
  const box = byId("verdict");
  const text = byId("verdict-text");
  const next = byId("verdict-next");
  const panel = byId("report-panel", HTMLDetailsElement);
  const report = byId("report");
  const begin = byId("begin", HTMLButtonElement);
  const talk = byId("talk", HTMLAnchorElement);
  let canTalk = false;
  const drawSteps = mountView(byId("steps"), () => steps(results));
  const drawBegin = mountView(begin, () => beginWords(results));
  const drawReport = () => {
    if (!panel.open) return; // reading the selection forces a layout
    // A selected report is not redrawn, so that it can be copied.
    const marked = getSelection();
    const isMarked = marked !== null && !marked.isCollapsed && marked.containsNode(report, true);
    if (!isMarked) setText(report, writeReport(results));
  };
  const draw = () => {
    const verdict = verdictOf(results);
    const { kind, done, total, first } = verdict;
    const isReady = kind === "good" || kind === "caution";
    box.dataset.kind = kind;
    setText(text, t(`check.verdict_${kind}`, { done, total }));
    setText(next, first ? t(`check.verdict_${kind}_next`, { check: t(`check.${first}`) }) : "");
    talk.hidden = !isReady || !canTalk;
    begin.hidden = !talk.hidden;
    drawBegin();
    drawSteps();
    drawReport();
  };
  on(byId("copy-report", HTMLButtonElement), "click", async () => {
    try {
      await navigator.clipboard.writeText(writeReport(results));
      toast(t("check.report_copied"));
    } catch {
      // Rejected, or the page is not secure: the text is selected for manual copying.
      panel.open = true;
      drawReport();
      report.focus();
      getSelection()?.selectAllChildren(report);
      toast(t("check.report_by_hand"));
    }
  });
  on(panel, "toggle", drawReport);
  on(results, "change", draw);
  onLangChange(draw);
  draw();
  /** @param {string} route of the call page; "" if there is none */
  return (route) => {
    canTalk = route !== "";
    if (canTalk) talk.href = route;
    draw();
  };
}

// Common parts of the cards: badge and finding.

function finding(/** @type {Result} */ { state, text, next, detail }) {
  if (!text || state === "pending") return nothing;
  const isRunning = state === "running";
  const sign = isRunning ? html`<span class="spinner" aria-hidden="true"></span>` : icon(STATE_ICONS[state]);
  const words = { title: phraseText(text), next: next && phraseText(next), detail };
  return noticeBox({ ...words, sign, kind: isRunning ? undefined : state });
}

function mountCheckCard(/** @type {CheckId} */ id, /** @type {Results} */ results) {
  const el = byId(id);
  const badge = find(el, ".check-state");
  const place = find(el, ".check-result");
  const draw = () => {
    const result = results.get(id);
    const { state, text } = result;
    el.dataset.state = state;
    badge.dataset.kind = state;
    if (text) place.dataset.key = text.key;
    else delete place.dataset.key;
    render(html`${icon(STATE_ICONS[state])}${t(`check.state_${state}`)}`, badge);
    render(finding(result), place);
  };
  on(results, "change", draw);
  onLangChange(draw);
  draw();
}

const page = await startPage({ titleKey: "nav.check" });

const results = new Results();
/** @type {StatusReport | null} */ let latest = null;
for (const id of CHECKS) mountCheckCard(id, results);
const setTalkRoute = mountVerdict(results);
mountBrowserCheck(results);
await nextTask();
const microphone = mountMicrophoneCheck(results);
const speaker = mountSpeakerCheck(results);
mountEchoCheck(results, { micId: microphone.deviceId, speakerId: speaker.speakerId, beforeStart: microphone.stop });
mountCameraCheck(results);
const checkServer = mountServerCheck(results, () => latest);

on(byId("begin", HTMLButtonElement), "click", () => {
  const next = verdictOf(results).first === "speaker" ? "speaker" : "microphone";
  byId(next).scrollIntoView({ block: "center" });
  if (next === "speaker") void speaker.start();
  else void microphone.start();
});

page.onStatus((report) => {
  latest = report;
  if (["pending", "bad"].includes(results.get("server").state)) void checkServer();
});

const { primary } = chooseStart((await page.apps) ?? []);
setTalkRoute(primary?.route ?? "");
page.ready();
