/** Shows the state in the tab's title and icon, for a page in the background. */

/** @typedef {"idle" | "queued" | "listening" | "speaking" | "paused" | "error"} TabState */

/** Title prefixes; they need no translation. @type {Readonly<Record<TabState, string>>} */
const SIGNS = { idle: "", queued: "⏳ ", listening: "● ", speaking: "▶ ", paused: "⏸ ", error: "⚠ " };

/** @param {Document} [page] */
export function claimTab(page = document) {
  let title = page.title;
  let sign = "";
  const link = iconLink(page);
  const ownIcon = link.getAttribute("href");

  function render() {
    const shown = sign + title;
    if (page.title !== shown) page.title = shown;
  }

  return {
    /** @param {TabState} state @param {string} [prefix] instead of the state's prefix, such as "(2) " */
    show(state, prefix = SIGNS[state]) {
      const icon = `/static/shared/icons/favicon-${state}.svg`;
      if (link.getAttribute("href") !== icon) link.setAttribute("href", icon);
      sign = prefix;
      render();
    },
    /** @param {string} nextTitle the page's own, after a change of language */
    setTitle(nextTitle) {
      title = nextTitle;
      render();
    },
    restore() {
      sign = "";
      if (ownIcon !== null) link.setAttribute("href", ownIcon);
      render();
    },
  };
}

function iconLink(/** @type {Document} */ page) {
  const found = /** @type {HTMLLinkElement | null} */ (page.querySelector('link[rel="icon"]'));
  if (found) return found;
  const link = page.createElement("link");
  link.rel = "icon";
  link.type = "image/svg+xml";
  page.head.append(link);
  return link;
}
