// @ts-check
/**
 * The large button, those beside it, and the sentence below that says whether it will work.
 */

import { appTitle } from "../shared/app-nav.js";
import { fill, h, icon, setText } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";
import { appLook, chooseStart } from "./app-choice.js";
import { firstObstacle } from "./readiness.js";
import { phraseText } from "./readiness-card.js";

/** @typedef {import("../shared/app-nav.js").App} App */
/** @typedef {import("./readiness.js").Line} Line */

/** Tells a live page to begin without a second press. */
const START_QUERY = "?start=1";
const STARTS_BY_ITSELF = new Set(["audio_duplex"]);

/** @param {App} app */
function startAddress(app) {
  return STARTS_BY_ITSELF.has(app.app_id) ? app.route + START_QUERY : app.route;
}

/**
 * @param {{buttons: HTMLElement, summary: HTMLElement}} places
 * @returns {{setApps: (apps: App[] | null) => void, setLines: (lines: Line[]) => void}} `null`: not known
 */
export function mountHero({ buttons, summary }) {
  /** @type {App[] | null} */
  let apps = null;
  /** @type {Line[]} */
  let lines = [];
  const text = h("span");
  const link = h("a", { href: "#works" });
  fill(summary, h("span", { class: "dot" }), text, link);

  const drawButtons = () => {
    const { primary, secondary } = chooseStart(apps ?? []);
    if (primary === null) {
      fill(buttons, h("p", { class: "soft" }, t(apps === null ? "home.apps_unknown" : "home.apps_none")));
      return;
    }
    const look = appLook(primary.app_id);
    fill(
      buttons,
      h(
        "a",
        { class: "button button-primary button-large hero-start", id: "start", href: startAddress(primary) },
        icon(primary.app_id === "turnbased" ? "chat" : "mic"),
        t(look.startKey, { app: appTitle(primary.app_id, primary.name) }),
      ),
      secondary.map((app) =>
        h(
          "a",
          { class: "button button-large hero-second", href: app.route },
          icon(appLook(app.app_id).icon),
          appTitle(app.app_id, app.name),
        ),
      ),
    );
  };
  const drawSummary = () => {
    const obstacle = firstObstacle(lines);
    summary.dataset.kind = obstacle === null ? "good" : obstacle.state;
    setText(text, obstacle === null ? t("home.ready") : phraseText(obstacle.text));
    const needsLink = obstacle !== null && obstacle.state !== "asking";
    link.hidden = !needsLink;
    setText(link, t("home.what_to_do"));
  };
  onLangChange(() => {
    drawButtons();
    drawSummary();
  });
  return {
    setApps(list) {
      apps = list;
      drawButtons();
    },
    setLines(list) {
      lines = list;
      drawSummary();
    },
  };
}
