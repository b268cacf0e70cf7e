// @ts-check
/**
 * The sentence on top that sums it all up, a step for each check, and the report.
 */

import { byId, fill, find, h, icon, on, setText } from "../shared/dom.js";
import { formatDateTime } from "../shared/formats.js";
import { onLangChange, phraseText, t } from "../shared/i18n.js";
import { toast } from "../shared/toast.js";
import { reportText } from "./report.js";
import { CHECKS, verdictOf } from "./results.js";

/** @typedef {import("./results.js").Results} Results */

const STEP_ICONS = { todo: "clock", running: "clock", good: "check", caution: "info", bad: "warning" };

/** What the large button can lead to. @type {ReadonlySet<string>} */
const GUIDED = new Set(["speaker"]);

/** @param {Results} results */
function writeReport(results) {
  const sections = CHECKS.map((id) => {
    const { state, text, facts = {} } = results.get(id);
    return { name: t(`check.${id}`), state: t(`check.state_${state}`), text: text ? phraseText(text) : "", facts };
  });
  /** @type {[string, string][]} */
  const head = [
    [t("check.report_time"), formatDateTime(new Date())],
    [t("check.report_page"), location.origin],
    [t("check.report_browser"), navigator.userAgent],
  ];
  return reportText(t("check.report"), head, sections);
}

/**
 * Changes the steps in place, so that the one in focus keeps it.
 *
 * @param {HTMLElement} steps
 * @param {Results} results
 */
function drawSteps(steps, results) {
  if (steps.childElementCount === 0) {
    fill(
      steps,
      CHECKS.map((id) => h("li", {}, h("a", { class: "step", href: `#${id}` }))),
    );
  }
  for (const [index, id] of CHECKS.entries()) {
    const link = find(steps.children[index], "a", HTMLAnchorElement);
    const { state } = results.get(id);
    link.dataset.state = state;
    fill(
      link,
      icon(STEP_ICONS[state]),
      h("span", {}, t(`check.${id}`)),
      h("span", { class: "visually-hidden" }, t(`check.state_${state}`)),
    );
  }
}

/** @param {Results} results */
export function mountVerdict(results) {
  const box = byId("verdict", HTMLElement);
  const text = byId("verdict-text", HTMLElement);
  const next = byId("verdict-next", HTMLElement);
  const steps = byId("steps", HTMLElement);
  const report = byId("report", HTMLElement);
  const begin = byId("begin", HTMLButtonElement);
  const talk = byId("talk", HTMLAnchorElement);
  let canTalk = false;
  const draw = () => {
    const verdict = verdictOf(results);
    const { kind, done, total, first } = verdict;
    const isReady = kind === "good" || kind === "caution";
    box.dataset.kind = kind;
    setText(text, t(`check.verdict_${kind}`, { done, total }));
    setText(next, first ? t(`check.verdict_${kind}_next`, { check: t(`check.${first}`) }) : "");
    talk.hidden = !isReady || !canTalk;
    begin.hidden = !talk.hidden;
    const isGuiding = kind === "todo" && first !== null && first !== "microphone" && done > 0 && GUIDED.has(first);
    const label = isGuiding ? t("check.next_step", { check: t(`check.${first}`) }) : t("check.begin");
    if (begin.textContent !== label) fill(begin, icon(isGuiding ? "play" : "mic"), h("span", {}, label));
    drawSteps(steps, results);
    // What is marked to be copied by hand stays as it is.
    const marked = getSelection();
    const isMarked = marked !== null && !marked.isCollapsed && marked.containsNode(report, true);
    if (!isMarked) setText(report, writeReport(results));
  };
  on(byId("copy-report", HTMLButtonElement), "click", async () => {
    try {
      await navigator.clipboard.writeText(writeReport(results));
      toast(t("check.report_copied"));
    } catch {
      // Refused, or the page is not secure: the text is shown, to be marked and copied by hand.
      byId("report-panel", HTMLDetailsElement).open = true;
      report.focus();
      getSelection()?.selectAllChildren(report);
      toast(t("check.report_by_hand"));
    }
  });
  on(results, "change", draw);
  onLangChange(draw);
  draw();
  return {
    /** @param {string} route of the page to talk on; "" if there is none */
    setTalkRoute(route) {
      canTalk = route !== "";
      if (canTalk) talk.href = route;
      draw();
    },
  };
}
