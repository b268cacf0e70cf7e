/** Sets the chosen theme before the first paint; the only script that blocks. */
try {
  const theme = localStorage.getItem("minicpmo_theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be blocked; the system theme applies then.
}
