/** Device check. */

import { mountCheckCard, mountVerdict } from "../check/verdict-view.js";
import { mountCameraCheck, mountMicrophoneCheck } from "../check/input-checks.js";
import { mountBrowserCheck, mountEchoCheck, mountServerCheck, mountSpeakerCheck } from "../check/sound-checks.js";
import { CHECKS, Results, verdictOf } from "../check/results.js";
import { chooseStart } from "../shared/apps.js";
import { byId, on } from "../shared/dom.js";
import { startPage } from "../shared/page.js";

/** @import { StatusReport } from "../shared/page.js" */

const page = await startPage({ titleKey: "nav.check" });

const results = new Results();
const latest = { report: /** @type {StatusReport | null} */ (null) };
for (const id of CHECKS) mountCheckCard(byId(id, HTMLElement), id, results);
const verdict = mountVerdict(results);
mountBrowserCheck(results);
const microphone = mountMicrophoneCheck(results);
const speaker = mountSpeakerCheck(results);
mountEchoCheck(results, { micId: microphone.deviceId, speakerId: speaker.speakerId, beforeStart: microphone.stop });
mountCameraCheck(results);
const server = mountServerCheck(results, () => latest.report);

on(byId("begin", HTMLButtonElement), "click", () => {
  const next = verdictOf(results).first === "speaker" ? "speaker" : "microphone";
  byId(next, HTMLElement).scrollIntoView({ block: "center" });
  if (next === "speaker") void speaker.start();
  else void microphone.start();
});

let isServerChecked = false;
page.onStatus((report) => {
  latest.report = report;
  if (isServerChecked && results.get("server").state !== "bad") return;
  if (results.get("server").state === "running") return;
  isServerChecked = true;
  void server.run();
});

const { primary } = chooseStart((await page.apps) ?? []);
verdict.setTalkRoute(primary?.route ?? "");
page.ready();
