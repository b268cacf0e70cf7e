// @ts-check
/**
 * What an empty conversation shows: a greeting, what the model is if it is only a stand-in, things to say.
 */

import { byId, fill, h, on, setText } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";

const SUGGESTIONS = ["explain", "write", "picture"];

/**
 * @param {{session: import("./chat-session.js").ChatSession, onSuggest: (text: string) => void}} options
 */
export function mountWelcome({ session, onSuggest }) {
  const el = byId("welcome", HTMLElement);
  const note = byId("demo-note", HTMLElement);
  const list = byId("suggestions", HTMLElement);
  /** @type {Http.ModelFacts | null} */
  let model = null;
  const draw = () => {
    el.hidden = session.conversation.messages.some(({ role }) => role !== "system");
    note.hidden = !model?.is_demonstration;
    setText(
      note,
      model?.kind === "nano" || model?.kind === "cascade" ? t(`chat.demo_${model.kind}`, { name: model.name }) : t("chat.demo"),
    );
    const words = model?.try_saying?.length ? model.try_saying : SUGGESTIONS.map((name) => t(`chat.try_${name}`));
    fill(list, words.map(suggestion));
  };
  /** @param {string} words */
  const suggestion = (words) => {
    const button = h("button", { type: "button", class: "pill suggestion" }, words);
    on(button, "click", () => onSuggest(words));
    return button;
  };
  const follow = () => {
    el.hidden = session.conversation.messages.some(({ role }) => role !== "system");
  };
  session.on("change", follow);
  onLangChange(draw);
  draw();
  return {
    /** @param {Http.ModelFacts | null | undefined} next */
    showModel(next) {
      if (JSON.stringify(next ?? null) === JSON.stringify(model)) return;
      model = next ?? null;
      draw();
    },
  };
}
