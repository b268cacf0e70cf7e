// @ts-check
/** The list of sections: links with an address of their own, one shown at a time. */

import { h, icon, on, setText } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";

/** @typedef {{id: string, icon: string, titleKey: string}} SectionEntry */
/** @typedef {{count: number, kind: "caution" | "bad", label: string} | null} Badge */

/**
 * @param {HTMLElement} el
 * @param {readonly SectionEntry[]} sections
 * @param {(id: string) => void} onShow
 * @returns {{reveal: () => void, setBadge: (id: string, badge: Badge) => void}} `reveal` brings the
 *   chosen one into view once the list can be seen
 */
export function mountSectionNav(el, sections, onShow) {
  const links = new Map(
    sections.map(({ id, icon: picture }) => {
      const text = h("span");
      const badge = h("span", { class: "admin-count", hidden: true });
      const node = h("a", { href: `#${id}`, dataset: { goto: id } }, icon(picture), text, badge);
      return [id, { node, text, badge }];
    }),
  );
  const list = h(
    "ul",
    {},
    [...links.values()].map(({ node }) => h("li", {}, node)),
  );
  el.classList.add("admin-nav");
  el.append(list);

  let current = "";
  const show = () => {
    const asked = location.hash.slice(1);
    const id = links.has(asked) ? asked : sections[0].id;
    if (id === current) return;
    current = id;
    for (const [each, { node }] of links) {
      if (each === id) node.setAttribute("aria-current", "page");
      else node.removeAttribute("aria-current");
    }
    bringIntoView(list, links.get(id)?.node);
    onShow(id);
  };
  const drawWords = () => {
    el.setAttribute("aria-label", t("admin.sections"));
    for (const { id, titleKey } of sections) setText(/** @type {{text: HTMLElement}} */ (links.get(id)).text, t(titleKey));
  };
  on(window, "hashchange", show);
  onLangChange(drawWords);
  drawWords();
  show();

  return {
    reveal: () => bringIntoView(list, links.get(current)?.node),
    setBadge(id, badge) {
      const place = links.get(id)?.badge;
      if (!place) return;
      place.hidden = badge === null;
      if (badge === null) return;
      place.dataset.kind = badge.kind;
      place.title = badge.label;
      setText(place, String(badge.count));
    },
  };
}

/**
 * On a telephone the list scrolls sideways; the page itself stays where it is.
 *
 * @param {HTMLElement} list
 * @param {HTMLElement | undefined} link
 */
function bringIntoView(list, link) {
  if (!link) return;
  list.scrollLeft = link.offsetLeft - (list.clientWidth - link.offsetWidth) / 2;
}
