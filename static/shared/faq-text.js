/** Splits a help page into title, introduction and questions. Pure. */

/** @typedef {{title: string, intro: string, sections: {heading: string, body: string}[]}} Faq */

/** @param {string} markdown one level-1 heading, then a level-2 heading per question @returns {Faq} */
export function splitFaq(markdown) {
  const [head, ...pieces] = markdown.replaceAll("\r\n", "\n").split(/^## +/m);
  const title = /^# +(.+)$/m.exec(head)?.[1].trim() ?? "";
  return {
    title,
    intro: head.replace(/^# +.*$/m, "").trim(),
    sections: pieces.map((piece) => {
      const [heading, ...lines] = piece.split("\n");
      return { heading: heading.trim(), body: lines.join("\n").trim() };
    }),
  };
}

/** Markdown as plain paragraphs, used where it cannot be rendered. @param {string} markdown @returns {string[]} */
export function plainParagraphs(markdown) {
  return markdown
    .replace(/\[([^\]]+)\]\([^)]*\)/g, "$1")
    .replace(/[*_`]{1,2}([^*_`\n]+)[*_`]{1,2}/g, "$1")
    .replace(/^- /gm, "• ")
    .split(/\n{2,}/)
    .map((one) => one.trim())
    .filter(Boolean);
}
