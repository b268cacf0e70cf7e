// @ts-check
/**
 * Players for whole files: the film of a video call and what the browser itself recorded.
 */

import { fill, h, icon, on } from "../shared/dom.js";
import { onLangChange, t } from "../shared/i18n.js";

const IS_SOUND = /\.(wav|mp3)$/;

/**
 * @param {HTMLElement} el
 * @param {{name: "film" | "browser" | "sound", url: string, iconName: string, subtitles?: string, isOpen?: boolean, onPlay?: () => void}} options
 * @returns {{media: HTMLMediaElement}}
 */
export function mountReplay(el, { name, url, iconName, subtitles, isOpen = false, onPlay }) {
  const summary = h("summary");
  const about = h("p", { class: "hint" });
  const media = IS_SOUND.test(url)
    ? h("audio", { controls: true, preload: "none", src: url, class: "replay-sound" })
    : h("video", { controls: true, preload: "none", playsinline: true, src: url, class: "replay-film" });
  const track = subtitles ? h("track", { kind: "subtitles", src: subtitles, default: true }) : null;
  if (track) media.append(track);
  const download = h("a", { class: "button", href: url, download: true });
  const details = h(
    "details",
    { class: "panel", dataset: { panel: name }, open: isOpen },
    summary,
    h("div", { class: "stack-tight" }, about, media, h("div", {}, download)),
  );
  el.append(details);
  const draw = () => {
    fill(summary, icon(iconName), t(`viewer.${name}`));
    about.textContent = t(`viewer.${name}_about`);
    media.setAttribute("aria-label", t(`viewer.${name}`));
    if (track) track.label = t("viewer.subtitles");
    fill(download, icon("download"), t("common.download"));
  };
  // Only the first frame, and only for who opens it.
  on(details, "toggle", () => {
    if (details.open) media.preload = "metadata";
    else media.pause();
  });
  if (onPlay) on(media, "play", onPlay);
  onLangChange(draw);
  draw();
  return { media };
}
