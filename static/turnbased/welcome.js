// @ts-check
/** What an empty conversation shows: a greeting, what the model is if it is only a stand-in, things to say. */

import { byId, setText } from "../shared/dom.js";
import { t } from "../shared/i18n.js";
import { html, mountView } from "../shared/lit.js";

const SUGGESTIONS = ["explain", "write", "picture"];

/**
 * @param {{session: import("./chat-session.js").ChatSession, onSuggest: (text: string) => void}} options
 */
export function mountWelcome({ session, onSuggest }) {
  const el = byId("welcome", HTMLElement);
  const note = byId("demo-note", HTMLElement);
  /** @type {Http.ModelFacts | null} */
  let model = null;
  const follow = () => {
    el.hidden = session.conversation.messages.some(({ role }) => role !== "system");
  };
  const draw = mountView(byId("suggestions", HTMLElement), () => {
    const { kind, name = "", try_saying: sentences, is_demonstration: isDemonstration } = model ?? {};
    note.hidden = !isDemonstration;
    setText(note, kind === "nano" || kind === "cascade" ? t(`chat.demo_${kind}`, { name }) : t("chat.demo"));
    const words = sentences?.length ? sentences : SUGGESTIONS.map((one) => t(`chat.try_${one}`));
    return words.map((one) => html`<button type="button" class="pill suggestion" @click=${() => onSuggest(one)}>${one}</button>`);
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
