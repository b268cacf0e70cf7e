/** Shows the state in the tab's title and icon, for a page in the background. */

/** @typedef {"idle" | "queued" | "listening" | "speaking" | "paused" | "error"} TabState */

/** Title prefixes; they need no translation. @type {Readonly<Record<TabState, string>>} */
const SIGNS = { idle: "", queued: "⏳ ", listening: "● ", speaking: "▶ ", paused: "⏸ ", error: "⚠ " };

/** @param {Document} [page] */
export function claimTab(page = document) {
  let title = page.title;
  /** @type {TabState} */ let state = "idle";
  /** @type {string | undefined} */ let prefix;
  const link = iconLink(page);
  const ownIcon = link.getAttribute("href");

  function render() {
    const shown = (prefix ?? SIGNS[state]) + title;
    if (page.title !== shown) page.title = shown;
  }

  return {
    /** @param {TabState} nextState @param {string} [nextPrefix] instead of the state's prefix, such as "(2) " */
    show(nextState, nextPrefix) {
      if (state !== nextState || link.getAttribute("href") === null) link.href = `/static/shared/icons/favicon-${nextState}.svg`;
      state = nextState;
      prefix = nextPrefix;
      render();
    },
    /** @param {string} nextTitle the page's own, after a change of language */
    setTitle(nextTitle) {
      title = nextTitle;
      render();
    },
    restore() {
      state = "idle";
      prefix = undefined;
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
