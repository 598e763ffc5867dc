// Before the first paint: the theme that was chosen, so that a dark page does not flash. Classic
// and not a module, because modules run later.
try {
  const { theme } = JSON.parse(localStorage.getItem("kvstitch.preferences") ?? "{}");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Storage is closed to this page, or holds something else: the system's theme stays.
}
