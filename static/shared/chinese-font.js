// @ts-check
/**
 * Loads the style sheet of the Chinese font that ships with the pages once Chinese text appears. The
 * browser then fetches only the parts whose characters no font of the system has.
 */

const CHINESE = /\p{Script=Han}/u;
const STYLE_SHEET = "/static/vendor/noto-sans-sc/index.css";

/** @param {Node} node */
function textOf(node) {
  if (!(node instanceof Element)) return node.textContent ?? "";
  const fields = [...node.querySelectorAll("textarea")].map((field) => field.value);
  return [node.textContent, ...fields].join("");
}

/** Watches the text of the page until there is Chinese in it. */
export function watchForChinese() {
  const root = document.documentElement;
  const observer = new MutationObserver((changes) => {
    const nodes = changes.flatMap(({ target, addedNodes, type }) =>
      type === "characterData" ? [target] : [...addedNodes],
    );
    if (!nodes.some((node) => CHINESE.test(textOf(node)))) return;
    observer.disconnect();
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = STYLE_SHEET;
    document.head.append(link);
  });
  // Chromium keeps the shapes of text in flex items and table cells when a font arrives late. A new
  // value of this feature, which no font has, makes it shape all text again.
  let count = 0;
  document.fonts.addEventListener("loadingdone", () => {
    count += 1;
    document.body.style.fontFeatureSettings = `"load" ${count}`;
  });
  observer.observe(root, { subtree: true, childList: true, characterData: true });
}
