// @ts-check
/** What stands around the sections: asking for the administrator's token, and the list of sections. */

import { t } from "../shared/i18n.js";
import { html, icon, nothing, render, repeat } from "../shared/lit.js";
import { failureText } from "./words.js";

/** @typedef {{id: string, icon: string, titleKey: string}} SectionEntry */
/** @typedef {{count: number, kind: "caution" | "bad", label: string} | null} Badge */

/** Either the token is asked for, or the server did not say who may administrate. */
/** @typedef {{kind: "token", isSignedOut: boolean} | {kind: "failure", error: unknown} | null} LoginState */

/** @param {HTMLElement} el @param {{signIn: (token: string) => Promise<void>, retry: () => void}} options */
export function mountLogin(el, { signIn, retry }) {
  /** @type {LoginState} */
  let state = null;
  let problem = "";
  let isBusy = false;
  el.classList.add("admin-login");

  const draw = () => {
    el.hidden = state === null;
    render(
      state === null
        ? nothing
        : html`<div class="card stack">${state.kind === "token" ? tokenView(state) : failureView(state)}</div>`,
      el,
    );
  };
  const heading = (/** @type {string} */ picture, /** @type {string} */ words) =>
    html`<div class="row">
      ${icon(picture)}
      <h2 id="login-title" tabindex="-1">${words}</h2>
    </div>`;
  /** @param {{error: unknown}} failure */
  const failureView = ({ error }) =>
    html`${heading("warning", t("admin.unreachable"))}
      <p role="alert">${failureText(error, "login")}</p>
      <button type="button" class="button" @click=${retry}>${t("common.retry")}</button>`;
  /** @param {SubmitEvent} event */
  const submit = async (event) => {
    event.preventDefault();
    const input = /** @type {HTMLInputElement} */ (/** @type {HTMLFormElement} */ (event.target).elements.namedItem("token"));
    if (isBusy) return;
    isBusy = input.value.trim() !== "";
    problem = isBusy ? "" : t("admin.token_missing");
    draw();
    if (!isBusy) return;
    try {
      await signIn(input.value.trim());
    } catch (error) {
      problem = failureText(error, "login");
      input.select();
    }
    isBusy = false;
    draw();
  };
  /** @param {{isSignedOut: boolean}} asked */
  const tokenView = ({ isSignedOut }) =>
    html`${heading("lock", t("admin.login"))}
      <p class="soft">${t(isSignedOut ? "admin.login_again" : "admin.login_lead")}</p>
      <form class="stack" novalidate aria-labelledby="login-title" @submit=${submit}>
        <div class="field">
          <label for="token">${t("admin.token")}</label>
          <input
            type="password"
            id="token"
            autocomplete="current-password"
            required
            aria-describedby="token-hint token-problem"
            aria-invalid=${problem ? "true" : nothing}
          />
          <p id="token-hint" class="hint">${t("admin.token_hint")}</p>
          <p id="token-problem" class="field-error" role="alert">${problem}</p>
        </div>
        <div>
          <button type="submit" class="button button-primary" aria-busy=${String(isBusy)}>${t("admin.login_go")}</button>
        </div>
      </form>`;
  return {
    draw,
    /** @param {LoginState} next */
    show(next) {
      state = next;
      problem = "";
      draw();
      if (state?.kind === "token") document.getElementById("token")?.focus();
    },
  };
}

/**
 * The list of sections: links with an address of their own, one shown at a time.
 * @param {HTMLElement} el
 * @param {readonly SectionEntry[]} sections
 * @param {(id: string) => void} onShow
 * @returns {{draw: () => void, reveal: () => void, setBadge: (id: string, badge: Badge) => void}} `reveal` brings the
 *   chosen one into view once the list can be seen
 */
export function mountSectionNav(el, sections, onShow) {
  /** @type {Map<string, Badge>} */
  const badges = new Map();
  let current = "";
  el.classList.add("admin-nav");
  /** @param {SectionEntry} section */
  const link = ({ id, icon: picture, titleKey }) => {
    const badge = badges.get(id);
    return html`<li>
      <a href="#${id}" data-goto=${id} aria-current=${id === current ? "page" : nothing}
        >${icon(picture)}<span>${t(titleKey)}</span>${
          badge ? html`<span class="admin-count" data-kind=${badge.kind} title=${badge.label}>${badge.count}</span>` : nothing
        }</a
      >
    </li>`;
  };
  const draw = () => {
    el.setAttribute("aria-label", t("admin.sections"));
    render(
      html`<ul>
        ${repeat(sections, ({ id }) => id, link)}
      </ul>`,
      el,
    );
  };
  /** On a telephone the list scrolls sideways; the page itself stays where it is. */
  const reveal = () => {
    const list = el.querySelector("ul");
    const chosen = /** @type {HTMLElement | null} */ (el.querySelector("[aria-current]"));
    if (list && chosen) list.scrollLeft = chosen.offsetLeft - (list.clientWidth - chosen.offsetWidth) / 2;
  };
  const show = () => {
    const asked = location.hash.slice(1);
    const id = sections.some((section) => section.id === asked) ? asked : sections[0].id;
    if (id === current) return;
    current = id;
    draw();
    reveal();
    onShow(id);
  };
  addEventListener("hashchange", show);
  show();
  return {
    draw,
    reveal,
    setBadge(id, badge) {
      badges.set(id, badge);
      draw();
    },
  };
}
