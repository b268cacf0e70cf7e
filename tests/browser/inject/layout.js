// An expression whose value is a function: returns one sentence for each thing that does not fit.
() => {
  const SLACK_PX = 1;
  const LEAST_TARGET_PX = 40;
  const CONTROLS = "button, a[href], input, select, textarea, summary, [role=button], [tabindex='0']";
  const TARGETS = "button, select, summary, input:not([type=hidden]), [role=button]";
  const WORDS = "h1, h2, h3, h4, p, li, dt, dd, th, td, label, legend, button, summary, a, span";
  const faults = [];
  const root = document.documentElement;
  const widthPx = root.clientWidth;

  const isSeen = (el) => {
    const box = el.getBoundingClientRect();
    const isThere = el.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
    return isThere && box.width > SLACK_PX && box.height > SLACK_PX;
  };
  const ancestors = (el) => {
    const all = [];
    for (let up = el.parentElement; up && up !== document.body; up = up.parentElement) all.push(up);
    return all;
  };
  const scrollsSideways = (el) => ["auto", "scroll"].includes(getComputedStyle(el).overflowX);
  const isForReaders = (el) =>
    [el, ...ancestors(el)].some((one) => getComputedStyle(one).clipPath === "inset(50%)" ||
      one.classList.contains("visually-hidden") || one.classList.contains("skip-link"));
  const name = (el) => {
    const words = (el.getAttribute("aria-label") ?? el.textContent ?? "").trim().replace(/\s+/g, " ");
    return `<${el.tagName.toLowerCase()}${el.id && `#${el.id}`}${el.className && typeof el.className === "string" ? `.${el.className.split(" ")[0]}` : ""}> "${words.slice(0, 40)}"`;
  };

  if (root.scrollWidth > widthPx + SLACK_PX) {
    faults.push(`the page is ${root.scrollWidth} px wide in a window of ${widthPx} px`);
  }

  for (const el of document.querySelectorAll(CONTROLS)) {
    if (!isSeen(el) || isForReaders(el) || ancestors(el).some(scrollsSideways)) continue;
    const box = el.getBoundingClientRect();
    if (box.left < -SLACK_PX || box.right > widthPx + SLACK_PX) {
      faults.push(`${name(el)} reaches from ${Math.round(box.left)} to ${Math.round(box.right)} of ${widthPx} px`);
    }
  }

  for (const el of document.querySelectorAll(TARGETS)) {
    if (!isSeen(el) || isForReaders(el)) continue;
    const boxes = [el, ...(el.labels ?? [])].filter(isSeen).map((one) => one.getBoundingClientRect());
    const heightPx = Math.max(...boxes.map((box) => box.height));
    const wide = Math.max(...boxes.map((box) => box.width));
    if (Math.round(heightPx) < LEAST_TARGET_PX || Math.round(wide) < LEAST_TARGET_PX) {
      faults.push(`${name(el)} is ${Math.round(wide)} x ${Math.round(heightPx)} px: hard to hit`);
    }
  }

  for (const el of document.querySelectorAll(WORDS)) {
    const hasWords = [...el.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!hasWords || !isSeen(el) || isForReaders(el)) continue;
    const style = getComputedStyle(el);
    if (style.display === "inline" || scrollsSideways(el) || style.textOverflow === "ellipsis") continue;
    if (el.scrollWidth > el.clientWidth + SLACK_PX) {
      faults.push(`${name(el)} needs ${el.scrollWidth} px and has ${el.clientWidth}`);
    }
    const cuts = style.overflowY === "hidden" || style.overflowY === "clip";
    if (cuts && el.scrollHeight > el.clientHeight + SLACK_PX && style.webkitLineClamp === "none") {
      faults.push(`${name(el)} needs a height of ${el.scrollHeight} px and has ${el.clientHeight}`);
    }
  }
  return faults;
}
